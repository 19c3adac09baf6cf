"""Commit records as they stand in a Delta log: which commit holds what, newest first.

Belongs here: reading a table's log (deltalake, no JVM) and what follows from it alone.
Does not belong here: writing a table, the ledger's own tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lineage_assets.lineage import record as records
from lineage_assets.lineage.offsets import OffsetRange, Ranges, merge, minus, span
from lineage_assets.lineage.record import CommitRecord

DATA_KINDS = frozenset({"append", "replace", "delete", "erase"})
"""Kinds of record that say what a slice holds; `compact`, `create` and `schema` leave its rows alone."""


@dataclass(frozen=True, slots=True)
class Lake:
    """Where an environment's tables are, and how deltalake gets at them."""

    root: str
    storage_options: Mapping[str, str] = field(default_factory=dict)

    def path(self, asset: str) -> str:
        """Path or URL of the Delta table of an asset such as `raw/clicks`."""
        return f"{self.root}/{asset}"


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of a table. `record` is None on a foreign commit: somebody else wrote it."""

    version: int
    timestamp_ms: int
    operation: str
    record: CommitRecord | None


def open_table(lake: Lake, asset: str, version: int | None = None) -> Any | None:
    """The `deltalake.DeltaTable` of an asset, or None when nothing was ever written there."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        return DeltaTable(lake.path(asset), version=version, storage_options=dict(lake.storage_options) or None)
    except TableNotFoundError:
        return None


def commits(lake: Lake, asset: str, limit: int | None = None) -> list[Commit]:
    """The commits that the log still holds, newest first; none for a table that does not exist."""
    table = open_table(lake, asset)
    if table is None:
        return []
    return [
        Commit(
            version=entry["version"],
            timestamp_ms=entry.get("timestamp", 0),
            operation=entry.get("operation", ""),
            record=records.read(entry.get("userMetadata")),
        )
        for entry in table.history(limit)
    ]


def by_slice(history: Iterable[Commit]) -> dict[str | None, list[tuple[Commit, CommitRecord]]]:
    """Per slice (None: an unpartitioned table) the commits that made its present content, newest first.

    `history` is newest first. A replacement of the slice ends its list: what was before is gone.
    """
    found: dict[str | None, list[tuple[Commit, CommitRecord]]] = {}
    for commit in history:
        record = commit.record
        if record is None or record.kind not in DATA_KINDS:
            continue
        entries = found.setdefault(record.slice, [])
        if not entries or entries[-1][1].kind != "replace":
            entries.append((commit, record))
    return found


def newest_by_slice(history: Iterable[Commit]) -> dict[str | None, tuple[Commit, CommitRecord]]:
    """Per slice the newest commit that changed its rows."""
    return {key: entries[0] for key, entries in by_slice(history).items()}


def held_ranges(entries: Iterable[tuple[Commit, CommitRecord]], topic_id: str) -> dict[int, OffsetRange]:
    """The offset ranges of a topic that one slice of a raw table holds, by the records of its content."""
    held: dict[int, OffsetRange] = {}
    for _, record in entries:
        for topic in record.topics:
            if topic.topic_id == topic_id:
                held = merge(held, topic.ranges)
    return held


Lost = Mapping[int, tuple[OffsetRange, ...]]
"""Per partition the offsets that retention removed before they were read, in order and apart."""


def lost_offsets(record: CommitRecord) -> dict[int, tuple[OffsetRange, ...]]:
    """What a raw record states as lost: `[start, end]` for a partition, or a list of them."""
    found: dict[int, tuple[OffsetRange, ...]] = {}
    for partition, stated in record.stated.get("lost", {}).items():
        pairs = [stated] if isinstance(stated[0], int) else stated
        found[int(partition)] = tuple(OffsetRange(*pair) for pair in pairs)
    return found


def state_lost(lost: Lost) -> dict[str, Any]:
    """The inverse of `lost_offsets`."""
    pairs = {str(p): [[one.start, one.end] for one in spans] for p, spans in sorted(lost.items())}
    return {p: spans[0] if len(spans) == 1 else spans for p, spans in pairs.items()}


def without(wanted: Ranges, lost: Lost) -> list[Ranges]:
    """What is left of some ranges when the lost offsets are taken out."""
    pieces: list[Ranges] = [wanted]
    for partition, spans in lost.items():
        for one in spans:
            pieces = [left for piece in pieces for left in minus(piece, {partition: one})]
    return [piece for piece in pieces if span(piece)]


def other_topics(entries: Iterable[tuple[Commit, CommitRecord]], topic_id: str) -> set[str]:
    """Ids of other topics whose records a slice holds: of those that had the topic's name before."""
    return {topic.topic_id for _, record in entries for topic in record.topics if span(topic.ranges)} - {topic_id}


def held_slices(history: Iterable[Commit]) -> dict[str, str]:
    """Slices whose newest record has a failed blocking check of severity ERROR, with the checks' names."""
    return {
        key: ", ".join(failed)
        for key, (_, record) in newest_by_slice(history).items()
        if key is not None and (failed := blocking_failures(record))
    }


def held_with_sources(lake: Lake, history: Iterable[Commit]) -> set[str]:
    """Held slices of a table, and its slices that were made from a source's slice which is held by now."""
    newest = newest_by_slice(list(history))
    held = {key for key, (_, record) in newest.items() if key is not None and blocking_failures(record)}
    consumed = {one.table for _, record in newest.values() for one in record.tables if one.commits is not None}
    for source in consumed:
        held |= held_slices(commits(lake, source)).keys() & newest.keys()
    return held


def blocking_failures(record: CommitRecord) -> list[str]:
    """Names of the checks in a record that hold its slice back."""
    return [check.name for check in record.checks if check.blocking and not check.passed and check.severity == "ERROR"]
