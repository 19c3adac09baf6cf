"""`lineage demo`: run the web shop from nothing to a report, and leave the Dagster UI open."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lineage_assets.demo.story import Report
    from lineage_assets.settings import Settings

app = typer.Typer()


@app.command()
def demo(
    events: Annotated[int, typer.Option(help="How many clicks the shop's visitors make.")] = 60_000,
    ui: Annotated[bool, typer.Option("--ui/--no-ui", help="Leave the Dagster UI running.")] = True,
    port: Annotated[int | None, typer.Option(help="Port of the UI. Default: the setting ui_port, 3000.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")] = False,
) -> None:
    """Run the web shop from nothing to a report, and leave the Dagster UI open.

    Starts the stack, produces clicks whose truth is known, materializes every hour and the marts, and holds the
    counts against the truth. Exit code 1 if they differ.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from lineage_assets.stack import control
    from lineage_assets.stack import dagster as dagster_processes

    config = _with_first_slice()
    console = Console(stderr=True)
    control.up(config, lambda part, text: console.print(f"[bold]{part}[/]: {text}", highlight=False))

    from lineage_assets.demo import story

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=None)
        shown = lambda text, done, total: bar.update(task, description=text, completed=done, total=total)  # noqa: E731
        truth = story.produce(config, events, shown)
        story.materialize(config, truth, shown)
        report = story.report(config, truth)
    address = None
    if ui:
        wanted = config.ui_port if port is None else port
        address = dagster_processes.start(config, wanted, lambda part, text: console.print(f"[bold]{part}[/]: {text}"))
    if as_json:
        print(json.dumps({**report.to_json(), "ui": address, "lake": config.lake}))
    else:
        _print(report, address, f"{config.lake}/{config.env}")
    sys.exit(0 if report.equal else 1)


def _with_first_slice() -> Settings:
    """The settings; in a new home the demo's slices begin the day before its first hour, or the UI shows months of nothing."""
    from lineage_assets.settings import settings

    config = settings()
    file = config.home / "lineage.toml"
    if not file.exists() and "slices_since" not in config.model_fields_set:
        config.home.mkdir(parents=True, exist_ok=True)
        since = datetime.now(UTC) - timedelta(days=1)
        file.write_text(f'# Written by `lineage demo`.\nslices_since = "{since:%Y-%m-%d}"\n')
        settings.cache_clear()
    return settings()


def _print(report: Report, address: str | None, lake: str) -> None:
    """Plain lines: they are read in terminals, logs and chats alike."""
    names = list(report.hours[0].truth)
    print("Rows counted in the tables, against what the producer says of its events:")
    print(f"{'slice':<14}" + "".join(f"{name:>11}" for name in names) + "  truth")
    for hour in report.hours:
        differing = ", ".join(
            f"{name} {hour.truth[name]:,}" for name in names if hour.truth[name] != hour.counted[name]
        )
        held = f", held by {', '.join(hour.held_by)}" if hour.held_by else ""
        counts = "".join(f"{hour.counted[name]:>11,}" for name in names)
        print(f"{hour.slice:<14}{counts}  {f'differs: {differing}' if differing else 'equal'}{held}")
    for name, rows in report.marts.items():
        print(f"marts/{name}: {rows:,} rows")
    print(f"Tables: {lake}")
    if address:
        print(f"Graph:  {address}/asset-groups\nStop everything with: lineage down")
