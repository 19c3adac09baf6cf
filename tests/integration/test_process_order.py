"""Duplicates on the real engine: by the letter of law 3, whatever the order of slices and wherever bytes come from.

Belongs here: Spark's marks against `lineage.fates.mark_duplicates`. Does not belong here: other fates.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lineage_assets.lineage.fates import Arrival, Fate, mark_duplicates
from lineage_assets.settings import Settings
from lineage_assets.spark.process import process
from lineage_assets.spark.session import session
from tests.cases import case
from tests.integration.engine import T0, Engine, Sent, check, event, fresh, slice_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOURS = ("10", "11", "12")
WINDOW_MS = 100 * 60_000
"""Longer than a slice: what decides about hour 12 lies in hours 10 and 11."""
COUNT = 180


@pytest.fixture
def shop(stack: Settings, spark: SparkSession, tmp_path: Path) -> Iterator[Engine]:
    with fresh(stack, spark, tmp_path, unique_by=("id",)) as made:
        yield made


def random_records(seed: int) -> list[Sent]:
    """Two partitions over three hours: few keys, clocks that jump by 50 minutes, null keys, dead records, tombstones."""
    dice, records = random.Random(seed), []
    for number in range(COUNT):
        minute = min(max(number + dice.choice((0, 0, 0, -50, -20, 5, 30)), 0), 179)
        id_, amount = dice.choice([*"abcdefghijkl", None]), dice.choice((1, 1, 1, -1))
        partition = dice.randrange(2)
        if dice.random() < 0.05:
            records.append(Sent(None, minute, partition=partition))
        else:
            records.append(event(id_, amount, minute, partition))
    return records


def by_the_law(records: Sequence[Sent], window_ms: int) -> dict[tuple[int, int], str]:
    """Fates of records that were sent in this order, by the reference."""
    ends: dict[int, int] = {}
    arrivals = []
    for one in records:
        offset = ends.get(one.partition, 0)
        ends[one.partition] = offset + 1
        values = json.loads(one.value) if one.value is not None else {"id": None, "amount": None}
        fate = Fate.tombstone if one.value is None else Fate.dead if (values["amount"] or 0) < 0 else Fate.ok
        arrivals.append(Arrival(one.partition, offset, one.timestamp_ms, values["id"], fate))
    return {place: fate.value for place, fate in mark_duplicates(arrivals, window_ms).items()}


@pytest.fixture(scope="module")
def history(stack: Settings, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A topic of random records; hours materialized one after the other: look-back comes from raw alone."""
    declared: dict[str, Any] = {"unique_by": ("id",), "window_ms": WINDOW_MS}
    with fresh(stack, spark, tmp_path_factory.mktemp("in_order"), partitions=2, **declared) as made:
        made.send(*random_records(7))
        for hour in HOURS:
            made.process(hour)
        yield made


@pytest.fixture(scope="module")
def expected(history: Engine) -> dict[tuple[int, int], str]:
    found = by_the_law(random_records(7), WINDOW_MS)
    own = {name: sum(fate == name for fate in found.values()) for name in Fate}
    assert min(own["ok"], own["duplicate"], own["dead"], own["tombstone"]) > 0, "the data has them all"
    short = by_the_law(random_records(7), 10 * 60_000)
    assert short != found, "and the window matters"
    return found


def test_slices_one_after_the_other_are_decided_by_the_letter_of_the_law(
    history: Engine, expected: dict[tuple[int, int], str]
) -> None:
    assert history.fates() == expected
    assert {hour: bool(history.raw(hour)) for hour in HOURS} == dict.fromkeys(HOURS, True)


def test_what_decides_about_a_slice_lies_in_other_slices_of_this_data(
    history: Engine, expected: dict[tuple[int, int], str]
) -> None:
    # Without it the tests of order below would show nothing.
    for hour in ("11", "12"):
        own = [row for row in history.raw(hour)]
        alone = [
            Arrival(
                row["partition"],
                row["offset"],
                round(row["timestamp"].timestamp() * 1000),
                json.loads(row["value"])["id"] if row["value"] else None,
                Fate.ok if row["fate"] == "duplicate" else Fate(row["fate"]),
            )
            for row in own
        ]
        assert mark_duplicates(alone, WINDOW_MS) != {place: expected[place] for place in history.fates(hour)}


@pytest.mark.parametrize(
    "order",
    [("12", "11", "10"), ("10", "12", "11")],
    ids=["look-back from Kafka", "look-back from raw and from Kafka"],
)
def test_slices_in_any_order_give_the_same_rows(history: Engine, order: Sequence[str], tmp_path: Path) -> None:
    other = history.in_lake(tmp_path)
    for hour in order:
        other.process(hour)
    assert other.raw() == history.raw()
    assert other.silver() == history.silver()


