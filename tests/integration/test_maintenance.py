"""Maintenance on the real stack, beside a stream: no row is lost, doubled or given another origin."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from lineage_assets.lineage.commits import commits, open_table
from lineage_assets.lineage.content import THROUGH, by_slice
from lineage_assets.lineage.slices import Grain
from lineage_assets.maintenance import gaps
from lineage_assets.maintenance.files import log_files
from lineage_assets.maintenance.policy import Policy
from lineage_assets.maintenance.run import maintain
from lineage_assets.reporting.collector import Managed
from lineage_assets.reporting.rebuild import keep_again
from lineage_assets.settings import Settings
from lineage_assets.spark import bite as bites
from tests.integration.engine import T0, Abort, Engine, event, fresh, record_of, slice_of
from tests.integration.streams import assert_nothing_lost, catch_up, whole

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEN = slice_of("10").key
EAGER = Policy(most_files=4, commits=0, log_after=timedelta(0))


@pytest.fixture
def shop(stack: Settings, spark: SparkSession, tmp_path: Path) -> Iterator[Engine]:
    with fresh(stack, spark, tmp_path / "lake", unique_by=("id",), event_time=None) as made:
        yield made


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as found:
        yield found


def origins(engine: Engine, asset: str) -> dict[int, tuple[int, int]]:
    """By offset, a row's own id and the version of the commit that last wrote it."""
    path = engine.settings.lake_env.path(f"{asset}/{engine.table.name}")
    offset = "offset" if asset == "raw" else "_offset"
    rows = engine.spark.sql(
        f"SELECT `{offset}` AS at, _metadata.row_id AS id, _metadata.row_commit_version AS version FROM delta.`{path}`"
    ).collect()
    assert len({row["id"] for row in rows}) == len(rows), "a row id stands twice"
    return {row["at"]: (row["id"], row["version"]) for row in rows}


def within(found: Mapping[int, Any], before: Mapping[int, Any]) -> dict[int, Any]:
    return {offset: found[offset] for offset in before}


def test_a_stream_goes_on_while_everything_is_maintained(
    shop: Engine, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Batches are to stay as small as they are told, however slow or large the server finds them.
    monkeypatch.setattr(bites, "SMALLEST", 10)
    lake = shop.settings.lake_env
    raw, silver = f"raw/{shop.table.name}", f"silver/{shop.table.name}"
    tables = [Managed(asset, Grain.hour) for asset in (raw, silver)]
    shop.send(*(event(f"a{number}", at=number / 2) for number in range(60)), event("b", at=70))
    catch_up(shop, bite=10)
    before = {layer: origins(shop, layer) for layer in ("raw", "silver")}
    records = {layer: whole(shop, layer)[TEN] for layer in ("raw", "silver")}
    assert len(by_slice(commits(lake, raw))[TEN]) >= 6, "the hour was not made by many appends"
    # The stream writes checkpoints too, now and then: this is what it has left.
    quiet = maintain(shop.settings, instance, tables, EAGER, only=["checkpoint"])
    assert {one.asset for one in quiet.checkpoint} >= {raw, silver}
    faults: list[BaseException] = []

    def stream() -> None:
        try:
            shop.send(*(event(f"c{number}") for number in range(40)))
            catch_up(shop, bite=10)
        except BaseException as error:
            faults.append(error)

    streaming = threading.Thread(target=stream)
    streaming.start()
    done = maintain(shop.settings, instance, tables, EAGER)
    streaming.join()

    assert not faults and not done.problems
    assert [(one.asset, one.slice, one.files_after) for one in done.compact if one.slice == TEN] == [
        (raw, TEN, 1),
        (silver, TEN, 1),
    ]
    for one in done.compact:
        assert one.version is not None
        assert log_files(lake, one.asset).last_checkpoint >= one.version, "no checkpoint covers the compaction"
    assert [(one.begins, one.commits) for one in done.shorten] in ([], [(0, 0)] * 2), "the ledger has nothing yet"
    for layer, asset in (("raw", raw), ("silver", silver)):
        assert within(origins(shop, layer), before[layer]) == before[layer], "compaction changed where rows come from"
        (newest, told), *rest = by_slice(commits(lake, asset))[TEN]
        assert not rest and told.kind == "compact" and told.stated[THROUGH] == newest.version
        assert told.topics == records[layer].topics and told.counts == records[layer].counts
        assert told.checks == records[layer].checks
    assert_nothing_lost(shop)

    # The ledger has everything now, and the logs go up to their checkpoints.
    expected = {layer: whole(shop, layer) for layer in ("raw", "silver")}
    for asset in (raw, silver):
        keep_again(lake, asset)
    again = maintain(shop.settings, instance, tables, EAGER)
    assert {one.asset for one in again.shorten if one.begins > 0} == {raw, silver} and not again.problems
    assert min(log_files(lake, raw).commits) > 6, "the appends of the hour are still in the log"
    assert {layer: whole(shop, layer) for layer in ("raw", "silver")} == expected
    held = {layer: origins(shop, layer) for layer in ("raw", "silver")}
    table = open_table(lake, raw)
    assert table is not None and table.count() == len(held["raw"])

    # Whoever writes next goes on with row ids and turns where the log that is gone had ended.
    shop.send(*(event(f"d{number}") for number in range(10)))
    catch_up(shop, bite=5)
    assert_nothing_lost(shop)
    for layer in ("raw", "silver"):
        after = origins(shop, layer)
        assert within(after, held[layer]) == held[layer] and len(after) == len(held[layer]) + 10
        news = [after[offset][0] for offset in after.keys() - held[layer].keys()]
        assert min(news) > max(id for id, _ in held[layer].values())
    assert shop.process("10").raw.record is not None, "the compacted hour can be made again"
    assert_nothing_lost(shop)


def test_gaps_that_were_left_are_measured_as_a_bounded_run_measures_them(
    stack: Settings, spark: SparkSession, tmp_path: Path
) -> None:
    with fresh(stack, spark, tmp_path / "lake", event_time=None, transactional=True) as engine:
        with engine.transaction("a") as send:
            send(event("a"), event("b"))
        with engine.transaction("b") as send:
            send(event("c"), event("d"), event("e"))
            raise Abort
        with engine.transaction("c") as send:
            send(event("f"))
        engine.await_end(9)
        # Markers bear the time of now, by which an index would cut these old records: all of it arrives in an open slice.
        told = record_of(engine.process("10", now=T0 + timedelta(minutes=30)).raw)
        assert told.stated["gaps"] == {"0": {"aborted": 3, "markers": 3}}
        checks = tuple(
            replace(one, passed=False, failed=6) if one.name == "conservation" else one for one in told.checks
        )
        left = replace(told, stated={**told.stated, "gaps": {"0": {"unmeasured": 6}}}, checks=checks)
        assert gaps.measured(engine.settings, left) == told

        engine.delete_records({0: 4})
        assert gaps.measured(engine.settings, left) == left, "the topic cannot tell any more"
