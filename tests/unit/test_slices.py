"""Slices, cuts and the offsets between them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage_assets.errors import ContractError
from lineage_assets.lineage.offsets import OffsetRange
from lineage_assets.lineage.slices import (
    Cut,
    Grain,
    Slice,
    first_cuts,
    next_cut,
    ranges_between,
    slices_between,
)
from tests.cases import case

GRAINS = st.sampled_from(Grain)
INSTANTS = st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
T0 = datetime(2026, 8, 1, 13, tzinfo=UTC)


def utc(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


@given(INSTANTS, GRAINS)
def test_an_instant_lies_in_its_slice_and_the_key_leads_back(instant: datetime, grain: Grain) -> None:
    one = Slice.containing(instant, grain)
    assert one.start <= instant < one.end
    assert Slice.of(one.key, grain) == one
    assert one.next().previous() == one
    assert one.next().start == one.end


@given(INSTANTS, GRAINS, st.integers(0, 40))
def test_slices_follow_each_other_without_hole_or_overlap(instant: datetime, grain: Grain, count: int) -> None:
    first = last = Slice.containing(instant, grain)
    for _ in range(count):
        last = last.next()
    slices = list(slices_between(first, last))
    assert len(slices) == count + 1
    assert all(a.end == b.start for a, b in pairwise(slices))
    assert [one.key for one in slices] == sorted({one.key for one in slices})


@pytest.mark.parametrize(
    ("key", "grain"),
    [("2026-08-01", "hour"), ("2026-8-1-3", "hour"), ("2026-02-30", "day"), ("2026-08-01-13", "month"), ("", "day")],
)
def test_a_key_of_another_form_is_refused_with_the_form_that_is_expected(key: str, grain: str) -> None:
    with pytest.raises(ContractError, match=Grain(grain).format) as refused:
        Slice.of(key, Grain(grain))
    assert isinstance(refused.value, ValueError)


def test_slices_are_in_utc_wherever_the_instant_was_written() -> None:
    tokyo = datetime(2026, 8, 1, 3, 30, tzinfo=timezone(timedelta(hours=9)))
    assert Slice.containing(tokyo, Grain.day).key == "2026-07-31"
    with pytest.raises(ValueError, match="no time zone"):
        Slice.containing(datetime(2026, 8, 1), Grain.hour)


def test_a_slice_starts_where_its_grain_does() -> None:
    with pytest.raises(ValueError, match="not the start of a day"):
        Slice(T0, Grain.day)
    assert Slice.of("2024-02", Grain.month).end == datetime(2024, 3, 1, tzinfo=UTC)
    assert not list(slices_between(Slice(T0, Grain.hour).next(), Slice(T0, Grain.hour)))
    with pytest.raises(ValueError, match="hour"):
        list(slices_between(Slice(T0, Grain.hour), Slice.of("2026-08", Grain.month)))


def test_c06_the_brokers_time_index_becomes_cuts() -> None:
    given_, expected = case("C06")["input"], case("C06")["expected"]
    boundaries = [utc(window[0]) for window in given_["windows"].values()] + [utc(given_["windows"]["12"][1])]
    p0 = expected["broker_answers_p0"]
    answers = {0: [0, *p0.values()], 1: [-1] * 5, 2: [50, -1, -1, -1, -1]}
    begin = {int(p): part["begin"] for p, part in given_["partitions"].items()}
    end = {int(p): part["end"] for p, part in given_["partitions"].items()}
    cuts = first_cuts(boundaries, answers, begin, end)
    for index, (name, ranges) in enumerate(expected["ranges"].items()):
        between = ranges_between(cuts[index], cuts[index + 1])
        assert between == {int(p): OffsetRange(*ends) for p, ends in ranges.items()}, name
        assert sum(held.span for held in between.values()) == expected["records"][name]
    assert first_cuts(boundaries, answers, begin, end) == cuts


@st.composite
def histories(draw: st.DrawFn) -> tuple[dict[int, list[int]], dict[int, int], list[int]]:
    """Timestamps by offset (a producer's clock: any order), the first offset of each partition, boundaries in hours."""
    logs = draw(st.dictionaries(st.integers(0, 3), st.lists(st.integers(0, 12 * 60), max_size=25), min_size=1))
    begin = {partition: draw(st.integers(0, 100)) for partition in logs}
    hours = sorted(draw(st.sets(st.integers(0, 12), min_size=1)))
    return logs, begin, hours


@given(histories())
def test_every_offset_lies_in_exactly_one_slice_whatever_the_clocks_said(
    history: tuple[dict[int, list[int]], dict[int, int], list[int]],
) -> None:
    logs, begin, hours = history
    end = {partition: begin[partition] + len(log) for partition, log in logs.items()}
    boundaries = [T0 + timedelta(hours=hour) for hour in hours]
    answers = {
        partition: [
            next((begin[partition] + i for i, minute in enumerate(log) if minute >= 60 * hour), -1) for hour in hours
        ]
        for partition, log in logs.items()
    }
    cuts = first_cuts(boundaries, answers, begin, end)
    for earlier, later in pairwise(cuts):
        assert earlier.at < later.at
        assert all(earlier.offsets[p] <= later.offsets[p] for p in logs)
    assert all(begin[p] <= cut.offsets[p] <= end[p] for p in logs for cut in cuts)
    now = next_cut(cuts[-1], boundaries[-1] + timedelta(hours=1), end)
    slices = [ranges_between(opening, closing) for opening, closing in zip([None, *cuts], [*cuts, now], strict=True)]
    for partition in logs:
        for offset in range(begin[partition], end[partition]):
            assert sum(offset in ranges[partition] for ranges in slices) == 1
        # The first of the ranges is what lies before the first boundary: nothing, when no record is older.
        if min(logs[partition], default=60 * hours[0]) >= 60 * hours[0]:
            assert cuts[0].offsets[partition] == begin[partition]


@given(
    st.lists(st.lists(st.integers(-1, 30), min_size=4, max_size=4), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), min_size=3, max_size=3),
)
def test_answers_that_contradict_each_other_still_give_rising_cuts_inside_the_log(
    answers: list[list[int]], ends: list[tuple[int, int]]
) -> None:
    begin = {p: min(pair) for p, pair in enumerate(ends)}
    end = {p: max(pair) for p, pair in enumerate(ends)}
    cuts = first_cuts([T0 + timedelta(hours=h) for h in range(4)], dict(enumerate(answers)), begin, end)
    for partition in range(len(answers)):
        offsets = [cut.offsets[partition] for cut in cuts]
        assert offsets == sorted(offsets)
        assert all(begin[partition] <= offset <= end[partition] for offset in offsets)


