"""One stream: a Structured Streaming query over a topic, started from what raw holds, watched, and started again.

Belongs here: the client's side of a stream, its lease, its restarts. Does not belong here: what a batch does
(micro_batch.py, in the server's Python), the command line (commands/stream.py), keeping streams alive (components/).

Every start has a checkpoint of its own and begins where raw's records end. A checkpoint that is lost, a table that was
restored, a position that retention has passed: all are the same case, and nothing is skipped by a number that a file
remembers. Sources: Spark's Structured Streaming Kafka integration guide, and law 6.
"""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from os import getpid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lineage_assets.errors import ContractError, FatalError, LineageError, TransientError
from lineage_assets.kafka.cuts import SlicedTopic, slice_topic
from lineage_assets.kafka.sample import mean_bytes
from lineage_assets.lineage import lease, ledger
from lineage_assets.lineage.commits import Tail
from lineage_assets.lineage.content import Content, other_topics
from lineage_assets.lineage.lease import Lease
from lineage_assets.lineage.ledger import TopicRef
from lineage_assets.lineage.offsets import OffsetRange, next_range
from lineage_assets.settings import Settings
from lineage_assets.spark import kafka_source
from lineage_assets.spark.bite import Bite
from lineage_assets.spark.event_table import EventTable
from lineage_assets.spark.micro_batch import MicroBatches, Start, TooMuch, handle
from lineage_assets.spark.pair import refuse_restored
from lineage_assets.spark.session import explain, require_answer, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

POLL_S = 0.25
BEAT_S = 2.0
STOP_TIMEOUT_S = 120.0
FAILURES_IN_A_ROW = 8
"""After so many starts that committed nothing the stream gives up: with the pauses between them, three to four minutes."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
HEAP = "SELECT CAST(java_method('io.netty.util.internal.PlatformDependent', 'estimateMaxDirectMemory') AS bigint)"
"""The server's largest heap, by a class that every Spark has: over Spark Connect nothing else tells it."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Profile:
    """How a stream trades latency for throughput. The numbers are mapped to Spark's settings in docs/streaming.md."""

    name: str
    trigger_s: float
    """`processingTime`, which Spark waits out to its multiples: 0 starts a batch as soon as one ends and there is news."""
    bite: int
    """`maxOffsetsPerTrigger` at most; less if the heap is small."""
    conf: Mapping[str, str] = field(default_factory=dict)
    source: Mapping[str, str] = field(default_factory=dict)


_COMMON = {
    # Plans of a micro-batch are small and alike: measuring and changing them on the way costs more than it saves.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "10",
    # Before each commit Delta reads its log: a task for each handful of small files is mostly overhead.
    "spark.sql.files.minPartitionNum": "1",
    # It counts there too what nobody reads here, and tells a user interface that is off each plan in full.
    "spark.databricks.delta.fileSizeHistogramMetrics.enabled": "false",
    "spark.databricks.delta.checksumDVMetrics.enabled": "false",
    "spark.sql.ui.explainMode": "simple",
}
PROFILES = {
    "embedded": Profile("embedded", 0.0, 250_000, {**_COMMON, "spark.sql.shuffle.partitions": "2"}),
    "production": Profile(
        "production",
        5.0,
        10 * 14_000 * 10,
        {
            **_COMMON,
            "spark.sql.shuffle.partitions": "200",
            "spark.sql.streaming.stateStore.maintenanceInterval": "30s",
        },
        {"minPartitions": "50"},
    ),
}


def profile(name: str, bite: int | None = None) -> Profile:
    """A profile by name, with another bite if one is given. Raises ContractError for a name that is none."""
    if name not in PROFILES:
        raise ContractError(f"no profile {name!r}", remedy=f"known: {', '.join(PROFILES)}")
    return PROFILES[name] if bite is None else replace(PROFILES[name], bite=bite)


@dataclass(frozen=True, slots=True)
class Options:
    """What a run of a stream is told. `off` names what a measurement leaves out."""

    profile: Profile = PROFILES["embedded"]
    max_seconds: float | None = None
    until_caught_up: bool = False
    off: frozenset[str] = frozenset()


