"""`lineage rebuild`: fill an empty Dagster instance from ledger and Delta logs, with the original times."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def rebuild(
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")] = False,
) -> None:
    """Fill an empty Dagster instance from ledger and Delta logs, with the original times.

    Also gives the ledger back what the logs still hold. An instance that holds something is left as it is: exit code 1.
    Run it before the UI is started: what is told meanwhile would stand before what happened earlier.
    """
    from lineage_assets.definitions import build_defs
    from lineage_assets.reporting.declared import declared
    from lineage_assets.reporting.rebuild import rebuild as fill
    from lineage_assets.runs import instance
    from lineage_assets.settings import settings

    config = settings()
    found = declared(build_defs().resolve_asset_graph())
    with instance(config) as dagster:
        done = fill(
            dagster,
            config.lake_env,
            found.tables,
            found.topics,
            say=lambda text: print(text, file=sys.stderr, flush=True),
        )
    if as_json:
        print(json.dumps(asdict(done)))
        return
    print(f"{done.events:,} events stored; {done.kept:,} commit records given back to the ledger")
    for asset, versions in done.gone.items():
        print(f"{asset}: the records of versions {versions} are gone: they are in neither log nor ledger")
    print("Check it with: lineage verify")
