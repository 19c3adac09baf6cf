"""Pins, publishing and what is behind, on Delta tables in a folder."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from lineage_assets.errors import FatalError, TransientError
from lineage_assets.lineage import record as records
from lineage_assets.lineage.commits import Lake, commits
from lineage_assets.lineage.record import CheckOutcome, CommitRecord, Kind, TableInput
from lineage_assets.marts.pins import Pin, pin, pin_all, read_pins, write_pins
from lineage_assets.marts.publish import publish, schema_hash
from lineage_assets.marts.sources import read
from lineage_assets.marts.state import behind

AT = datetime(2026, 8, 1, 13, tzinfo=UTC)
FAILED = CheckOutcome("user_id: gt(0)", False, "ERROR", 9, 10, blocking=True)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def a_record(asset: str, key: str | None = None, kind: Kind = "replace", **more: object) -> CommitRecord:
    made = CommitRecord(asset, "dev", kind, key, (), {"rows": 1}, {}, "", "", "code", "run", AT)
    return replace(made, **more)  # type: ignore[arg-type]


def write_slice(lake: Lake, asset: str, key: str, *values: int, held: bool = False, kind: Kind = "replace") -> int:
    rows = pa.table({"_slice": pa.array([key] * len(values), pa.string()), "value": pa.array(values, pa.int64())})
    record = a_record(asset, key, kind, checks=(FAILED,) if held else ())
    exists = DeltaTable.is_deltatable(lake.path(asset))
    write_deltalake(
        lake.path(asset),
        rows,
        mode="overwrite" if exists else "append",
        predicate=f"_slice = '{key}'" if exists else None,
        partition_by=["_slice"],
        commit_properties=CommitProperties(custom_metadata={"userMetadata": records.to_json(record)}),
    )
    return DeltaTable(lake.path(asset)).version()


def values(lake: Lake, asset: str, at: Pin) -> list[int]:
    return sorted(read(lake, asset, at).to_table()["value"].to_pylist())


def publish_rows(lake: Lake, record: CommitRecord, rows: pa.Table) -> int:
    return publish(lake, rows.to_reader, record).version


def test_a_pin_reads_its_version_whatever_is_written_after(lake: Lake) -> None:
    write_slice(lake, "silver/a", "13", 1, 2)
    pinned = pin(lake, "silver/a")
    write_slice(lake, "silver/a", "14", 3)
    assert pinned is not None
    assert values(lake, "silver/a", pinned) == [1, 2]


def test_a_pin_leaves_out_the_slices_that_were_held_then(lake: Lake) -> None:
    write_slice(lake, "silver/a", "13", 1)
    write_slice(lake, "silver/a", "14", 2, held=True)
    pinned = pin(lake, "silver/a")
    write_slice(lake, "silver/a", "14", 4)
    repaired = pin(lake, "silver/a")
    assert pinned is not None and repaired is not None
    assert (pinned.held, values(lake, "silver/a", pinned)) == (("14",), [1])
    assert (repaired.held, values(lake, "silver/a", repaired)) == ((), [1, 4])


def test_a_source_of_which_every_slice_is_held_has_no_rows(lake: Lake) -> None:
    write_slice(lake, "silver/a", "13", 1, held=True)
    pinned = pin(lake, "silver/a")
    assert pinned is not None and values(lake, "silver/a", pinned) == []


def test_a_table_made_again_since_it_was_pinned_is_not_read_as_the_same(lake: Lake) -> None:
    write_slice(lake, "silver/a", "13", 1)
    pinned = pin(lake, "silver/a")
    assert pinned is not None
    with pytest.raises(FatalError, match=r"silver/a at .* was dropped or made again after version 0 was pinned"):
        read(lake, "silver/a", replace(pinned, table_id="another"))


def test_pins_travel_through_their_file(lake: Lake, tmp_path: Path) -> None:
    write_slice(lake, "silver/a", "13", 1, held=True)
    pins = pin_all(lake, ["silver/a", "silver/missing"])
    write_pins(tmp_path / "run" / "pins.json", pins)
    assert read_pins(tmp_path / "run" / "pins.json") == pins
    assert list(pins) == ["silver/a"]


def test_a_pins_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pins.json").write_text('{"silver/a": 3}')
    for path in (tmp_path / "pins.json", tmp_path / "missing.json"):
        with pytest.raises(FatalError, match="holds no pins"):
            read_pins(path)


def test_types_of_a_mart_survive_exactly(lake: Lake) -> None:
    rows = pa.table(
        {
            "big": pa.array([2**62, None], pa.int64()),
            "at": pa.array([AT + timedelta(microseconds=1), None], pa.timestamp("us", tz="UTC")),
            "day": pa.array([AT.date(), None], pa.date32()),
            "price": pa.array([Decimal("12345678901234567890.1234"), None], pa.decimal128(24, 4)),
            "blob": pa.array([b"\x00\xff", None], pa.binary()),
            "tags": pa.array([["a"], None], pa.list_(pa.field("element", pa.string()))),
        }
    )
    publish_rows(lake, a_record("marts/m"), rows)
    assert DeltaTable(lake.path("marts/m")).to_pyarrow_table().equals(rows)


def test_an_empty_mart_is_a_table_without_rows_and_can_fill_later(lake: Lake) -> None:
    empty, full = pa.table({"n": pa.array([], pa.int64())}), pa.table({"n": pa.array([7], pa.int64())})
    for rows, expected in ((empty, []), (full, [7]), (empty, [])):
        publish_rows(lake, a_record("marts/m"), rows)
        assert DeltaTable(lake.path("marts/m")).to_pyarrow_table()["n"].to_pylist() == expected


def test_a_mart_may_change_its_columns(lake: Lake) -> None:
    publish_rows(lake, a_record("marts/m"), pa.table({"n": pa.array([7], pa.int64())}))
    publish_rows(lake, a_record("marts/m"), pa.table({"name": pa.array(["x"])}))
    assert DeltaTable(lake.path("marts/m")).to_pyarrow_table().to_pydict() == {"name": ["x"]}


def test_equal_content_is_still_a_commit_with_its_own_record(lake: Lake) -> None:
    rows = pa.table({"n": pa.array([7], pa.int64())})
    versions = [publish_rows(lake, a_record("marts/m", run=run), rows) for run in ("first", "second")]
    history = commits(lake, "marts/m")
    assert versions == [0, 1]
    assert [commit.record.run for commit in history if commit.record] == ["second", "first"]


def test_an_overtaken_run_does_not_put_older_content_over_newer(lake: Lake) -> None:
    def made_at(version: int) -> CommitRecord:
        return a_record("marts/m", inputs=(TableInput("silver/a", "id", read_at=version),))

    rows = pa.table({"n": pa.array([7], pa.int64())})
    publish_rows(lake, made_at(5), rows)
    with pytest.raises(TransientError, match="marts/m stands at version 0, which run run made of newer inputs"):
        publish_rows(lake, made_at(4), rows)
    assert publish_rows(lake, replace(made_at(4), code="corrected"), rows) == 1


def test_a_schema_hash_sees_names_types_and_their_order() -> None:
    schemas = [
        pa.schema([("a", pa.int64()), ("b", pa.decimal128(10, 2))]),
        pa.schema([("b", pa.decimal128(10, 2)), ("a", pa.int64())]),
        pa.schema([("a", pa.int64()), ("b", pa.decimal128(12, 2))]),
        pa.schema([("a", pa.int64()), ("b", pa.list_(pa.int64()))]),
    ]
    assert len({schema_hash(schema) for schema in schemas}) == 4
    assert schema_hash(schemas[0]) == schema_hash(pa.schema(list(schemas[0])))


class TestBehind:
    MARTS = {"marts/hourly": ["silver/a"], "marts/daily": ["marts/hourly"], "marts/other": ["gold/b"]}

    def make(self, lake: Lake, mart: str) -> None:
        pins = pin_all(lake, self.MARTS[mart])
        record = a_record(mart, inputs=tuple(one.as_input(asset) for asset, one in pins.items()))
        publish_rows(lake, record, pa.table({"n": pa.array([1], pa.int64())}))

    def make_all(self, lake: Lake) -> None:
        write_slice(lake, "silver/a", "13", 1)
        write_slice(lake, "gold/b", "13", 1)
        for mart in self.MARTS:
            self.make(lake, mart)

    def test_nothing_is_behind_after_all_were_made(self, lake: Lake) -> None:
        self.make_all(lake)
        assert behind(lake, self.MARTS) == []

    def test_a_mart_waits_for_a_table_that_was_never_written(self, lake: Lake) -> None:
        write_slice(lake, "silver/a", "13", 1)
        assert behind(lake, self.MARTS) == ["marts/hourly", "marts/daily"]

    def test_a_new_slice_puts_behind_what_reads_the_table_directly_or_not(self, lake: Lake) -> None:
        self.make_all(lake)
        write_slice(lake, "silver/a", "14", 2)
        assert behind(lake, self.MARTS) == ["marts/hourly", "marts/daily"]

    def test_a_mart_over_a_mart_that_alone_was_made_again_is_behind(self, lake: Lake) -> None:
        self.make_all(lake)
        self.make(lake, "marts/hourly")
        assert behind(lake, self.MARTS) == ["marts/daily"]

    def test_a_compaction_puts_nothing_behind(self, lake: Lake) -> None:
        self.make_all(lake)
        write_slice(lake, "silver/a", "13", 1, kind="compact")
        assert behind(lake, self.MARTS) == []

    def test_a_slice_that_becomes_held_or_free_puts_its_readers_behind_and_news_of_a_held_one_does_not(
        self, lake: Lake
    ) -> None:
        self.make_all(lake)
        write_slice(lake, "gold/b", "14", 2, held=True)
        assert behind(lake, self.MARTS) == ["marts/other"]
        self.make(lake, "marts/other")
        write_slice(lake, "gold/b", "14", 3, held=True)
        assert behind(lake, self.MARTS) == []
        write_slice(lake, "gold/b", "14", 3)
        assert behind(lake, self.MARTS) == ["marts/other"]

    def test_a_table_made_again_puts_its_readers_behind(self, lake: Lake, tmp_path: Path) -> None:
        self.make_all(lake)
        (tmp_path / "lake" / "gold" / "b").rename(tmp_path / "gone")
        write_slice(lake, "gold/b", "13", 1)
        assert behind(lake, self.MARTS) == ["marts/other"]
