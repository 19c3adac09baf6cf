"""Which slices of a topic are news, and what their materializations say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import dagster as dg

from lineage_assets.kafka.client import Topic
from lineage_assets.kafka.cuts import SlicedTopic
from lineage_assets.lineage.offsets import OffsetRange
from lineage_assets.lineage.record import SchemaUse
from lineage_assets.lineage.slices import Cut, Grain
from lineage_assets.reporting.topics import Reported, materialization, to_report

AT = datetime(2026, 3, 1, 10, tzinfo=UTC)
TEN, ELEVEN, TWELVE = "2026-03-01-10", "2026-03-01-11", "2026-03-01-12"


def sliced(
    *starts: int, end: int, topic_id: str = "t1", config: Mapping[str, str] | None = None, first: datetime = AT
) -> SlicedTopic:
    """Hours from 10 on; each begins at an offset of the only partition, the last one is open up to `end`."""
    cuts = [Cut(first + timedelta(hours=index), {0: start}) for index, start in enumerate(starts)]
    return SlicedTopic(Topic("clicks", topic_id, (0,), config or {}), Grain.hour, cuts, {0: 0}, {0: end})


def news(topic: SlicedTopic, before: Reported = Reported()) -> list[tuple[str, int, int]]:  # noqa: B008
    return [(piece.key, ranges[0].start, ranges[0].end) for piece, ranges in to_report(topic, before)[0]]


def test_at_first_every_slice_with_records_is_news_oldest_first() -> None:
    assert news(sliced(0, 10, 10, end=12)) == [(TEN, 0, 10), (TWELVE, 10, 12)]


def test_what_was_reported_is_no_news() -> None:
    topic = sliced(0, 10, 10, end=12)
    _, after = to_report(topic, Reported())
    assert news(topic, after) == []


def test_the_open_slice_is_news_as_often_as_it_grows() -> None:
    _, after = to_report(sliced(0, 10, end=12), Reported())
    assert news(sliced(0, 10, end=13), after) == [(ELEVEN, 10, 13)]


def test_a_slice_that_closes_is_told_once_more_even_if_it_did_not_grow() -> None:
    _, after = to_report(sliced(0, 10, end=12), Reported())
    closed = sliced(0, 10, 12, end=12)
    assert news(closed, after) == [(ELEVEN, 10, 12)]
    _, later = to_report(closed, after)
    assert news(closed, later) == []


def test_hours_that_nobody_looked_are_all_told() -> None:
    _, after = to_report(sliced(0, end=4), Reported())
    assert news(sliced(0, 5, 9, end=9), after) == [(TEN, 0, 5), (ELEVEN, 5, 9)]


def test_a_recreated_topic_is_told_from_its_beginning() -> None:
    _, after = to_report(sliced(0, 10, end=12), Reported())
    assert news(sliced(0, 10, end=12, topic_id="t2"), after) == [(TEN, 0, 10), (ELEVEN, 10, 12)]


def test_a_topic_without_records_is_no_news() -> None:
    assert news(sliced(0, 0, end=0)) == []
    _, after = to_report(sliced(0, 0, end=0), Reported())
    assert news(sliced(0, 0, end=1), after) == [(ELEVEN, 0, 1)]


def test_what_is_remembered_survives_json() -> None:
    topic = sliced(0, 10, 10, end=2**60)
    _, after = to_report(topic, Reported())
    kept = Reported(**json.loads(json.dumps(after.to_json())))
    assert kept == after
    assert news(topic, kept) == []


def metadata(made: dg.AssetMaterialization) -> dict[str, object]:
    return {name: value.value for name, value in made.metadata.items()}


KEY = dg.AssetKey(["kafka", "local", "clicks"])
USES = (SchemaUse("clicks-value", 4, 1, "f1"), SchemaUse("clicks-value", 9, 2, "f2"))


def test_a_closed_slice_says_its_ranges_records_lag_and_schemas() -> None:
    topic = sliced(0, 10, end=12)
    ((piece, ranges), _), _ = to_report(topic, Reported())
    made = materialization(KEY, topic, piece, ranges, USES, 7)
    assert (made.asset_key, made.partition) == (KEY, TEN)
    assert metadata(made) == {
        "kafka/topic_id": "t1",
        "kafka/ranges": {"0": ["0", "10"]},
        "kafka/offset_span": 10,
        "kafka/records": 10,
        "kafka/partitions": 1,
        "kafka/lag": 7,
        "slice/closed": True,
        "schema/fingerprint": "f2",
        "schema/versions": [
            {"subject": "clicks-value", "id": 4, "version": 1, "fingerprint": "f1"},
            {"subject": "clicks-value", "id": 9, "version": 2, "fingerprint": "f2"},
        ],
    }


def test_the_open_slice_is_marked_and_large_offsets_travel_as_text() -> None:
    topic = sliced(2**60, end=2**61)
    ((piece, ranges),), _ = to_report(topic, Reported())
    told = metadata(materialization(KEY, topic, piece, ranges, (), None))
    assert told["slice/closed"] is False
    assert told["kafka/ranges"] == {"0": [str(2**60), str(2**61)]}
    assert told["kafka/offset_span"] == str(2**60)
    assert "kafka/lag" not in told and "schema/fingerprint" not in told


def test_a_compacted_topic_gives_its_span_but_no_number_of_records() -> None:
    topic = sliced(0, end=12, config={"cleanup.policy": "compact"})
    told = metadata(materialization(KEY, topic, topic.open_slice, {0: OffsetRange(0, 12)}, (), None))
    assert told["kafka/offset_span"] == 12
    assert "kafka/records" not in told
