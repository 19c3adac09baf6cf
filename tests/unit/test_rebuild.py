"""`rebuild`: an empty Dagster instance tells afterwards what the lost one told, with the same times."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lineage_assets.errors import ContractError
from lineage_assets.lineage import ledger as cuts
from lineage_assets.lineage.commits import Lake
from lineage_assets.lineage.ledger import commit_records as ledger
from lineage_assets.lineage.slices import Cut, Grain
from lineage_assets.reporting.collector import Managed, collect
from lineage_assets.reporting.differences import verify
from lineage_assets.reporting.instance import newest_checks, newest_materializations
from lineage_assets.reporting.rebuild import rebuild
from tests.unit.written import ELEVEN, T0, TEN, Written, at_ms, check, record

TABLES = (Managed("raw/clicks", Grain.hour), Managed("silver/clicks", Grain.hour), Managed("marts/users"))
TOPIC = dg.AssetKey(["kafka", "local", "clicks"])
LATER = at_ms(6 * 3600)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def fresh(folder: Path) -> dg.DagsterInstance:
    folder.mkdir()
    return dg.DagsterInstance.local_temp(str(folder))


@pytest.fixture
def lost(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with fresh(tmp_path / "lost") as found:
        yield found


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with fresh(tmp_path / "empty") as found:
        yield found


@pytest.fixture
def raw(lake: Lake, lost: dg.DagsterInstance) -> Written:
    """Two hours of a stream with a repair, a restore and a foreign commit, as the collector told them at the time."""
    raw, silver, mart = (Written(lake, table.asset) for table in TABLES)
    cursor: dict[str, Any] = {}
    for step in range(24):
        seconds, key = step * 300 + 7, TEN if step < 12 else ELEVEN
        raw.append(step * 10, step * 10 + 10, seconds=seconds, slice=key)
        checks = [check(failed=max(0, step - 9), max_share=0.3)]
        silver.append(step * 10, step * 10 + 10, seconds=seconds + 1, slice=key, checks=checks)
        if step == 5:
            raw.commit(record(kind="replace", ranges={0: (0, 60)}), seconds=seconds + 2)
        if step == 20:
            raw.append(900, 999, seconds=seconds + 3, slice=ELEVEN)
            raw.restore(to=raw.version - 1, seconds=seconds + 4)
        if step % 7 == 0:
            mart.commit(record("marts/users", "replace", None, counts={"rows": step}), seconds=seconds + 5)
        cursor = collect(lost, lake, TABLES, cursor, now_ms=at_ms(seconds + 10)).cursor
    done = collect(lost, lake, TABLES, cursor, now_ms=LATER)
    assert not done.problems
    return raw


def newest(instance: dg.DagsterInstance) -> dict[Any, Any]:
    """What people look at: per asset and partition the newest materialization, per check its newest result."""
    found: dict[Any, Any] = {}
    for table in TABLES:
        places = [None] if table.grain is None else [TEN, ELEVEN]
        for asset in table.keys:
            for key, one in newest_materializations(instance, asset, places).items():
                told = {name: value for name, value in one.metadata.items() if name != "delta/versions"}
                found[asset, key] = (one.at, told)
        for name, partitions in (("amount", places), ("no_foreign_commits", [None])):
            for key in partitions:
                result = newest_checks(instance, [dg.AssetCheckKey(table.key, name)], key)
                for one in result.values():
                    numbers = {name: value.value for name, value in one.metadata.items()}
                    found[table.key, name, key] = (one.passed, one.severity, numbers)
    return found


def differing(instance: dg.DagsterInstance, lake: Lake) -> list[str]:
    found = verify(instance, lake, TABLES, now_ms=LATER + 600_000, every_event=True)
    return [str(one) for one in found if not one.known and "foreign commits: their rows" not in one.what]


def test_a_rebuilt_instance_tells_what_the_lost_one_told(lake, lost, empty, raw) -> None:
    assert differing(lost, lake) == []
    said: list[str] = []
    done = rebuild(empty, lake, TABLES, {}, said.append, now_ms=LATER)

    assert done.kept == 0 and done.gone == {} and any("events, up to" in one for one in said)
    assert newest(empty) == newest(lost)
    assert len(newest(empty)) == 4 * 2 + 1 + 2 + 3
    assert differing(empty, lake) == []


def test_the_collector_has_nothing_to_add_to_a_rebuilt_instance(lake, lost, empty, raw) -> None:
    rebuild(empty, lake, TABLES, {}, now_ms=LATER)
    assert collect(empty, lake, TABLES, {}, now_ms=LATER + 600_000).events == 0
    raw.append(240, 250, seconds=7300, slice=ELEVEN)
    assert collect(empty, lake, TABLES, {}, now_ms=LATER + 600_000).events == 2
    assert differing(empty, lake) == []


def test_the_ledger_gets_back_what_the_logs_hold_and_the_rest_is_named(lake, lost, empty, raw) -> None:
    raw.clean(below=6)
    shutil.rmtree(lake.path("ledger"))
    done = rebuild(empty, lake, TABLES, {}, now_ms=LATER)
    assert done.gone == {"raw/clicks": "[0, 6)"}
    assert done.kept == sum(len(ledger.entries(lake, table.asset)) for table in TABLES)
    assert ledger.spans(lake, "raw/clicks") == {raw.id: [(6, raw.version + 1)]}
    assert differing(empty, lake) == []


def test_what_only_the_ledger_holds_is_told_too(lake, lost, empty, raw) -> None:
    before = newest(lost)
    raw.clean(below=raw.version)
    rebuild(empty, lake, TABLES, {}, now_ms=LATER)
    assert newest(empty) == before


def test_events_are_stored_in_the_order_of_their_times(lake, lost, empty, raw) -> None:
    rebuild(empty, lake, TABLES, {}, now_ms=LATER)
    times = [
        (one.storage_id, one.timestamp)
        for table in TABLES
        for asset in table.keys
        for one in empty.fetch_materializations(asset, limit=1000).records
    ]
    in_order = [at for _, at in sorted(times)]
    assert in_order == sorted(in_order) and len(in_order) > 50


def test_a_topic_s_closed_slices_come_from_its_cuts(lake, lost, empty, raw) -> None:
    ref = cuts.TopicRef("local", "clicks", "t1")
    at = [Cut(T0 + timedelta(hours=hour), {0: hour * 120, 1: 0}) for hour in range(3)]
    cuts.add_cuts(lake, ref, at, "arrival")
    rebuild(empty, lake, TABLES, {TOPIC: Grain.hour}, now_ms=LATER)
    found = newest_materializations(empty, TOPIC, [TEN, ELEVEN, "2026-03-01-12"])
    assert {key: one.metadata["kafka/ranges"]["0"] for key, one in found.items()} == {
        TEN: ["0", "120"],
        ELEVEN: ["120", "240"],
    }
    assert found[TEN].at == (T0 + timedelta(hours=1)).timestamp() and found[TEN].metadata["slice/closed"] is True


def test_an_instance_that_holds_something_is_refused_by_name(lake, lost, empty, raw) -> None:
    with pytest.raises(ContractError, match=r"events of 5 assets .*raw/clicks"):
        rebuild(lost, lake, TABLES, {}, now_ms=LATER)

    @dg.job
    def some() -> None: ...

    empty.create_run_for_job(some)
    with pytest.raises(ContractError, match="1 runs"):
        rebuild(empty, lake, TABLES, {}, now_ms=LATER)
