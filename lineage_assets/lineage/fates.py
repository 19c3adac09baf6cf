"""What became of each record: fates, the rule for duplicates, and the balance of a slice.

Belongs here: law 3 as a reference that Spark's SQL is tested against, and conservation. Does not belong here:
decoding, contracts. A fate depends on the record and on lower offsets of its own partition only, so slices can be
decided in any order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from lineage_assets.lineage.offsets import Ranges


class Fate(StrEnum):
    """What became of a record. `late` is no fate but a mark on an `ok` record."""

    ok = "ok"
    dead = "dead"
    duplicate = "duplicate"
    tombstone = "tombstone"
    control = "control"
    erased = "erased"


Counts = dict[str, int]
"""Fate -> records; may hold marks such as `late`, which are no fates and in no sum."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A record as far as its fate needs it, before (or after) the search for duplicates."""

    partition: int
    offset: int
    timestamp_ms: int
    key: Hashable | None
    fate: Fate

    @property
    def counts_as_seen(self) -> bool:
        """Decoded, not dead, and with a key: a later record with this key can be its duplicate."""
        return self.key is not None and self.fate in (Fate.ok, Fate.duplicate)


def mark_duplicates(arrivals: Iterable[Arrival], window_ms: int) -> dict[tuple[int, int], Fate]:
    """The fate of every arrival by (partition, offset), in whatever order they are given.

    An `ok` record with a key is a `duplicate` when a lower offset of its partition holds the same key, is decoded and
    not dead, and was stamped at most `window_ms` earlier (one that was stamped later counts too). A duplicate counts
    as seen like any other: what matters is the record, not what was decided about it, so there are no chains to
    follow.
    """
    fates: dict[tuple[int, int], Fate] = {}
    newest: dict[tuple[int, Hashable], int] = {}
    for arrival in sorted(arrivals, key=lambda one: (one.partition, one.offset)):
        fate = arrival.fate
        if arrival.counts_as_seen:
            place = (arrival.partition, arrival.key)
            # The newest stamp below this offset decides: if it is too old, all others are.
            seen = newest.get(place)
            if seen is not None and seen >= arrival.timestamp_ms - window_ms and fate is Fate.ok:
                fate = Fate.duplicate
            newest[place] = arrival.timestamp_ms if seen is None else max(seen, arrival.timestamp_ms)
        fates[arrival.partition, arrival.offset] = fate
    return fates


def look_back_ms(arrivals: Iterable[Arrival], window_ms: int) -> dict[int, int]:
    """Per partition the oldest Kafka timestamp that decides about these arrivals.

    Records at lower offsets of the partition with this timestamp or a later one must be beside them in
    `mark_duplicates`; older ones cannot matter. Partitions without a record that could be a duplicate are absent.
    """
    floors: dict[int, int] = {}
    for arrival in arrivals:
        if arrival.counts_as_seen:
            floor = arrival.timestamp_ms - window_ms
            floors[arrival.partition] = min(floors.get(arrival.partition, floor), floor)
    return floors


def count_fates(fates: Iterable[str]) -> Counts:
    """Records per fate; every fate is named, also those with none."""
    counts: Counts = {fate.value: 0 for fate in Fate}
    for fate in fates:
        counts[Fate(fate).value] += 1
    return counts


@dataclass(frozen=True, slots=True)
class Balance:
    """Offsets per partition that no record and no measured gap explains; below zero: rows too many.

    Partitions that balance are absent.
    """

    missing: dict[int, int]

    @property
    def ok(self) -> bool:
        """Nothing is missing and nothing is too much."""
        return not self.missing


def balance(ranges: Ranges, counts_by_partition: Mapping[int, Mapping[Fate, int]], gaps: Mapping[int, int]) -> Balance:
    """Conservation of a slice: `end - start` = the records of all fates + measured gaps, in every partition.

    Gaps are offsets that hold no record for a reader: transaction markers, aborted records, compaction's holes.
    """
    missing: dict[int, int] = {}
    for partition in sorted(ranges.keys() | counts_by_partition.keys() | gaps.keys()):
        wanted = ranges[partition].span if partition in ranges else 0
        counts = counts_by_partition.get(partition, {})
        explained = sum(counts.get(fate, 0) for fate in Fate) + gaps.get(partition, 0)
        if wanted != explained:
            missing[partition] = wanted - explained
    return Balance(missing)
