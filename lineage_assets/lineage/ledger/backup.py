"""Copies of the ledger elsewhere, and back.

Belongs here: copying the ledger's tables. Does not belong here: tables of data; raw is an archive as large as its topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from lineage_assets.errors import ContractError, FatalError
from lineage_assets.lineage import ledger
from lineage_assets.lineage.commits import Lake, open_table


@dataclass(frozen=True, slots=True)
class Copied:
    """A table of the ledger, and how many rows of it were copied or put back."""

    table: str
    rows: int


def back_up(lake: Lake, to: str, storage_options: Mapping[str, str] | None = None) -> list[Copied]:
    """Copy each ledger table, as of one version, to a folder or URL, over what an earlier backup left there.

    Raises FatalError when the copy that is there has rows that the ledger lacks: then it is the better of the two.
    """
    from deltalake import write_deltalake

    target = _target(to, lake, storage_options)
    options = dict(target.storage_options) or None
    copied = []
    for one in ledger.TABLES:
        source, earlier = open_table(lake, one.asset), open_table(target, one.asset)
        rows = 0 if source is None else source.count()
        if earlier is not None and (source is None or _missing(one, source, earlier)):
            raise FatalError(
                f"{target.path(one.asset)} has rows that {lake.path(one.asset)} lacks: the ledger lost some",
                remedy="put them back with `lineage backup --restore`, or choose another place for this backup",
            )
        if source is None:
            continue
        write_deltalake(
            target.path(one.asset),
            source.to_pyarrow_dataset().scanner().to_reader(),
            mode="overwrite",
            partition_by=list(one.partition_by),
            storage_options=options,
        )
        written = open_table(target, one.asset)
        assert written is not None
        if written.count() != rows:
            raise FatalError(f"{target.path(one.asset)} has {written.count()} rows, and {rows} were copied")
        written.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        copied.append(Copied(one.asset, rows))
    return copied


def put_back(lake: Lake, source: str, storage_options: Mapping[str, str] | None = None) -> list[Copied]:
    """Add to the ledger what it lacks of a backup; what it has stays as it is. Raises ContractError for no backup."""
    target = _target(source, lake, storage_options)
    found = [(one, opened) for one in ledger.TABLES if (opened := open_table(target, one.asset)) is not None]
    if not found:
        raise ContractError(
            f"{source} holds no backup of a ledger", remedy="name the place that `lineage backup` wrote"
        )
    copied = []
    for one, opened in found:
        rows = 0
        for batch in opened.to_pyarrow_dataset().scanner(batch_size=20_000).to_reader():
            rows += one.append(lake, f"a backup of {one.asset}", partial(_lacking, one, batch.to_pylist()))
        copied.append(Copied(one.asset, rows))
    return copied


def _target(place: str, lake: Lake, storage_options: Mapping[str, str] | None) -> Lake:
    remote = "://" in place
    return Lake(place.rstrip("/"), (storage_options or lake.storage_options) if remote else {})


def _lacking(one: ledger.LedgerTable, rows: list[dict[str, Any]], table: Any) -> list[dict[str, Any]]:
    known = _keys(one, table)
    return [row for row in rows if tuple(row[name] for name in one.known_by) not in known]


def _missing(one: ledger.LedgerTable, table: Any, earlier: Any) -> bool:
    return bool(_keys(one, earlier) - _keys(one, table))


def _keys(one: ledger.LedgerTable, table: Any) -> set[tuple[Any, ...]]:
    found = table.to_pyarrow_table(columns=list(one.known_by))
    return set(zip(*(found[name].to_pylist() for name in one.known_by), strict=True))
