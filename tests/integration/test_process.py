"""process(slice) on the real stack: what one slice leaves in raw, in silver and in their commits, once and again.

Belongs here: rows, records, law 4. Does not belong here: duplicates over slices in any order (test_process_order.py),
holes in a topic (test_process_gaps.py), bad bytes (test_bad_input.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandera.pandas as pa
import pytest

from lineage_assets.errors import FatalError
from lineage_assets.kafka.client import create_topic
from lineage_assets.kafka.registry import Registry
from lineage_assets.lineage.commits import Tail, open_table
from lineage_assets.lineage.content import blocking_failures, newest_by_slice
from lineage_assets.lineage.offsets import OffsetRange
from lineage_assets.lineage.record import TableInput, TopicInput, output_schema_hash
from lineage_assets.lineage.schemas import fingerprint
from lineage_assets.lineage.skew import heaviest_keys, imbalance
from lineage_assets.settings import Settings
from lineage_assets.spark import tables
from lineage_assets.spark.job import RAW
from lineage_assets.spark.process import Processed, process
from lineage_assets.spark.session import session
from tests.integration.engine import (
    NOW,
    T0,
    TOPIC_CONFIG,
    Engine,
    Sent,
    StricterEvent,
    avro_bytes,
    check,
    contract_of,
    event,
    framed,
    fresh,
    minute_ms,
    record_of,
    slice_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VISIT: dict[str, Any] = {
    "type": "record",
    "name": "Visit",
    "fields": [
        {"name": "id", "type": ["null", "string"]},
        {"name": "amount", "type": ["null", "long"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
VISIT_2 = {**VISIT, "fields": [*VISIT["fields"], {"name": "page", "type": ["null", "string"], "default": None}]}


class Visit(pa.DataFrameModel):
    """An event with a time of its own."""

    id: str = pa.Field(nullable=True)
    amount: int = pa.Field(ge=0, nullable=True)
    at: datetime


@pytest.fixture
def shop(stack: Settings, spark: SparkSession, tmp_path: Path) -> Iterator[Engine]:
    """A JSON table with a dedupe key."""
    with fresh(stack, spark, tmp_path, unique_by=("id",)) as made:
        yield made


@pytest.fixture(scope="module")
def visits(stack: Settings, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An Avro table, one hour of eight records: every fate, two schemas, all kinds of headers and keys."""
    lake = tmp_path_factory.mktemp("visits")
    declared: dict[str, Any] = {"contract": contract_of(Visit), "event_time": "at", "unique_by": ("id",)}
    sql = "SELECT upper(id) AS name, amount * 2 AS twice, at FROM records"
    with fresh(stack, spark, lake, partitions=2, format="avro", select=sql, **declared) as made:
        registry = Registry(stack)
        ids = [registry.register(f"{made.topic}-value", json.dumps(schema)) for schema in (VISIT, VISIT_2)]

        def visit(id: str, amount: int, minute: float, occurred: float, version: int = 0, **more: Any) -> Sent:
            values = {"id": id, "amount": amount, "at": minute_ms(occurred), "page": "/"}
            schema = json.dumps((VISIT, VISIT_2)[version])
            return Sent(framed(ids[version], avro_bytes(schema, values)), minute, **more)

        made.send(
            visit(
                "a",
                1,
                0,
                0,
                key=b"k\x00\xff",
                headers=[("trace", b"a"), ("other", b""), ("trace", b"b"), ("none", None)],
            ),
            visit("b", 2, 1, -100),
            visit("a", 3, 2, 2, key=b""),
            visit("c", -4, 3, 3),
            Sent(b"\0\0\0", 4, headers=[]),
            Sent(None, 5, key=b"gone"),
            visit("d", 5, 6, 6, version=1),
            visit("e", 6, 7, 7, partition=1),
            visit("f", 7, 61, 61),
        )
        yield made


@pytest.fixture(scope="module")
def hour(visits: Engine) -> Processed:
    return visits.process("10")


def test_raw_has_a_row_for_each_record_with_its_bytes_as_they_came(visits: Engine, hour: Processed) -> None:
    rows = visits.raw("10")

    assert [(row["partition"], row["offset"]) for row in rows] == [*((0, offset) for offset in range(7)), (1, 0)]
    assert [row["key"] for row in rows[:3]] == [b"k\x00\xff", None, b""]
    assert rows[4]["value"] == b"\0\0\0" and rows[5]["value"] is None
    assert [row["timestamp"] for row in rows[:3]] == [T0 + timedelta(minutes=minute) for minute in range(3)]
    assert [(one["key"], one["value"]) for one in rows[0]["headers"]] == [
        ("trace", b"a"), ("other", b""), ("trace", b"b"), ("none", None)
    ]  # fmt: skip
    assert all(not row["headers"] for row in rows[1:])


