"""What a table holds, slice by slice, by the records of its commits: which commits made a slice, and what they say together.

Belongs here: arithmetic on commits and records that were read. Does not belong here: reading a log (commits.py),
following logs from tick to tick (logs.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from lineage_assets.errors import FatalError
from lineage_assets.lineage.commits import Commit, Tail
from lineage_assets.lineage.offsets import OffsetRange, Ranges, merge, merge_all, minus, span
from lineage_assets.lineage.record import CheckOutcome, CommitRecord, TableInput, TopicInput
from lineage_assets.lineage.skew import merge as merge_skew

DATA_KINDS = frozenset({"append", "replace", "delete", "erase"})
"""Kinds of record that say what a slice holds; `create` and `schema` leave its rows alone."""
THROUGH = "through"
"""What a `compact` record states: the newest version whose rows it holds. It stands for all of the slice's commits up to it."""


def standing(history: Iterable[Commit]) -> Iterator[Commit]:
    """The commits that no later RESTORE has undone, newest first like `history`."""
    above: int | None = None
    for commit in history:
        if above is not None and commit.version > above:
            continue
        yield commit
        above = commit.restored_to if commit.restored_to is not None else above


Entries = Sequence[tuple[Commit, CommitRecord]]
"""The commits that made a slice what it is, newest first."""

Slices = Mapping[str | None, tuple[Commit, CommitRecord]]
"""Per slice (None: an unpartitioned table) its newest commit, and what the records of all its commits say together."""


def by_slice(history: Iterable[Commit]) -> dict[str | None, list[tuple[Commit, CommitRecord]]]:
    """Per slice (None: an unpartitioned table) the commits that made its present content, newest first.

    `history` is newest first. A replacement of the slice ends its list: what was before is gone. A `compact` record
    stands for all that it covers, as a commit of the newest version among that.
    """
    found: dict[str | None, list[tuple[Commit, CommitRecord]]] = {}
    whole: dict[str | None, tuple[Commit, CommitRecord]] = {}
    for commit in standing(history):
        record = commit.record
        if commit.restored_to is not None:
            # A compaction that was planned before a RESTORE and committed after it tells of what that has undone.
            whole = {key: one for key, one in whole.items() if not commit.restored_to < one[0].version < commit.version}
        if record is None:
            continue
        if record.kind == "compact" and THROUGH in record.stated:
            whole.setdefault(record.slice, (replace(commit, version=int(record.stated[THROUGH])), record))
        if record.kind not in DATA_KINDS:
            continue
        entries = found.setdefault(record.slice, [])
        covered = record.slice in whole and commit.version <= whole[record.slice][0].version
        if not covered and (not entries or entries[-1][1].kind != "replace"):
            entries.append((commit, record))
    for key, entry in whole.items():
        entries = found.setdefault(key, [])
        if not entries or entries[-1][1].kind != "replace":
            entries.append(entry)
    return found


def newest_by_slice(history: Iterable[Commit]) -> dict[str | None, tuple[Commit, CommitRecord]]:
    """Per slice the newest commit that changed its rows, with what the records of all its commits say together."""
    return {key: (entries[0][0], summary(entries)) for key, entries in by_slice(history).items()}


class RecordsMissing(FatalError, ValueError):
    """The records of a slice leave a hole between their ranges: some of its commits are not among them."""


def summary(entries: Entries) -> CommitRecord:
    """One record for a slice that several commits made: what it holds, as if one `replace` had written it.

    Raises RecordsMissing when the ranges of the records do not join.
    """
    newest = entries[0][1]
    if len(entries) == 1:
        return newest
    found = [record for _, record in entries]
    try:
        topics = _topics(found)
    except ValueError as error:
        raise RecordsMissing(
            f"{newest.asset} {newest.slice}: {error}", remedy="run `lineage verify`, which names what is missing"
        ) from error
    counts, reasons = Counter[str](), Counter[str]()
    for record in found:
        counts.update(record.counts)
        reasons.update(record.reasons)
    return replace(
        newest,
        kind="replace",
        inputs=(*topics, *_tables(found)),
        counts=dict(counts),
        reasons=dict(reasons),
        checks=_outcomes(found),
        stated=_stated(entries),
        batch=None,
    )


def _topics(found: Sequence[CommitRecord]) -> list[TopicInput]:
    whole: dict[tuple[str, str], TopicInput] = {}
    for record in reversed(found):
        for one in record.topics:
            before = whole.get((one.cluster, one.topic_id))
            if before is not None:
                schemas = {use.id: use for use in (*before.schemas, *one.schemas)}
                one = replace(one, ranges=merge(before.ranges, one.ranges), schemas=tuple(schemas.values()))
            whole[one.cluster, one.topic_id] = one
    return list(whole.values())


def _tables(found: Sequence[CommitRecord]) -> list[TableInput]:
    whole: dict[tuple[str, str], TableInput] = {}
    for record in reversed(found):
        for one in record.tables:
            before = whole.get((one.table, one.table_id))
            if before is not None and before.commits and one.commits:
                one = replace(
                    one,
                    commits=(min(before.commits[0], one.commits[0]), max(before.commits[1], one.commits[1])),
                )
            whole[one.table, one.table_id] = one
    return list(whole.values())


def _outcomes(found: Sequence[CommitRecord]) -> tuple[CheckOutcome, ...]:
    """The checks of the newest record, over the rows of all: a share is one of the whole slice."""
    merged = []
    for name in [one.name for one in found[0].checks]:
        ones = [one for record in reversed(found) for one in record.checks if one.name == name]
        failed, total = sum(one.failed for one in ones), sum(one.total for one in ones)
        share = ones[-1].max_share
        severity = ones[-1].severity if share is None else "ERROR"
        if share is not None and failed and failed <= share * total:
            severity = "WARN"
        examples = tuple(place for one in ones for place in one.examples)[:3]
        merged.append(
            replace(ones[-1], passed=failed == 0, severity=severity, failed=failed, total=total, examples=examples)
        )
    return tuple(merged)


