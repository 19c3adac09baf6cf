"""Offset ranges: what to read next, what is held, what retention took, lag."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage_assets.lineage.offsets import OffsetRange, clip, lag, merge, minus, next_range, non_empty, span
from tests.cases import case

OFFSETS = st.integers(0, 60)
RANGES = st.tuples(OFFSETS, OFFSETS).map(lambda ends: OffsetRange(min(ends), max(ends)))
BY_PARTITION = st.dictionaries(st.integers(0, 3), RANGES)
POSITIONS = st.dictionaries(st.integers(0, 3), OFFSETS)


def offsets_of(ranges: dict[int, OffsetRange]) -> set[tuple[int, int]]:
    return {(partition, offset) for partition, held in ranges.items() for offset in range(held.start, held.end)}


def ints(mapping: dict[str, int]) -> dict[int, int]:
    return {int(partition): offset for partition, offset in mapping.items()}


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (4, 3)])
def test_a_range_that_is_no_range_is_refused(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="0 <= start <= end"):
        OffsetRange(start, end)


def test_a_range_holds_its_start_and_not_its_end() -> None:
    held = OffsetRange(3, 5)
    assert [offset for offset in range(8) if offset in held] == [3, 4]
    assert held.span == 2


@given(BY_PARTITION, BY_PARTITION)
def test_what_is_missing_is_exactly_the_wanted_offsets_that_are_not_held(
    wanted: dict[int, OffsetRange], held: dict[int, OffsetRange]
) -> None:
    pieces = minus(wanted, held)
    assert len(pieces) <= 2
    assert all(piece and non_empty(piece) == piece for piece in pieces)
    assert sum(span(piece) for piece in pieces) == len(offsets_of(wanted) - offsets_of(held))
    assert set().union(*map(offsets_of, pieces)) == offsets_of(wanted) - offsets_of(held)


@given(BY_PARTITION, BY_PARTITION)
def test_merging_the_missing_pieces_to_what_is_held_gives_back_all_that_was_wanted(
    wanted: dict[int, OffsetRange], other: dict[int, OffsetRange]
) -> None:
    held = {}
    for partition, want in wanted.items():
        start, end = (other[partition].start, other[partition].end) if partition in other else (0, 0)
        start, end = max(want.start, start), min(want.end, end)
        held[partition] = OffsetRange(start, end) if start < end else OffsetRange(want.start, want.start)
    whole = held
    for piece in minus(wanted, held):
        whole = merge(whole, piece)
    assert offsets_of(whole) == offsets_of(wanted)


def test_one_read_is_enough_unless_the_middle_of_a_partition_is_held() -> None:
    wanted = {0: OffsetRange(0, 10), 1: OffsetRange(0, 10), 2: OffsetRange(5, 5)}
    assert minus(wanted, {0: OffsetRange(0, 4), 1: OffsetRange(7, 12)}) == (
        {0: OffsetRange(4, 10), 1: OffsetRange(0, 7)},
    )
    assert minus(wanted, {0: OffsetRange(3, 6), 1: OffsetRange(0, 10)}) == (
        {0: OffsetRange(0, 3)},
        {0: OffsetRange(6, 10)},
    )
    assert minus(wanted, wanted) == ()


def test_a_union_over_a_gap_is_refused_by_partition() -> None:
    with pytest.raises(ValueError, match=r"partition 4: \[0, 3\) and \[5, 6\)"):
        merge({4: OffsetRange(5, 6)}, {4: OffsetRange(0, 3)})
    assert merge({4: OffsetRange(3, 6)}, {4: OffsetRange(0, 3), 1: OffsetRange(1, 1)}) == {
        1: OffsetRange(1, 1),
        4: OffsetRange(0, 6),
    }


@given(BY_PARTITION, POSITIONS)
def test_retention_splits_a_range_into_what_is_lost_and_what_is_readable(
    wanted: dict[int, OffsetRange], begin: dict[int, int]
) -> None:
    readable, lost = clip(wanted, begin)
    assert offsets_of(readable) | offsets_of(lost) == offsets_of(wanted)
    assert all(offset >= begin.get(partition, 0) for partition, offset in offsets_of(readable))
    assert all(offset < begin.get(partition, 0) for partition, offset in offsets_of(lost))


@given(POSITIONS, BY_PARTITION)
def test_the_next_range_and_what_is_lost_join_the_stored_end_to_the_end_of_the_log(
    stored: dict[int, int], log: dict[int, OffsetRange]
) -> None:
    begin = {partition: held.start for partition, held in log.items()}
    end = {partition: held.end for partition, held in log.items()}
    following = next_range(stored, begin, end)
    expected = {(p, o) for p, held in log.items() for o in range(stored.get(p, held.start), held.end)}
    assert offsets_of(following.ranges) | offsets_of(following.lost) == expected
    assert following.lost_offsets == len(expected - offsets_of(log))
    assert following.ahead == {p: o for p, o in stored.items() if o > end.get(p, 0)}


@pytest.mark.parametrize("index", range(4))
def test_c03_records_that_retention_removed_are_stated_and_the_rest_is_read(index: int) -> None:
    given_, expected = case("C03")["input"][index], case("C03")["expected"][index]
    following = next_range({0: given_["stored_end"]}, {0: given_["beginning"]}, {0: given_["end"]})
    assert following.ranges == {0: OffsetRange(*expected["next_range"])}
    assert following.lost_offsets == expected["lost_offsets"]
    lost = expected.get("lost_range")
    assert following.lost == ({0: OffsetRange(*lost)} if lost else {})


def test_c03_an_old_window_that_is_gone_has_nothing_readable_and_names_what_is_lost() -> None:
    given_ = case("C03")["input"][4]
    wanted = {0: OffsetRange(*given_["window_range"])}
    assert clip(wanted, {0: given_["beginning"]}) == ({}, wanted)


def test_c05_a_partition_that_was_added_is_read_from_its_beginning() -> None:
    given_, expected = case("C05")["input"], case("C05")["expected"]
    now = given_["broker_now"]
    following = next_range(
        ints(given_["stored_end"]),
        ints({p: n["begin"] for p, n in now.items()}),
        ints({p: n["end"] for p, n in now.items()}),
    )
    assert following.ranges == {int(p): OffsetRange(*ends) for p, ends in expected["next_range"].items()}
    assert span(following.ranges) == expected["records_in_next_range_at_most"]
    assert following.partitions_added == (2,)
    assert following.lost == {}


def test_a_first_read_adds_no_partitions() -> None:
    assert next_range({}, {0: 5}, {0: 9, 1: 2}).partitions_added == ()


@pytest.mark.parametrize(
    ("stored", "lag_key", "lost"),
    [("last_table_commit_offsets", "lag", 0), ("case_b", "case_b_lag", 0), ("case_c", "case_c_lag", 60)],
)
def test_c09_lag_comes_from_the_offsets_of_the_tables_commits(stored: str, lag_key: str, lost: int) -> None:
    given_, expected = case("C09")["input"], dict(case("C09")["expected"][lag_key])
    consumed = given_[stored].get("last_table_commit_offsets", given_[stored])
    behind = lag(ints(consumed), ints(given_["begin"]), ints(given_["end"]))
    assert behind.total == expected.pop("total")
    assert behind.lost_offsets == expected.pop("lost_offsets", 0) == lost
    assert behind.by_partition == ints(expected)


def test_c09_the_answer_no_offset_is_not_a_position() -> None:
    given_ = case("C09")["input"]
    behind = lag(ints(given_["committed_by_group"]), ints(given_["begin"]), ints(given_["end"]))
    assert behind.total == case("C09")["expected"]["case_b_lag"]["total"]
    assert behind.lost_offsets == 0


def test_a_table_that_is_ahead_of_an_old_answer_has_no_lag() -> None:
    assert lag({0: 12}, {0: 0}, {0: 10}).total == 0
    assert next_range({0: 12}, {0: 0}, {0: 10}).ahead == {0: 12}
