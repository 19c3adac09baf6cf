"""`lineage stream`: run, watch and stop the continuous way from a topic into raw and silver.

Belongs here: the command line of streams. Does not belong here: what a stream does (spark/stream.py).
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from contextlib import suppress
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True, help="Run, watch and stop the continuous way from a topic into raw and silver.")

Json = Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")]
Name = Annotated[str, typer.Argument(help="The topic, such as clicks.")]


@app.command()
def run(
    name: Name,
    profile: Annotated[str, typer.Option(help="embedded: a batch as soon as there is news. production: every 5 s.")] = (
        "embedded"
    ),
    bite: Annotated[
        int | None, typer.Option(help="Most records of a batch. Default: by profile and free heap.")
    ] = None,
    max_seconds: Annotated[float | None, typer.Option(help="End after so long.")] = None,
    until_caught_up: Annotated[bool, typer.Option(help="End when what is in the topic now is in the tables.")] = False,
    with_parent: Annotated[bool, typer.Option(hidden=True, help="End when stdin is closed.")] = False,
    as_json: Json = False,
) -> None:
    """Stream a topic into raw and silver until it is stopped. SIGTERM and Ctrl-C end it after the current batch."""
    from lineage_assets.definitions import event_table
    from lineage_assets.lineage import lease
    from lineage_assets.settings import settings
    from lineage_assets.spark import stream

    config, table, stop = settings(), event_table(name), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if with_parent:
        threading.Thread(target=_until_closed, args=(stop,), daemon=True).start()
    options = stream.Options(stream.profile(profile, bite), max_seconds, until_caught_up)
    if not with_parent:
        lease.wish(config.lake_env, table.topic, True)
    held = stream.run(config, table, options, stop, _say)
    if not with_parent:
        # It ended because somebody wanted that: nobody is to start it again. After a kill the wish stands.
        lease.wish(config.lake_env, table.topic, False)
    if as_json:
        print(json.dumps(_shown(held)))


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(help="The topic. Default: all streams.")] = None, as_json: Json = False
) -> None:
    """Show the streams of this lake: whether they run, their last batch, their lag. Exit code 1 if one that is wanted does not."""
    from lineage_assets.lineage import lease
    from lineage_assets.settings import settings

    lake = settings().lake_env
    names = [name] if name else lease.streams(lake)
    found = [_state(lake, one) for one in names]
    if as_json:
        print(json.dumps(found))
    else:
        _print(found)
    if any(one["wanted"] and not one["live"] for one in found):
        raise typer.Exit(1)


@app.command()
def stop(
    name: Name,
    timeout: Annotated[float, typer.Option(help="How long to wait for its current batch, in seconds.")] = 120.0,
    as_json: Json = False,
) -> None:
    """End a stream after its current batch, and wait until it has ended."""
    import time

    from lineage_assets.errors import TransientError
    from lineage_assets.lineage import lease
    from lineage_assets.settings import settings

    lake = settings().lake_env
    lease.wish(lake, name, False)
    until = time.monotonic() + timeout
    ran = lease.live(lake, name) is not None
    while lease.live(lake, name) is not None:
        if time.monotonic() > until:
            raise TransientError(
                f"the stream of {name} has not ended after {timeout:.0f} s", remedy="see `lineage stream status`"
            )
        time.sleep(0.2)
    if as_json:
        print(json.dumps({"stream": name, "what": "stopped" if ran else "was not running"}))
    else:
        print(f"{name}: {'stopped' if ran else 'was not running'}")


@app.command()
def resume(
    name: Name,
    from_table: Annotated[
        bool, typer.Option("--from-table", help="Go on from what the tables hold, after one of them was restored.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Bring raw and silver to one common cut after a restore, so that the stream can go on from there."""
    from lineage_assets.definitions import event_table
    from lineage_assets.settings import settings
    from lineage_assets.spark import resume as resuming

    if not from_table:
        raise typer.BadParameter("say --from-table: there is nothing else to resume from")
    config = settings()
    done = resuming.from_table(config, event_table(name))
    if as_json:
        print(json.dumps(done))
    else:
        print("; ".join(f"{asset} is at the content of version {version}" for asset, version in done.items()))


def _state(lake: Any, name: str) -> dict[str, Any]:
    from lineage_assets.lineage import lease

    held, wanted = lease.read(lake, name), lease.wanted(lake, name)
    shown = {"stream": name, "state": "never started"} if held is None else _shown(held)
    return {**shown, "live": held is not None and held.live(), "wanted": bool(wanted)}


def _shown(held: Any) -> dict[str, Any]:
    return {
        "stream": held.stream,
        "state": held.state,
        "owner": held.owner,
        "host": held.host,
        "pid": held.pid,
        "beat_at": held.beat_at.isoformat(),
        **dict(held.facts),
    }


def _print(found: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("stream", "state", "pid", "batch", "rows", "took", "rows/s", "bite", "restarts", "error"):
        table.add_column(heading, overflow="fold")
    for one in found:
        last = one.get("last") or {}
        state = one["state"] if one["live"] or one["state"] in ("stopped", "failed", "never started") else "gone"
        cells = (
            one["stream"], state, one.get("pid", ""), last.get("batch", ""), last.get("rows", ""), last.get("took_s", ""),
            one.get("rows_a_second", ""), one.get("bite", ""), one.get("restarts", ""), one.get("error", ""),
        )  # fmt: skip
        table.add_row(*map(str, cells))
    Console().print(table if found else "no stream was ever started in this lake")


def _say(text: str) -> None:
    # Whoever listened may be gone: that is no reason to leave a batch half done.
    with suppress(BrokenPipeError):
        print(text, file=sys.stderr, flush=True)


def _until_closed(stop: threading.Event) -> None:
    """Whoever started us holds our stdin open as long as it lives."""
    sys.stdin.read()
    stop.set()