def test_raw_has_each_records_fate_with_reasons_and_what_decided_it(visits: Engine, hour: Processed) -> None:
    rows = visits.raw("10")

    assert [row["fate"] for row in rows] == ["ok", "ok", "duplicate", "dead", "dead", "tombstone", "ok", "ok"]
    assert rows[3]["reasons"] == ["amount: ge(0)"]
    assert rows[4]["reasons"] == ["decode: shorter than 5 bytes"]
    assert all(not row["reasons"] for row in rows if row["fate"] != "dead")
    assert [row["late_by_s"] for row in rows] == [None, 101 * 60, *[None] * 6]
    assert {row["contract"] for row in rows} == {visits.table.contract.hash}
    known, newer = sorted({row["schema_id"] for row in rows if row["schema_id"] is not None})
    assert [row["schema_id"] for row in rows] == [known, known, known, known, None, None, newer, known]


def test_silver_has_the_ok_rows_through_the_tables_sql_and_where_each_came_from(
    visits: Engine, hour: Processed
) -> None:
    rows = visits.silver("10")

    assert [(row["name"], row["twice"]) for row in rows] == [("A", 2), ("B", 4), ("D", 10), ("E", 12)]
    assert [(row["_partition"], row["_offset"]) for row in rows] == [(0, 0), (0, 1), (0, 6), (1, 0)]
    assert [row["_late_by_s"] for row in rows] == [None, 101 * 60, None, None]
    assert rows[1]["_timestamp"] == T0 + timedelta(minutes=1)
    assert rows[1]["at"] == T0 - timedelta(minutes=100)
    assert {row["_slice"] for row in rows} == {"2026-03-01-10"}


def test_raws_commit_carries_ranges_schemas_counts_reasons_and_checks(visits: Engine, hour: Processed) -> None:
    record, registry = record_of(hour.raw), Registry(visits.settings)
    versions = registry.versions(visits.table.subject)

    (topic,) = record.inputs
    assert isinstance(topic, TopicInput)
    assert (topic.topic, topic.cluster, topic.topic_id) == (visits.topic, "local", visits.sliced().topic.id)
    assert topic.ranges == {0: OffsetRange(0, 7), 1: OffsetRange(0, 1)}
    assert [(use.subject, use.id, use.version) for use in topic.schemas] == [
        (visits.table.subject, one.id, one.version) for one in versions
    ]
    assert [use.fingerprint for use in topic.schemas] == [fingerprint(json.dumps(one)) for one in (VISIT, VISIT_2)]
    assert dict(record.counts) == {
        "ok": 4, "dead": 2, "duplicate": 1, "tombstone": 1, "control": 0, "erased": 0, "late": 1
    }  # fmt: skip
    assert dict(record.reasons) == {"amount: ge(0)": 1, "decode: shorter than 5 bytes": 1}
    assert (record.asset, record.kind, record.slice) == (f"raw/{visits.table.name}", "replace", "2026-03-01-10")
    assert (record.env, record.run, record.attempt) == ("dev", "a-run", 1)
    assert (record.contract, record.code) == (visits.table.contract.hash, visits.table.code)
    assert record.schema == output_schema_hash(list(RAW.items()))
    assert list(record.stated) == ["skew"]
    assert imbalance(record.stated["skew"]) == 7 / 4, "seven records in one of two partitions"
    assert sum(one.most for one in heaviest_keys(record.stated["skew"])) == 8


def test_the_checks_of_a_slice_name_records_by_place(visits: Engine, hour: Processed) -> None:
    negative, undecodable = check(hour, "amount__ge"), check(hour, "decodable")

    assert (negative.failed, negative.total, negative.examples) == (1, 7, (f"{visits.topic}/0@3",))
    assert (undecodable.failed, undecodable.examples) == (1, (f"{visits.topic}/0@4",))
    assert all(check(hour, name).passed for name in ("conservation", "unique_offsets", "known_schemas", "id__type"))
    assert blocking_failures(record_of(hour.silver)) == ["amount__ge", "decodable"], "1 of 7 is above 5 %"


def test_silvers_commit_names_the_commit_of_raw_that_it_is_the_decision_of(visits: Engine, hour: Processed) -> None:
    raw, silver = record_of(hour.raw), record_of(hour.silver)

    own = (hour.raw.version, hour.raw.version + 1)
    assert silver.tables == (TableInput(raw.asset, tables.table_id(visits.settings.lake_env, raw.asset), own),)
    assert silver.topics == raw.topics
    assert (silver.counts, silver.reasons, silver.checks) == (raw.counts, raw.reasons, raw.checks)
    assert silver.slice == raw.slice and silver.code == raw.code
    assert silver.schema == output_schema_hash(
        [
            ("name", "string"), ("twice", "bigint"), ("at", "timestamp"), ("_partition", "int"), ("_offset", "bigint"),
            ("_timestamp", "timestamp"), ("_late_by_s", "bigint"), ("_slice", "string"),
        ]
    )  # fmt: skip


