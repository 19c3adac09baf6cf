"""`lineage maintain`: compact closed slices, write checkpoints, remove what nobody needs any more."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lineage_assets.maintenance.run import Maintained

app = typer.Typer()

Json = Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")]


@app.command()
def maintain(
    only: Annotated[
        list[str] | None,
        typer.Option(help="compact, checkpoint, vacuum, shorten, ledger or events; may be repeated. Default: all."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compact closed slices, write checkpoints, remove what nobody needs any more.

    Safe while streams and runs write. A slice that somebody else is writing waits for the next time. Exit code 1 if
    something could not be done.
    """
    from lineage_assets.definitions import build_defs
    from lineage_assets.errors import ContractError
    from lineage_assets.maintenance import run
    from lineage_assets.maintenance.policy import policy
    from lineage_assets.reporting.declared import declared
    from lineage_assets.runs import instance
    from lineage_assets.settings import settings

    try:
        run.chosen(only or [])
    except ContractError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    config = settings()
    numbers, tables = policy(config), declared(build_defs().resolve_asset_graph()).tables
    with instance(config) as dagster:
        done = run.maintain(config, dagster, tables, numbers, only or [], _say)
    if as_json:
        print(json.dumps(done.told()))
    else:
        _print(done)
    for problem in done.problems:
        print(f"error: {problem}", file=sys.stderr)
    raise typer.Exit(1 if done.problems else 0)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print(done: Maintained) -> None:
    for line in said(done):
        print(line)


def said(done: Maintained) -> list[str]:
    """What was done, in words."""
    lines = []
    for slice_ in done.compact:
        how = "left for the next time: a writer was first" if slice_.version is None else f"version {slice_.version}"
        lines.append(
            f"compacted {slice_.asset} {slice_.slice}: {slice_.files_before} small files -> {slice_.files_after}, {how}"
        )
    for point in done.checkpoint:
        lines.append(f"checkpoint of {point.asset} at version {point.version}, after {point.commits:,} commits")
    for cleared in done.vacuum:
        lines.append(f"vacuumed {cleared.asset}: {cleared.files:,} files, {cleared.bytes:,} bytes")
    for log in done.shorten:
        waits = f"; the rest waits: {log.waits}" if log.waits else ""
        lines.append(
            f"shortened the log of {log.asset}: {log.commits:,} commits, it begins at version {log.begins}{waits}"
        )
    for table in done.ledger:
        lines.append(
            f"{table.asset}: {table.files_before:,} files -> {table.files_after:,}, "
            f"{table.removed_files + table.removed_log_files:,} old ones removed"
        )
    if done.events is not None:
        lines.append(
            f"Dagster: {done.events.events:,} old events and {done.events.check_results:,} check results removed, "
            f"{done.events.left:,} events left"
        )
    return lines or ["nothing was to be done"]
