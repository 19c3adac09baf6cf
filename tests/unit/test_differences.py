"""`verify`: nothing is found where all agree, and every way to disagree is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from deltalake import DeltaTable

from lineage_assets.lineage import record as records
from lineage_assets.lineage.commits import Lake
from lineage_assets.lineage.ledger import commit_records as ledger
from lineage_assets.lineage.slices import Grain
from lineage_assets.reporting import store
from lineage_assets.reporting.collector import Managed, collect
from lineage_assets.reporting.differences import verify
from tests.unit.written import ELEVEN, TEN, Written, at_ms, check, record

RAW, SILVER = Managed("raw/clicks", Grain.hour), Managed("silver/clicks", Grain.hour)
TABLES = (RAW, SILVER)
NOW = at_ms(5 * 3600)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as found:
        yield found


def collected(instance: dg.DagsterInstance, lake: Lake, now: int = NOW) -> None:
    assert not collect(instance, lake, TABLES, {}, now_ms=now).problems


def said(instance: dg.DagsterInstance, lake: Lake, **more: Any) -> list[str]:
    return [str(one) for one in verify(instance, lake, TABLES, now_ms=NOW + 600_000, every_event=True, **more)]


@pytest.fixture
def raw(lake: Lake, instance: dg.DagsterInstance) -> Written:
    """Raw and silver of two slices, told to Dagster."""
    raw, silver = Written(lake), Written(lake, "silver/clicks")
    for number in range(4):
        key = TEN if number < 2 else ELEVEN
        raw.append(number * 10, number * 10 + 10, seconds=number, slice=key)
        silver.append(number * 10, number * 10 + 10, seconds=number, slice=key, checks=[check(failed=number)])
    collected(instance, lake)
    return raw


def test_where_all_agree_nothing_is_found(instance, lake, raw) -> None:
    assert said(instance, lake) == []
    raw.append(40, 50, seconds=10, slice=ELEVEN)
    collected(instance, lake, NOW + 120_000)
    assert said(instance, lake) == []


def test_a_commit_that_the_ledger_and_dagster_do_not_know(instance, lake, raw) -> None:
    version = raw.append(40, 50, seconds=10, slice=ELEVEN)
    found = "\n".join(said(instance, lake))
    assert f"ledger: raw/clicks: versions [{version}, {version + 1}) are not in the ledger" in found
    assert f"dagster: raw/clicks {ELEVEN}: the newest materialization tells version 4, and the newest is 5" in found
    assert f"dagster: dead_letters/clicks {ELEVEN}" in found
    assert said(instance, lake, pending_s=1e9) == [], "it is on its way"


def test_a_ledger_with_another_record_than_the_log(instance, lake, raw) -> None:
    file = raw.log / f"{2:020}.json"
    file.write_text(file.read_text().replace('\\"ok\\":10', '\\"ok\\":11'))
    found = said(instance, lake)
    assert any("versions [2, 3) have another record than in the log" in one for one in found)
    assert any("the counts differ" in one for one in found)


def test_versions_that_are_in_neither_are_named_and_no_fault_of_now(instance, lake, raw) -> None:
    raw.clean(below=3)
    assert said(instance, lake) == []
    DeltaTable(lake.path(ledger.COMMITS)).delete("asset = 'raw/clicks' AND version = 2")
    found = verify(instance, lake, TABLES, now_ms=NOW + 600_000)
    assert [one.known for one in found if "in neither log nor ledger" in one.what] == [True]
    assert "versions [2, 3)" in str(found[0])


def test_a_table_that_is_older_than_its_ledger(instance, lake, raw) -> None:
    (raw.log / f"{4:020}.json").unlink()
    assert any("the ledger has versions [4, 5), which the log does not have" in one for one in said(instance, lake))


def test_a_table_that_is_gone(instance, lake, raw) -> None:
    Path(lake.path("raw/clicks")).rename(lake.root + "/away")
    assert any("the table is gone" in one for one in said(instance, lake))


def test_a_foreign_commit(instance, lake, raw) -> None:
    raw.commit(None, seconds=20, operation="DELETE")
    found = said(instance, lake)
    assert any("versions [5, 6) are foreign commits" in one for one in found)
    assert any("check no_foreign_commits tells another state" in one for one in found)
    collected(instance, lake, NOW + 120_000)
    assert ["foreign commits" in one for one in said(instance, lake)] == [True]


def materialized(instance: dg.DagsterInstance, version: int, versions: str, partition: str = TEN, **more: Any) -> None:
    made = dg.AssetMaterialization(
        ["raw", "clicks"],
        partition=partition,
        metadata={"delta/version": version, "delta/versions": versions, **more},
    )
    store.store(instance, [store.Timed(made, NOW / 1000)])


def test_dagster_has_covered_a_version_twice_or_tells_other_numbers(instance, lake, raw) -> None:
    other = record(kind="replace", ranges={0: (0, 19)})
    materialized(instance, 2, "[2, 3)", **{"delta/table_id": raw.id, "lineage/commit": records.to_json(other)})
    found = "\n".join(said(instance, lake))
    assert "versions [2, 3) are covered twice" in found
    assert "the offset ranges differ" in found and "the counts differ" in found


def test_dagster_has_a_slice_that_nobody_made(instance, lake, raw) -> None:
    materialized(instance, 2, "[2, 3)", partition="2026-03-01-12")
    assert any("raw/clicks 2026-03-01-12: Dagster has a slice" in one for one in said(instance, lake))


def test_a_check_with_another_verdict_or_none(instance, lake, raw) -> None:
    wrong = dg.AssetCheckEvaluation(
        asset_key=dg.AssetKey(["silver", "clicks"]), check_name="amount", passed=True, partition=ELEVEN, metadata={}
    )
    store.store(instance, [store.Timed(wrong, NOW / 1000)])
    (found,) = said(instance, lake)
    assert f"silver/clicks {ELEVEN}: check amount passed in Dagster and failed as ERROR, 5 of 20" in found


def test_an_empty_dagster(instance, lake, raw, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "other")) as empty:
        found = said(empty, lake)
    places = {(asset, key) for asset in ("raw", "dead_letters", "silver", "late") for key in (TEN, ELEVEN)}
    assert all(any(f"{asset}/clicks {key}: version" in one for one in found) for asset, key in places)
    assert sum("has no result" in one for one in found) == 2
