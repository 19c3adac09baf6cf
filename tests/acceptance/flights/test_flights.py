"""The flights of 2013 come out of the mart as they stand in the file, and every offset on the way is accounted for.

Belongs here: what must be true when the story is told (conftest.py). Does not belong here: telling it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import dagster as dg
import duckdb
import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient

from lineage_assets.kafka.client import begin_offsets, client_config, describe, end_offsets
from lineage_assets.lineage.commits import commits
from lineage_assets.lineage.content import blocking_failures, newest_by_slice
from lineage_assets.lineage.record import CommitRecord

from .produce import PARTITIONS, TOPIC
from .story import LAYERS, Story, Truth

pytestmark = pytest.mark.timeout(1_200)
"""The first test waits for the whole story: minutes, and more of them on a machine that does other things as well."""
TABLES = ("raw/flights", "silver/flights")
MART = "marts/delays_by_carrier"


def query(story: Story, sql: str, **files: str) -> list[tuple[Any, ...]]:
    """Rows of a query over `raw`, `silver` and `mart`, in UTC, by DuckDB: neither Spark nor dbt has a word in it."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name, asset in (("raw", "raw/flights"), ("silver", "silver/flights"), ("mart", MART)):
            if name in sql:
                connection.register(name, story.rows(asset))
        return connection.execute(sql, files).fetchall() if files else connection.execute(sql).fetchall()


def slice_records(story: Story, asset: str) -> dict[str, CommitRecord]:
    """The record that each month of a table stands on."""
    newest = newest_by_slice(commits(story.settings.lake_env, asset))
    return {str(key): record for key, (_, record) in newest.items()}


def test_the_file_holds_what_is_known_of_it(truth: Truth) -> None:
    delays = [delay for carrier in truth.carriers.values() for delay in carrier.arrival_delays]

    assert truth.flights == 336_776
    assert len(truth.months) == 13
    known = {"2013-01": 26_865, "2013-02": 24_936, "2013-12": 28_191, "2014-01": 88}
    assert {month: truth.months[month] for month in known} == known
    assert (truth.without_departure, truth.without_tailnum) == (8_255, 2_512)
    assert truth.carriers["UA"].flights == 58_665
    assert round(sum(delays) / len(delays), 4) == 6.8954


def test_the_topic_holds_every_flight_and_forgets_none(story: Story, produced: int, truth: Truth) -> None:
    topic = describe(story.settings, TOPIC)

    assert topic.config["retention.ms"] == "-1"
    assert len(topic.partitions) == PARTITIONS
    assert sum(end_offsets(story.settings, topic).values()) == produced == truth.flights


def test_each_month_in_utc_is_a_closed_slice_of_the_topic(story: Story, truth: Truth) -> None:
    asset = dg.AssetKey(["kafka", story.settings.kafka_alias, TOPIC])
    events = story.instance.fetch_materializations(asset, limit=100).records

    reported = {
        one.partition_key: one.asset_materialization.metadata for one in events if one.asset_materialization is not None
    }
    assert len(events) == len(reported) == 13
    assert {month: data["kafka/records"].value for month, data in reported.items()} == truth.months
    assert all(data["slice/closed"].value is True for data in reported.values())


def test_every_month_of_raw_and_silver_has_the_flights_of_the_file(story: Story, truth: Truth) -> None:
    for layer in ("raw", "silver"):
        assert dict(query(story, f"SELECT _slice, count(*) FROM {layer} GROUP BY 1")) == truth.months
    for layer in LAYERS:
        asset = dg.AssetKey([layer, TOPIC])
        assert story.instance.get_materialized_partitions(asset) == set(truth.months)


def test_silver_is_the_file_row_for_row(story: Story, truth: Truth) -> None:
    with truth.path.open() as file:
        columns = ", ".join(f'"{name}"' for name in file.readline().strip().split(","))
    read = f"SELECT {columns} FROM read_csv('{truth.path}', nullstr = 'NA', types = {{'time_hour': 'TIMESTAMPTZ'}})"
    kept = f"SELECT {columns} FROM silver"

    assert query(story, f"SELECT count(*) FROM ({read} EXCEPT ALL {kept})") == [(0,)]
    assert query(story, f"SELECT count(*) FROM ({kept} EXCEPT ALL {read})") == [(0,)]


def test_nulls_stay_nulls(story: Story) -> None:
    counts = "count(*) FILTER (dep_time IS NULL), count(*) FILTER (tailnum IS NULL), count(*) FILTER (tailnum = 'NA')"

    assert query(story, f"SELECT {counts} FROM silver") == [(8_255, 2_512, 0)]
    assert query(story, "SELECT count(*) FROM raw WHERE key IS NULL") == [(2_512,)]


def test_every_offset_has_one_fate_and_it_is_ok(story: Story, truth: Truth) -> None:
    fates = query(story, 'SELECT fate, count(*), count(DISTINCT (partition, "offset")) FROM raw GROUP BY 1')
    assert fates == [("ok", truth.flights, truth.flights)]

    ends = end_offsets(story.settings, describe(story.settings, TOPIC))
    spans = query(story, 'SELECT partition, min("offset"), max("offset") + 1 FROM raw GROUP BY 1')
    assert {partition: (first, end) for partition, first, end in spans} == {p: (0, end) for p, end in ends.items()}

    assert query(story, "SELECT count(*) FROM silver WHERE _late_by_s IS NOT NULL") == [(0,)]
    lost = 'SELECT partition, "offset" FROM raw EXCEPT SELECT _partition, _offset FROM silver'
    assert query(story, f"SELECT count(*) FROM ({lost})") == [(0,)]


