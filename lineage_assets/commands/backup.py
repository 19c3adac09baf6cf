"""`lineage backup`: copy the ledger to a folder or URL, or put back from there what the ledger lost."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

app = typer.Typer()

NOT_IN_IT = {
    "raw/*": "the archive of the topics: copy these tables too; {there}",
    "silver/*, gold/*, marts/*": "made again from raw: `lineage materialize`",
    "Dagster's database": "made again from the ledger: `lineage rebuild`",
}
"""What this copy leaves out, and why that is no loss, or what else must be done."""


@app.command()
def backup(
    place: Annotated[str, typer.Argument(metavar="TO", help="A folder or a URL such as s3://bucket/backup.")],
    restore: Annotated[bool, typer.Option("--restore", help="Put back from TO what the ledger lacks.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")] = False,
) -> None:
    """Copy the ledger (commit records, cuts) to a folder or URL, or put back from there what the ledger lost.

    A URL is opened with the setting storage_options. An earlier copy at TO is replaced; one that knows more is not.
    """
    from lineage_assets.lineage.ledger.backup import back_up, put_back
    from lineage_assets.settings import settings

    lake = settings().lake_env
    print(f"{'putting back' if restore else 'copying'} the ledger of {lake.root}", file=sys.stderr, flush=True)
    done = put_back(lake, place) if restore else back_up(lake, place)
    left_out = {} if restore else {name: why.format(there=lake.path("raw")) for name, why in NOT_IN_IT.items()}
    if as_json:
        print(json.dumps({"tables": {one.table: one.rows for one in done}, "not_in_it": left_out}))
        return
    for one in done:
        print(f"{one.table}: {one.rows:,} rows {'put back' if restore else 'copied'}")
    if not done:
        print("the ledger is empty: nothing was written yet")
    for name, why in left_out.items():
        print(f"not in it: {name}: {why}")
