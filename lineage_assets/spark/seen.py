"""The dedupe keys that a stream has read, in memory: what makes a record of the next batch a duplicate.

Belongs here: law 3 over batches, exactly, on arrays. Does not belong here: reading keys (micro_batch.py), the rule itself
(lineage/fates.py has it as a reference that this module is tested against).

A key is 96 bits of two hashes: among fifty million keys an hour two collide once in 10^14 hours. 24 bytes a key: ten minutes
of 14,000 records a second are 200 MB.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

NOTHING = np.iinfo(np.int64).min
"""Older than every Kafka timestamp."""
UNKNOWN = np.iinfo(np.int64).max
"""Of a partition of which no key was loaded yet: its keys are here only if they are stamped after this."""
LARGEST_RUN = 1_000_000
"""Merging larger runs would take longer than a batch may."""
BATCHES_REMEMBERED = 256
SLACK_MS = 60_000
"""How much further back than the oldest recent record needs keys are kept and loaded: stamps go back and forth."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Records with a whole key, decoded and not dead, as columns."""

    high: Array
    low: Array
    partition: Array
    offset: Array
    stamp_ms: Array

    def __len__(self) -> int:
        return len(self.high)

    def where(self, chosen: Array) -> Keys:
        """Some of them, by mask or by place."""
        return Keys(
            self.high[chosen], self.low[chosen], self.partition[chosen], self.offset[chosen], self.stamp_ms[chosen]
        )


@dataclass(frozen=True, slots=True)
class Marks:
    """Of each record, in the order that they were given: whether it is a duplicate, and whether its key stands elsewhere."""

    duplicate: Array
    in_another_partition: Array


@dataclass(frozen=True, slots=True)
class _Run:
    """Keys in their order, each once for a partition with its newest timestamp."""

    high: Array
    low: Array
    partition: Array
    stamp_ms: Array
    newest: Mapping[int, int]


class Seen:
    """What a stream has read below its position, as far back as its records need it."""

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._runs: list[_Run] = []
        self._since: dict[int, int] = {}
        self._oldest: dict[int, deque[int]] = {}

    def __len__(self) -> int:
        return sum(len(run.high) for run in self._runs)

    def lacking(self, batch: Keys) -> dict[int, tuple[int, int]]:
        """Per partition the stamps `[from, to)` whose keys must be loaded before this batch can be marked."""
        found = {}
        for partition, oldest in _by_partition(batch, np.minimum).items():
            known = self._since.get(partition, UNKNOWN)
            if oldest - self._window_ms < known:
                found[partition] = (oldest - self._window_ms - SLACK_MS, known)
        return found

    def load(self, keys: Keys, stamps: Mapping[int, tuple[int, int]]) -> None:
        """Take in keys at lower offsets; `stamps` is what `lacking` asked for."""
        self._add(keys)
        for partition, (from_ms, _) in stamps.items():
            self._since[partition] = min(self._since.get(partition, UNKNOWN), from_ms)

    def mark(self, batch: Keys) -> Marks:
        """Mark a batch by what was read before and by its own lower offsets. Takes nothing in: the batch may fail."""
        if not len(batch):
            return Marks(np.zeros(0, bool), np.zeros(0, bool))
        order = np.lexsort((batch.offset, batch.partition, batch.low, batch.high))
        ordered = batch.where(order)
        newest, elsewhere = _within(ordered)
        for run in self._runs:
            _look(run, ordered, newest, elsewhere)
        duplicate, spread = np.empty(len(batch), bool), np.empty(len(batch), bool)
        duplicate[order] = newest >= ordered.stamp_ms - self._window_ms
        spread[order] = elsewhere
        return Marks(duplicate, spread)

    def take(self, batch: Keys) -> None:
        """Keep a batch that is committed, and forget what no record can need any more."""
        self._add(batch)
        for partition, oldest in _by_partition(batch, np.minimum).items():
            self._oldest.setdefault(partition, deque(maxlen=BATCHES_REMEMBERED)).append(oldest)
        needed = {p: min(oldest) - self._window_ms - SLACK_MS for p, oldest in self._oldest.items()}
        for run in [one for one in self._runs if _is_old(one, needed)]:
            self._runs.remove(run)
            for partition, newest in run.newest.items():
                self._since[partition] = max(self._since[partition], newest + 1)

    def _add(self, keys: Keys) -> None:
        if not len(keys):
            return
        run = _run([keys.high], [keys.low], [keys.partition], [keys.stamp_ms])
        while self._runs and len(self._runs[-1].high) < 2 * len(run.high) and _fit(self._runs[-1], run):
            last = self._runs.pop()
            run = _run(
                [last.high, run.high],
                [last.low, run.low],
                [last.partition, run.partition],
                [last.stamp_ms, run.stamp_ms],
            )
        self._runs.append(run)


