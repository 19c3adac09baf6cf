"""Windows that follow a growing slice: whatever happens to the source, they equal windows made from all of its rows."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandera.pandas as pa
import pytest

from lineage_assets.lineage.commits import Commit, Lake, Tail, commits, open_table
from lineage_assets.lineage.content import newest_by_slice
from lineage_assets.lineage.offsets import OffsetRange
from lineage_assets.lineage.record import CheckOutcome, CommitRecord, Kind, TopicInput
from lineage_assets.lineage.slices import Grain, Slice
from lineage_assets.settings import Settings
from lineage_assets.spark import tables
from lineage_assets.spark.window_table import WindowTable, measures
from lineage_assets.spark.windows import SliceHeld, WindowJob, make_slice
from tests.integration.engine import NOW, Engine, Sent, contract_of, fresh, record_of
from tests.integration.streams import catch_up

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T0 = datetime(2026, 3, 1, 10, tzinfo=UTC)
TEN, ELEVEN = "2026-03-01-10", "2026-03-01-11"
SILVER = "silver/shop"
COLUMNS = {
    "user_id": "bigint",
    "amount": "bigint",
    "visit": "string",
    "occurred_at": "timestamp",
    "_partition": "int",
    "_offset": "bigint",
    "_slice": "string",
}
FOLLOWING = WindowTable(
    "following",
    SILVER,
    "occurred_at",
    300,
    ("user_id",),
    measures(
        {"n": "count(*)", "sum": "sum(amount)", "most": "max(amount)", "visits": "approx_count_distinct(visit)"},
        "shop",
    ),
)
WHOLE = replace(FOLLOWING, name="whole")


Row = tuple[int, int | None, str, datetime | None]


@dataclass(slots=True)
class Shop:
    """A silver table that grows by commits as a stream and bounded runs make them, and two window tables over it."""

    settings: Settings
    spark: SparkSession
    ends: dict[str, dict[int, int]] = field(default_factory=lambda: {TEN: {0: 0, 1: 0}, ELEVEN: {0: 9000, 1: 9000}})

    @property
    def lake(self) -> Lake:
        return self.settings.lake_env

    def write(
        self,
        rows: Sequence[Row],
        key: str = TEN,
        kind: Kind = "append",
        checks: tuple[CheckOutcome, ...] = (),
    ) -> Commit:
        """Commit rows at the next offsets of the two partitions, by turns."""
        ends = self.ends[key]
        placed, starts = [], dict(ends)
        for number, row in enumerate(rows):
            partition = number % 2
            placed.append((*row, partition, ends[partition], key))
            ends[partition] += 1
        ranges = {p: OffsetRange(starts[p], end) for p, end in ends.items()}
        record = CommitRecord(
            SILVER, "dev", kind, key, (TopicInput("shop", "local", "t1", ranges),), {"ok": len(rows)}, {}, "", "", "",
            "stream/shop/x", datetime.now(UTC), checks=checks,
        )  # fmt: skip
        frame = self.spark.createDataFrame(placed, ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items()))
        tail = Tail(self.lake, SILVER)
        tail.read()
        tables.ensure_table(self.spark, self.lake, SILVER, COLUMNS, record)
        done = tables.append if kind == "append" else tables.replace_slice
        return done(frame.coalesce(1), tail, record, tail.turn(key))

    def make(self, table: WindowTable = FOLLOWING, key: str = TEN) -> CommitRecord:
        job = WindowJob(self.spark, self.settings, table, "a-run")
        return record_of(make_slice(job, Slice.of(key, Grain.hour)))

    def rows(self, table: WindowTable, key: str | None = None) -> list[dict[str, Any]]:
        """What a reader sees, by user, window and slice; a sketch is a way to merge, and not compared."""
        stored = open_table(self.lake, table.asset)
        assert stored is not None
        found = stored.to_pyarrow_table().drop(["visits_sketch"]).to_pylist()
        return sorted(
            (row for row in found if key in (None, row["_slice"])),
            key=lambda row: (row["_slice"], row["user_id"], row["window_start"]),
        )

    def assert_equal(self, key: str = TEN) -> None:
        """The table that follows holds what one holds that is made now from all rows."""
        self.make(WHOLE, key)
        whole = self.rows(WHOLE, key)
        assert self.rows(FOLLOWING, key) == whole
        assert record_of(self.newest(FOLLOWING)).counts == {"rows": len(self.rows(FOLLOWING, record_slice(self)))}

    def newest(self, table: WindowTable) -> Commit:
        return commits(self.lake, table.asset, 1)[0]


def record_slice(shop: Shop) -> str:
    found = record_of(shop.newest(FOLLOWING)).slice
    assert found is not None
    return found


@pytest.fixture
def shop(stack: Settings, spark: SparkSession, tmp_path: Path) -> Shop:
    return Shop(stack.model_copy(update={"lake": str(tmp_path / "lake")}), spark)


def click(minute: float | None, user: int = 1, amount: int | None = 1, visit: str = "v") -> Row:
    return user, amount, visit, None if minute is None else T0 + timedelta(minutes=minute)


def names(record: CommitRecord) -> list[str] | None:
    """The windows that a commit made again, as hh:mm; None: all of the slice's."""
    windows = record.stated.get("windows")
    return None if windows is None else [window[11:16] for window in windows]


