"""Offsets without a record: what retention took, what transactions and compaction leave, partitions that come later.

Belongs here: conservation of slices on a real broker. Does not belong here: slices without holes (test_process.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lineage_assets.errors import FatalError
from lineage_assets.lineage.offsets import OffsetRange
from lineage_assets.settings import Settings
from lineage_assets.spark import process as engine_process
from lineage_assets.spark.process import Processed
from tests.cases import case
from tests.integration.engine import Abort, Engine, Sent, check, event, fresh, record_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "50",
    "min.cleanable.dirty.ratio": "0.0",
    "max.compaction.lag.ms": "1",
    "delete.retention.ms": "0",
}
"""The cleaner wakes every 15 s and leaves the newest segment alone."""


@pytest.fixture(scope="module", autouse=True)
def compacting(stack: Settings, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Made before the first test, so that the broker compacts it while they run."""
    lake = tmp_path_factory.mktemp("compacted")
    with fresh(stack, spark, lake, config=COMPACTED, unique_by=("id",), window_ms=1) as made:
        made.send(*(event(key, number, number, key=key.encode()) for number, key in enumerate("aaabbcabbdcd")))
        time.sleep(0.1)  # a segment is rolled by age, at the next record
        made.send(event("e", at=30, key=b"e"))
        yield made


@pytest.fixture
def shop(stack: Settings, spark: SparkSession, tmp_path: Path) -> Iterator[Engine]:
    with fresh(stack, spark, tmp_path) as made:
        yield made


@pytest.fixture
def payments(stack: Settings, spark: SparkSession, tmp_path: Path) -> Iterator[Engine]:
    """A topic whose producers use transactions."""
    with fresh(stack, spark, tmp_path, transactional=True) as made:
        yield made


def conservation(done: Processed) -> tuple[bool, int]:
    found = check(done, "conservation")
    assert (found.severity, found.blocking) == ("ERROR", True)
    return found.passed, found.failed


def ten(first_minute: float = 0) -> list[Sent]:
    return [event(str(number), at=first_minute + number) for number in range(10)]


def test_what_retention_left_is_read_and_what_it_took_is_named_and_fails_the_slice(shop: Engine) -> None:
    shop.send(*ten())
    shop.sliced()
    shop.delete_records({0: 4})

    for _ in range(2):
        done = shop.process("10")

        assert list(shop.fates()) == [(0, offset) for offset in range(4, 10)]
        assert len(shop.silver()) == 6
        assert conservation(done) == (False, 4)
        for commit in (done.raw, done.silver):
            assert record_of(commit).stated["lost"] == {"0": [0, 4]}
        assert record_of(done.raw).topics[0].ranges == {0: OffsetRange(4, 10)}


def test_a_slice_that_retention_took_whole_is_an_error_that_names_it_and_leaves_the_table(shop: Engine) -> None:
    shop.send(*ten(), *ten(70))
    shop.process("11")
    before, log = shop.raw(), shop.log("raw")
    shop.delete_records({0: 10})

    with pytest.raises(FatalError) as caught:
        shop.process("10")

    assert f"{shop.topic}/0@0-10" in caught.value.message
    assert "2026-03-01-10" in caught.value.message and caught.value.remedy
    assert (shop.raw(), shop.log("raw")) == (before, log)


def test_c03_an_old_window_is_materialized_again_from_raw_or_fails_naming_what_is_missing(
    shop: Engine, tmp_path: Path
) -> None:
    expected = {one["name"]: one for one in case("C03")["expected"]}["rematerialize_old_window"]
    assert "rows of that window stay" in expected["result"]
    shop.send(*ten(), *ten(70))
    shop.process("10")
    before = shop.raw()
    shop.sliced()
    shop.delete_records({0: 15})

    assert conservation(shop.process("10")) == (True, 0)
    assert shop.raw() == before
    part = shop.process("11")
    assert conservation(part) == (False, 5)
    assert record_of(part.raw).stated["lost"] == {"0": [10, 15]}


def test_what_retention_took_from_the_middle_of_the_open_slice_is_named_beside_what_raw_holds(shop: Engine) -> None:
    shop.send(*ten(185))
    shop.process("13")
    shop.send(*ten(195), *ten(205))
    shop.delete_records({0: 15})

    for _ in range(2):
        done = shop.process("13")

        assert list(shop.fates()) == [(0, offset) for offset in (*range(10), *range(15, 30))]
        assert record_of(done.raw).stated["lost"] == {"0": [10, 15]}
        assert conservation(done) == (False, 5)


def test_c05_a_partition_that_is_added_is_read_from_its_first_offset_and_older_slices_stay_valid(shop: Engine) -> None:
    shop.send(*(event(f"a{n}", at=n) for n in range(3)))
    first = shop.process("10")
    shop.add_partitions(2)
    shop.send(
        *(event(f"b{n}", at=190 + n) for n in range(2)), *(event(f"c{n}", at=190 + n, partition=1) for n in range(4))
    )

    grown, again = shop.process("13"), shop.process("10")

    assert record_of(grown.raw).topics[0].ranges == {0: OffsetRange(3, 5), 1: OffsetRange(0, 4)}
    assert len(shop.raw("13")) == 6
    assert {p: r for p, r in record_of(again.raw).topics[0].ranges.items() if r.span} == {0: OffsetRange(0, 3)}
    assert record_of(again.raw).counts == record_of(first.raw).counts
    assert conservation(grown) == conservation(again) == (True, 0)