def _fit(a: _Run, b: _Run) -> bool:
    return len(a.high) + len(b.high) <= LARGEST_RUN


def _is_old(run: _Run, needed: Mapping[int, int]) -> bool:
    return all(newest < needed.get(partition, NOTHING) for partition, newest in run.newest.items())


def _run(high: Sequence[Array], low: Sequence[Array], partition: Sequence[Array], stamp_ms: Sequence[Array]) -> _Run:
    """Sort, and keep the newest stamp of each key and partition."""
    keys = [np.concatenate(part) for part in (high, low, partition, stamp_ms)]
    order = np.argsort(keys[0], kind="stable")
    keys = [part[order] for part in keys]
    same = keys[0][1:] == keys[0][:-1]
    if same.any():
        # Keys that share their first 64 bits are nearly always one key: put them in their whole order, the newest last.
        order = np.lexsort((keys[3], keys[2], keys[1], keys[0]))
        keys = [part[order] for part in keys]
        last = np.append(_differs(*keys[:3]), True)
        keys = [part[last] for part in keys]
    newest = {int(p): int(keys[3][keys[2] == p].max()) for p in np.unique(keys[2])}
    return _Run(keys[0], keys[1], keys[2], keys[3], newest)


def _differs(*columns: Array) -> Array:
    """Whether each row differs from the one before it, from the second row on."""
    differs = np.zeros(len(columns[0]) - 1, bool)
    for column in columns:
        differs |= column[1:] != column[:-1]
    return differs


def _within(ordered: Keys) -> tuple[Array, Array]:
    """Of records by key, partition and offset: the newest stamp at lower offsets, and whether another partition has the key."""
    newest = np.full(len(ordered), NOTHING)
    elsewhere = np.zeros(len(ordered), bool)
    begins = np.insert(_differs(ordered.high, ordered.low, ordered.partition), 0, True)
    if not begins.all():
        # The running maximum of each group in one pass: ranks of stamps, lifted by the number of the group.
        stamps, rank = np.unique(ordered.stamp_ms, return_inverse=True)
        group = np.cumsum(begins)
        highest = np.maximum.accumulate(group * len(stamps) + rank) - group * len(stamps)
        again = np.flatnonzero(~begins)
        newest[again] = stamps[highest[again - 1]]
    key_begins = np.insert(_differs(ordered.high, ordered.low), 0, True)
    key = np.cumsum(key_begins) - 1
    partitions = np.bincount(key, weights=begins)
    elsewhere |= partitions[key] > 1
    return newest, elsewhere


def _look(run: _Run, ordered: Keys, newest: Array, elsewhere: Array) -> None:
    """Raise `newest` and `elsewhere` by what a run holds of the same keys."""
    place = np.searchsorted(run.high, ordered.high)
    asked = np.arange(len(ordered))
    while len(asked):
        inside = place < len(run.high)
        asked, place = asked[inside], place[inside]
        met = run.high[place] == ordered.high[asked]
        asked, place = asked[met], place[met]
        equal = run.low[place] == ordered.low[asked]
        mine = equal & (run.partition[place] == ordered.partition[asked])
        np.maximum.at(newest, asked[mine], run.stamp_ms[place[mine]])
        elsewhere[asked[equal & ~mine]] = True
        place = place + 1


def _by_partition(keys: Keys, best: Any) -> dict[int, int]:
    """The least (or greatest) stamp of each partition."""
    if not len(keys):
        return {}
    found, place = np.unique(keys.partition, return_inverse=True)
    stamps = np.full(len(found), UNKNOWN if best is np.minimum else NOTHING)
    best.at(stamps, place, keys.stamp_ms)
    return dict(zip(found.tolist(), stamps.tolist(), strict=True))
