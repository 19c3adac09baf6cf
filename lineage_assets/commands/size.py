"""`lineage size`: print how large tables, ledger, topics and Dagster's storage are, and what grew in a day."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lineage_assets.maintenance.size import EventsSize, FolderSize, TableSize

app = typer.Typer()

Json = Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")]


@app.command()
def size(as_json: Json = False) -> None:
    """Print how large tables, ledger, topics and Dagster's storage are, and what grew in the last 24 hours."""
    from lineage_assets.definitions import build_defs
    from lineage_assets.maintenance import size as sizes
    from lineage_assets.reporting.declared import declared
    from lineage_assets.runs import instance
    from lineage_assets.settings import settings

    config = settings()
    found = declared(build_defs().resolve_asset_graph())
    print("reading logs and file lists", file=sys.stderr, flush=True)
    tables = sizes.tables(config.lake_env, [one.asset for one in found.tables])
    topics = sizes.topics(config, ["/".join(key.path[2:]) for key in found.topics])
    with instance(config) as dagster:
        events = sizes.dagster(config, dagster)
    if as_json:
        print(
            json.dumps(
                {
                    "tables": [asdict(one) for one in tables],
                    "topics": [asdict(one) for one in topics],
                    "dagster": asdict(events),
                }
            )
        )
        return
    _print(tables, topics, events)


def _print(tables: Sequence[TableSize], topics: Sequence[FolderSize], events: EventsSize) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    headings = ("rows", "data", "old files", "files", "log", "commits")
    table.add_column("table", overflow="fold")
    for heading in (*headings, "+rows/day", "+data/day", "+log/day", "+commits/day"):
        table.add_column(heading, justify="right")
    for one in tables:
        grown = one.last_day
        table.add_row(
            one.asset, f"{one.rows:,}", human(one.data_bytes), human(one.unused_bytes), f"{one.files:,}",
            human(one.log_bytes), f"{one.commits:,}", f"{grown.rows:,}", human(grown.data_bytes),
            human(grown.log_bytes), f"{grown.commits:,}",
        )  # fmt: skip
    # A pipe has no width of its own: nothing is to be cut there.
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table)
    for topic in topics:
        console.print(f"{topic.name}: {human(topic.bytes)} in the broker", highlight=False)
    stored = "in a database server" if events.bytes is None else human(events.bytes)
    console.print(
        f"Dagster's storage: {stored}, {events.events:,} events of assets and checks, "
        f"{events.last_day_events:,} of the last day",
        highlight=False,
    )


def human(number: int) -> str:
    """Bytes as people read them.

    >>> human(900), human(1_500_000)
    ('900 B', '1.5 MB')
    """
    size, units = float(number), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"