def transact(payments: Engine) -> None:
    """0-2 committed and a marker, 4-5 aborted and a marker, 7 committed and a marker: the slice ends at 9.

    All of it arrives in the open slice: markers bear the broker's own time, by which an index would cut these old records.
    """
    payments.sliced()
    with payments.transaction() as send:
        send(event("a", at=181), event("b", at=182), event("c", at=183))
    with payments.transaction() as send:
        send(event("never", at=184), event("seen", at=185))
        raise Abort
    with payments.transaction() as send:
        send(event("d", at=186))
    payments.await_end(9)


GAPS = {"0": {"aborted": 2, "markers": 3}}


def test_of_transactions_only_committed_records_are_read_and_the_rest_is_measured(payments: Engine) -> None:
    transact(payments)

    done = payments.process("13")

    assert [row["id"] for row in payments.silver()] == ["a", "b", "c", "d"]
    assert record_of(done.raw).topics[0].ranges == {0: OffsetRange(0, 9)}
    assert record_of(done.raw).stated["gaps"] == GAPS
    assert conservation(done) == (True, 0)


def test_gaps_stay_as_they_were_measured_when_kafka_has_the_records_no_more(payments: Engine) -> None:
    transact(payments)
    payments.process("13")
    before = payments.raw()
    payments.delete_records({0: -1})

    again = payments.process("13")

    assert payments.raw() == before
    assert record_of(again.raw).stated["gaps"] == GAPS
    assert conservation(again) == (True, 0)


def test_a_transaction_that_is_open_is_not_part_of_the_slice_yet(payments: Engine) -> None:
    with payments.transaction() as send:
        send(event("a", at=185))
    with payments.transaction("other") as send:
        send(event("b", at=186))
        payments.process("13")
        assert [row["id"] for row in payments.silver()] == ["a"]
    payments.await_end(4)

    done = payments.process("13")

    assert [row["id"] for row in payments.silver()] == ["a", "b"]
    assert conservation(done) == (True, 0)


def test_markers_on_a_topic_that_is_not_declared_transactional_are_no_explanation(shop: Engine) -> None:
    shop.sliced()
    with shop.transaction() as send:
        send(event("a", at=181), event("a", at=182))
    shop.await_end(3)

    assert conservation(shop.process("13")) == (False, 1)
    assert conservation(shop.with_table(transactional=True).process("13")) == (True, 0)


def without(offset: int) -> Any:
    """`reads.arrivals` that loses a record, as a faulty reader would."""
    true = engine_process.arrivals

    def losing(*arguments: Any) -> DataFrame:
        return true(*arguments).where(f"`offset` <> {offset}")

    return losing


def test_a_record_that_is_lost_on_the_way_fails_a_plain_topic_and_holds_the_slice(
    shop: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.send(*ten())
    with monkeypatch.context() as broken:
        broken.setattr(engine_process, "arrivals", without(3))
        done = shop.process("10")
    assert conservation(done) == (False, 1)
    assert "gaps" not in record_of(done.raw).stated


def test_a_record_that_is_lost_on_the_way_fails_a_transactional_topic_too(
    payments: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    transact(payments)
    with monkeypatch.context() as broken:
        broken.setattr(engine_process, "arrivals", without(1))
        done = payments.process("13")
    assert conservation(done) == (False, 1)
    assert record_of(done.raw).stated["gaps"] == GAPS


def test_a_row_that_stands_twice_fails_the_slice(shop: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.send(*ten())
    true = engine_process.arrivals

    def doubling(*arguments: Any) -> DataFrame:
        rows = true(*arguments)
        return rows.where("`offset` <> 4").unionByName(rows.where("`offset` = 3"))

    for table in (shop, shop.with_table(unique_by=("id",)).in_lake(tmp_path / "with a key")):
        with monkeypatch.context() as broken:
            broken.setattr(engine_process, "arrivals", doubling)
            done = table.process("10")
        repeated = check(done, "unique_offsets")
        assert (repeated.passed, repeated.severity, repeated.failed) == (False, "ERROR", 1)


def test_an_offset_outside_the_slice_fails_it_also_when_the_number_of_rows_is_right(
    shop: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.send(*ten())
    true = engine_process.arrivals

    def shifting(*arguments: Any) -> DataFrame:
        from pyspark.sql import functions as F

        moved = F.when(F.col("offset") == 4, F.lit(99).cast("bigint")).otherwise(F.col("offset"))
        return true(*arguments).withColumn("offset", moved)

    with monkeypatch.context() as broken:
        broken.setattr(engine_process, "arrivals", shifting)
        done = shop.process("10")
    assert not conservation(done)[0]


def test_c01_the_holes_of_a_compacted_topic_are_measured_and_no_loss(compacting: Engine) -> None:
    from lineage_assets.kafka import gaps

    expected = case("C01")["expected"]
    whole = {0: OffsetRange(0, 13)}
    deadline = time.monotonic() + 60
    while gaps.measure(compacting.settings, compacting.topic, whole)[0].uncommitted == 13:
        assert time.monotonic() < deadline, "the broker compacts nothing"

    done = compacting.process("10")

    rows = compacting.raw()
    assert [row["key"] for row in rows] == [b"a", b"b", b"c", b"d", b"e"]
    assert record_of(done.raw).topics[0].ranges == whole
    assert record_of(done.raw).stated["gaps"] == {"0": {"compacted": 13 - len(rows)}}
    assert conservation(done) == (True, 0)
    assert (expected["data_loss"], expected["completeness_check"]) == (False, "pass")