def test_boundaries_and_answers_must_fit() -> None:
    with pytest.raises(ValueError, match="must rise"):
        first_cuts([T0, T0], {}, {}, {})
    with pytest.raises(ValueError, match="1 answers for 2 boundaries"):
        first_cuts([T0, T0 + timedelta(hours=1)], {0: [3]}, {0: 0}, {0: 5})


@given(st.lists(st.dictionaries(st.integers(0, 4), st.integers(0, 100)), max_size=8))
def test_cuts_by_arrival_never_go_back_and_lose_no_offset(rounds: list[dict[int, int]]) -> None:
    cuts = [Cut(T0, {0: 3})]
    for hour, ends in enumerate(rounds, start=1):
        cuts.append(next_cut(cuts[-1], T0 + timedelta(hours=hour), ends))
    slices = [ranges_between(a, b) for a, b in pairwise(cuts)]
    for partition, last in cuts[-1].offsets.items():
        first = 3 if partition == 0 else 0
        held = [offset for ranges in slices if partition in ranges for offset in range(*_ends(ranges[partition]))]
        assert held == list(range(first, last))


def _ends(held: OffsetRange) -> tuple[int, int]:
    return held.start, held.end


def test_a_cut_comes_after_the_one_before() -> None:
    with pytest.raises(ValueError, match="not after"):
        next_cut(Cut(T0, {}), T0, {})


def test_c05_a_slice_from_before_a_partition_was_added_stays_valid() -> None:
    before, at_11, at_12 = (
        Cut(T0, {0: 90}),
        Cut(T0 + timedelta(hours=1), {0: 100}),
        Cut(T0 + timedelta(hours=2), {0: 120, 2: 7}),
    )
    assert ranges_between(before, at_11).get(2, OffsetRange(0, 0)) == OffsetRange(0, 0)
    assert ranges_between(at_11, at_12)[2] == OffsetRange(
        *case("C05")["expected"]["partition_2_range_by_window"]["11h"]
    )


@pytest.mark.parametrize("closing", [{0: 89}, {}])
def test_a_closing_cut_below_the_opening_one_is_refused(closing: dict[int, int]) -> None:
    with pytest.raises(ValueError, match="below 90"):
        ranges_between(Cut(T0, {0: 90}), Cut(T0 + timedelta(hours=1), closing))