def run(
    settings: Settings,
    table: EventTable,
    options: Options,
    stop: threading.Event,
    say: Say = lambda _: None,
) -> Lease:
    """Stream a topic into raw and silver until `stop` is set or nothing more is to be done; returns the last state.

    Raises TransientError when another stream of the topic runs, or after FAILURES_IN_A_ROW starts without a commit; what
    the last of them failed by is in its words. Raises FatalError for what no restart can mend.
    """
    return _Stream(settings, table, options, stop, say).run()


class Superseded(FatalError):
    """Another client has taken the stream over, because this one gave no sign of life."""


class _Stream:
    def __init__(
        self, settings: Settings, table: EventTable, options: Options, stop: threading.Event, say: Say
    ) -> None:
        self.settings, self.table, self.options, self.stop, self.say = settings, table, options, stop, say
        self.lake = settings.lake_env
        self.bite = Bite(options.profile.bite, options.profile.trigger_s)
        self.failures = 0
        self.restarts = 0
        self.began = time.monotonic()
        self.lease = Lease(table.topic, uuid.uuid4().hex[:12], socket.gethostname(), getpid(), datetime.now(UTC))
        self.recent: deque[dict[str, Any]] = deque(maxlen=60)

    def run(self) -> Lease:
        self._acquire()
        try:
            while not self._over():
                try:
                    self._once()
                except TransientError as error:
                    self._failed(error)
                except LineageError:
                    raise
                except Exception as error:
                    # Spark's own errors have hundreds of names: whatever ends a query, it is started again from the tables.
                    known = explain(str(error), self.settings)
                    if isinstance(known, LineageError) and not isinstance(known, TransientError):
                        raise known from error
                    self._failed(known or TransientError(_first_lines(error), remedy="look at the Spark server's log"))
        except Superseded:
            raise
        except LineageError as error:
            self._beat(state="failed", facts={**self.lease.facts, "error": str(error)})
            self._release("failed")
            raise
        self._release("stopped")
        return self.lease

    def _over(self) -> bool:
        out_of_time = self.options.max_seconds is not None and time.monotonic() - self.began > self.options.max_seconds
        return self.stop.is_set() or out_of_time

    # The lease.

    def _acquire(self) -> None:
        before = lease.read(self.lake, self.table.topic)
        if before is not None and before.live():
            raise TransientError(
                f"a stream of {self.table.topic} runs already, as process {before.pid} on {before.host}",
                remedy=f"see `lineage stream status {self.table.topic}`, or stop it with `lineage stream stop {self.table.topic}`",
            )
        if before is not None and before.session:
            self._end_session(before.session)
        self.lease = lease.beat(self.lake, self.lease)

    def _end_session(self, session_id: str) -> None:
        """End the query of a client that is gone: it lives in the server, in that client's session."""
        from pyspark.sql import SparkSession

        address = self.settings.spark
        separator = ";" if "/;" in address else "/;"
        try:
            spark = SparkSession.builder.remote(f"{address}{separator}session_id={session_id}").create()
            spark.stop()
        except Exception as error:
            self.say(f"the session of the stream before this one could not be ended: {_first_lines(error)}")

    def _beat(self, **changes: Any) -> None:
        held = lease.read(self.lake, self.table.topic)
        if held is not None and (held.host, held.pid) != (self.lease.host, self.lease.pid) and held.live():
            raise Superseded(
                f"the stream of {self.table.topic} was taken over by process {held.pid} on {held.host}",
                remedy="nothing is lost; find out what kept this process from running for so long",
            )
        self.lease = lease.beat(self.lake, self.lease, **changes)

    def _release(self, state: str) -> None:
        self._beat(session="", state=state, stopping=True, facts={**self.lease.facts, **self._facts()})
        lease.forget_failure(self.lake, self.lease.owner)

    # One start.

    def _once(self) -> None:
        # Each start has its own owner: a worker of an earlier one that still runs finds that it is not meant any more.
        lease.forget_failure(self.lake, self.lease.owner)
        self._beat(owner=uuid.uuid4().hex[:12], state="starting", stopping=False)
        with session(self.settings) as spark:
            for name, value in self.options.profile.conf.items():
                spark.conf.set(name, value)
            self._beat(session=spark.session_id)
            topic = self._topic()
            start = Start(self.settings, self.table, self.lease.owner, self._checkpoint(), self.options.off)
            self._afford(spark, topic)
            position, lost = self._position(topic)
            self._bring_together(spark, start, lost)
            query = self._start_query(spark, start, topic, position)
            try:
                self._watch(query, topic, position)
            finally:
                if query.isActive:
                    query.stop()
            # The worker ends with its query; the silver commit of its last batch may not have.
            MicroBatches(start, spark).repair()

    def _topic(self) -> SlicedTopic:
        table = self.table
        return slice_topic(self.settings, self.lake, table.topic, table.grain, table.since, owner=self.lease.owner)

    def _afford(self, spark: SparkSession, topic: SlicedTopic) -> None:
        """Bound a batch by what the server's heap can hold of it."""
        heap = int(spark.sql(HEAP).collect()[0][0])
        self.bite.afford(heap, mean_bytes(self.settings, self.table.topic, topic.begin, topic.end))

    def _checkpoint(self) -> str:
        """A new folder; those of earlier starts say nothing that raw does not say, and are removed."""
        folder = f"{self.lake.root}/streams/checkpoints/{self.table.topic}"
        if "://" not in folder:
            shutil.rmtree(folder, ignore_errors=True)
            Path(folder).mkdir(parents=True, exist_ok=True)
        return f"{folder}/{self.lease.owner}"

    def _position(self, topic: SlicedTopic) -> tuple[dict[int, int], dict[int, OffsetRange]]:
        """Where raw ends, partition by partition, and what retention took beyond that."""
        content = Content(Tail(self.lake, f"raw/{self.table.name}"))
        content.read()
        refuse_restored(content)
        known, name = topic.topic.id, self.table.topic
        others = other_topics(content.slices.values(), known)
        if others:
            others -= ledger.accepted(self.lake, TopicRef(self.settings.kafka_alias, name, known))
        if others:
            raise FatalError(
                f"raw/{self.table.name} holds records of topic {name} {', '.join(sorted(others))}, which was deleted and "
                f"made again as {known}",
                remedy=f"`lineage topic accept {name}` goes on with the new one",
            )
        ends = content.ends(known)
        first = topic.cuts[0].offsets
        stored = {p: ends.get(p, first.get(p, 0)) for p in topic.topic.partitions}
        following = next_range(stored, topic.begin, topic.end)
        if following.ahead:
            raise FatalError(
                f"raw/{self.table.name} holds offsets up to {following.ahead} of {name}, and the topic ends below: "
                "its log was cut back",
                remedy="look at the broker's replication; what is in raw is not in the topic any more",
            )
        return {p: held.start for p, held in following.ranges.items()}, following.lost

    def _bring_together(self, spark: SparkSession, start: Start, lost: Mapping[int, OffsetRange]) -> None:
        """Give silver what it lacks of raw's decisions, and state what retention took."""
        batches = MicroBatches(start, spark)
        batches.repair()
        if lost:
            self.say(
                f"retention removed {', '.join(f'{self.table.topic}/{p}@{one}' for p, one in lost.items())} unread"
            )
            batches.state_loss(lost)

    def _start_query(
        self, spark: SparkSession, start: Start, topic: SlicedTopic, position: Mapping[int, int]
    ) -> StreamingQuery:
        options = kafka_source.common_options(self.settings) | {
            "subscribe": self.table.topic,
            "startingOffsets": kafka_source.starting(self.table.topic, position),
            "maxOffsetsPerTrigger": str(self.bite.now),
            **self.options.profile.source,
        }
        writer = (
            spark.readStream.format("kafka")
            .options(**options)
            .load()
            .writeStream.queryName(f"{self.table.topic}-{start.owner}")
            .foreachBatch(partial(handle, start))
            .option("checkpointLocation", start.checkpoint)
        )
        if self.options.until_caught_up:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self.options.profile.trigger_s} seconds")
        query = writer.start()
        self.say(f"streaming {self.table.topic} from {sum(position.values())} of {sum(topic.end.values())}")
        self._beat(state="running")
        return query

    # Watching.

    def _watch(self, query: StreamingQuery, topic: SlicedTopic, position: Mapping[int, int]) -> None:
        """Until the query ends, is to end, or is to start again with another bite."""
        beat_at, seen = 0.0, -1
        while query.isActive:
            if self._over():
                return self._finish(query)
            for progress in query.recentProgress:
                if progress["batchId"] > seen and (rows := _rows(progress, position)):
                    seen = progress["batchId"]
                    if self._judge(progress, rows):
                        return self._finish(query)
            if time.monotonic() - beat_at > BEAT_S:
                beat_at = time.monotonic()
                self._beat(facts=self._facts())
                self._heed()
                if datetime.now(UTC) >= topic.open_slice.end:
                    topic = self._topic()
            self.stop.wait(POLL_S)
        if (error := query.exception()) is not None:
            raise self._told(error)
        if self.options.until_caught_up:
            self.stop.set()

    def _heed(self) -> None:
        """Stop when somebody said so, from wherever."""
        if lease.wanted(self.lake, self.table.topic) is False:
            self.stop.set()

    def _judge(self, progress: Any, rows: int) -> bool:
        """Take note of a batch; whether the query is to start again with another bite."""
        took_s = progress["durationMs"].get("triggerExecution", 0) / 1000
        self.failures = 0
        self.recent.append(
            {
                "batch": progress["batchId"],
                "rows": rows,
                "took_s": took_s,
                "at": progress["timestamp"],
            }
        )
        # The first batch of a start also loads the look-back: to judge it would be to start again, and again.
        before = self.bite.now
        why = self.bite.judge(took_s, rows) if progress["batchId"] > 0 else None
        return self._bitten(before, f"batch {progress['batchId']}: {why}")

    def _bitten(self, before: int, why: str) -> bool:
        """Say so if the bite is another than before; whether it is."""
        if self.bite.now == before:
            return False
        self.say(f"{why}: from now on at most {self.bite.now} records a batch, before {before}")
        self.restarts += 1
        return True

    def _finish(self, query: StreamingQuery) -> None:
        """End after the current batch: its worker finds the word in the lease before it begins another."""
        self._beat(stopping=True, state="stopping")
        until = time.monotonic() + STOP_TIMEOUT_S
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < until:
            self._beat()
            time.sleep(POLL_S)

    def _facts(self) -> dict[str, Any]:
        rows, took = sum(one["rows"] for one in self.recent), sum(one["took_s"] for one in self.recent)
        last = self.recent[-1] if self.recent else None
        return {
            "bite": self.bite.now,
            "most": self.bite.most,
            "restarts": self.restarts,
            "failures": self.failures,
            "last": last,
            "rows_a_second": round(rows / took) if took else 0,
        }

    # Failing.

    def _told(self, error: Exception) -> Exception:
        """What the worker left word of, or the query's own error."""
        said = lease.failure(self.lake, self.lease.owner)
        if said is None:
            return error
        kinds: dict[str, type[LineageError]] = {
            "FatalError": FatalError,
            "ContractError": FatalError,
            "TooMuch": TooMuch,
        }
        return kinds.get(said["kind"], TransientError)(said["message"], remedy=said["remedy"])

    def _failed(self, error: TransientError) -> None:
        """Count a failure, and wait before the next start. Raises it when it was one too many."""
        if self._over():
            return
        self.failures += 1
        if isinstance(error, TooMuch) or not _server_answers(self.settings):
            before = self.bite.now
            self.bite.halve()
            self._bitten(before, error.message)
        if self.failures >= FAILURES_IN_A_ROW:
            raise TransientError(
                f"{self.failures} starts in a row failed, the last: {error.message}", remedy=error.remedy
            )
        pause_s = min(FIRST_PAUSE_S * 2 ** (self.failures - 1), LONGEST_PAUSE_S)
        self.say(f"{error}; again in {pause_s:.0f} s (attempt {self.failures} of {FAILURES_IN_A_ROW})")
        until = time.monotonic() + pause_s
        while time.monotonic() < until and not self.stop.is_set():
            self._beat(state="waiting", facts={**self._facts(), "error": str(error)})
            self._heed()
            self.stop.wait(min(BEAT_S, pause_s))


def _rows(progress: Any, position: Mapping[int, int]) -> int:
    """Offsets that a batch has read, from `position` on if it is the first. Spark's own count of rows counts every scan."""
    source = progress["sources"][0]
    start, end = (json.loads(source[name] or "null") or {} for name in ("startOffset", "endOffset"))
    return sum(
        offset - start.get(topic, {}).get(partition, position.get(int(partition), 0))
        for topic, offsets in end.items()
        for partition, offset in offsets.items()
    )


def _server_answers(settings: Settings) -> bool:
    """False when the server is gone: of lack of memory, most often."""
    try:
        require_answer(settings)
    except TransientError:
        return False
    return True


def _first_lines(error: Exception) -> str:
    return " ".join(str(error).split("\n")[:3])[:600]
