"""The most records of a batch: bounded by the heap, halved, grown again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lineage_assets.spark.bite import GOOD_BATCHES, SMALLEST, Bite

GB = 2**30


def test_a_heap_of_three_gigabytes_affords_a_quarter_million_small_records() -> None:
    bite = Bite(limit=250_000, trigger_s=0.0)
    bite.afford(3 * GB, 200.0)
    assert bite.now == 250_000
    bite.afford(3 * GB, 2000.0)
    assert bite.now == 30_198 == int(3 * GB * 0.15 / (8 * 2000))


def test_an_empty_topic_and_a_tiny_heap_still_leave_a_batch() -> None:
    bite = Bite(limit=250_000, trigger_s=0.0)
    bite.afford(1, None)
    assert bite.now == SMALLEST


def test_a_slow_batch_halves_it_and_ten_good_ones_double_it() -> None:
    bite = Bite(limit=8000, trigger_s=0.0)
    assert bite.judge(5.1, 8000) == "took 5.1 s" and bite.now == 4000
    assert [bite.judge(1.0, 4000) for _ in range(GOOD_BATCHES - 1)] == [None] * (GOOD_BATCHES - 1)
    assert bite.judge(1.0, 4000) is not None and bite.now == 8000
    assert [bite.judge(1.0, 8000) for _ in range(2 * GOOD_BATCHES)] == [None] * (2 * GOOD_BATCHES)


def test_a_slow_batch_of_few_records_is_not_the_bites_fault() -> None:
    bite = Bite(limit=8000, trigger_s=0.0)
    assert bite.judge(60.0, 4000) is None and bite.now == 8000


def test_a_slow_batch_begins_the_count_of_good_ones_anew() -> None:
    bite = Bite(limit=8000, trigger_s=2.0)
    assert bite.judge(10.1, 8000) is not None
    for _ in range(GOOD_BATCHES - 1):
        bite.judge(9.9, 4000)
    assert bite.judge(10.1, 4000) is not None and bite.now == 2000
    assert bite.judge(1.0, 2000) is None and bite.now == 2000


def test_a_smaller_heap_bounds_what_was_halved_and_a_larger_one_does_not_undo_it() -> None:
    bite = Bite(limit=100_000, trigger_s=0.0)
    bite.halve()
    bite.afford(64 * GB, 100.0)
    assert (bite.now, bite.most) == (50_000, 100_000)
    bite.afford(GB // 10, 100.0)
    assert bite.now == bite.most == 20_132


@given(
    st.integers(1, 2_000_000),
    st.lists(st.one_of(st.tuples(st.floats(0, 60), st.integers(0, 2_000_000)), st.integers(1, 64 * GB))),
)
def test_it_stays_between_its_bounds_whatever_comes(limit: int, events: list[tuple[float, int] | int]) -> None:
    bite = Bite(limit=limit, trigger_s=0.0)
    for one in events:
        if isinstance(one, int):
            bite.afford(one, 300.0)
        else:
            before = bite.now
            assert (bite.judge(*one) is not None) == (bite.now != before)
        assert min(SMALLEST, limit) <= bite.now <= bite.most <= limit