def test_the_ranges_of_the_months_join_without_gap_or_overlap(story: Story, truth: Truth) -> None:
    records = slice_records(story, "raw/flights")
    held = {(key, p): (r.start, r.end) for key, one in records.items() for p, r in one.topics[0].ranges.items()}
    counted = query(story, "SELECT _slice, partition, count(*) FROM raw GROUP BY ALL")

    assert sorted(records) == sorted(truth.months)
    for partition in range(PARTITIONS):
        months = [held[month, partition] for month in sorted(records)]
        assert months[0][0] == 0
        assert all(before[1] == after[0] for before, after in pairwise(months))
    assert {(month, p): count for month, p, count in counted} == {
        place: end - start for place, (start, end) in held.items() if start != end
    }


def test_within_a_partition_the_hours_rise(story: Story) -> None:
    hours = "SELECT time_hour < lag(time_hour) OVER (PARTITION BY _partition ORDER BY _offset) AS back FROM silver"

    assert query(story, f"SELECT count(*) FROM ({hours}) WHERE back") == [(0,)]


def test_every_check_of_every_month_passes_conservation_among_them(story: Story, truth: Truth) -> None:
    for month, record in slice_records(story, "silver/flights").items():
        assert [check.name for check in record.checks if not check.passed] == [], month
        assert blocking_failures(record) == []
        conservation = {check.name: check for check in record.checks}["conservation"]
        assert (conservation.failed, conservation.total) == (0, truth.months[month])
        assert record.counts["ok"] == truth.months[month]


def test_the_mart_has_the_delays_of_each_airline(story: Story, truth: Truth) -> None:
    found = query(story, "SELECT * EXCLUDE (mean_arrival_delay_minutes) FROM mart")

    assert {row[0]: row[1:] for row in found} == {
        name: (one.flights, one.with_departure, len(one.arrival_delays), sum(one.arrival_delays))
        for name, one in truth.carriers.items()
    }
    means = dict(query(story, "SELECT carrier, mean_arrival_delay_minutes FROM mart"))
    assert means == {
        name: pytest.approx(sum(one.arrival_delays) / len(one.arrival_delays)) for name, one in truth.carriers.items()
    }


def test_the_known_values_come_out_of_the_mart(story: Story) -> None:
    totals = "sum(flights), sum(flights - with_departure), sum(arrival_delay_minutes) / sum(with_arrival_delay)"
    ((flights, without_departure, mean),) = query(story, f"SELECT {totals} FROM mart")

    assert (flights, without_departure) == (336_776, 8_255)
    assert round(mean, 4) == 6.8954
    assert query(story, "SELECT flights FROM mart WHERE carrier = 'UA'") == [(58_665,)]


def test_every_commit_carries_its_record(story: Story) -> None:
    lake = story.settings.lake_env
    for asset in (*TABLES, MART):
        history = commits(lake, asset)
        assert history
        assert [commit.version for commit in history if commit.record is None] == []
        assert {commit.record.asset for commit in history if commit.record} == {asset}

    mart = commits(lake, MART)[0].record
    assert mart is not None
    assert [(one.table, one.read_at) for one in mart.tables] == [
        ("silver/flights", commits(lake, "silver/flights")[0].version)
    ]


def test_nothing_is_behind(story: Story) -> None:
    assert story.tick("kafka_topics").asset_events == []
    assert not story.tick("catch_up").run_requests


def test_making_a_month_again_changes_nothing_though_the_topic_has_forgotten_it(story: Story, truth: Truth) -> None:
    lake, month = story.settings.lake_env, "2013-06"
    before = {asset: (_table(story, asset), commits(lake, asset)) for asset in TABLES}
    _forget_all_records(story)

    story.make_slice(month)

    for asset, (rows, history) in before.items():
        assert _table(story, asset).equals(rows), asset
        newest, *older = commits(lake, asset)
        assert older == history, "one commit more, and nothing else"
        assert newest.record is not None and newest.record.slice == month
        again, first = newest.record, next(one.record for one in history if one.record and one.record.slice == month)
        for name in ("kind", "counts", "reasons", "schema", "contract", "code", "checks", "stated"):
            assert getattr(again, name) == getattr(first, name), name
        assert again.topics == first.topics
        assert again.run != first.run
        assert again.counts["ok"] == truth.months[month]


def _table(story: Story, asset: str) -> Any:
    """All rows in an order that does not depend on files."""
    partition, offset = ("partition", "offset") if asset.startswith("raw/") else ("_partition", "_offset")
    return story.rows(asset).to_table().sort_by([(partition, "ascending"), (offset, "ascending")]).combine_chunks()


def _forget_all_records(story: Story) -> None:
    """What retention would do, at once. Only this test's own topic is touched."""
    topic = describe(story.settings, TOPIC)
    admin = AdminClient(client_config(story.settings))
    asked = admin.delete_records([TopicPartition(TOPIC, partition, OFFSET_END) for partition in topic.partitions])
    for future in asked.values():
        future.result(10)
    assert begin_offsets(story.settings, topic) == end_offsets(story.settings, topic)