def test_every_commit_of_a_managed_table_carries_a_record(visits: Engine, hour: Processed) -> None:
    for asset in ("raw", "silver"):
        assert all(commit.record is not None for commit in visits.log(asset))


def test_the_same_slice_again_gives_the_same_rows_in_a_commit_of_its_own(visits: Engine, hour: Processed) -> None:
    before = visits.raw(), visits.silver()

    again = visits.process("10")

    assert (visits.raw(), visits.silver()) == before
    assert again.raw.version > hour.raw.version
    assert record_of(again.raw).counts == record_of(hour.raw).counts
    assert record_of(again.raw).topics == record_of(hour.raw).topics


def paths(engine: Engine, asset: str, key: str) -> set[str]:
    table = open_table(engine.settings.lake_env, f"{asset}/{engine.table.name}")
    return {uri for uri in table.file_uris() if f"_slice={slice_of(key).key}" in uri} if table else set()


def test_replacing_one_slice_leaves_every_file_of_another_alone(shop: Engine) -> None:
    shop.send(event("a", at=1), event("b", at=2), event("c", at=61), event("d", at=62))
    shop.process("10")
    shop.process("11")
    others = {asset: paths(shop, asset, "10") for asset in ("raw", "silver")}
    assert all(others.values())

    shop.with_table(contract=contract_of(StricterEvent)).process("11")

    assert {asset: paths(shop, asset, "10") for asset in ("raw", "silver")} == others
    assert [row["id"] for row in shop.silver()] == ["a", "b"]
    assert [row["fate"] for row in shop.raw()] == ["ok", "ok", "dead", "dead"]


def test_an_empty_slice_is_a_result_with_a_commit_and_a_record_of_its_own(shop: Engine) -> None:
    shop.send(event("a", at=1), event("b", at=121))
    shop.process("10")
    before = shop.raw(), shop.silver()

    first, again = shop.process("11"), shop.process("11")

    assert (shop.raw(), shop.silver()) == before
    for done in (first, again):
        record = record_of(done.raw)
        assert record.topics[0].ranges == {0: OffsetRange(1, 1)}
        assert set(record.counts.values()) == {0}
        assert record_of(done.silver).tables[0].commits == (done.raw.version, done.raw.version + 1)
        assert all(one.passed for one in record.checks)
    assert again.raw.version > first.raw.version and again.silver.version > first.silver.version
    assert newest_by_slice(shop.log("raw"))["2026-03-01-11"][0] == again.raw


