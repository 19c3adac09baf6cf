"""Arithmetic on offset ranges: what to read next, what is held already, what retention took, how far behind a table is.

Belongs here: half-open ranges per partition. Does not belong here: times (slices.py), what became of a record
(fates.py). All numbers are offsets. A span counts offsets, never records: compaction and transactions leave holes
(KIP-98).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets `[start, end)` of one partition.

    >>> 7 in OffsetRange(3, 7), OffsetRange(3, 7).span
    (False, 4)
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"offset range [{self.start}, {self.end}) needs 0 <= start <= end")

    @property
    def span(self) -> int:
        """How many offsets, holes included."""
        return self.end - self.start

    def __contains__(self, offset: int) -> bool:
        return self.start <= offset < self.end

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"


Ranges = Mapping[int, OffsetRange]
"""Partition -> range. A partition that is absent reads as an empty range."""


@dataclass(frozen=True, slots=True)
class NextRange:
    """What follows a table's stored end offsets on the broker.

    `ranges` has every partition, also empty ones. `lost` is what retention removed before it was read. `ahead` has
    the stored ends that lie above the broker's end: read a moment later than the broker was asked, or a log that was
    cut back.
    """

    ranges: dict[int, OffsetRange]
    lost: dict[int, OffsetRange]
    lost_offsets: int
    partitions_added: tuple[int, ...]
    ahead: dict[int, int]


@dataclass(frozen=True, slots=True)
class Lag:
    """Offsets that a table has not consumed yet and that can still be read; those that are gone are `lost_offsets`."""

    by_partition: dict[int, int]
    total: int
    lost_offsets: int


def span(ranges: Ranges) -> int:
    """Offsets of all partitions together."""
    return sum(held.span for held in ranges.values())


def non_empty(ranges: Ranges) -> dict[int, OffsetRange]:
    """The partitions that have something to read."""
    return {partition: held for partition, held in sorted(ranges.items()) if held.span}


def merge(a: Ranges, b: Ranges) -> dict[int, OffsetRange]:
    """The union by partition. ValueError when two ranges leave a gap: a union would claim offsets that nobody has."""
    return {
        partition: _union(partition, a.get(partition), b.get(partition)) for partition in sorted(a.keys() | b.keys())
    }


def merge_all(pieces: Iterable[Ranges]) -> dict[int, OffsetRange]:
    """The union of many ranges, in whatever order they come. ValueError when two of a partition leave a gap."""
    by_partition: dict[int, list[OffsetRange]] = {}
    for piece in pieces:
        for partition, held in piece.items():
            by_partition.setdefault(partition, []).append(held)
    whole: dict[int, OffsetRange] = {}
    for partition, ranges in sorted(by_partition.items()):
        for held in sorted(ranges):
            whole[partition] = _union(partition, whole.get(partition), held)
    return whole


def _union(partition: int, a: OffsetRange | None, b: OffsetRange | None) -> OffsetRange:
    if a is None or b is None:
        return a or b or OffsetRange(0, 0)
    if not a.span or not b.span:
        return max((a, b), key=lambda held: (held.span, held))
    if max(a.start, b.start) > min(a.end, b.end):
        raise ValueError(f"partition {partition}: {min(a, b)} and {max(a, b)} leave a gap between them")
    return OffsetRange(min(a.start, b.start), max(a.end, b.end))


def minus(wanted: Ranges, held: Ranges) -> tuple[dict[int, OffsetRange], ...]:
    """The offsets of `wanted` that `held` lacks, as none, one or two sets of ranges, each readable in one Kafka read.

    A second set is needed only for a partition of which the middle is held: below it goes to the first set, above it
    to the second.
    """
    first: dict[int, OffsetRange] = {}
    second: dict[int, OffsetRange] = {}
    for partition, want in sorted(wanted.items()):
        pieces = _pieces(want, held.get(partition))
        for target, piece in zip((first, second), pieces, strict=False):
            target[partition] = piece
    return tuple(pieces for pieces in (first, second) if pieces)


def _pieces(want: OffsetRange, held: OffsetRange | None) -> list[OffsetRange]:
    if held is None or not held.span:
        return [want] if want.span else []
    below = OffsetRange(want.start, max(want.start, min(want.end, held.start)))
    above = OffsetRange(min(want.end, max(want.start, held.end)), want.end)
    return [piece for piece in (below, above) if piece.span]


def clip(wanted: Ranges, begin: Mapping[int, int]) -> tuple[dict[int, OffsetRange], dict[int, OffsetRange]]:
    """What can still be read of `wanted`, and what retention took; `begin` has the first offsets on the broker."""
    readable: dict[int, OffsetRange] = {}
    lost: dict[int, OffsetRange] = {}
    for partition, want in wanted.items():
        border = min(want.end, max(want.start, begin.get(partition, 0)))
        lost[partition] = OffsetRange(want.start, border)
        readable[partition] = OffsetRange(border, want.end)
    return non_empty(readable), non_empty(lost)


def next_range(stored_end: Mapping[int, int], begin: Mapping[int, int], end: Mapping[int, int]) -> NextRange:
    """What to read after `stored_end`, from a log that now holds `[begin, end)`.

    A position that retention passed goes on at the log's start and the hole is stated, never skipped. A partition
    that is not in `stored_end` starts at its earliest offset, never at the latest; it counts as added unless nothing
    was stored at all.
    """
    ranges: dict[int, OffsetRange] = {}
    lost: dict[int, OffsetRange] = {}
    ahead: dict[int, int] = {}
    for partition in sorted(end.keys() | stored_end.keys()):
        first, last = begin.get(partition, 0), end.get(partition, 0)
        position = _position(stored_end, partition, first)
        if position > max(first, last):
            ahead[partition] = position
        start = max(position, first)
        ranges[partition] = OffsetRange(start, max(start, last))
        lost[partition] = OffsetRange(position, start)
    added = tuple(sorted(end.keys() - stored_end.keys())) if stored_end else ()
    return NextRange(ranges, non_empty(lost), span(lost), added, ahead)


def lag(consumed_end: Mapping[int, int], begin: Mapping[int, int], end: Mapping[int, int]) -> Lag:
    """How far a table is behind the end offsets of its commits: a stream commits nothing to a consumer group."""
    following = next_range(consumed_end, begin, end)
    by_partition = {partition: following.ranges[partition].span for partition in sorted(end)}
    return Lag(by_partition, sum(by_partition.values()), following.lost_offsets)


def _position(stored: Mapping[int, int], partition: int, first: int) -> int:
    # Kafka clients say "no offset" with negative numbers (-1001, -1): those are no position.
    position = stored.get(partition, -1)
    return position if position >= 0 else first