def _stated(entries: Entries) -> dict[str, Any]:
    stated: dict[str, Any] = {}
    gaps: dict[str, Counter[str]] = {}
    for _, record in entries:
        stated = {**record.stated, **stated}
        for key, kinds in record.stated.get("gaps", {}).items():
            gaps.setdefault(key, Counter()).update(kinds)
    stated.pop(THROUGH, None)
    if lost := lost_in(entries):
        stated["lost"] = state_lost(lost)
    if gaps:
        stated["gaps"] = {key: dict(kinds) for key, kinds in sorted(gaps.items())}
    if skews := [record.stated["skew"] for _, record in entries if "skew" in record.stated]:
        stated["skew"] = reduce(merge_skew, skews)
    return stated


class Content:
    """What each slice of a table holds, kept up by one who follows its commits: by slice one commit that stands for all."""

    def __init__(self, tail: Tail) -> None:
        self._tail = tail
        self._read = -1
        self.slices: dict[str | None, tuple[Commit, CommitRecord]] = {}
        self.restored: Commit | None = None
        """The newest RESTORE that was not ours."""

    @property
    def asset(self) -> str:
        """The table's asset."""
        return self._tail.asset

    @property
    def version(self) -> int:
        """The newest version that was taken in; -1 before the first."""
        return self._read

    def read(self) -> None:
        """Take in what was committed since the last time."""
        history = self._tail.read()
        new = [one for one in history if one.version > self._read]
        for commit in reversed(new):
            if commit.restored_to is not None and commit.record is None:
                self.restored = commit
            elif commit.record is not None and commit.record.kind == "restore":
                self.restored = None
        if self._read < 0 or any(not _comes_on_top(one) for one in new):
            self.slices = newest_by_slice(history)
        else:
            for commit in reversed(new):
                if commit.record is not None and commit.record.kind in DATA_KINDS:
                    self._fold(commit, commit.record)
        self._read = history[0].version if history else -1

    def _fold(self, commit: Commit, record: CommitRecord) -> None:
        before = self.slices.get(record.slice)
        entries = [(commit, record)] if before is None or record.kind == "replace" else [(commit, record), before]
        self.slices[record.slice] = (commit, summary(entries))

    def held(self, key: str | None, topic_id: str) -> dict[int, OffsetRange]:
        """The offsets of a topic that a slice holds."""
        entry = self.slices.get(key)
        return {} if entry is None else held_ranges([entry], topic_id)

    def ends(self, topic_id: str) -> dict[int, int]:
        """Where the content ends, partition by partition."""
        return held_ends(self.slices, topic_id)


def _comes_on_top(commit: Commit) -> bool:
    """Whether a commit can be taken in without looking at older ones again."""
    record = commit.record
    return commit.restored_to is None and (record is None or record.kind not in ("compact", "delete", "erase"))


def held_ranges(entries: Iterable[tuple[Commit, CommitRecord]], topic_id: str) -> dict[int, OffsetRange]:
    """The offset ranges of a topic that one slice of a raw table holds, by the records of its content."""
    return merge_all(topic.ranges for _, record in entries for topic in record.topics if topic.topic_id == topic_id)


def held_ends(slices: Slices, topic_id: str) -> dict[int, int]:
    """Where what a raw table holds of a topic ends, partition by partition."""
    ends: dict[int, int] = {}
    for entry in slices.values():
        for partition, held in held_ranges([entry], topic_id).items():
            ends[partition] = max(ends.get(partition, 0), held.end)
    return ends


Lost = Mapping[int, tuple[OffsetRange, ...]]
"""Per partition the offsets that retention removed before they were read, in order and apart."""


def lost_offsets(record: CommitRecord) -> dict[int, tuple[OffsetRange, ...]]:
    """What a raw record states as lost: `[start, end]` for a partition, or a list of them."""
    found: dict[int, tuple[OffsetRange, ...]] = {}
    for partition, stated in record.stated.get("lost", {}).items():
        pairs = [stated] if isinstance(stated[0], int) else stated
        found[int(partition)] = tuple(OffsetRange(*pair) for pair in pairs)
    return found


def lost_in(entries: Entries) -> dict[int, tuple[OffsetRange, ...]]:
    """What the records of a slice state as lost, all together."""
    found: dict[int, tuple[OffsetRange, ...]] = {}
    for _, record in entries:
        for partition, spans in lost_offsets(record).items():
            found[partition] = tuple(sorted({*found.get(partition, ()), *spans}))
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


def held_slices(slices: Slices) -> dict[str, str]:
    """Slices whose record has a failed blocking check of severity ERROR, with the checks' names."""
    return {
        key: ", ".join(failed)
        for key, (_, record) in slices.items()
        if key is not None and (failed := blocking_failures(record))
    }


def held_with_sources(slices: Slices, of: Callable[[str], Slices]) -> set[str]:
    """Held slices of a table, and its slices that were made from a source's slice which is held by now.

    `of` tells the slices of another table.
    """
    held = set(held_slices(slices))
    consumed = {one.table for _, record in slices.values() for one in record.tables if one.commits is not None}
    for source in consumed:
        held |= held_slices(of(source)).keys() & slices.keys()
    return held


def blocking_failures(record: CommitRecord) -> list[str]:
    """Names of the checks in a record that hold its slice back."""
    return [check.name for check in record.checks if check.blocking and not check.passed and check.severity == "ERROR"]
