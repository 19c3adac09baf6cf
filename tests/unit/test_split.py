"""Ranges of a batch by the slices that they arrived in: every offset in one slice, and in the right one.

Belongs here: SlicedTopic.split. Does not belong here: where cuts lie (test_slices.py).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from lineage_assets.kafka.client import Topic
from lineage_assets.kafka.cuts import SlicedTopic
from lineage_assets.lineage.offsets import OffsetRange, Ranges
from lineage_assets.lineage.slices import Cut, Grain

AT = datetime(2026, 3, 1, 10, tzinfo=UTC)
ADDED = 1
"""A partition that older cuts do not know."""


@st.composite
def batches(draw: st.DrawFn) -> tuple[SlicedTopic, Ranges]:
    """Cuts of hours, some of them empty, and ranges that may reach beyond the end that was known."""
    count = draw(st.integers(1, 5))
    steps = {p: draw(st.lists(st.integers(0, 4), min_size=count, max_size=count)) for p in (0, ADDED)}
    starts = {p: list(accumulate(one)) for p, one in steps.items()}
    known_from = draw(st.integers(0, count - 1))
    cuts = [
        Cut(AT + timedelta(hours=i), {p: starts[p][i] for p in (0, ADDED) if p == 0 or i >= known_from})
        for i in range(count)
    ]
    end = {p: starts[p][-1] + draw(st.integers(0, 4)) for p in (0, ADDED)}
    first = {0: starts[0][0], ADDED: starts[ADDED][0] if known_from == 0 else 0}
    ranges = {}
    for p in (0, ADDED):
        begin = draw(st.integers(first[p], end[p] + 2))
        ranges[p] = OffsetRange(begin, draw(st.integers(begin, end[p] + 4)))
    return SlicedTopic(
        Topic("clicks", "t1", (0, ADDED), {}), Grain.hour, cuts, dict.fromkeys((0, ADDED), 0), end
    ), ranges


@given(batches())
def test_every_offset_of_a_batch_is_in_the_one_slice_that_it_arrived_in(batch: tuple[SlicedTopic, Ranges]) -> None:
    topic, ranges = batch

    pieces = topic.split(ranges)

    assert [piece.start for piece, _ in pieces] == sorted({piece.start for piece, _ in pieces})
    for partition, held in ranges.items():
        for offset in range(held.start, held.end):
            found = [piece.start for piece, inside in pieces if partition in inside and offset in inside[partition]]
            right = [cut.at for cut in topic.cuts if cut.offsets.get(partition, 0) <= offset]
            assert found == right[-1:]
    total = sum(inside.span for _, piece in pieces for inside in piece.values())
    assert total == sum(held.span for held in ranges.values())


def test_a_batch_of_the_open_slice_stays_as_it_is() -> None:
    topic = SlicedTopic(Topic("clicks", "t1", (0,), {}), Grain.hour, [Cut(AT, {0: 5})], {0: 0}, {0: 9})
    assert topic.split({0: OffsetRange(7, 30)}) == [(topic.open_slice, {0: OffsetRange(7, 30)})]
