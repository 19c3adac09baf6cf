"""`lineage materialize`: make assets here and now, slice by slice, without the UI."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def materialize(
    assets: Annotated[list[str], typer.Argument(help="Asset keys, such as silver/clicks or marts/user_value.")],
    slices: Annotated[
        list[str] | None,
        typer.Option("--slice", help="Slice key; may be given again. Default: every slice with records."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")] = False,
) -> None:
    """Make assets here and now, slice by slice, without the UI. Assets that are made together come along.

    Exit code 1 if anything fails, a blocking check included.
    """
    from lineage_assets.runs import materialize as make
    from lineage_assets.settings import settings

    done = []
    for one in make(settings(), assets, slices):
        done.append(one)
        if not as_json:
            out = sys.stderr if one.failure else sys.stdout
            print(f"{one.name}: {one.failure or 'done'}", file=out, flush=True)
    if as_json:
        print(json.dumps([{"assets": one.assets, "slice": one.slice, "failure": one.failure or None} for one in done]))
    raise typer.Exit(1 if any(one.failure for one in done) else 0)
