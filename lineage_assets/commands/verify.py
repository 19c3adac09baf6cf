"""`lineage verify`: hold Delta logs, ledger, Dagster, topics and rows against each other; list what differs."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def verify(
    pending: Annotated[
        int, typer.Option(min=0, help="Seconds that a commit may take to reach the ledger and Dagster.")
    ] = 180,
    topics: Annotated[bool, typer.Option(help="Ask the brokers; without, rows are held against records only.")] = True,
    every_event: Annotated[
        bool, typer.Option("--every-event", help="Also read all events: each version is covered exactly once.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")] = False,
) -> None:
    """Hold Delta logs, ledger, Dagster, topics and rows against each other; list what differs.

    Exit code 1 if anything differs. What was recorded as lost when it happened is listed and is no difference.
    """
    from lineage_assets.definitions import build_defs
    from lineage_assets.reporting.conservation import differences
    from lineage_assets.reporting.declared import declared
    from lineage_assets.reporting.differences import verify as compare
    from lineage_assets.runs import instance
    from lineage_assets.settings import settings

    config = settings()
    found = declared(build_defs().resolve_asset_graph())
    with instance(config) as dagster:
        all_found = compare(
            dagster,
            config.lake_env,
            found.tables,
            pending_s=pending,
            every_event=every_event,
            rows=lambda tables: differences(config, found.sources, tables, with_topics=topics),
            say=lambda text: print(text, file=sys.stderr, flush=True),
        )
    faults = [one for one in all_found if not one.known]
    if as_json:
        print(
            json.dumps([{name: value for name, value in asdict(one).items() if name != "at_ms"} for one in all_found])
        )
    else:
        for one in all_found:
            print(f"{one}{' (known)' if one.known else ''}")
        named = f"{len(faults)} differences" if len(faults) != 1 else "one difference"
        print(f"{len(found.tables)} tables: {named if faults else 'nothing differs'}")
    raise typer.Exit(1 if faults else 0)
