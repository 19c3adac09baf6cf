"""A stream that commits once a second, and the hops after it: windows and marts follow by the sensor alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import import_module
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import dagster as dg
import pytest
from confluent_kafka.admin import AdminClient

from lineage_assets import settings as settings_module
from lineage_assets.components.sensors import CATCH_UP, FOLLOW_EVERY_S
from lineage_assets.components.streams import event_tables
from lineage_assets.components.window_table import WindowTable
from lineage_assets.definitions import build
from lineage_assets.kafka.client import client_config, create_topic
from lineage_assets.kafka.cuts import slice_topic
from lineage_assets.lineage import lease
from lineage_assets.lineage.commits import Commit, Lake, commits, open_table
from lineage_assets.lineage.content import newest_by_slice
from lineage_assets.lineage.record import CommitRecord
from lineage_assets.lineage.slices import Grain, Slice
from lineage_assets.reporting.topics import lag_of
from lineage_assets.settings import Settings
from lineage_assets.spark import window_table as engine
from lineage_assets.spark.session import session
from lineage_assets.spark.windows import WindowJob, make_slice

WITHIN_S = 60.0
STREAMS_FOR_S = 100.0
RATE = 40
ACTIVITY, SILVER, HOURLY = "gold/user_activity_5m", "silver/clicks", "marts/traffic_hourly"
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
DECLARED = """\
type: lineage_assets.components.Topic
attributes:
  name: {topic}
  format: avro
---
type: lineage_assets.components.EventTable
attributes:
  name: clicks
  topic: {topic}
  contract: contract.Click
  select: clean.sql
  event_time: occurred_at
  unique_by: [event_id]
---
type: lineage_assets.components.WindowTable
attributes:
  name: user_activity_5m
  source: silver/clicks
  window: 5m
  by: [user_id]
  measures:
    event_count: count(*)
    sessions: approx_count_distinct(session_id)
