"""A table's commits where its log was shortened: what the log holds, and below that what the ledger has of the content.

Belongs here: which of the older commits still matter. Does not belong here: what commits mean together (content.py), the
ledger's table (ledger/commit_records.py).

A stream commits once a second. Of what lies below a log, the commits that a `compact` record or a replacement stands for
are left out: `by_slice` says the same of the slices with and without them, and they are nearly all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lineage_assets.lineage import record as records
from lineage_assets.lineage.commits import Commit, Lake, open_table
from lineage_assets.lineage.content import DATA_KINDS, THROUGH, standing

COMMITS = "ledger/commits"
COLUMNS = ["version", "timestamp_ms", "operation", "restored_to", "record"]


def completed(lake: Lake, asset: str, table_id: str, log: Sequence[Commit]) -> list[Commit]:
    """Commits of a log (newest first, without holes) and below them those of the ledger that the content is made of.

    RESTOREs and foreign commits are all there: they bear on every slice.
    """
    if not log or log[-1].version == 0:
        return list(log)
    ledger = open_table(lake, COMMITS)
    return list(log) if ledger is None else [*log, *_below(ledger, asset, table_id, log)]


def _below(ledger: Any, asset: str, table_id: str, log: Sequence[Commit]) -> list[Commit]:
    import pyarrow.compute as pc

    first = log[-1].version
    mine = (pc.field("asset") == asset) & (pc.field("table_id") == table_id) & (pc.field("version") < first)
    rows = ledger.to_pyarrow_dataset()
    odd = (pc.field("kind") == "compact") | pc.field("kind").is_null() | pc.field("restored_to").is_valid()
    marks = _newest_first(rows.to_table(columns=COLUMNS, filter=mine & odd))
    stands = list(standing([*log, *marks]))
    data = rows.to_table(
        columns=["version", "kind", "slice"], filter=mine & pc.field("kind").isin(sorted(DATA_KINDS))
    ).sort_by([("version", "descending")])
    wanted = list(_needed(_above(data, _floors(stands, first)), _undone(stands)))
    if not wanted:
        return marks
    content = rows.to_table(columns=COLUMNS, filter=mine & pc.field("version").isin(wanted))
    # A RESTORE of ours is a mark; none of its kind is data.
    return sorted([*marks, *_newest_first(content)], key=lambda one: one.version, reverse=True)


def _newest_first(rows: Any) -> list[Commit]:
    found = [
        Commit(one["version"], one["timestamp_ms"], one["operation"], records.read(one["record"]), one["restored_to"])
        for one in rows.to_pylist()
    ]
    return sorted(found, key=lambda one: one.version, reverse=True)


def _floors(stands: Iterable[Commit], first: int) -> dict[str | None, int]:
    """Per slice the newest version that something newer stands for: older commits of the slice do not matter."""
    compacted: dict[str | None, int] = {}
    replaced: dict[str | None, int] = {}
    for commit in stands:
        record, back = commit.record, commit.restored_to
        if back is not None:
            # As in `by_slice`: a compaction that did not know of a RESTORE stands for nothing.
            compacted = {key: one for key, one in compacted.items() if not back < one < commit.version}
        if record is not None and record.kind == "compact" and THROUGH in record.stated:
            compacted.setdefault(record.slice, int(record.stated[THROUGH]))
        elif record is not None and record.kind == "replace":
            replaced[record.slice] = first
    return compacted | replaced


def _undone(stands: Iterable[Commit]) -> list[tuple[int, int]]:
    """Between which versions everything is undone."""
    return [(one.restored_to, one.version) for one in stands if one.restored_to is not None]


def _above(data: Any, floors: dict[str | None, int]) -> Any:
    """The rows above their slice's floor, found in columns: there are a hundred thousand a day."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not floors:
        return data
    # No slice is called so: an index does not find null.
    nothing = "\0"
    keys = pa.array([nothing if key is None else key for key in floors], pa.string())
    at = pc.index_in(pc.fill_null(data["slice"], nothing), value_set=keys)
    floor = pc.fill_null(pc.take(pa.array(list(floors.values()), pa.int64()), at), -1)
    return data.filter(pc.greater(data["version"], floor))


def _needed(data: Any, undone: Sequence[tuple[int, int]]) -> Iterator[int]:
    """Versions whose records the content is made of; `data` is newest first."""
    replaced: set[str | None] = set()
    for one in data.to_pylist():
        if one["slice"] in replaced or any(low < one["version"] < high for low, high in undone):
            continue
        yield one["version"]
        if one["kind"] == "replace":
            replaced.add(one["slice"])
