"""Duplicates over batches, against the rule's reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lineage_assets.lineage.fates import Arrival, Fate, mark_duplicates
from lineage_assets.spark import seen as module
from lineage_assets.spark.seen import Keys, Seen

WINDOW_MS = 600_000


def keys_of(arrivals: Sequence[Arrival]) -> Keys:
    """The arrivals' keys as columns; a key is a small number, whose halves collide on purpose."""
    numbers = [int(str(one.key)) for one in arrivals]
    return Keys(
        np.array([one // 3 for one in numbers], np.uint64),
        np.array([one % 3 for one in numbers], np.uint32),
        np.array([one.partition for one in arrivals], np.int32),
        np.array([one.offset for one in arrivals], np.int64),
        np.array([one.timestamp_ms for one in arrivals], np.int64),
    )


records = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 8), st.integers(0, 3_000_000)), min_size=1, max_size=60)


@settings(max_examples=300, deadline=None)
@given(records, st.data())
def test_batches_of_any_size_mark_what_the_reference_marks(
    rows: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    arrivals = [Arrival(p, offset, stamp, key, Fate.ok) for offset, (p, key, stamp) in enumerate(rows)]
    expected = mark_duplicates(arrivals, WINDOW_MS)
    store = Seen(WINDOW_MS)
    found: dict[tuple[int, int], bool] = {}
    while arrivals_left := arrivals[len(found) :]:
        batch = arrivals_left[: data.draw(st.integers(1, len(arrivals_left)))]
        keys = keys_of(batch)
        if stamps := store.lacking(keys):
            below = [
                one
                for one in arrivals[: len(found)]
                if one.partition in stamps and stamps[one.partition][0] <= one.timestamp_ms < stamps[one.partition][1]
            ]
            store.load(keys_of(below), stamps)
        marks = store.mark(keys)
        store.take(keys)
        found |= {(one.partition, one.offset): bool(mark) for one, mark in zip(batch, marks.duplicate, strict=True)}
    assert found == {place: fate is Fate.duplicate for place, fate in expected.items()}


def test_old_keys_are_forgotten_and_asked_for_again_when_a_stamp_goes_back(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "BATCHES_REMEMBERED", 2)
    monkeypatch.setattr(module, "LARGEST_RUN", 10)
    store = Seen(WINDOW_MS)

    def batch(first: int, at_ms: int) -> Keys:
        return keys_of([Arrival(0, first + i, at_ms, first + i, Fate.ok) for i in range(10)])

    for number in range(6):
        keys = batch(number * 10, number * WINDOW_MS)
        if stamps := store.lacking(keys):
            assert number == 0, "asked for keys that it has"
            store.load(keys_of([]), stamps)
        store.mark(keys)
        store.take(keys)
    assert len(store) == 30, "keeps what the last batches need, and the window below them"
    back = batch(100, 2 * WINDOW_MS)
    assert store.lacking(back) == {0: (WINDOW_MS - module.SLACK_MS, 2 * WINDOW_MS + 1)}


def test_a_key_in_two_partitions_is_seen_in_both_directions() -> None:
    store = Seen(WINDOW_MS)
    first = keys_of([Arrival(0, 0, 5, 7, Fate.ok), Arrival(1, 0, 5, 8, Fate.ok)])
    store.load(keys_of([]), store.lacking(first))
    assert store.mark(first).in_another_partition.tolist() == [False, False]
    store.take(first)
    second = keys_of([Arrival(1, 1, 6, 7, Fate.ok), Arrival(0, 1, 6, 9, Fate.ok), Arrival(1, 2, 6, 9, Fate.ok)])
    marks = store.mark(second)
    assert marks.duplicate.tolist() == [False, False, False]
    assert marks.in_another_partition.tolist() == [True, True, True]