def test_only_the_windows_that_new_rows_touch_are_made_again(shop: Shop) -> None:
    first = shop.write([click(1), click(6), click(12, user=2)])
    made = shop.make()
    assert names(made) is None
    assert made.tables[0].commits == (first.version, first.version + 1)
    before = {row["window_start"]: row for row in shop.rows(FOLLOWING)}

    second = shop.write([click(7, amount=5), click(13, user=3)])
    made = shop.make()
    assert names(made) == ["10:05", "10:10"]
    assert made.tables[0].commits == (first.version, second.version + 1)
    assert made.tables[0].read_at == second.version
    assert made.counts == {"rows": 4}
    after = {(row["user_id"], row["window_start"]): (row["n"], row["sum"]) for row in shop.rows(FOLLOWING)}
    assert after == {
        (1, T0): (1, 1),
        (1, T0 + timedelta(minutes=5)): (2, 6),
        (2, T0 + timedelta(minutes=10)): (1, 1),
        (3, T0 + timedelta(minutes=10)): (1, 1),
    }
    assert before.keys() <= {window for _, window in after}
    shop.assert_equal()


def test_several_appends_are_followed_at_once_and_a_late_row_reaches_its_old_window(shop: Shop) -> None:
    shop.write([click(1), click(31)])
    shop.make()
    for minute in (32, 33, -119):
        last = shop.write([click(minute), click(minute, user=2)])
    made = shop.make()
    assert names(made) == ["08:00", "10:30"]
    assert made.tables[0].commits is not None
    assert made.tables[0].commits[1] == last.version + 1
    shop.assert_equal()


def test_rows_without_an_event_time_and_commits_without_rows_are_consumed_too(shop: Shop) -> None:
    shop.write([click(1)])
    shop.make()
    for rows in ([click(None), click(None)], []):
        last = shop.write(rows)
        made = shop.make()
        assert names(made) == []
        assert made.tables[0].commits is not None
        assert made.tables[0].commits[1] == last.version + 1
        assert made.counts == {"rows": 1}
    shop.assert_equal()


def test_a_slice_that_was_decided_again_is_made_again_whole(shop: Shop) -> None:
    shop.write([click(1), click(11)])
    shop.make()
    shop.write([click(2)], kind="replace")
    assert names(shop.make()) is None
    shop.write([click(3, user=2)])
    assert names(shop.make()) == ["10:00"]
    shop.assert_equal()
    assert [row["user_id"] for row in shop.rows(FOLLOWING)] == [1, 2]


def test_after_a_foreign_commit_or_a_restore_the_slice_is_made_again_whole(shop: Shop, spark: SparkSession) -> None:
    kept = shop.write([click(1), click(11)])
    shop.write([click(21)])
    shop.make()
    table = f"delta.`{shop.lake.path(SILVER)}`"
    spark.sql(f"DELETE FROM {table} WHERE user_id = 1 AND amount = 1 AND _offset = 0 AND _partition = 1").collect()
    shop.write([click(22)])
    assert names(shop.make()) is None
    shop.assert_equal()
    spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF {kept.version}").collect()
    shop.ends[TEN] = {0: 1, 1: 1}
    shop.write([click(23)])
    assert names(shop.make()) is None
    shop.assert_equal()
    assert [row["window_start"] for row in shop.rows(FOLLOWING)] == [T0 + timedelta(minutes=m) for m in (0, 10, 20)]


def test_a_changed_declaration_and_a_window_table_that_was_tampered_with_are_made_again_whole(
    shop: Shop, spark: SparkSession
) -> None:
    shop.write([click(1), click(11)])
    shop.make()
    shop.write([click(12)])
    assert names(shop.make(replace(FOLLOWING, window_s=600))) is None
    shop.write([click(13)])
    assert names(shop.make()) is None
    spark.sql(f"DELETE FROM delta.`{shop.lake.path(FOLLOWING.asset)}` WHERE user_id = 1").collect()
    shop.write([click(31)])
    assert names(shop.make()) is None
    shop.assert_equal()


def test_more_windows_than_a_record_can_name_make_the_slice_again_whole(shop: Shop) -> None:
    shop.write([click(1)])
    shop.make()
    shop.write([click(-5 * number) for number in range(101)])
    assert names(shop.make()) is None
    shop.write([click(-5 * number) for number in range(100)])
    assert len(names(shop.make()) or ()) == 100
    shop.assert_equal()