"""
STREAM = """\
import signal, sys, threading
from importlib import import_module
sys.path.insert(0, sys.argv[1])
from lineage_assets.components.streams import event_tables
from lineage_assets.definitions import build
from lineage_assets.settings import settings
from lineage_assets.spark import stream
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
table = event_tables(build(import_module(sys.argv[2]))[1])[sys.argv[3]]
stream.run(settings(), table, stream.Options(), stop, lambda said: print(said, flush=True))
"""


@dataclass(frozen=True, slots=True)
class Location:
    """A code location over a topic of its own, in a lake of its own, with a Dagster instance of its own."""

    settings: Settings
    folder: Path
    package: str
    topic: str
    definitions: dg.Definitions
    tree: dg.ComponentTree
    instance: dg.DagsterInstance

    @property
    def lake(self) -> Lake:
        return self.settings.lake_env

    def tick(self) -> Sequence[dg.RunRequest]:
        """Evaluate the sensor once, as the daemon does."""
        context = dg.build_sensor_context(instance=self.instance, definitions=self.definitions)
        result = self.definitions.resolve_sensor_def("catch_up")(context)
        assert isinstance(result, dg.SensorResult)
        return result.run_requests or []

    def run(self, request: dg.RunRequest) -> None:
        """What the daemon and a worker make of a request."""
        job = self.definitions.resolve_implicit_global_asset_job_def().get_subset(
            asset_selection=set(request.asset_selection or ())
        )
        done = job.execute_in_process(
            run_config=QUIET, instance=self.instance, partition_key=request.partition_key, tags=dict(request.tags)
        )
        assert done.success

    def lag(self) -> int:
        """Records that the topic has and raw lacks."""
        table = event_tables(self.tree)[self.topic]
        return lag_of(
            self.settings,
            slice_topic(self.settings, self.lake, self.topic, table.grain, table.since, owner="nobody"),
            "clicks",
        )


@pytest.fixture(scope="module")
def location(stack: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Location]:
    folder, topic = tmp_path_factory.mktemp("following"), f"following-{uuid.uuid4().hex[:10]}"
    package = f"following_{uuid.uuid4().hex[:10]}"
    written = folder / package
    for name in (written, written / "clicks", written / "marts"):
        name.mkdir()
    (written / "__init__.py").write_text('"""Written by a test."""\n')
    (written / "clicks" / "defs.yaml").write_text(DECLARED.format(topic=topic))
    (written / "marts" / "defs.yaml").write_text(
        "type: lineage_assets.components.DbtMarts\nattributes:\n  project: dbt_project\n"
    )
    for file in ("contract.py", "clean.sql"):
        (written / "clicks" / file).write_text(files("lineage_assets").joinpath(f"defs/clicks/{file}").read_text())
    home = folder / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    create_topic(stack, topic, 2, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LINEAGE_LAKE", str(folder / "lake"))
        patch.setenv("DAGSTER_HOME", str(home))
        patch.syspath_prepend(str(folder))
        settings_module.settings.cache_clear()
        try:
            definitions, tree = build(import_module(package))
            with dg.DagsterInstance.get() as instance:
                yield Location(settings_module.settings(), folder, package, topic, definitions, tree, instance)
        finally:
            admin = AdminClient(client_config(stack))
            admin.delete_topics([topic])[topic].exception(20)
    settings_module.settings.cache_clear()


@dataclass(frozen=True, slots=True)
class Followed:
    """What the sensor asked for: while the stream ran, and after it had ended."""

    location: Location
    beside: list[dg.RunRequest]
    after: list[dg.RunRequest]


@pytest.fixture(scope="module")
def followed(location: Location) -> Iterator[Followed]:
    """A producer and a stream in processes of their own; here the sensor is evaluated, and what it asks for is run."""
    load = json.dumps({"topic": location.topic, "rate": RATE, "seconds": STREAMS_FOR_S})
    producer = start("-m", "lineage_assets.bench.load", load)
    stream = start("-c", STREAM, str(location.folder), location.package, location.topic)
    try:
        beside: list[dg.RunRequest] = []
        after: list[dg.RunRequest] = []
        while lease.live(location.lake, location.topic) is None:
            assert stream.poll() is None, stream.stdout.read() if stream.stdout else ""
            time.sleep(0.1)
        while producer.poll() is None or location.lag():
            assert stream.poll() is None, stream.stdout.read() if stream.stdout else ""
            for request in location.tick():
                location.run(request)
                beside.append(request)
            time.sleep(1)
        assert producer.returncode == 0
        # The last commits are followed too, while the stream has nothing to do.
        until = time.monotonic() + WITHIN_S
        while behind(location) and time.monotonic() < until:
            for request in location.tick():
                location.run(request)
                beside.append(request)
            time.sleep(1)
        end(stream)
        while requests := location.tick():
            for request in requests:
                location.run(request)
            after += requests
        yield Followed(location, beside, after)
    finally:
        for process in (producer, stream):
            end(process)


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(150)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def record(commit: Commit) -> CommitRecord:
    assert commit.record is not None
    return commit.record


def behind(location: Location) -> bool:
    silver, gold = (newest_by_slice(commits(location.lake, asset)) for asset in (SILVER, ACTIVITY))
    newest = max((commit.version for commit, _ in silver.values()), default=0)
    mart = newest_by_slice(commits(location.lake, HOURLY)).get(None)
    read = 0 if mart is None else max(one.read_at or 0 for one in mart[1].tables if one.table == SILVER)
    return read < newest or any(
        key not in gold or consumed(gold[key][1]) <= commit.version for key, (commit, _) in silver.items()
    )


def consumed(made: CommitRecord) -> int:
    return max(one.commits[1] for one in made.tables if one.commits)


def hops(lake: Lake, output: str, covers: Any) -> list[float]:
    """For each commit of silver with rows the seconds until the output's first commit that covers it."""
    made = [record(one) for one in reversed(commits(lake, output)) if record(one).kind == "replace"]
    found = []
    for commit in commits(lake, SILVER):
        own = record(commit)
        if own.kind == "append" and own.counts.get("ok"):
            first = next(one for one in made if covers(one, commit))
            found.append((first.written_at - own.written_at) / timedelta(seconds=1))
    return found


