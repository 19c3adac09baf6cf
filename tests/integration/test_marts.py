"""dbt builds the shop's marts over small Delta tables: what is published, with which record, and what Dagster is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import datasketches
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from lineage_assets import settings as settings_module
from lineage_assets.components.marts import DbtMarts
from lineage_assets.errors import FatalError
from lineage_assets.lineage import record as records
from lineage_assets.lineage.commits import Lake, commits
from lineage_assets.lineage.record import CheckOutcome, CommitRecord
from lineage_assets.marts import manifest as manifests
from lineage_assets.marts.merge import Merge, merge_rows
from lineage_assets.marts.state import behind
from lineage_assets.settings import Settings

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "dbt_project"
HOUR = datetime(2026, 8, 1, 13, tzinfo=UTC)
INSTANT = pa.timestamp("us", tz="UTC")
CLICKS = pa.schema(
    [
        ("event_id", pa.string()),
        ("user_id", pa.int64()),
        ("session_id", pa.string()),
        ("event_type", pa.string()),
        ("page", pa.string()),
        ("email", pa.string()),
        ("amount_cents", pa.int64()),
        ("occurred_at", INSTANT),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", INSTANT),
        ("_late_by_s", pa.int64()),
        ("_slice", pa.string()),
    ]
)
ACTIVITY = pa.schema(
    [
        ("user_id", pa.int64()),
        ("window_start", INSTANT),
        ("window_end", INSTANT),
        ("event_count", pa.int64()),
        ("sessions", pa.int64()),
        ("sessions_sketch", pa.binary()),
        ("_slice", pa.string()),
    ]
)
MARTS = {"marts/traffic_hourly", "marts/traffic_daily", "marts/user_value", "marts/activity_5m_summary"}


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """A lake of its own, which the code under test finds through its settings."""
    monkeypatch.setenv("LINEAGE_HOME", str(tmp_path / "home"))
    settings_module.settings.cache_clear()
    yield settings_module.settings().lake_env
    settings_module.settings.cache_clear()


@pytest.fixture(scope="module")
def assets() -> dg.AssetsDefinition:
    context = SimpleNamespace(project_root=ROOT, path=ROOT / "lineage_assets" / "defs" / "marts")
    (found,) = DbtMarts().build_defs(cast(dg.ComponentLoadContext, context)).assets or ()
    assert isinstance(found, dg.AssetsDefinition)
    return found


def write(lake: Lake, asset: str, key: str, rows: pa.Table, *, held: bool = False) -> None:
    failed = CheckOutcome("amount_cents: ge(0)", False, "ERROR", 1, 2, blocking=True)
    made = CommitRecord(
        asset, "dev", "replace", key, (), {"ok": 1}, {}, "", "", "", "run", HOUR, checks=(failed,) if held else ()
    )
    exists = DeltaTable.is_deltatable(lake.path(asset))
    write_deltalake(
        lake.path(asset),
        rows,
        mode="overwrite" if exists else "append",
        predicate=f"_slice = '{key}'" if exists else None,
        partition_by=["_slice"],
        commit_properties=CommitProperties(custom_metadata={"userMetadata": records.to_json(made)}),
    )


def clicks(lake: Lake, key: str, *rows: dict[str, Any], held: bool = False) -> None:
    """A slice of silver/clicks; a row needs only what a test is about."""
    found = [
        {
            "event_id": f"{key}-{number}",
            "user_id": 1,
            "session_id": "s",
            "event_type": "view",
            "page": "/",
            "occurred_at": HOUR,
            "_partition": 0,
            "_offset": number,
            "_timestamp": HOUR,
            "_slice": key,
            **row,
        }
        for number, row in enumerate(rows)
    ]
    write(lake, "silver/clicks", key, pa.Table.from_pylist(found, schema=CLICKS), held=held)


def activity(lake: Lake, key: str, *rows: tuple[int, int, set[str]]) -> None:
    """A slice of gold/user_activity_5m: user, events and sessions in the window that starts at HOUR."""
    found = []
    for user, events, sessions in rows:
        sketch = datasketches.update_theta_sketch()
        for session in sessions:
            sketch.update(session)
        end = HOUR + timedelta(minutes=5)
        found.append((user, HOUR, end, events, len(sessions), sketch.compact().serialize(), key))
    columns = [pa.array(column, field.type) for column, field in zip(zip(*found, strict=True), ACTIVITY, strict=True)]
    write(lake, "gold/user_activity_5m", key, pa.table(columns, schema=ACTIVITY))


def shop(lake: Lake) -> None:
    clicks(
        lake,
        "2026-08-01-13",
        {"user_id": 1},
        {"user_id": 2, "event_type": "purchase", "amount_cents": 1999, "occurred_at": HOUR.replace(microsecond=7)},
    )
    clicks(
        lake,
        "2026-08-01-14",
        {"user_id": 2, "event_type": "purchase", "amount_cents": 1, "_late_by_s": 5000},
        {"user_id": 1, "occurred_at": HOUR + timedelta(hours=1)},
    )
    activity(lake, "2026-08-01-13", (1, 1, {"a"}), (2, 1, {"b"}))
    activity(lake, "2026-08-01-14", (2, 1, {"b", "c"}))


def rows(lake: Lake, mart: str) -> list[dict[str, Any]]:
    return cast(list[dict[str, Any]], DeltaTable(lake.path(f"marts/{mart}")).to_pyarrow_table().to_pylist())


def newest(lake: Lake, mart: str) -> tuple[int, CommitRecord]:
    commit = commits(lake, f"marts/{mart}")[0]
    assert commit.record is not None
    return commit.version, commit.record


def run(assets: dg.AssetsDefinition, *selection: str, instance: dg.DagsterInstance | None = None) -> Any:
    return dg.materialize(
        [assets],
        selection=list(selection) or None,
        instance=instance or dg.DagsterInstance.ephemeral(),
        raise_on_error=False,
    )


def materialized(result: Any) -> dict[str, dict[str, Any]]:
    return {
        event.asset_key.to_user_string(): {k: v.value for k, v in event.materialization.metadata.items()}
        for event in result.get_asset_materialization_events()
    }


def test_marts_hold_what_their_sources_say(lake: Lake, assets: dg.AssetsDefinition) -> None:
    shop(lake)
    assert run(assets).success
    assert sorted(rows(lake, "traffic_hourly"), key=lambda one: (one["hour"], one["event_type"])) == [
        {"hour": HOUR, "event_type": "purchase", "events": 2, "users": 1, "late_events": 1},
        {"hour": HOUR, "event_type": "view", "events": 1, "users": 1, "late_events": 0},
        {"hour": HOUR + timedelta(hours=1), "event_type": "view", "events": 1, "users": 1, "late_events": 0},
    ]
    assert rows(lake, "traffic_daily") == [{"day": HOUR.date(), "events": 4, "purchases": 2, "late_events": 1}]
    assert sorted(rows(lake, "user_value"), key=lambda one: one["user_id"]) == [
        {
            "user_id": 1, "clicks": 2, "purchases": 0, "revenue_cents": 0, "last_seen_at": HOUR + timedelta(hours=1),
        },
        {
            "user_id": 2, "clicks": 2, "purchases": 2, "revenue_cents": 2000, "last_seen_at": HOUR.replace(microsecond=7),
        },
    ]  # fmt: skip
    assert rows(lake, "activity_5m_summary") == [
        {
            "window_start": HOUR,
            "window_end": HOUR + timedelta(minutes=5),
            "active_users": 2,
            "events": 3,
            "sessions": 3,  # a; b and c, of which b stands in two slices
        }
    ]


def test_a_record_names_every_version_that_was_read_and_each_check(lake: Lake, assets: dg.AssetsDefinition) -> None:
    shop(lake)
    result = run(assets)
    hourly, daily = newest(lake, "traffic_hourly"), newest(lake, "traffic_daily")
    assert [(one.table, one.read_at) for one in hourly[1].tables] == [("silver/clicks", 1)]
    assert [(one.table, one.read_at) for one in daily[1].tables] == [("marts/traffic_hourly", hourly[0])]
    assert (hourly[1].kind, hourly[1].counts, hourly[1].run) == ("replace", {"rows": 3}, result.run_id)
    assert hourly[1].code == assets.get_asset_spec(dg.AssetKey(["marts", "traffic_hourly"])).code_version
    assert "no_click_is_lost" in {check.name for check in hourly[1].checks}
    assert all(check.passed and check.total == 3 for check in hourly[1].checks)


def test_dagster_is_told_what_stands_in_the_log(lake: Lake, assets: dg.AssetsDefinition) -> None:
    shop(lake)
    result = run(assets)
    told = materialized(result)
    assert told.keys() == MARTS
    version, record = newest(lake, "user_value")
    found = told["marts/user_value"]
    assert found["delta/version"] == version
    assert found["dagster/row_count"] == 2
    assert records.from_json(found["lineage/commit"]) == record
    assert found["lineage/inputs"] == {"silver/clicks": "1"}
    assert len(result.get_asset_check_evaluations()) == len(list(assets.check_specs))
    assert all(check.passed for check in result.get_asset_check_evaluations())


def test_held_slices_are_left_out_named_and_no_mart_is_behind_for_them(lake: Lake, assets: dg.AssetsDefinition) -> None:
    shop(lake)
    clicks(lake, "2026-08-01-14", {"user_id": 3}, held=True)
    told = materialized(run(assets))
    assert [one["user_id"] for one in sorted(rows(lake, "user_value"), key=lambda one: one["user_id"])] == [1, 2]
    assert newest(lake, "user_value")[1].tables[0].held == ("2026-08-01-14",)
    assert told["marts/user_value"]["lineage/held"] == {"silver/clicks": ["2026-08-01-14"]}
    project = manifests.load(PROJECT).project
    inputs = {project.asset(uid): project.inputs(uid) for uid in project.in_order()}
    assert inputs.keys() == MARTS
    assert behind(lake, inputs) == []


def test_a_mart_that_a_test_refuses_stays_as_it_was_with_all_that_reads_it(
    lake: Lake, assets: dg.AssetsDefinition
) -> None:
    shop(lake)
    assert run(assets).success
    before = rows(lake, "traffic_hourly"), rows(lake, "traffic_daily")
    clicks(lake, "2026-08-01-15", {"user_id": 9, "event_type": "teleport"})
    result = run(assets)
    assert not result.success
    assert (rows(lake, "traffic_hourly"), rows(lake, "traffic_daily")) == before
    assert (newest(lake, "traffic_hourly")[0], newest(lake, "traffic_daily")[0]) == (0, 0)
    assert materialized(result).keys() == {"marts/user_value", "marts/activity_5m_summary"}
    assert 9 in {one["user_id"] for one in rows(lake, "user_value")}
    (failed,) = [check for check in result.get_asset_check_evaluations() if not check.passed]
    assert failed.check_name.startswith("accepted_values_traffic_hourly_event_type")
    said = result.get_step_failure_events()[0].event_specific_data.error.message
    assert "marts/traffic_hourly: its table stays as it was, because a test failed: accepted_values_" in said


def test_a_table_that_is_missing_fails_its_readers_by_name_and_only_those(
    lake: Lake, assets: dg.AssetsDefinition
) -> None:
    shop(lake)
    Path(lake.path("gold/user_activity_5m")).rename(Path(lake.root) / "gone")
    result = run(assets)
    said = result.get_step_failure_events()[0].event_specific_data.error.message
    assert "gold/user_activity_5m has no table yet" in said
    assert "materialize gold/user_activity_5m first" in said
    assert materialized(result).keys() == MARTS - {"marts/activity_5m_summary"}


def test_a_mart_that_cannot_be_written_fails_by_name_and_only_it(lake: Lake, assets: dg.AssetsDefinition) -> None:
    shop(lake)
    Path(lake.path("marts/user_value")).parent.mkdir(parents=True)
    Path(lake.path("marts/user_value")).write_text("a file is in the way")
    result = run(assets)
    said = result.get_step_failure_events()[0].event_specific_data.error.message
    assert "marts/user_value: not published: " in said
    assert materialized(result).keys() == MARTS - {"marts/user_value"}


def test_sources_without_rows_make_marts_without_rows(lake: Lake, assets: dg.AssetsDefinition) -> None:
    shop(lake)
    for key in ("2026-08-01-13", "2026-08-01-14"):
        clicks(lake, key, {"user_id": 1}, held=True)
    assert run(assets).success
    assert [rows(lake, mart) for mart in ("traffic_hourly", "traffic_daily", "user_value")] == [[], [], []]


def test_one_mart_alone_reads_the_published_version_of_what_it_refers_to(
    lake: Lake, assets: dg.AssetsDefinition
) -> None:
    shop(lake)
    assert run(assets).success
    clicks(lake, "2026-08-01-15", {"user_id": 9})
    result = run(assets, "marts/traffic_daily")
    assert result.success
    assert materialized(result).keys() == {"marts/traffic_daily"}
    assert rows(lake, "traffic_daily")[0]["events"] == 4
    assert newest(lake, "traffic_daily")[1].tables[0].read_at == 0


def test_one_mart_alone_over_one_that_was_never_published_says_so(lake: Lake, assets: dg.AssetsDefinition) -> None:
    shop(lake)
    result = run(assets, "marts/traffic_daily")
    said = result.get_step_failure_events()[0].event_specific_data.error.message
    assert "marts/traffic_hourly has no table yet" in said


def test_a_check_alone_is_evaluated_on_the_published_mart_and_publishes_nothing(
    lake: Lake, assets: dg.AssetsDefinition
) -> None:
    shop(lake)
    assert run(assets).success
    (name,) = [one for one in assets.check_keys if one.name == "unique_user_value_user_id"]
    job = dg.Definitions(
        assets=[assets], jobs=[dg.define_asset_job("one_check", selection=dg.AssetSelection.checks(name))]
    ).get_job_def("one_check")
    result = job.execute_in_process(instance=dg.DagsterInstance.ephemeral())
    assert [check.passed for check in result.get_asset_check_evaluations()] == [True]
    assert newest(lake, "user_value")[0] == 0


def test_dbt_by_hand_publishes_as_dagster_does(lake: Lake, tmp_path: Path) -> None:
    shop(lake)
    done = subprocess.run(
        [sys.executable, "-m", "dbt.cli.main", "build", "--select", "user_value", "--target-path", str(tmp_path / "t")],
        cwd=PROJECT,
        env={**os.environ, "DBT_LOG_PATH": str(tmp_path / "logs")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    version, record = newest(lake, "user_value")
    assert (version, record.run[:4], record.tables[0].read_at) == (0, "dbt ", 1)
    assert (tmp_path / "home" / "dbt" / "marts.duckdb").exists()


def test_every_mart_has_what_the_graph_shows_of_it(assets: dg.AssetsDefinition) -> None:
    for spec in assets.specs:
        schema, lineage = spec.metadata["dagster/column_schema"], spec.metadata["dagster/column_lineage"]
        assert {column.name for column in schema.columns} == set(lineage.deps_by_column), spec.key
        assert all(column.type != "?" and column.description for column in schema.columns), spec.key
        assert spec.description and spec.code_version and spec.owners == ["team:web"] and spec.group_name == "marts"
        assert spec.kinds == {"dbt", "delta", "duckdb"}
    revenue = assets.get_asset_spec(dg.AssetKey(["marts", "user_value"])).metadata["dagster/column_lineage"]
    assert (
        dg.TableColumnDep(dg.AssetKey(["silver", "clicks"]), "amount_cents") in revenue.deps_by_column["revenue_cents"]
    )
    assert {dep.asset_key.to_user_string() for dep in assets.get_asset_spec(
        dg.AssetKey(["marts", "traffic_daily"])).deps} == {"marts/traffic_hourly"}  # fmt: skip


def test_loading_the_marts_imports_neither_dbt_nor_an_engine() -> None:
    code = (
        "import sys\nfrom types import SimpleNamespace\nfrom lineage_assets.components.marts import DbtMarts\n"
        f"DbtMarts().build_defs(SimpleNamespace(project_root={str(ROOT)!r}, path={str(ROOT)!r}))\n"
        "heavy = {'dbt', 'dbt_common', 'duckdb', 'deltalake', 'pandas', 'networkx'}\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert json.loads(done.stdout.replace("'", '"')) == []


def test_a_manifest_fits_until_a_file_of_the_project_changes(tmp_path: Path) -> None:
    manifests.load(PROJECT)
    copy = tmp_path / "dbt_project"
    subprocess.run(["cp", "-r", str(PROJECT), str(copy)], check=True)
    assert manifests.fits(copy)
    model = copy / "models" / "marts" / "user_value.sql"
    model.write_text(model.read_text() + "\n-- new\n")
    assert not manifests.fits(copy)


def test_a_model_that_dbt_cannot_compile_is_refused_in_dbts_words(tmp_path: Path) -> None:
    copy = tmp_path / "dbt_project"
    subprocess.run(["cp", "-r", str(PROJECT), str(copy)], check=True)
    (copy / "models" / "marts" / "user_value.sql").write_text("select * from {{ ref('nobody') }}")
    with pytest.raises(FatalError, match="depends on a node named 'nobody' which was not found"):
        manifests.load(copy)


def test_sketches_of_the_running_spark_can_be_united(stack: Settings) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(stack.spark).create()
    try:
        made = spark.sql(
            "SELECT 1 AS user, theta_sketch_estimate(theta_sketch_agg(s)) AS sessions, theta_sketch_agg(s) AS sessions_sketch"
            " FROM (SELECT part, explode(transform(sequence(part * 10, part * 10 + 19), i -> concat('s', i))) AS s"
            "       FROM (SELECT explode(array(0, 1, 2)) AS part)) GROUP BY part"
        ).collect()
    finally:
        spark.stop()
    rows_of_slices = pa.Table.from_pylist(
        [{"user": one.user, "sessions": one.sessions, "sessions_sketch": bytes(one.sessions_sketch)} for one in made]
    )
    merged = merge_rows(rows_of_slices, Merge(("user",), {"sessions": "theta"}))
    assert (rows_of_slices["sessions"].to_pylist(), merged["sessions"].to_pylist()) == ([20, 20, 20], [40])
