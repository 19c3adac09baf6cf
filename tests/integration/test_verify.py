"""`verify` against the real broker and Spark's own tables; the ledger in an object store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lineage_assets.kafka.client import create_topic
from lineage_assets.lineage.slices import Grain
from lineage_assets.reporting import conservation
from lineage_assets.reporting.collector import Managed, collect
from lineage_assets.reporting.conservation import Source
from lineage_assets.reporting.differences import Difference, verify
from tests.integration.engine import Engine, event, fresh, slice_of


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as found:
        yield found


def tables(engine: Engine) -> list[Managed]:
    return [Managed(f"{layer}/{engine.table.name}", Grain.hour) for layer in ("raw", "silver")]


def found(engine: Engine, instance: dg.DagsterInstance) -> list[Difference]:
    sources = [Source(engine.topic, engine.table.name, Grain.hour)]

    def rows(read: Any) -> Iterator[Difference]:
        return conservation.differences(engine.settings, sources, read)

    return verify(instance, engine.settings.lake_env, tables(engine), every_event=True, rows=rows)


def told(engine: Engine, instance: dg.DagsterInstance) -> None:
    assert not collect(instance, engine.settings.lake_env, tables(engine), {}).problems


def test_slices_made_by_runs_are_clean_and_a_lost_row_is_found(stack, spark, tmp_path, instance) -> None:
    with fresh(stack, spark, tmp_path / "lake", partitions=2) as engine:
        engine.send(*(event(f"e{n}", n, at=n * 20, partition=n % 2) for n in range(8)))
        engine.send(event("bad", -1, at=5), event("bad", None, at=70, partition=1))
        for key in ("10", "11", "12"):
            engine.process(key)
        told(engine, instance)
        assert [str(one) for one in found(engine, instance)] == []

        lake, raw = engine.settings.lake_env, f"raw/{engine.table.name}"
        spark.sql(f"DELETE FROM delta.`{lake.path(raw)}` WHERE offset = 1 AND partition = 0")
        told(engine, instance)
        said = [str(one) for one in found(engine, instance)]
        assert any("foreign commits" in one for one in said)
        assert any("partition 0: 1 of" in one and "neither row nor gap" in one for one in said)


def test_a_transaction_s_markers_are_no_difference_and_a_slice_that_was_left_out_is(
    stack, spark, tmp_path, instance
) -> None:
    with fresh(stack, spark, tmp_path / "lake", transactional=True) as engine:
        # The marker comes last: it is stamped by the broker's clock, and the hours before it are cut by timestamp.
        engine.send(event("a", 1, at=1), event("b", 1, at=61))
        with engine.transaction() as send:
            send(event("c", 1, at=121), event("d", 1, at=122))
        engine.await_end(5)
        for key in ("10", "12"):
            engine.process(key)
        told(engine, instance)
        (one,) = found(engine, instance)
        assert one.slice == slice_of("12").key and "are missing before it" in one.what
        engine.process("11")
        told(engine, instance)
        assert [str(one) for one in found(engine, instance)] == []

        engine.delete_topic()
        (one,) = found(engine, instance)
        assert one.known and "does not exist" in one.what, "raw is the archive: it does not need its topic"
        create_topic(engine.settings, engine.topic, 1)
