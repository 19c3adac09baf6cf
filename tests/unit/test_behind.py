"""What is behind: offsets that raw lacks, and outputs that have not read their source's newest commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from lineage_assets.kafka.client import Topic
from lineage_assets.kafka.cuts import SlicedTopic
from lineage_assets.lineage.commits import Commit
from lineage_assets.lineage.content import Slices, lost_offsets, newest_by_slice
from lineage_assets.lineage.offsets import OffsetRange
from lineage_assets.lineage.record import CheckOutcome, CommitRecord, TableInput, TopicInput
from lineage_assets.lineage.slices import Cut, Grain
from lineage_assets.reporting.behind import consumed, events_behind, slices_behind

AT = datetime(2026, 3, 1, 10, tzinfo=UTC)
TOPIC = Topic("clicks", "t1", (0, 1), {})
TEN, ELEVEN, TWELVE = "2026-03-01-10", "2026-03-01-11", "2026-03-01-12"


def sliced(end: dict[int, int] | None = None) -> SlicedTopic:
    """Hour 10 holds 0@0-10 and 1@0-5, hour 11 nothing, hour 12 is open."""
    cuts = [
        Cut(AT, {0: 0, 1: 0}),
        Cut(AT + timedelta(hours=1), {0: 10, 1: 5}),
        Cut(AT + timedelta(hours=2), {0: 10, 1: 5}),
    ]
    return SlicedTopic(TOPIC, Grain.hour, cuts, {0: 0, 1: 0}, end or {0: 10, 1: 5})


def raw(slice: str, ranges: dict[int, tuple[int, int]], topic_id: str = "t1", **more: object) -> CommitRecord:
    topic = TopicInput("clicks", "local", topic_id, {p: OffsetRange(*ends) for p, ends in ranges.items()})
    made = CommitRecord(
        asset="raw/clicks", env="dev", kind="replace", slice=slice, inputs=(topic,), counts={}, reasons={}, schema="",
        contract="", code="", run="r", written_at=AT,
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


def silver(slice: str, raw_version: int, table: str = "raw/clicks") -> CommitRecord:
    source = TableInput(table, "id", (raw_version, raw_version + 1))
    return replace(raw(slice, {}), asset="silver/clicks", inputs=(source,))


def log(*told: CommitRecord | None) -> Slices:
    """What a table holds after these commits, oldest first."""
    return newest_by_slice([Commit(version, 0, "WRITE", one) for version, one in enumerate(told)][::-1])


WHOLE = raw(TEN, {0: (0, 10), 1: (0, 5)})


def test_a_slice_that_raw_never_had_is_behind_and_one_without_records_is_not() -> None:
    assert events_behind(sliced(), {}, {}) == [TEN]


def test_a_slice_that_raw_and_silver_hold_whole_is_not_behind() -> None:
    assert events_behind(sliced(), log(WHOLE), log(silver(TEN, 0))) == []


def test_a_slice_that_lacks_offsets_of_one_partition_is_behind() -> None:
    assert events_behind(sliced(), log(raw(TEN, {0: (0, 10), 1: (0, 4)})), log(silver(TEN, 0))) == [TEN]
    assert events_behind(sliced(), log(raw(TEN, {0: (0, 10)})), log(silver(TEN, 0))) == [TEN]


def test_the_open_slice_is_behind_as_soon_as_it_grows() -> None:
    history = log(WHOLE), log(silver(TEN, 0))
    assert events_behind(sliced({0: 11, 1: 5}), *history) == [TWELVE]
    grown = log(WHOLE, raw(TWELVE, {0: (10, 11), 1: (5, 5)})), log(silver(TEN, 0), silver(TWELVE, 1))
    assert events_behind(sliced({0: 11, 1: 5}), *grown) == []
    assert events_behind(sliced({0: 12, 1: 5}), *grown) == [TWELVE]


def test_raw_that_was_decided_again_leaves_silver_behind() -> None:
    assert events_behind(sliced(), log(WHOLE, WHOLE), log(silver(TEN, 0))) == [TEN]
    assert events_behind(sliced(), log(WHOLE, WHOLE), log(silver(TEN, 1))) == []
    assert events_behind(sliced(), log(WHOLE), {}) == [TEN], "killed between the two commits"


def test_offsets_that_retention_took_are_not_asked_for_for_ever() -> None:
    part = raw(TEN, {0: (4, 10), 1: (0, 5)}, stated={"lost": {"0": [0, 4]}})
    assert lost_offsets(part) == {0: (OffsetRange(0, 4),)}
    assert events_behind(sliced(), log(part), log(silver(TEN, 0))) == []
    less = raw(TEN, {0: (4, 10), 1: (0, 5)}, stated={"lost": {"0": [0, 3]}})
    assert events_behind(sliced(), log(less), log(silver(TEN, 0))) == [TEN]


def test_a_slice_that_holds_records_of_an_earlier_topic_is_no_slice_of_this_one() -> None:
    other = raw(TEN, {0: (0, 10), 1: (0, 5)}, topic_id="t0")
    assert events_behind(sliced(), log(other), log(silver(TEN, 0))) == []


def test_slices_behind_come_oldest_first() -> None:
    assert events_behind(sliced({0: 99, 1: 5}), {}, {}) == [TEN, TWELVE]
    history = log(raw(TWELVE, {}), raw(TEN, {}))
    assert slices_behind(history, {}) == [TEN, TWELVE]


def held(record: CommitRecord) -> CommitRecord:
    return replace(record, checks=(CheckOutcome("amount__ge", False, "ERROR", 9, 10, (), True),))


def gold(slice: str, source_version: int) -> CommitRecord:
    return replace(silver(slice, source_version, "silver/clicks"), asset="gold/activity")


def test_a_table_is_behind_its_sources_newest_commit_of_the_slice() -> None:
    source = log(silver(TEN, 0), silver(ELEVEN, 1), silver(TEN, 2))
    assert slices_behind(source, log(gold(TEN, 0), gold(ELEVEN, 1))) == [TEN]
    assert slices_behind(source, log(gold(TEN, 2), gold(ELEVEN, 1))) == []
    assert slices_behind(source, log(gold(TEN, 2))) == [ELEVEN]


def test_a_held_slice_waits_until_it_is_repaired() -> None:
    bad = log(silver(TEN, 0), held(silver(TEN, 1)))
    assert slices_behind(bad, log(gold(TEN, 0))) == []
    repaired = log(silver(TEN, 0), held(silver(TEN, 1)), silver(TEN, 2))
    assert slices_behind(repaired, log(gold(TEN, 0))) == [TEN]


def test_foreign_and_structural_commits_make_nothing_behind() -> None:
    create = replace(silver(TEN, 0), kind="create", slice=None)
    assert slices_behind(log(create, silver(TEN, 0), None), log(gold(TEN, 1))) == []


def entry(version: int, record: CommitRecord) -> tuple[Commit, CommitRecord]:
    return Commit(version, 0, "WRITE", record), record


def test_only_the_records_own_table_counts_as_consumed() -> None:
    source: Sequence[tuple[Commit, CommitRecord]] = [entry(5, silver(TEN, 0))]
    assert not consumed(None, source[0])
    assert consumed(entry(0, gold(TEN, 5)), source[0])
    assert not consumed(entry(0, gold(TEN, 4)), source[0])
    assert not consumed(entry(0, silver(TEN, 9, "silver/other")), source[0])
    reference = replace(gold(TEN, 0), inputs=(TableInput("silver/clicks", "id", None, read_at=9),))
    assert not consumed(entry(0, reference), source[0]), "a snapshot that was read says nothing about a slice"


def streamed(slice: str, ranges: dict[int, tuple[int, int]]) -> CommitRecord:
    return raw(slice, ranges, kind="append", run="stream/clicks/x")


def test_a_running_stream_keeps_the_slices_that_reach_beyond_what_raw_holds() -> None:
    grown = sliced({0: 14, 1: 7})
    assert events_behind(grown, {}, {}, streamed=True) == [], "the stream begins at the first cut"
    part = log(streamed(TEN, {0: (0, 4), 1: (0, 5)}))
    done = log(silver(TEN, 0))
    assert events_behind(grown, part, done) == [TEN, TWELVE]
    assert events_behind(grown, part, done, streamed=True) == []
    more = log(streamed(TEN, {0: (0, 10), 1: (0, 5)}), streamed(TWELVE, {0: (10, 12), 1: (5, 5)}))
    assert events_behind(grown, more, log(silver(TEN, 0), silver(TWELVE, 1)), streamed=True) == []


def test_a_gap_below_what_a_running_stream_has_written_is_behind_as_ever() -> None:
    grown = sliced({0: 14, 1: 7})
    gap = log(streamed(TEN, {0: (2, 10), 1: (0, 5)}), streamed(TWELVE, {0: (10, 12), 1: (5, 6)}))
    assert events_behind(grown, gap, log(silver(TEN, 0), silver(TWELVE, 1)), streamed=True) == [TEN]
    idle = log(streamed(TEN, {0: (2, 10), 1: (0, 5)}), streamed(TWELVE, {0: (10, 12)}))
    assert events_behind(grown, idle, log(silver(TEN, 0), silver(TWELVE, 1)), streamed=True) == [TEN]
    apart = log(streamed(TEN, {0: (2, 10), 1: (0, 4)}), streamed(TWELVE, {0: (10, 12)}))
    assert events_behind(grown, apart, log(silver(TEN, 0), silver(TWELVE, 1)), streamed=True) == [], (
        "partition 1 is still on its way through the slice"
    )


def test_the_open_slice_is_the_streams_also_below_what_it_has_written() -> None:
    gap = log(WHOLE, streamed(TWELVE, {0: (11, 14), 1: (5, 7)}))
    made = log(silver(TEN, 0), silver(TWELVE, 1))
    assert events_behind(sliced({0: 14, 1: 7}), gap, made) == [TWELVE]
    assert events_behind(sliced({0: 14, 1: 7}), gap, made, streamed=True) == []


def test_a_stream_between_its_two_commits_is_not_behind_and_a_slice_that_it_left_so_is() -> None:
    ended = log(streamed(TEN, {0: (0, 10), 1: (0, 5)}))
    assert events_behind(sliced(), ended, {}) == [TEN]
    assert events_behind(sliced(), ended, {}, streamed=True) == []
    appended = streamed(TWELVE, {0: (10, 12), 1: (5, 7)})
    went_on = log(streamed(TEN, {0: (0, 10), 1: (0, 5)}), appended)
    assert events_behind(sliced({0: 12, 1: 7}), went_on, {}, streamed=True) == [TEN]
    decided_again = log(WHOLE, appended, WHOLE), log(silver(TEN, 0), silver(TWELVE, 1))
    assert events_behind(sliced({0: 12, 1: 7}), *decided_again, streamed=True) == [TEN]


def test_every_append_to_its_source_leaves_a_table_behind_that_slice() -> None:
    one, two = (replace(silver(TEN, version), kind="append") for version in (0, 1))
    assert slices_behind(log(one, two), log(gold(TEN, 0))) == [TEN]
    assert slices_behind(log(one, two), log(gold(TEN, 1))) == []
    passing = replace(two, checks=(CheckOutcome("amount__ge", True, "ERROR", 0, 10, (), True),))
    assert slices_behind(log(one, passing), log(gold(TEN, 0))) == [TEN]
    assert slices_behind(log(held(one), passing), log(gold(TEN, 0))) == [], "the checks of all appends hold the slice"
