"""Rows against records against offsets: what is missing, too much, twice or elsewhere is named with its place."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake

from lineage_assets.kafka.client import Topic
from lineage_assets.kafka.cuts import SlicedTopic
from lineage_assets.lineage import record as records
from lineage_assets.lineage.commits import Lake
from lineage_assets.lineage.slices import Cut, Grain
from lineage_assets.reporting import conservation
from lineage_assets.reporting.collector import Managed
from lineage_assets.reporting.conservation import Source
from lineage_assets.reporting.differences import Difference, Table, read_table
from lineage_assets.settings import Settings
from tests.unit.written import ELEVEN, T0, TEN, record

RAW = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("fate", pa.string()), ("_slice", pa.string())])
SILVER = pa.schema(
    [("_partition", pa.int32()), ("_offset", pa.int64()), ("_late_by_s", pa.int64()), ("_slice", pa.string())]
)
SOURCE = Source("clicks", "clicks", Grain.hour)


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path)


def write(lake: Lake, asset: str, rows: Sequence[tuple[Any, ...]], **told: Any) -> None:
    """One commit of a table with its rows: (partition, offset, fate) or (partition, offset, late by)."""
    schema = RAW if asset.startswith("raw") else SILVER
    key = told.setdefault("slice", TEN)
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=False)]
    table = pa.table([*columns, pa.array([key] * len(rows))], schema=schema)
    properties = CommitProperties(custom_metadata={"userMetadata": records.to_json(record(asset, **told))})
    write_deltalake(lake.path(asset), table, mode="append", partition_by=["_slice"], commit_properties=properties)


def ok(start: int, end: int, partition: int = 0, fate: Any = "ok") -> list[tuple[Any, ...]]:
    return [(partition, offset, fate) for offset in range(start, end)]


def read(lake: Lake, *assets: str) -> dict[str, Table]:
    found: list[Difference] = []
    tables = {asset: read_table(lake, Managed(asset, Grain.hour), found) for asset in assets}
    return {asset: table for asset, table in tables.items() if table is not None}


def said(config: Settings, *assets: str) -> list[str]:
    tables = read(config.lake_env, *assets)
    return [str(one) for one in conservation.differences(config, [SOURCE], tables, with_topics=False)]


def test_rows_that_are_what_their_records_say(config) -> None:
    lake = config.lake_env
    counts = {"ok": 11, "dead": 2, "late": 1}
    gaps = {"gaps": {"0": {"markers": 2}}}
    rows = [*ok(0, 8), *ok(10, 12, fate="dead"), *ok(5, 8, partition=1)]
    write(lake, "raw/clicks", rows, ranges={0: (0, 12), 1: (5, 8)}, counts=counts, stated=gaps)
    write(lake, "raw/clicks", ok(12, 20), ranges={0: (12, 20)})
    write(lake, "raw/clicks", ok(20, 21), ranges={0: (20, 21)}, slice=ELEVEN)
    write(lake, "silver/clicks", [*ok(0, 8, fate=None), (1, 5, 7), *ok(6, 8, 1, None)], counts=counts)
    assert said(config, "raw/clicks", "silver/clicks") == []


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (ok(0, 9), ["1 of 10 offsets [0, 10) have neither row nor gap", "its rows are {'ok': 9}"]),
        ([*ok(0, 10), (0, 3, "ok")], ["1 rows repeat an offset", "its rows are {'ok': 11}"]),
        ([*ok(0, 9), (0, 3, "ok")], ["1 rows repeat an offset", "1 of 10 offsets"]),
        ([*ok(0, 9), (0, 10, "ok")], ["rows from 0 to 10, and it should hold [0, 10)"]),
        ([*ok(0, 10), (1, 4, "ok")], ["partition 1: rows from 4 to 4, and it should hold [0, 0)"]),
        ([*ok(0, 9), (0, 9, "dead")], ["its rows are {'dead': 1, 'ok': 9}, and its records say {'ok': 10}"]),
    ],
)
def test_rows_of_raw_that_are_not_what_the_record_says(config, rows, expected) -> None:
    write(config.lake_env, "raw/clicks", rows, ranges={0: (0, 10)})
    found = said(config, "raw/clicks")
    for one in expected:
        assert any(f"rows: raw/clicks {TEN}: " in line and one in line for line in found), (one, found)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (ok(0, 9, fate=None), "9 rows, and its records say 10"),
        ([*ok(0, 9, fate=None), (0, 3, None)], "1 rows repeat an offset"),
        (ok(0, 10, fate=5), "10 late rows, and its records say 0"),
    ],
)
def test_rows_of_silver_that_are_not_what_the_record_says(config, rows, expected) -> None:
    write(config.lake_env, "silver/clicks", rows, ranges={0: (0, 10)})
    assert any(expected in line for line in said(config, "silver/clicks"))


def offsets(lake: Lake, *starts: int, end: int, topic_id: str = "t1") -> list[Difference]:
    """Against a topic of one partition: hours from 10 on, each from an offset."""
    cuts = [Cut(T0 + timedelta(hours=index), {0: start}) for index, start in enumerate(starts)]
    sliced = SlicedTopic(Topic("clicks", topic_id, (0,), {}), Grain.hour, cuts, {0: 0}, {0: end})
    return list(conservation._offsets(read(lake, "raw/clicks")["raw/clicks"], sliced))


@pytest.fixture
def lake(config: Settings) -> Lake:
    """Raw holds [0, 10) in the first hour and [10, 15) in the second, which is open."""
    write(config.lake_env, "raw/clicks", ok(0, 10), ranges={0: (0, 10)})
    write(config.lake_env, "raw/clicks", ok(10, 15), ranges={0: (10, 15)}, slice=ELEVEN)
    return config.lake_env


def test_a_topic_of_which_raw_has_all_or_is_only_behind(lake) -> None:
    assert offsets(lake, 0, 10, end=15) == []
    assert offsets(lake, 0, 10, end=99) == [], "behind is no difference"
    assert offsets(lake, 0, 10, end=15, topic_id="another") == []


def test_a_hole_below_what_is_held(lake) -> None:
    write(lake, "raw/clicks", ok(20, 25), ranges={0: (20, 25)}, slice="2026-03-01-12")
    (found,) = offsets(lake, 0, 10, 20, end=30)
    assert (found.slice, found.known) == ("2026-03-01-12", False)
    assert "partition 0: offsets [15, 20) are missing before it" in found.what


def test_a_slice_beyond_its_cuts_and_an_overlap(lake) -> None:
    found = [one.what for one in offsets(lake, 0, 8, end=15)]
    assert found == ["partition 0: it holds [0, 10), and its cuts are [0, 8)"]
    write(lake, "raw/clicks", ok(12, 18), ranges={0: (12, 18)}, slice="2026-03-01-12")
    found = [one.what for one in offsets(lake, 0, 10, 12, end=18)]
    assert "partition 0: offsets [12, 15) are in two slices" in found


def test_what_retention_took_is_listed_and_known(lake) -> None:
    lost = {"lost": {"0": [15, 20]}}
    write(lake, "raw/clicks", ok(20, 25), ranges={0: (20, 25)}, slice="2026-03-01-12", stated=lost)
    (found,) = offsets(lake, 0, 10, 15, end=30)
    assert found.known and "[15, 20)" in found.what and "retention" in found.what


def test_a_topic_that_ends_below_what_raw_holds(lake) -> None:
    (found,) = [one for one in offsets(lake, 0, 10, end=12) if "ends at" in one.what]
    assert "holds offsets up to 15, and the topic ends at 12" in found.what
