"""What is behind: per table and slice, the newest record of each input against what the output consumed.

Belongs here: level-triggered comparisons over commit records. Does not belong here: requesting runs, reading logs
(logs.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from lineage_assets.kafka.cuts import SlicedTopic
from lineage_assets.lineage.commits import Commit
from lineage_assets.lineage.content import (
    Slices,
    blocking_failures,
    held_ends,
    held_ranges,
    lost_in,
    other_topics,
    without,
)
from lineage_assets.lineage.offsets import Ranges, minus, span
from lineage_assets.lineage.record import CommitRecord

STREAM = "stream/"
"""How the `run` of a record begins that a stream wrote."""


def events_behind(sliced: SlicedTopic, raw: Slices, silver: Slices, streamed: bool = False) -> list[str]:
    """Slices whose raw lacks offsets, or whose silver is older than raw; oldest first.

    A slice that holds records of an earlier topic of the same name is no slice of this one. While a stream of the topic
    lives (`streamed`), the open slice and those that reach beyond what raw holds are the stream's, and so is silver of
    the slice that it wrote last: it may be between its two commits. It never goes back: gaps below are everybody's as ever.
    """
    topic_id = sliced.topic.id
    ends = held_ends(raw, topic_id) if streamed else {}
    writing = _written_last(raw) if streamed else None
    behind = []
    for piece, ranges in sliced.slices():
        entries = [raw[piece.key]] if piece.key in raw else []
        if other_topics(entries, topic_id):
            continue
        if streamed and (piece == sliced.open_slice or _reaches_beyond(ranges, ends)):
            continue
        held = held_ranges(entries, topic_id)
        lost = lost_in(entries)
        missing = any(span(rest) for left in minus(ranges, held) for rest in without(left, lost))
        unread = bool(entries) and not consumed(silver.get(piece.key), entries[0])
        if missing or (unread and piece.key != writing):
            behind.append(piece.key)
    return behind


def _reaches_beyond(ranges: Ranges, ends: Mapping[int, int]) -> bool:
    return any(held.span and held.end > ends.get(partition, 0) for partition, held in ranges.items())


def _written_last(raw: Slices) -> str | None:
    """The slice of a stream's newest commit: a batch writes its slices one by one, raw and then silver."""
    streams = [(commit.version, key) for key, (commit, record) in raw.items() if record.run.startswith(STREAM)]
    return max(streams, key=lambda one: one[0])[1] if streams else None


def slices_behind(source: Slices, output: Slices) -> list[str]:
    """Slices of a per-slice table that are older than their source's, oldest first; held ones wait."""
    return sorted(
        key
        for key, newest in source.items()
        if key is not None and not blocking_failures(newest[1]) and not consumed(output.get(key), newest)
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