def test_slices_at_the_same_time_give_the_same_rows(history: Engine, tmp_path: Path) -> None:
    other = history.in_lake(tmp_path)

    def run(hour: str) -> None:
        with session(other.settings) as own:
            process(Engine(other.settings, own, other.table).job(), slice_of(hour))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(run, HOURS))
    assert other.raw() == history.raw()
    assert other.silver() == history.silver()


def test_slices_again_without_kafkas_copy_give_the_same_rows(history: Engine) -> None:
    before = history.raw(), history.silver()
    history.delete_records({0: -1, 1: -1})
    assert history.sliced().begin == history.sliced().end, "Kafka has nothing left"
    for hour in ("12", "10"):
        done = history.process(hour)
        assert check(done, "conservation").passed
    assert (history.raw(), history.silver()) == before


def test_a_dead_record_makes_no_duplicate_and_its_repeat_does(shop: Engine) -> None:
    shop.send(event("k", -1, at=1), event("k", 1, at=2), event("k", 1, at=3), event("k", -1, at=4))
    shop.process("10")
    assert list(shop.fates().values()) == ["dead", "ok", "duplicate", "dead"]
    assert [row["_offset"] for row in shop.silver()] == [1]


def test_a_key_is_found_again_up_to_the_window_and_to_the_millisecond(shop: Engine) -> None:
    shop.send(event("k", at=1), event("k", at=11), event("k", at=21 + 1 / 60_000), event("j", at=50), event("j", at=2))
    shop.process("10")
    assert list(shop.fates().values()) == ["ok", "duplicate", "ok", "ok", "duplicate"]


def test_c45_a_retry_over_the_turn_of_the_hour_is_a_duplicate_in_whatever_order_hours_are_made(shop: Engine) -> None:
    # Case and law differ: the case has no limit in time and calls offset 6 (e1, 55 minutes later) a duplicate; law 3 looks
    # ten minutes back. The law holds. Under a window of an hour all numbers of the case come out, in the test below.
    shop.send(*c45_records())
    for hour in ("11", "10"):
        shop.process(hour)
    assert [offset for (_, offset), fate in shop.fates().items() if fate == "duplicate"] == [5]
    assert [row["_offset"] for row in shop.silver()] == [0, 1, 2, 3, 4, 6]


def test_c45_under_a_window_of_an_hour(shop: Engine) -> None:
    given, expected = case("C45")["input"], case("C45")["expected"]
    table = shop.with_table(window_ms=3_600_000)
    table.send(*c45_records())
    rows = []
    for run in given["runs"]:
        table.process(run[:2])
        rows.append(len(table.silver()))
    assert rows == expected["silver_rows_after_each_run"]
    assert [row["_offset"] for row in table.silver()] == expected["kept_offsets"]
    assert sum(row["id"] is None for row in table.silver()) == expected["null_key_rows"]
    assert {hour: sum(fate == "duplicate" for fate in table.fates(hour).values()) for hour in ("10", "11")} == expected[
        "duplicates_reported"
    ]


def c45_records() -> list[Sent]:
    records = []
    for one in case("C45")["input"]["records"]:
        stamp = datetime.strptime(one["ts"], "%H:%M:%S.%f").replace(year=T0.year, month=T0.month, day=T0.day)
        records.append(event(one["event_id"], one["amt"], (stamp - T0.replace(tzinfo=None)).total_seconds() / 60))
    return records


def test_equal_keys_in_two_partitions_are_both_kept_and_counted(
    stack: Settings, spark: SparkSession, tmp_path: Path
) -> None:
    with fresh(stack, spark, tmp_path, partitions=2, unique_by=("id",)) as shop:
        shop.send(event("a", at=55), event("b", at=56), event("a", at=57, partition=1))
        shop.send(
            event("c", at=61), event("b", at=62, partition=1), event(None, at=63), event(None, at=64, partition=1)
        )
        first, second = shop.process("10"), shop.process("11")

        assert set(shop.fates().values()) == {"ok"}
        told = check(first, "one_partition_a_key")
        assert (told.passed, told.severity, told.blocking, told.failed, told.total) == (False, "WARN", False, 1, 3)
        assert check(second, "one_partition_a_key").passed, "of this slice, not of what lies below it"


def test_stamps_at_the_beginning_of_the_epoch_are_looked_back_from_like_any_other(shop: Engine) -> None:
    # The window then reaches to -1 ms, which the broker would read as "the latest offset".
    epoch = -T0.timestamp() / 60
    first, last = epoch + 1 / 60_000, epoch + (shop.table.window_ms - 1) / 60_000
    shop.send(event("k", at=first), event("x", at=61), event("k", at=last))
    shop.process("11")
    assert shop.fates() == {(0, 1): "ok", (0, 2): "duplicate"}
