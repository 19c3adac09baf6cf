"""What the catch_up sensor asks for: beside a running stream and without one. Logs are written by hand."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from lineage_assets import settings as settings_module
from lineage_assets.components.sensors import FOLLOW_EVERY_S, FOLLOWED_AT_ONCE, PAUSE_S, RUNS_AT_ONCE
from lineage_assets.definitions import build_defs
from lineage_assets.kafka.client import Topic
from lineage_assets.kafka.cuts import SlicedTopic
from lineage_assets.lineage import lease
from lineage_assets.lineage.commits import Lake
from lineage_assets.lineage.lease import Lease
from lineage_assets.lineage.logs import Logs
from lineage_assets.lineage.record import CommitRecord, TableInput
from lineage_assets.lineage.slices import Cut, Grain
from lineage_assets.reporting import topics
from tests.unit.written import ELEVEN, T0, TEN, Written, record

GOLD, HOURLY = "gold/user_activity_5m", "marts/traffic_hourly"
HOURS = 12


@pytest.fixture(scope="module")
def definitions() -> dg.Definitions:
    return build_defs()


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """A lake of its own, and a topic of which every hour holds ten records and the last, the twelfth, is open."""
    monkeypatch.setenv("LINEAGE_HOME", str(tmp_path))
    settings_module.settings.cache_clear()
    cuts = [Cut(T0 + timedelta(hours=number), {0: 10 * number}) for number in range(HOURS)]
    topic = SlicedTopic(Topic("clicks", "t1", (0,), {}), Grain.hour, cuts, {0: 0}, {0: 10 * HOURS})
    monkeypatch.setattr(topics, "sliced", lambda *_: topic)
    yield settings_module.settings().lake_env
    settings_module.settings.cache_clear()


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def streaming(lake: Lake, ago_s: float = 0.0) -> None:
    """A stream on another machine, whose last heartbeat was then."""
    now = lease.beat(lake, Lease("clicks", "o1", "another-host", 1, datetime.now(UTC))).beat_at
    file = Path(lake.root, "streams", "clicks.lease.json")
    file.write_text(file.read_text().replace(now.isoformat(), (now - timedelta(seconds=ago_s)).isoformat()))


def hour(number: int) -> str:
    return f"{T0 + timedelta(hours=number):%Y-%m-%d-%H}"


class Tables:
    """Raw and silver as a stream writes them, batch by batch, and gold as runs make it."""

    def __init__(self, lake: Lake) -> None:
        self.raw, self.silver = Written(lake), Written(lake, "silver/clicks")
        self.gold: Written | None = None

    def batch(self, start: int, end: int, slice: str = TEN) -> int:
        read = self.raw.append(start, end, slice=slice)
        return self.silver.append(
            start, end, slice=slice, tables=[TableInput("raw/clicks", self.raw.id, (read, read + 1))]
        )

    def windows(self, through: int, slice: str = TEN) -> None:
        self.gold = self.gold or Written(self.silver.lake, GOLD)
        self.gold.commit(made(GOLD, slice, self.silver, (1, through + 1)))


def made(asset: str, slice: str | None, source: Written, commits: tuple[int, int]) -> CommitRecord:
    return record(
        asset, "replace", slice, run="a-run", tables=[TableInput(source.asset, source.id, commits, commits[1] - 1)]
    )


def tick(definitions: dg.Definitions, instance: dg.DagsterInstance) -> list[dg.RunRequest]:
    context = dg.build_sensor_context(instance=instance, definitions=definitions)
    result = definitions.resolve_sensor_def("catch_up")(context)
    assert isinstance(result, dg.SensorResult)
    return list(result.run_requests or [])


def told(requests: Sequence[dg.RunRequest]) -> list[tuple[str | None, set[str]]]:
    """Slice and assets of each request."""
    return [(one.partition_key, {key.to_user_string() for key in one.asset_selection or ()}) for one in requests]


def of_gold(requests: Sequence[dg.RunRequest]) -> list[dg.RunRequest]:
    return [one for one in requests if dg.AssetKey(GOLD.split("/")) in (one.asset_selection or ())]


@dg.job
def anything() -> None:
    pass


def launched(
    instance: dg.DagsterInstance, request: dg.RunRequest, status: dg.DagsterRunStatus = dg.DagsterRunStatus.STARTED
) -> None:
    """A run of a request that has come so far."""
    partition = {"dagster/partition": request.partition_key} if request.partition_key else {}
    run = instance.create_run_for_job(anything, tags={**request.tags, **partition})
    kinds = [dg.DagsterEventType.PIPELINE_START]
    if status is dg.DagsterRunStatus.SUCCESS:
        kinds.append(dg.DagsterEventType.PIPELINE_SUCCESS)
    for kind in kinds:
        instance.report_dagster_event(dg.DagsterEvent(event_type_value=kind.value, job_name=run.job_name), run.run_id)
    if status is dg.DagsterRunStatus.FAILURE:
        instance.report_run_failed(run)


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    now = time.time() + seconds
    monkeypatch.setattr(time, "time", lambda: now)


def test_beside_a_stream_only_windows_and_marts_are_asked_for(
    definitions: dg.Definitions, instance: dg.DagsterInstance, lake: Lake
) -> None:
    tables = Tables(lake)
    tables.batch(0, 4)
    whole = told(tick(definitions, instance))
    assert len(whole) == RUNS_AT_ONCE, "without one all slices are behind"
    assert whole[0][0] == TEN
    assert {"raw/clicks", "silver/clicks", GOLD} < whole[0][1]

    streaming(lake)
    windows, marts = tick(definitions, instance)
    assert told([windows]) == [(TEN, {GOLD})]
    assert windows.tags["dagster/priority"] == marts.tags["dagster/priority"] == "1"
    assert marts.partition_key is None
    assert told([marts])[0][1] >= {HOURLY}


def test_a_stream_that_is_started_again_is_left_its_slices_and_one_that_was_stopped_is_not(
    definitions: dg.Definitions, instance: dg.DagsterInstance, lake: Lake
) -> None:
    Tables(lake).batch(0, 4)

    def left_to_it() -> bool:
        return told(of_gold(tick(definitions, instance))) == [(TEN, {GOLD})]

    streaming(lake, ago_s=60)
    assert not left_to_it(), "nobody wants it"
    lease.wish(lake, "clicks", True)
    assert left_to_it()
    lease.wish(lake, "clicks", False)
    assert not left_to_it()
    lease.wish(lake, "clicks", True)
    streaming(lake, ago_s=100)
    assert not left_to_it()


def test_a_slice_that_grows_has_one_run_at_a_time_and_not_more_often_than_need_be(
    definitions: dg.Definitions, instance: dg.DagsterInstance, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = Tables(lake)
    streaming(lake)
    tables.batch(0, 2)
    (first,) = of_gold(tick(definitions, instance))
    launched(instance, first)
    tables.batch(2, 3)
    with monkeypatch.context() as patch:
        later(patch, 60 * FOLLOW_EVERY_S)
        assert of_gold(tick(definitions, instance)) == [], "it runs"
    launched(instance, first, dg.DagsterRunStatus.SUCCESS)
    for run in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])):
        instance.report_run_canceled(run)
    assert of_gold(tick(definitions, instance)) == [], "it has just run"
    later(monkeypatch, FOLLOW_EVERY_S + 1)
    (second,) = of_gold(tick(definitions, instance))
    assert second.run_key != first.run_key
    tables.windows(2)
    assert of_gold(tick(definitions, instance)) == [], "nothing is behind"
    tables.batch(3, 4)
    assert len(of_gold(tick(definitions, instance))) == 1


def test_windows_that_fail_are_asked_for_after_a_growing_pause_whatever_the_stream_commits(
    definitions: dg.Definitions, instance: dg.DagsterInstance, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = Tables(lake)
    streaming(lake)
    tables.batch(0, 1)
    (first,) = of_gold(tick(definitions, instance))
    for failures in (1, 2, 3):
        launched(instance, first, dg.DagsterRunStatus.FAILURE)
        tables.batch(failures, failures + 1)
        with monkeypatch.context() as patch:
            later(patch, PAUSE_S * 2 ** (failures - 1) - 5)
            assert of_gold(tick(definitions, instance)) == []
            later(patch, PAUSE_S * 2 ** (failures - 1) + 5)
            assert len(of_gold(tick(definitions, instance))) == 1


def test_the_newest_slices_come_first_and_old_gaps_are_filled_beside_them(
    definitions: dg.Definitions, instance: dg.DagsterInstance, lake: Lake
) -> None:
    tables = Tables(lake)
    streaming(lake)
    for number in range(1, 8):
        tables.batch(10 * number, 10 * number + 10, hour(number))
    asked = told([one for one in tick(definitions, instance) if one.partition_key])
    assert [key for key, assets in asked if assets == {GOLD}] == [hour(n) for n in (7, 6, 5, 4)][:FOLLOWED_AT_ONCE]
    assert [key for key, assets in asked if "raw/clicks" in assets] == [TEN], "below what the stream has written"


def test_marts_wait_for_slices_that_are_on_their_way_unless_a_stream_runs(
    definitions: dg.Definitions, instance: dg.DagsterInstance, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = Tables(lake)
    tables.batch(0, 4)
    asked = tick(definitions, instance)
    assert not [one for one in asked if one.partition_key is None]
    launched(instance, asked[0])
    streaming(lake)
    (marts,) = (one for one in tick(definitions, instance) if one.partition_key is None)
    launched(instance, marts)
    later(monkeypatch, FOLLOW_EVERY_S + 1)
    assert not [one for one in tick(definitions, instance) if one.partition_key is None], "one at a time"


def test_a_table_that_was_made_again_or_brought_back_is_read_from_the_beginning(lake: Lake) -> None:
    logs, asset = Logs(), "raw/clicks"
    assert logs.slices(lake, asset) == {}
    written = Written(lake)
    written.append(0, 5)
    written.append(5, 9)
    assert logs.slices(lake, asset)[TEN][1].counts["ok"] == 9
    written.append(0, 3, slice=ELEVEN)
    assert {key: commit.version for key, (commit, _) in logs.slices(lake, asset).items()} == {TEN: 2, ELEVEN: 3}
    (written.log / f"{3:020}.json").unlink()
    assert set(logs.slices(lake, asset)) == {TEN}, "brought back from a backup"
    for file in written.log.iterdir():
        file.unlink()
    written.log.rmdir()
    assert logs.slices(lake, asset) == {}
    Written(lake).append(0, 1)
    assert logs.slices(lake, asset)[TEN][1].counts["ok"] == 1
