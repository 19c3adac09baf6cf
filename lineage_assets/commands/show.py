"""`lineage show`: print a commit's record: where its rows came from and what became of what was read."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from lineage_assets.lineage.ledger.commit_records import Found
    from lineage_assets.lineage.record import CommitRecord

app = typer.Typer()


@app.command()
def show(
    commit: Annotated[
        str, typer.Argument(metavar="ASSET[@VERSION]", help="Such as silver/clicks or silver/clicks@812.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")] = False,
) -> None:
    """Print a commit's record: where its rows came from and what became of what was read.

    Without a version, the newest. Exit code 1 if there is no record: the version is unknown, gone or foreign.
    """
    from lineage_assets.lineage.ledger.commit_records import find
    from lineage_assets.settings import settings

    asset, _, written = commit.partition("@")
    if not asset or (written and not written.isdecimal()) or commit.endswith("@"):
        print(f"error: {commit!r} is no ASSET[@VERSION]; write it as silver/clicks@812", file=sys.stderr)
        raise typer.Exit(2)
    version = int(written) if written else None
    table = _table_behind(asset)
    found = find(settings().lake_env, table, version)
    if found.entry is None or found.entry.foreign:
        said = _why_none(table, version, found)
        if as_json:
            print(json.dumps({"asset": table, **_facts(found), "record": None, "why": said}))
        print(f"error: {said}", file=sys.stderr)
        raise typer.Exit(1)
    if as_json:
        record = json.loads(found.entry.text or "null")
        print(json.dumps({"asset": table, **_facts(found), "record": record}))
        return
    _print(table, found)


def _table_behind(asset: str) -> str:
    """Views have no commits: those of the table that they are over tell all."""
    layer, _, name = asset.partition("/")
    return {"dead_letters": f"raw/{name}", "late": f"silver/{name}"}.get(layer, asset)


def _facts(found: Found) -> dict[str, Any]:
    entry = found.entry
    if entry is None:
        return {"version": None, "newest": found.newest, "from": None}
    return {
        "version": entry.version,
        "newest": found.newest,
        "from": found.source,
        "table_id": entry.table_id,
        "timestamp_ms": entry.timestamp_ms,
        "operation": entry.operation,
    }


def _why_none(table: str, version: int | None, found: Found) -> str:
    if found.newest is None:
        return f"{table} has no table and the ledger no commit of it; see `lineage materialize {table}`"
    if found.entry is not None:
        entry = found.entry
        return (
            f"{table}@{entry.version} is a foreign commit ({entry.operation or 'unknown operation'}): somebody wrote it "
            "without a record, so nobody knows what its rows came from"
        )
    if version is not None and version > found.newest:
        return f"{table}@{version} is unknown: the newest version is {found.newest}"
    return (
        f"the record of {table}@{version} is gone: it is in neither the Delta log nor the ledger; "
        "`lineage backup --restore` brings back what a backup has"
    )


def _print(table: str, found: Found) -> None:
    from rich.console import Console

    entry = found.entry
    assert entry is not None
    record = entry.commit().record
    assert record is not None
    console = Console(highlight=False, soft_wrap=True)
    newest = "" if entry.version == found.newest else f" (the newest is {found.newest})"
    console.print(f"[bold]{table}@{entry.version}[/]{newest}, from the {found.source}")
    facts = {
        "written": f"{record.written_at:%Y-%m-%d %H:%M:%S} UTC by {record.run}"
        + (f", batch {record.batch}" if record.batch is not None else "")
        + (f", attempt {record.attempt}" if record.attempt != 1 else ""),
        "kind": record.kind + (f" of slice {record.slice}" if record.slice else ""),
        "code": record.code,
        "contract": record.contract,
        "schema": record.schema,
        "counts": ", ".join(f"{name} {count:,}" for name, count in record.counts.items()),
        "reasons": ", ".join(f"{name}: {count:,}" for name, count in record.reasons.items()),
        "stated": json.dumps(dict(record.stated)) if record.stated else "",
    }
    for name, value in facts.items():
        if value:
            console.print(f"  {name:<9} {value}", markup=False)
    _print_inputs(console, record)
    for one in record.checks:
        verdict = "passed" if one.passed else f"{one.severity}: {one.failed:,} of {one.total:,}"
        examples = f", first {', '.join(one.examples)}" if one.examples else ""
        console.print(f"  check     {one.name}: {verdict}{examples}", markup=False)


def _print_inputs(console: Console, record: CommitRecord) -> None:
    for topic in record.topics:
        console.print(f"  from      topic {topic.topic} on {topic.cluster}, id {topic.topic_id}", markup=False)
        for partition, held in sorted(topic.ranges.items()):
            console.print(f"              partition {partition}: offsets {held}, {held.span:,} in all", markup=False)
        for use in topic.schemas:
            named = "not registered under it" if use.version is None else f"version {use.version}"
            console.print(f"              schema {use.id} of {use.subject}, {named}", markup=False)
    for one in record.tables:
        what = f"commits [{one.commits[0]}, {one.commits[1]})" if one.commits else f"read at version {one.read_at}"
        held_back = f", without held {', '.join(one.held)}" if one.held else ""
        role = f" as {one.role}" if one.role else ""
        console.print(f"  from      {one.table}{role}, {what}{held_back}", markup=False)
