"""Fates: duplicates whatever the order of slices, and conservation."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lineage_assets.lineage.fates import Arrival, Fate, balance, count_fates, look_back_ms, mark_duplicates
from lineage_assets.lineage.offsets import OffsetRange
from tests.cases import case

W_MS = 10 * 60_000
HOUR_MS = 60 * 60_000


@st.composite
def topics(draw: st.DrawFn) -> list[Arrival]:
    """Partitions with rising offsets (and holes), few keys, clocks in any order."""
    arrivals = []
    for partition in range(draw(st.integers(1, 2))):
        offset = 0
        for _ in range(draw(st.integers(0, 20))):
            offset += draw(st.integers(1, 3))
            key = draw(st.sampled_from(["a", "b", None]))
            fate = draw(st.sampled_from([Fate.ok, Fate.ok, Fate.ok, Fate.dead, Fate.tombstone, Fate.duplicate]))
            arrivals.append(Arrival(partition, offset, draw(st.integers(0, 40)) * 60_000, key, fate))
    return arrivals


def by_the_letter(arrivals: list[Arrival], one: Arrival) -> Fate:
    """Law 3 word by word, quadratic."""
    earlier = [
        other
        for other in arrivals
        if other.partition == one.partition
        and other.offset < one.offset
        and other.key == one.key
        and other.fate in (Fate.ok, Fate.duplicate)
        and one.timestamp_ms - other.timestamp_ms <= W_MS
    ]
    return Fate.duplicate if one.fate is Fate.ok and one.key is not None and earlier else one.fate


@given(topics(), st.randoms(use_true_random=False))
def test_duplicates_are_decided_by_the_letter_of_the_law_in_any_order(arrivals: list[Arrival], random: object) -> None:
    shuffled = list(arrivals)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    expected = {(one.partition, one.offset): by_the_letter(arrivals, one) for one in arrivals}
    assert mark_duplicates(shuffled, W_MS) == expected


@given(topics(), st.sets(st.integers(0, 60), max_size=5))
def test_any_split_into_slices_with_its_look_back_decides_the_same(arrivals: list[Arrival], borders: set[int]) -> None:
    whole = mark_duplicates(arrivals, W_MS)
    decided: dict[tuple[int, int], Fate] = {}
    for start, end in pairwise([0, *sorted(borders), 100]):
        own = [one for one in arrivals if start <= one.offset < end]
        floors = look_back_ms(own, W_MS)
        beside = [
            one
            for one in arrivals
            if one.offset < start and one.partition in floors and one.timestamp_ms >= floors[one.partition]
        ]
        fates = mark_duplicates(own + beside, W_MS)
        decided |= {(one.partition, one.offset): fates[one.partition, one.offset] for one in own}
    assert decided == whole


@given(topics())
def test_deciding_again_from_decided_records_changes_nothing(arrivals: list[Arrival]) -> None:
    once = mark_duplicates(arrivals, W_MS)
    again = [
        Arrival(one.partition, one.offset, one.timestamp_ms, one.key, once[one.partition, one.offset])
        for one in arrivals
    ]
    assert mark_duplicates(again, W_MS) == once


def c45_arrivals() -> list[Arrival]:
    records = case("C45")["input"]["records"]
    midnight = datetime.strptime("00:00:00.000", "%H:%M:%S.%f")
    return [
        Arrival(
            partition=0,
            offset=record["offset"],
            timestamp_ms=round((datetime.strptime(record["ts"], "%H:%M:%S.%f") - midnight).total_seconds() * 1000),
            key=record["event_id"],
            fate=Fate.ok,
        )
        for record in records
    ]


def decided_after_each_run(window_ms: int) -> list[dict[int, Fate]]:
    arrivals, windows = c45_arrivals(), case("C45")["input"]["windows"]
    table: dict[int, Fate] = {}
    runs = []
    for run in ("10", "11", "11", "10"):
        start, end = windows[run]
        fates = mark_duplicates([one for one in arrivals if one.offset < end], window_ms)
        table |= {offset: fate for (_, offset), fate in fates.items() if start <= offset < end}
        runs.append(dict(table))
    return runs


def test_c45_retries_are_folded_across_windows_and_null_keys_never() -> None:
    # The case has no limit in time. With one that spans its records, all of its numbers come out.
    expected = case("C45")["expected"]
    for table, rows in zip(decided_after_each_run(HOUR_MS), expected["silver_rows_after_each_run"], strict=True):
        assert sorted(offset for offset, fate in table.items() if fate is Fate.ok) == expected["kept_offsets"]
        assert len(expected["kept_offsets"]) == rows
    assert [offset for offset, fate in table.items() if fate is Fate.duplicate] == [5, 6]


def test_c45_under_the_default_window_a_key_that_returns_after_55_minutes_is_a_new_event() -> None:
    # Case and law differ: the case calls offset 6 (e1, 55 minutes later) a duplicate, law 3 looks back 10 minutes.
    # The law holds.
    for table in decided_after_each_run(W_MS)[1:]:
        assert [offset for offset, fate in table.items() if fate is Fate.duplicate] == [5]
        assert table[2] is table[3] is Fate.ok


def test_a_duplicate_keeps_its_key_alive_and_a_dead_record_does_not() -> None:
    def at(offset: int, minute: int, fate: Fate = Fate.ok) -> Arrival:
        return Arrival(0, offset, minute * 60_000, "k", fate)

    assert mark_duplicates([at(0, 0), at(1, 9), at(2, 18)], W_MS)[0, 2] is Fate.duplicate
    assert mark_duplicates([at(0, 0, Fate.dead), at(1, 1)], W_MS)[0, 1] is Fate.ok
    assert mark_duplicates([at(0, 0, Fate.tombstone), at(1, 1)], W_MS)[0, 1] is Fate.ok
    assert mark_duplicates([at(0, 0), at(1, 10)], W_MS)[0, 1] is Fate.duplicate
    assert mark_duplicates([at(0, 0), at(1, 11)], W_MS)[0, 1] is Fate.ok
    assert mark_duplicates([at(0, 50), at(1, 0)], W_MS)[0, 1] is Fate.duplicate, "stamped later, at a lower offset"


def test_c01_holes_of_compaction_are_no_loss() -> None:
    given_, expected = case("C01")["input"], case("C01")["expected"]
    ranges = {0: OffsetRange(given_["beginning_offset"], given_["end_offset"])}
    survivors = given_["surviving_record_offsets"]
    assert ranges[0].span == expected["offset_span"]
    assert len(survivors) == expected["record_count"]
    gaps = {0: sum(offset not in survivors for offset in range(12))}
    assert balance(ranges, {0: {Fate.ok: len(survivors)}}, gaps).ok
    lost_one = balance(ranges, {0: {Fate.ok: len(survivors) - 1}}, gaps)
    assert (lost_one.ok, lost_one.missing) == (False, {0: 1})


@given(st.dictionaries(st.integers(0, 3), st.dictionaries(st.sampled_from(Fate), st.integers(0, 9))), st.integers(0, 3))
def test_a_slice_balances_exactly_when_all_offsets_are_explained(counts: dict[int, dict[Fate, int]], more: int) -> None:
    gaps = {9: more}
    spans = {partition: sum(fates.values()) for partition, fates in counts.items()} | {9: more}
    ranges = {partition: OffsetRange(5, 5 + width) for partition, width in spans.items()}
    assert balance(ranges, counts, gaps).ok
    longer = ranges | {9: OffsetRange(5, 7 + more)}
    assert balance(longer, counts, gaps).missing == {9: 2}


def test_rows_outside_the_ranges_are_too_many_and_marks_are_in_no_sum() -> None:
    counts = {0: {"ok": 2, "late": 1}, 3: {"ok": 1}}
    assert balance({0: OffsetRange(0, 2)}, counts, {}).missing == {3: -1}  # type: ignore[arg-type]


def test_every_fate_is_counted_also_with_none() -> None:
    assert count_fates(["ok", Fate.dead, "ok"]) == {
        "ok": 2, "dead": 1, "duplicate": 0, "tombstone": 0, "control": 0, "erased": 0
    }  # fmt: skip
