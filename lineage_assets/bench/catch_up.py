"""Part (b): how fast the full pipeline catches up with a full topic, beside a plain Spark copy of the same topic.

Belongs here: both ways through one topic, in turns. Does not belong here: the pipeline (lineage_assets/spark).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lineage_assets.bench.histogram import median_of
from lineage_assets.bench.meter import metered
from lineage_assets.bench.reader import Log
from lineage_assets.bench.rig import Rig, fresh_lake, rows
from lineage_assets.bench.streams import StreamOptions
from lineage_assets.errors import FatalError
from lineage_assets.lineage.commits import open_table
from lineage_assets.spark.event_table import EventTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COPY = "copy/events"


@dataclass(frozen=True, slots=True)
class Run:
    """One way through the whole topic. `events_s` is from the start until all is committed; `steady_events_s` from the
    first commit to the last, without the start of session and query."""

    events: int
    seconds: float
    events_s: float
    steady_events_s: float
    cpu_s_per_million: float
    commits: int


@dataclass(frozen=True, slots=True)
class CatchUp:
    """The first of each is a warm-up and counts for nothing, unless it is the only one."""

    events: int
    bite: int | None
    pipeline: list[Run]
    copy: list[Run]

    def summary(self) -> dict[str, Any]:
        """Medians, and how much of the plain copy's speed the pipeline has."""
        ours, plain = _median(self.pipeline), _median(self.copy)
        return {
            "events": self.events,
            "bite": self.bite,
            "pipeline": ours,
            "copy": plain,
            "share_of_copy": ours["steady_events_s"] / plain["steady_events_s"] if plain["steady_events_s"] else 0.0,
        }


def measure(rig: Rig, events: int, rounds: int, bite: int | None = None) -> CatchUp:
    """Fill one topic, then go through it in turns, each time into an empty lake."""
    table = rig.table("catch-up")
    rig.say("catch-up", f"filling the topic with {events:,} events")
    sent = rig.fill(table, events, over_s=600.0)
    pipeline: list[Run] = []
    copy: list[Run] = []
    for number in range(rounds):
        with fresh_lake(rig, f"copy-{number}") as there:
            copy.append(plain_copy(there, table, sent.records, bite))
            rig.say("catch-up", f"plain copy: {copy[-1].steady_events_s:,.0f} events/s")
        with fresh_lake(rig, f"pipeline-{number}") as there:
            pipeline.append(full(there, table, sent.records, sent.ok, bite))
            rig.say("catch-up", f"pipeline: {pipeline[-1].steady_events_s:,.0f} events/s")
    return CatchUp(sent.records, bite, pipeline, copy)


def full(rig: Rig, table: EventTable, records: int, ok: int, bite: int | None) -> Run:
    """The stream, from nothing until raw and silver have all."""
    began = time.monotonic()
    with rig.streaming(table, StreamOptions(bite=bite)) as running, metered(rig.trees(stream=running.pid)) as usage:
        rig.await_rows(f"raw/{table.name}", lambda: records, running)
        rig.await_rows(f"silver/{table.name}", lambda: ok, running)
        seconds = time.monotonic() - began
    # Silver follows raw in every batch, so raw's batches and silver's last commit are the whole way.
    times = commit_times(rig, f"raw/{table.name}")
    ends = commit_times(rig, f"silver/{table.name}")
    return _run(records, seconds, times, max(at for at, _ in ends), usage.cpu("spark", "stream"))


def plain_copy(rig: Rig, table: EventTable, records: int, bite: int | None) -> Run:
    """Kafka to Delta by Spark alone: the record's columns, no decoding, one append a batch, `availableNow`."""
    from lineage_assets.spark.session import session, translated

    path = rig.settings.table_path(COPY)
    began = time.monotonic()
    with session(rig.settings) as spark, translated(rig.settings), metered(rig.trees()) as usage:
        query = _copy_query(spark, rig, table.topic, path, bite)
        query.awaitTermination()
        seconds = time.monotonic() - began
    if (copied := rows(rig.settings, COPY)) != records:
        raise FatalError(f"the plain copy has {copied:,} of {records:,} records", remedy="read the log of Spark")
    times = commit_times(rig, COPY)
    return _run(records, seconds, times, max(at for at, _ in times), usage.cpu("spark", "bench"))


def _copy_query(spark: SparkSession, rig: Rig, topic: str, path: str, bite: int | None) -> Any:
    config = rig.settings
    options = {
        "kafka.bootstrap.servers": config.kafka,
        "kafka.isolation.level": "read_committed",
        "subscribe": topic,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        **({"maxOffsetsPerTrigger": str(bite)} if bite else {}),
        **{f"kafka.{name}": value.get_secret_value() for name, value in config.spark_kafka_config.items()},
    }
    records = spark.readStream.format("kafka").options(**options).load()
    columns = records.select("partition", "offset", "timestamp", "key", "value", "headers")
    writer = columns.writeStream.format("delta").option("checkpointLocation", f"{path}-checkpoint")
    return writer.trigger(availableNow=True).start(path)


def commit_times(rig: Rig, asset: str) -> list[tuple[int, int]]:
    """Of each commit that brought rows: when (ms), and how many."""
    table = open_table(rig.settings.lake_env, asset)
    if table is None:
        return []
    log, found = Log(rig.settings.lake_env, asset), []
    for version in range(int(table.version()) + 1):
        actions = log.commit(version) or []
        count = sum(json.loads(one["add"].get("stats") or "{}").get("numRecords", 0) for one in actions if "add" in one)
        at = next((one["commitInfo"]["timestamp"] for one in actions if "commitInfo" in one), 0)
        if count:
            found.append((at, count))
    return found


def _run(records: int, seconds: float, times: list[tuple[int, int]], end_ms: int, cpu_s: float) -> Run:
    """What came with the first commit is not counted in the steady rate: its time began before."""
    first_ms, first = times[0]
    steady_s = (end_ms - first_ms) / 1000
    return Run(
        events=records,
        seconds=round(seconds, 3),
        events_s=records / seconds,
        steady_events_s=(records - first) / steady_s if steady_s > 0 and records > first else records / seconds,
        cpu_s_per_million=cpu_s / records * 1e6,
        commits=len(times),
    )


def _median(runs: list[Run]) -> Mapping[str, float]:
    counted = runs[1:] or runs
    names = ("seconds", "events_s", "steady_events_s", "cpu_s_per_million", "commits")
    return {name: median_of(asdict(run)[name] for run in counted) for name in names}