def said(waited: Sequence[float]) -> str:
    return f"{len(waited)} commits, median {median(waited):.1f} s, at most {max(waited):.1f} s"


def test_the_stream_committed_about_once_a_second_all_the_time(followed: Followed) -> None:
    appended = [one for one in commits(followed.location.lake, SILVER) if record(one).kind == "append"]
    assert len(appended) >= STREAMS_FOR_S / 6
    assert all(one.record is not None for one in appended)


def test_windows_follow_every_commit_of_silver_within_a_minute(followed: Followed) -> None:
    def covers(made: CommitRecord, commit: Commit) -> bool:
        return made.slice == record(commit).slice and consumed(made) > commit.version

    waited = hops(followed.location.lake, ACTIVITY, covers)
    print(f"silver -> gold: {said(waited)}")
    assert max(waited) < WITHIN_S
    partial = [one for one in commits(followed.location.lake, ACTIVITY) if "windows" in record(one).stated]
    assert partial, "while the stream runs only the windows of its new rows are made"


def test_marts_follow_every_commit_of_silver_within_a_minute(followed: Followed) -> None:
    def covers(made: CommitRecord, commit: Commit) -> bool:
        return any(one.table == SILVER and (one.read_at or 0) >= commit.version for one in made.tables)

    waited = hops(followed.location.lake, HOURLY, covers)
    print(f"silver -> marts: {said(waited)}")
    assert max(waited) < WITHIN_S


def test_what_the_stream_writes_is_left_to_it_and_nothing_is_asked_for_more_often_than_need_be(
    followed: Followed,
) -> None:
    asked = {key.to_user_string() for one in followed.beside for key in one.asset_selection or ()}
    assert ACTIVITY in asked
    assert HOURLY in asked
    assert {asset for asset in asked if asset.startswith(("raw/", "silver/"))} == set()
    runs = followed.location.instance.get_run_records()
    by_target: dict[tuple[str, str], list[datetime]] = {}
    for one in runs:
        tags = one.dagster_run.tags
        if tags.get("dagster/priority"):
            by_target.setdefault((tags[CATCH_UP], tags.get("dagster/partition", "")), []).append(one.create_timestamp)
    for times in by_target.values():
        assert all(later - earlier >= timedelta(seconds=FOLLOW_EVERY_S) for earlier, later in pairwise(sorted(times)))


def test_afterwards_the_windows_equal_a_bounded_recomputation_and_the_marts_count_every_row(
    followed: Followed,
) -> None:
    location = followed.location
    lake = location.lake
    (declared,) = location.tree.get_all_components(of_type=WindowTable)
    table = engine.WindowTable(
        "whole", SILVER, "occurred_at", 300, tuple(declared.by), engine.measures(declared.measures, "whole")
    )
    keys = [key for key in newest_by_slice(commits(lake, SILVER)) if key is not None]
    with session(location.settings) as spark:
        for key in keys:
            make_slice(WindowJob(spark, location.settings, table, "a-run"), Slice.of(key, Grain.hour))
    assert rows(lake, ACTIVITY) == rows(lake, "gold/whole")
    silver = open_table(lake, SILVER)
    hourly = open_table(lake, HOURLY)
    assert silver is not None
    assert hourly is not None
    total = silver.to_pyarrow_table(columns=["_offset"]).num_rows
    assert total > RATE * STREAMS_FOR_S / 2
    assert sum(row["event_count"] for row in rows(lake, ACTIVITY)) == total
    assert sum(hourly.to_pyarrow_table(columns=["events"])["events"].to_pylist()) == total
    assert not behind(location)


def rows(lake: Lake, asset: str) -> list[dict[str, Any]]:
    table = open_table(lake, asset)
    assert table is not None
    found = table.to_pyarrow_table().drop(["sessions_sketch"]).to_pylist()
    return sorted(found, key=lambda row: (row["_slice"], row["user_id"], row["window_start"]))
