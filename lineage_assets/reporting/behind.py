"""What is behind: per table and slice, the newest record of each input against what the output consumed.

Belongs here: level-triggered comparisons over commit records. Does not belong here: requesting runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from lineage_assets.kafka.cuts import SlicedTopic
from lineage_assets.lineage.commits import (
    Commit,
    blocking_failures,
    by_slice,
    held_ranges,
    lost_offsets,
    newest_by_slice,
    other_topics,
    without,
)
from lineage_assets.lineage.offsets import minus, span
from lineage_assets.lineage.record import CommitRecord


def events_behind(sliced: SlicedTopic, raw: Sequence[Commit], silver: Sequence[Commit]) -> list[str]:
    """Slices whose raw lacks offsets, or whose silver is older than raw; oldest first. Histories are newest first.

    A slice that holds records of an earlier topic of the same name is no slice of this one.
    """
    stored, made = by_slice(raw), newest_by_slice(silver)
    behind = []
    for piece, ranges in sliced.slices():
        entries = stored.get(piece.key, [])
        if other_topics(entries, sliced.topic.id):
            continue
        held = held_ranges(entries, sliced.topic.id)
        lost = lost_offsets(entries[0][1]) if entries else {}
        missing = [rest for left in minus(ranges, held) for rest in without(left, lost)]
        if any(span(rest) for rest in missing) or (entries and not consumed(made.get(piece.key), entries[0])):
            behind.append(piece.key)
    return behind


def slices_behind(source: Sequence[Commit], output: Sequence[Commit]) -> list[str]:
    """Slices of a per-slice table that are older than their source's, oldest first; held ones wait."""
    made = newest_by_slice(output)
    return sorted(
        key
        for key, newest in newest_by_slice(source).items()
        if key is not None and not blocking_failures(newest[1]) and not consumed(made.get(key), newest)
    )


def consumed(output: tuple[Commit, CommitRecord] | None, source: tuple[Commit, CommitRecord]) -> bool:
    """Whether an output's record says that it has read a source's commit."""
    if output is None:
        return False
    commit, record = source
    return any(
        one.table == record.asset and one.commits is not None and one.commits[1] > commit.version
        for one in output[1].tables
    )