def test_a_held_slice_is_left_as_it_is_by_the_checks_of_all_its_appends(shop: Shop) -> None:
    shop.write([click(1)])
    shop.make()
    failed = CheckOutcome("amount: ge(0)", False, "ERROR", 1, 1, blocking=True)
    shop.write([click(2)], checks=(failed,))
    shop.write([click(3)], checks=(replace(failed, passed=True, failed=0),))
    with pytest.raises(SliceHeld, match=r"amount: ge\(0\)"):
        shop.make()
    assert len(shop.rows(FOLLOWING)) == 1


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_comes_the_windows_equal_those_of_a_bounded_recomputation(shop: Shop, seed: int) -> None:
    """Two slices at an hour boundary; late rows, rows at the edge of a window, nulls, decisions made again."""
    dice = random.Random(seed)

    def some(key: str) -> list[Row]:
        begins = 0 if key == TEN else 60
        minutes = [
            dice.choice([begins + dice.random() * 60, begins + 5 * dice.randrange(12), dice.randrange(-300, 0), None])
            for _ in range(dice.randrange(0, 9))
        ]
        return [
            click(minute, dice.randrange(3), dice.choice([None, -3, 7, 2**40]), f"v{dice.randrange(4)}")
            for minute in minutes
        ]

    for key in (TEN, ELEVEN):
        shop.write(some(key), key)
        shop.make(key=key)
    partly = 0
    for step in range(14):
        key = dice.choice([TEN, ELEVEN])
        shop.write(some(key), key, dice.choice(["append", "append", "append", "append", "replace"]))
        if dice.random() < 0.6:
            partly += names(shop.make(key=key)) is not None
        if step == 7:
            for one in (TEN, ELEVEN):
                shop.make(key=one)
                shop.assert_equal(one)
    for one in (TEN, ELEVEN):
        shop.make(key=one)
        shop.assert_equal(one)
    assert partly >= 3
    assert shop.rows(FOLLOWING) == shop.rows(WHOLE)


class Visit(pa.DataFrameModel):
    """An event with a time of its own."""

    id: str
    amount: int = pa.Field(ge=0)
    at: datetime


def visits(seed: int, count: int, first_minute: float, last_minute: float, partition: int) -> list[Sent]:
    """Visits of one partition as they arrive: most have just happened, some are hours late, some come twice."""
    dice = random.Random(seed)
    sent = []
    for number in range(count):
        arrives = first_minute + (last_minute - first_minute) * number / count
        happened = arrives - dice.choice([0.0, 0.1, 2.0, 150.0])
        told = {
            "id": f"v{dice.randrange(count)}",
            "amount": dice.randrange(9),
            "at": f"{T0 + timedelta(minutes=happened):%Y-%m-%dT%H:%M:%S.%fZ}",
        }
        sent.append(Sent(json.dumps(told).encode(), arrives, partition=partition))
    return sent


def test_windows_over_a_stream_equal_windows_over_bounded_runs(
    stack: Settings, spark: SparkSession, tmp_path: Path
) -> None:
    """A catch-up in which the two partitions are hours apart, across hour boundaries, with late events and duplicates."""
    declared: dict[str, Any] = {"contract": contract_of(Visit), "event_time": "at", "unique_by": ("id",)}
    with fresh(stack, spark, tmp_path / "lake", partitions=2, **declared) as streamed:
        table = WindowTable(
            "visits",
            f"silver/{streamed.table.name}",
            "at",
            300,
            ("id",),
            measures({"n": "count(*)", "sum": "sum(amount)", "visits": "approx_count_distinct(amount)"}, "visits"),
        )
        bounded = streamed.in_lake(tmp_path / "bounded")
        # Partition 0 is two hours ahead of partition 1, record by record.
        streamed.send(*visits(1, 90, 5, 205, 0), *visits(2, 60, 5, 100, 1), *visits(3, 5, 190, 205, 1))
        streamed.sliced(NOW)
        job = WindowJob(spark, streamed.settings, table, "a-run")
        partly = 0
        with ThreadPoolExecutor(1) as beside:
            running = beside.submit(catch_up, streamed, 15)
            while not running.done() or lagging(streamed, table):
                for key in lagging(streamed, table):
                    partly += names(record_of(make_slice(job, Slice.of(key, Grain.hour)))) is not None
                wait([running], timeout=0.2)
            running.result()
        assert partly >= 1
        made = {key for key in newest_by_slice(streamed.log("silver")) if key is not None}
        for key in sorted(made):
            bounded.process(key[-2:])
            make_slice(WindowJob(spark, bounded.settings, table, "a-run"), Slice.of(key, Grain.hour))
        assert len(made) == 4
        assert seen(streamed.settings, table) == seen(bounded.settings, table)
        assert "duplicate" in set(streamed.fates().values())


def lagging(streamed: Engine, table: WindowTable) -> list[str]:
    """Slices whose windows have not consumed all that silver holds."""
    silver, made = (
        newest_by_slice(streamed.log("silver")),
        newest_by_slice(commits(streamed.settings.lake_env, table.asset)),
    )
    read = {key: (record.tables[0].commits or (0, 0))[1] for key, (_, record) in made.items()}
    return [key for key, (commit, _) in silver.items() if key is not None and read.get(key, 0) <= commit.version]


def seen(settings: Settings, table: WindowTable) -> list[dict[str, Any]]:
    stored = open_table(settings.lake_env, table.asset)
    assert stored is not None
    found = stored.to_pyarrow_table().drop(["visits_sketch"]).to_pylist()
    return sorted(found, key=lambda row: (row["_slice"], row["id"], row["window_start"]))