@pytest.fixture(scope="module")
def two_hours(stack: Settings, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One event in each of two hours, materialized; for tests that leave both tables as they are."""
    with fresh(stack, spark, tmp_path_factory.mktemp("two_hours")) as made:
        made.send(event("a", at=1), event("b", at=61))
        made.process("10")
        made.process("11")
        yield made


def test_rows_of_another_slice_are_refused_as_a_whole(two_hours: Engine) -> None:
    before, lake, asset = two_hours.raw(), two_hours.settings.lake_env, f"raw/{two_hours.table.name}"
    mixed, record = tables.read_table(two_hours.spark, lake, asset), record_of(two_hours.log("raw")[0])
    tail = Tail(lake, asset)
    tail.read()

    with pytest.raises(Exception, match=r"(?s)DELTA_REPLACE_WHERE_MISMATCH.*_slice"):
        tables.replace_slice(mixed, tail, record, tail.turn(record.slice))

    assert two_hours.raw() == before


def test_under_another_contract_a_slice_is_decided_again_from_the_bytes_that_raw_holds(shop: Engine) -> None:
    shop.send(event("a", 5, at=1), event("b", 150, at=2), Sent(b"no json", 3), Sent(None, 4, headers=[("h", b"1")]))
    first = shop.process("10")
    before = shop.raw()
    shop.delete_records({0: 4})
    stricter = shop.with_table(contract=contract_of(StricterEvent))

    again = stricter.process("10")

    kept = ("partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")
    assert [[row[name] for name in kept] for row in shop.raw()] == [[row[name] for name in kept] for row in before]
    assert [row["fate"] for row in before] == ["ok", "ok", "dead", "tombstone"]
    assert [row["fate"] for row in shop.raw()] == ["dead", "ok", "dead", "tombstone"]
    assert shop.raw()[0]["reasons"] == ["amount: ge(100)"]
    assert {row["contract"] for row in shop.raw()} == {stricter.table.contract.hash}
    assert [row["id"] for row in shop.silver()] == ["b"]
    assert record_of(again.raw).topics == record_of(first.raw).topics
    assert record_of(again.raw).contract == stricter.table.contract.hash
    assert check(again, "conservation").passed


def test_kafka_is_read_for_the_offsets_that_raw_lacks_and_for_no_others(shop: Engine) -> None:
    shop.send(event("a", at=185), event("b", at=186))
    shop.process("13")
    shop.delete_records({0: 2})
    shop.send(event("c", at=187), event("a", at=188))

    grown = shop.process("13", NOW + timedelta(minutes=5))

    assert shop.fates() == {(0, 0): "ok", (0, 1): "ok", (0, 2): "ok", (0, 3): "duplicate"}
    assert record_of(grown.raw).topics[0].ranges == {0: OffsetRange(0, 4)}
    assert check(grown, "conservation").passed


def test_a_session_that_is_open_beside_ours_gets_none_of_our_handles(shop: Engine) -> None:
    shop.send(event("a", at=5))
    with session(shop.settings) as own:
        process(Engine(shop.settings, own, shop.table).job(), slice_of("10"))
    shop.process("10")
    assert shop.fates() == {(0, 0): "ok"}


def test_two_runs_of_one_slice_at_the_same_time_both_succeed_and_leave_its_rows_once(shop: Engine) -> None:
    shop.send(*(event(str(number % 7), at=number / 10) for number in range(20)))

    def run(number: int) -> Processed:
        with session(shop.settings) as own:
            return process(Engine(shop.settings, own, shop.table).job(), slice_of("10"))

    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(run, range(2)))

    assert list(shop.fates()) == [(0, offset) for offset in range(20)]
    assert [row["id"] for row in shop.silver()] == [str(number) for number in range(7)]
    assert done[0].raw.version != done[1].raw.version
    assert all(check(one, "conservation").passed for one in done)


def test_a_run_that_saw_less_of_the_open_slice_takes_nothing_back(shop: Engine) -> None:
    shop.send(event("a", at=185), event("b", at=186))
    early = shop.job()
    shop.send(event("c", at=187))
    shop.process("13")

    late = process(early, slice_of("13"))

    assert list(shop.fates()) == [(0, 0), (0, 1), (0, 2)]
    assert record_of(late.raw).topics[0].ranges == {0: OffsetRange(0, 3)}
    assert check(late, "conservation").passed
    shop.process("13")
    assert list(shop.fates()) == [(0, 0), (0, 1), (0, 2)], "and nothing stands twice later"


def test_a_recreated_topic_takes_nothing_out_of_the_archive_of_the_one_before(shop: Engine) -> None:
    shop.send(event("a", at=1), event("b", at=2))
    shop.process("10")
    before = shop.raw()
    shop.delete_topic()
    create_topic(shop.settings, shop.topic, 1, TOPIC_CONFIG)
    shop.send(event("z", at=185))

    with pytest.raises(FatalError, match="another topic"):
        shop.process("10")

    assert shop.raw() == before


def test_a_column_of_another_type_is_refused_and_silver_stays(two_hours: Engine) -> None:
    before = two_hours.log("silver")[0]
    other = two_hours.with_table(select="SELECT id, CAST(amount AS string) AS amount FROM records")

    with pytest.raises(FatalError, match=r"silver/.*\.amount is bigint .* and string"):
        other.process("10")

    assert two_hours.log("silver")[0] == before


def test_a_table_that_gets_a_column_keeps_its_rows_and_tells_of_it_in_a_record(shop: Engine) -> None:
    shop.send(event("a", at=1), event("b", at=61))
    shop.process("10")
    wider = shop.with_table(select="SELECT id, amount, amount + 1 AS more FROM records")

    wider.process("11")

    assert [(row["id"], row["more"]) for row in shop.silver()] == [("a", None), ("b", 2)]
    assert [record_of(commit).kind for commit in shop.log("silver")] == ["replace", "schema", "replace", "create"]


def test_files_of_private_columns_have_no_statistics(stack: Settings, spark: SparkSession, tmp_path: Path) -> None:
    class Person(pa.DataFrameModel):
        id: str
        mail: str = pa.Field(metadata={"pii": True})

    with fresh(stack, spark, tmp_path, contract=contract_of(Person)) as people:
        people.send(Sent(json.dumps({"id": "a", "mail": "ann@secret.com"}).encode(), 1, key=b"ann@secret.com"))
        people.process("10")

        logs = [
            one.read_text() for layer in ("raw", "silver") for one in tmp_path.rglob(f"{layer}/*/_delta_log/*.json")
        ]

        assert len(logs) == 4
        assert not any("ann@secret" in one for one in logs)
        assert any('\\"id\\":\\"a\\"' in one for one in logs), "others have them"
