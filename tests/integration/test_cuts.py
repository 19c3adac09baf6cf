"""Cuts of a real topic: taken once, by arrival when somebody was there, by the broker's timestamp index where not.

Belongs here: kafka/cuts.py against the broker and the ledger. Does not belong here: the arithmetic (unit tests).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from lineage_assets.kafka.client import create_topic
from lineage_assets.kafka.cuts import ARRIVAL_SLACK, SlicedTopic
from lineage_assets.lineage import ledger
from lineage_assets.lineage.ledger import TopicRef
from lineage_assets.lineage.offsets import OffsetRange
from lineage_assets.settings import Settings
from tests.cases import case
from tests.integration.engine import NOW, T0, TOPIC_CONFIG, Engine, Sent, fresh, slice_of

HOUR = timedelta(hours=1)
A_MOMENT = timedelta(seconds=20)


@pytest.fixture
def topic(stack: Settings, tmp_path: Path) -> Iterator[Engine]:
    """One partition, empty."""
    with fresh(stack, None, tmp_path) as made:  # type: ignore[arg-type]
        yield made


@contextmanager
def three_partitions(stack: Settings, lake: Path, since: datetime) -> Iterator[Engine]:
    with fresh(stack, None, lake, partitions=3, since=since) as made:  # type: ignore[arg-type]
        yield made


def at(*minutes: float, partition: int = 0) -> list[Sent]:
    return [Sent(b"{}", minute, partition=partition) for minute in minutes]


def spans(sliced: SlicedTopic, partition: int = 0) -> dict[str, tuple[int, int]]:
    """Hour -> the offsets of a partition."""
    return {
        piece.key[-2:]: (ranges[partition].start, ranges[partition].end)
        for piece, ranges in sliced.slices()
        if partition in ranges
    }


def how_cuts_were_found(engine: Engine, sliced: SlicedTopic) -> dict[str, str]:
    from lineage_assets.lineage.commits import open_table

    table = open_table(engine.settings.lake_env, ledger.CUTS)
    assert table is not None
    rows = table.to_pyarrow_table(filters=[("topic_id", "=", sliced.topic.id)]).to_pylist()
    return {f"{row['at']:%H}": row["how"] for row in rows}


def test_c06_history_is_cut_by_the_brokers_timestamp_index(stack: Settings, tmp_path: Path) -> None:
    given, expected = case("C06")["input"], case("C06")["expected"]
    zero_ms = given["windows"]["10"][0]
    shift = (datetime.fromtimestamp(zero_ms / 1000, T0.tzinfo) - T0).total_seconds() / 60
    since = datetime.fromtimestamp(given["windows"]["09"][0] / 1000, T0.tzinfo)
    now = datetime.fromtimestamp(given["windows"]["12"][0] / 1000, T0.tzinfo) + timedelta(minutes=20)
    with three_partitions(stack, tmp_path, since) as topic:
        minutes = [shift + (stamp - zero_ms) / 60_000 for _, stamp in given["partitions"]["0"]["records"]]
        topic.send(*at(*minutes), *at(*[shift - 30] * 60, partition=2))
        topic.delete_records({2: given["partitions"]["2"]["begin"]})

        sliced = topic.sliced(now)

        for name, wanted in expected["ranges"].items():
            assert spans(sliced, 0)[name] == tuple(wanted["0"]), name
            assert spans(sliced, 1)[name] == (0, 0)
            assert spans(sliced, 2)[name] == tuple(wanted["2"]), name
        assert spans(topic.sliced(now + 3 * HOUR))["11"] == (4, 7), "a closed slice never changes"


def test_what_is_older_than_the_first_slice_belongs_to_it(topic: Engine) -> None:
    topic.send(*at(-300, -200, 5, 65))
    assert spans(topic.sliced()) == {"10": (0, 3), "11": (3, 4), "12": (4, 4), "13": (4, 4)}


def test_a_topic_that_is_younger_than_its_declared_start_begins_with_its_first_record(topic: Engine) -> None:
    topic.send(*at(70, 130))
    assert spans(topic.sliced()) == {"11": (0, 1), "12": (1, 2), "13": (2, 2)}


def test_an_empty_topic_has_its_open_slice_only_and_it_takes_what_comes(topic: Engine) -> None:
    assert spans(topic.sliced()) == {"13": (0, 0)}
    topic.send(*at(5, 500))
    assert spans(topic.sliced()) == {"13": (0, 2)}, "arrival decides, not the stamp"


def test_the_open_slice_grows_and_its_cut_stays(topic: Engine) -> None:
    topic.send(*at(5, 185))
    assert spans(topic.sliced())["13"] == (1, 2)
    topic.send(*at(190, 191))
    later = topic.sliced(NOW + timedelta(minutes=10))
    assert spans(later)["13"] == (1, 4)
    assert later.open_slice.key == "2026-03-01-13"


def test_when_the_hour_turns_the_cut_is_what_has_arrived_whatever_the_stamps_say(topic: Engine) -> None:
    topic.send(*at(185))
    topic.sliced()
    topic.send(*at(30, 500, 186))

    turned = topic.sliced(T0 + 4 * HOUR + A_MOMENT)

    assert spans(turned)["13"] == (0, 4)
    assert spans(turned)["14"] == (4, 4)
    assert how_cuts_were_found(topic, turned)["14"] == "arrival"


def test_a_record_stamped_ahead_does_not_empty_the_slices_that_arrive_after_it(topic: Engine) -> None:
    topic.sliced()
    topic.send(*at(185, 9_000, 187))
    topic.sliced(T0 + 4 * HOUR + A_MOMENT)
    topic.send(*at(245, 246))
    topic.sliced(T0 + 5 * HOUR + A_MOMENT)
    topic.send(*at(305))

    now = topic.sliced(T0 + 5 * HOUR + timedelta(minutes=30))

    assert spans(now) == {"13": (0, 3), "14": (3, 5), "15": (5, 6)}


def test_the_first_insert_of_a_cut_wins_and_everybody_reads_it(topic: Engine) -> None:
    topic.sliced()
    topic.send(*at(185, 186))
    turn = T0 + 4 * HOUR
    first = topic.sliced(turn + A_MOMENT)
    topic.send(*at(241))

    assert topic.sliced(turn + ARRIVAL_SLACK).cuts == first.cuts
    standing = ledger.add_cuts(
        topic.settings.lake_env,
        TopicRef(topic.settings.kafka_alias, topic.topic, first.topic.id),
        [replace(first.cuts[-1], offsets={0: 99})],
        "index",
    )
    assert standing == list(first.cuts)


def test_those_who_look_at_the_same_time_get_the_same_cuts(topic: Engine) -> None:
    topic.send(*at(5, 65, 125))
    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(lambda _: topic.sliced(), range(4)))
    assert all(one.cuts == seen[0].cuts for one in seen)
    assert spans(seen[0]) == {"10": (0, 1), "11": (1, 2), "12": (2, 3), "13": (3, 3)}


def test_hours_that_nobody_saw_turn_are_cut_by_the_index_within_what_arrived_since(topic: Engine) -> None:
    topic.send(*at(5))
    topic.sliced()
    topic.send(*at(20, 200, 250, 310, 249, 370))

    late = topic.sliced(T0 + 6 * HOUR + timedelta(minutes=30))

    assert spans(late) == {
        "10": (0, 1), "11": (1, 1), "12": (1, 1), "13": (1, 3), "14": (3, 4), "15": (4, 6), "16": (6, 7)
    }  # fmt: skip
    assert {how_cuts_were_found(topic, late)[hour] for hour in ("14", "15", "16")} == {"index"}


def test_after_an_outage_that_ends_at_a_turn_the_last_cut_is_by_arrival(topic: Engine) -> None:
    topic.sliced()
    topic.send(*at(250, 20))

    late = topic.sliced(T0 + 6 * HOUR + A_MOMENT)

    found = how_cuts_were_found(topic, late)
    assert (found["14"], found["15"], found["16"]) == ("index", "index", "arrival")
    assert spans(late) == {"13": (0, 0), "14": (0, 2), "15": (2, 2), "16": (2, 2)}


def test_every_offset_lies_in_exactly_one_slice_after_turns_outages_and_wrong_clocks(topic: Engine) -> None:
    topic.send(*at(5, 900, 65))
    topic.sliced()
    topic.send(*at(10, 190))
    topic.sliced(T0 + 4 * HOUR + A_MOMENT)
    topic.send(*at(2, 300, 1))
    topic.sliced(T0 + 7 * HOUR + timedelta(minutes=10))
    topic.send(*at(1, 2))

    found = spans(topic.sliced(T0 + 9 * HOUR))

    assert all(earlier[1] == later[0] for earlier, later in pairwise(found.values()))
    assert (next(iter(found.values()))[0], list(found.values())[-1][1]) == (0, 10)
    assert list(found) == [f"{hour:02}" for hour in range(10, 20)]


def test_a_partition_that_is_added_begins_at_its_first_offset_in_the_slice_that_saw_it(topic: Engine) -> None:
    topic.send(*at(185))
    topic.sliced()
    topic.sliced(T0 + 4 * HOUR + A_MOMENT)
    topic.add_partitions(2)
    topic.send(*at(245, 246, partition=1))

    grown = topic.sliced(T0 + 5 * HOUR + A_MOMENT)

    assert grown.ranges(slice_of("13")) == {0: OffsetRange(0, 1)}
    assert grown.ranges(slice_of("14")) == {0: OffsetRange(1, 1), 1: OffsetRange(0, 2)}
    assert grown.ranges(slice_of("15")) == {0: OffsetRange(1, 1), 1: OffsetRange(2, 2)}


def test_a_recreated_topic_has_cuts_of_its_own(topic: Engine) -> None:
    topic.send(*at(5, 65))
    before = topic.sliced()
    topic.delete_topic()
    create_topic(topic.settings, topic.topic, 1, TOPIC_CONFIG)
    topic.send(*at(130))

    again = topic.sliced()

    assert again.topic.id != before.topic.id
    assert spans(again) == {"12": (0, 1), "13": (1, 1)}


def test_a_slice_before_the_first_cut_or_after_the_open_one_is_empty(topic: Engine) -> None:
    topic.send(*at(65))
    sliced = topic.sliced()
    assert sliced.ranges(slice_of("10")) == {}
    assert sliced.ranges(slice_of("14")) == {}


def test_offsets_that_were_asked_for_before_another_one_cut_the_turned_hour_are_no_fault(topic: Engine) -> None:
    topic.send(*at(185))
    early = topic.sliced()
    topic.send(*at(186, 187))
    turned = topic.sliced(T0 + 4 * HOUR + A_MOMENT)

    mixed = replace(turned, end=early.end)

    assert mixed.ranges(slice_of("13")) == {0: OffsetRange(0, 3)}
    assert mixed.ranges(slice_of("14")) == {0: OffsetRange(3, 3)}
