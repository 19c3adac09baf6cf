"""`lineage bench`: measure a stream here: latency, catch-up, what lineage costs, memory, bytes.

Belongs here: the command line. Does not belong here: measuring (lineage_assets/bench/).
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from lineage_assets.bench.report import Results

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _frame() -> None:
    """Measure a stream here: latency, catch-up, what lineage costs, memory, bytes."""


@app.command()
def stream(
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="a latency, b catch-up, c overhead, d memory, e commit to Dagster, f CPU and bytes; may be given again, "
            "or together: --part ab. Default: all."
        ),
    ] = None,
    rate: Annotated[
        list[float] | None, typer.Option(min=1, help="Events/s; may be given again. Default: 1400 and 14000.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="How long each rate is measured, after the warm-up.")] = 300.0,
    warm_up: Annotated[
        float, typer.Option(min=0, help="Seconds of load before that, once the stream has caught up.")
    ] = 60.0,
    events: Annotated[int, typer.Option(min=1_000, help="Events of the catch-up.")] = 3_000_000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the catch-up; the first warms up.")] = 4,
    pairs: Annotated[int, typer.Option(min=1, help="Rounds of the overhead, after one that warms up.")] = 5,
    overhead_events: Annotated[int, typer.Option(min=1_000, help="Events of each turn of the overhead.")] = 280_000,
    each: Annotated[
        bool, typer.Option("--each/--no-each", help="Also what each part of lineage costs by itself.")
    ] = True,
    window: Annotated[
        bool, typer.Option("--window/--no-window", help="Fill the look-back window first; compact and checkpoint.")
    ] = True,
    profile: Annotated[str, typer.Option(help="The stream's profile.")] = "embedded",
    bite: Annotated[int | None, typer.Option(min=1, help="Most records of a batch. Default: the profile's.")] = None,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of the topics.")] = 3,
    here: Annotated[bool, typer.Option("--here", help="Use the stack that runs. Default: one of its own.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave stack, topics and tables.")] = False,
    plots: Annotated[Path | None, typer.Option(help="Folder for the plots, as SVG.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")] = False,
) -> None:
    """Measure one stream of the shop's clicks. Exit code 1 if a row is missing or a figure is not reached.

    Takes minutes for each part, and all of the machine: run nothing else beside it.
    """
    from lineage_assets.bench import report, session
    from lineage_assets.errors import ContractError
    from lineage_assets.settings import settings

    parts = frozenset("".join(part)) if part else frozenset(session.PARTS)
    try:
        session.require_possible(parts, here=here)
    except ContractError as error:
        raise typer.BadParameter(str(error), param_hint="--part") from error
    wanted = session.Wanted(
        parts=parts,
        rates=tuple(rate) if rate else session.RATES,
        seconds=seconds, warm_up_s=warm_up, events=events, rounds=rounds, overhead_events=overhead_events, pairs=pairs,
        each=each, window=window, profile=profile, bite=bite, partitions=partitions,
    )  # fmt: skip
    config = settings()
    file = config.home / "bench" / f"{datetime.now(UTC):%Y%m%d-%H%M%S}.json"

    def put(measured: Results) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch = file.with_suffix(".part")
        scratch.write_text(json.dumps(report.to_json(measured)))
        scratch.replace(file)
        _say("bench", f"what was measured so far is in {file}")

    results = session.run(config, wanted, _say, put, here=here, keep=keep)
    if plots is not None:
        for drawn in report.write_plots(results, plots):
            _say("plots", str(drawn))
    document = report.to_json(results)
    print(json.dumps(document) if as_json else "\n".join(report.lines(results)))
    raise typer.Exit(0 if _good(results, document) else 1)


def _good(results: Results, document: dict[str, Any]) -> bool:
    """Whether all rows were seen and all figures reached; what was not is said."""
    wrong = list(results.incomplete)
    for one in document["figures"]:
        if one["reached"] is False:
            wrong.append(f"{one['name']} is {one['value']:,.2f} {one['unit']}; to be reached: {one['limit']:,.10g}")
    for text in wrong:
        print(text, file=sys.stderr)
    return not wrong


def _say(part: str, text: str) -> None:
    print(f"{part}: {text}", file=sys.stderr, flush=True)
