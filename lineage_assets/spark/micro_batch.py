"""The stream's way through the one transformation: what `foreachBatch` does, in the Python worker of the Spark server.

Belongs here: one micro-batch, from its offsets to the two commits of each slice that it touches. Does not belong here:
starting and watching the query (stream.py), the commits (commit.py), which keys were seen (seen.py).

What a batch writes follows from what the tables hold, not from the checkpoint: offsets that raw has are left out, silver
first gets what raw decided before. So a batch may come twice, from a second query or after a kill anywhere.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lineage_assets.errors import LineageError, TransientError
from lineage_assets.kafka.cuts import SlicedTopic, slice_topic
from lineage_assets.kafka.registry import Registry
from lineage_assets.lineage import lease
from lineage_assets.lineage.commits import Tail, open_table
from lineage_assets.lineage.content import Lost, lost_in, without
from lineage_assets.lineage.fates import Fate
from lineage_assets.lineage.offsets import OffsetRange, Ranges, minus, span
from lineage_assets.lineage.slices import Slice
from lineage_assets.settings import Settings
from lineage_assets.spark import facts as batch_facts
from lineage_assets.spark import kafka_source, tables
from lineage_assets.spark.commit import Decision, Writers, commit_raw, commit_silver, foreign_schemas
from lineage_assets.spark.decide import decide, known_ids, writers_of
from lineage_assets.spark.event_table import EventTable
from lineage_assets.spark.facts import Facts
from lineage_assets.spark.job import Job
from lineage_assets.spark.offset_log import batch_ranges
from lineage_assets.spark.pair import Pair, within
from lineage_assets.spark.reads import Plan, below
from lineage_assets.spark.seen import Array, Keys, Marks, Seen
from lineage_assets.spark.session import lost_race, until_won
from lineage_assets.spark.tally import tallied

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DECIDED = "lineage_stream_decided_{}"
"""Views of the batches in flight: while one goes to silver the next is decided, and a view is looked up by its name."""
TOPIC_ASKED_EVERY_S = 60.0
CHECKPOINT_EVERY = 5
CHECKPOINT_SHARE = 200
"""Commits for each second that a checkpoint takes: about half a percent of a stream that commits once a second."""
MOST_IN_PLAN = 300
LIBRARY_BATCHES = 100
"""So many batches ask the library after one that needed it: texts that are not plain seldom come alone."""
INTERPRETED = 4_000
"""Up to so many records a batch runs without generated code: to generate it for every query costs more than it saves."""
AGAIN = "_again"


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a stream, as its Python worker is told: pickled with the function that `foreachBatch` runs."""

    settings: Settings
    table: EventTable
    owner: str
    checkpoint: str
    off: frozenset[str] = frozenset()
    """What a measurement leaves out: `counts`."""

    @property
    def run(self) -> str:
        """The id that stands in the records of this start."""
        return f"stream/{self.table.topic}/{self.owner}"


class Stopped(TransientError):
    """The stream was asked to stop, and does so between two batches."""


class TooMuch(TransientError):
    """A batch needed more memory than the worker may have: half of it will do."""


_running: dict[str, MicroBatches] = {}


def handle(start: Start, rows: DataFrame, batch: int) -> None:
    """What `foreachBatch` calls. A failure is also written down for the client, which gets a text only."""
    lake = start.settings.lake_env
    try:
        if start.owner not in _running:
            _running.clear()
            _running[start.owner] = MicroBatches(start, rows.sparkSession)
        _running[start.owner].take(rows, batch)
    except LineageError as error:
        lease.fail(lake, start.owner, type(error).__name__, error.message, error.remedy)
        raise


@dataclass(frozen=True, slots=True)
class Piece:
    """What a batch brings of one slice; `lost` are offsets of it that retention took before they were read."""

    piece: Slice
    ranges: Ranges
    lost: Lost


class MicroBatches:
    """The worker's side of one start of a stream: what it knows between two batches."""

    def __init__(self, start: Start, spark: SparkSession) -> None:
        self.start = start
        config, table = start.settings, start.table
        self.job = Job(spark, config, table, self._topic(), start.run, Registry(config))
        self.asked_at = time.monotonic()
        self.pair = Pair(Writers(self.job, start.off))
        self.seen = Seen(table.window_ms)
        self.pair.read()
        self._silver = ThreadPoolExecutor(1, "silver")
        self._pending: tuple[str, Future[None]] | None = None
        self._ahead = ThreadPoolExecutor(2, "ahead")
        self._prepared: dict[str, Future[None]] = {}
        self._decided = 0
        self._library = 0
        self._compiled = True
        self._checkpointed: dict[str, tuple[int, int]] = {}
        self.ids = known_ids(self.job, self.pair.writers.raw.read())
        self.schemas = writers_of(self.job, self.ids)

    def take(self, rows: DataFrame, batch: int) -> None:
        """Process one micro-batch. Its silver commit may end beside the next one's decision, and before its commit to raw;
        what it fails by is raised there."""
        self._require_lease()
        if "offset_log" in self.start.off:
            return self._measured(rows, batch)
        ranges = batch_ranges(self.start.checkpoint, self.job.table.topic, batch)
        self._follow(ranges)
        # Raw alone: silver's log is being followed by the commit that is on its way.
        self.pair.read_raw()
        pieces = self._pieces(ranges)
        if not pieces:
            return
        self._compile(span(ranges) > INTERPRETED)
        whole = sum(span(one.ranges) for one in pieces) == span(ranges)
        arrived = kafka_source.base(rows)
        decided, facts = self._decide(arrived if whole else arrived.where(within([one.ranges for one in pieces])))
        marks = self._mark(facts)
        keys = facts.keys
        facts = facts.with_duplicates(marks.duplicate)
        marked = self._marked(decided, keys.where(marks.duplicate))
        spread = np.zeros(len(facts), bool)
        spread[np.flatnonzero(facts.whole)] = marks.in_another_partition
        for one in pieces:
            self._write(one, marked, facts, spread, batch, alone=len(pieces) == 1)
        self._after(lambda: decided.unpersist())
        self.seen.take(keys)
        self._require_memory(batch)

    def _compile(self, wanted: bool) -> None:
        """Have Spark generate code for what follows, or not."""
        if wanted != self._compiled:
            self.job.spark.conf.set("spark.sql.codegen.wholeStage", str(wanted).lower())
            self.job.spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK" if wanted else "NO_CODEGEN")
            self._compiled = wanted

    def drain(self) -> None:
        """Wait for the silver commit that is on its way. Raises what it failed by; a lost race is made good."""
        if self._pending is None:
            return
        (key, pending), self._pending = self._pending, None
        try:
            pending.result()
        except Exception as error:
            if not lost_race(error):
                raise
        until_won(self.job.settings, partial(self._repair_again, key))

    def _after(self, act: Callable[[], object]) -> None:
        """Do something once the silver commit that is on its way has ended, however it ends."""
        if self._pending is None:
            act()
        else:
            self._pending[1].add_done_callback(lambda _: act())

    def _measured(self, rows: DataFrame, batch: int) -> None:
        """A batch of the open slice with parts of lineage left out (bench/): not for tables that anybody trusts."""
        decided, facts = self._decide(kafka_source.base(rows))
        try:
            marks = self._mark(facts)
            keys = facts.keys
            marked = self._marked(decided, keys.where(marks.duplicate))
            held = {
                p: OffsetRange(
                    int(facts.offset[facts.partition == p].min()), int(facts.offset[facts.partition == p].max()) + 1
                )
                for p in np.unique(facts.partition).tolist()
            }
            piece = Piece(self.job.topic.open_slice, held, {})
            self.drain()
            self._commit(
                piece, marked, facts.with_duplicates(marks.duplicate), np.zeros(len(facts), bool), batch, 1, whole=True
            )
            self.seen.take(keys)
        finally:
            self._after(lambda: decided.unpersist())

    def state_loss(self, lost: Mapping[int, OffsetRange]) -> None:
        """Commit what retention took before it was read: by slice, named and counted, in records that fail their check."""
        self.pair.read()
        nothing = kafka_source.read(self.job.spark, self.job.settings, self.job.table.topic, [])
        decided, facts = self._decide(nothing)
        for piece, ranges in self.job.topic.split(lost):
            known = self.pair.raw.held(piece.key, self.job.topic.topic.id)
            stated = {p: (held,) for p, held in ranges.items() if held.span}
            # A loss inside what a slice holds stays inside its range; one at its beginning moves the beginning.
            covered = {
                p: held if p in known and known[p].span else OffsetRange(held.end, held.end)
                for p, held in ranges.items()
            }
            self._write(Piece(piece, covered, stated), decided, facts, np.zeros(0, bool), None, alone=True)
            self.drain()

    def repair(self) -> None:
        """Give silver what raw decided and silver lacks, for every slice."""
        self.pair.read()
        for key in list(self.pair.raw.slices):
            if key is not None:
                until_won(self.job.settings, partial(self._repair_again, key))

    def _repair_again(self, key: str, attempt: int) -> None:
        self.pair.read()
        self.pair.repair(self.job, self.schemas, key)

    # What the broker has, and where slices end.

    def _topic(self) -> SlicedTopic:
        table, config = self.start.table, self.start.settings
        return slice_topic(config, config.lake_env, table.topic, table.grain, table.since, owner=self.start.owner)

    def _follow(self, ranges: Ranges) -> None:
        """Ask for the topic again when a slice has turned, when partitions were added, and now and then."""
        now = datetime.now(UTC)
        turned = now >= self.job.topic.open_slice.end
        added = not set(ranges) <= set(self.job.topic.topic.partitions)
        if turned or added or time.monotonic() - self.asked_at > TOPIC_ASKED_EVERY_S:
            self.job = replace(self.job, topic=self._topic())
            self.asked_at = time.monotonic()

    def _pieces(self, ranges: Ranges) -> list[Piece]:
        """What raw lacks of a batch, slice by slice. A part of which the middle is held makes two pieces."""
        found = []
        for piece, wanted in self.job.topic.split(ranges):
            held = self.pair.raw.held(piece.key, self.job.topic.topic.id)
            entry = self.pair.raw.slices.get(piece.key)
            lost = lost_in([entry]) if entry else {}
            for left in (rest for part in minus(wanted, held) for rest in without(part, lost)):
                found.append(Piece(piece, left, {}))
        return found

    # What the tables hold.

    def _require_lease(self) -> None:
        mine = lease.read(self.job.lake, self.job.table.topic)
        if mine is None or mine.owner != self.start.owner:
            raise Stopped(f"another stream of {self.job.table.topic} has taken over")
        if mine.stopping:
            raise Stopped(f"the stream of {self.job.table.topic} was asked to stop")
        if not mine.live():
            raise Stopped(f"the client of the stream of {self.job.table.topic} is gone")

    def _require_memory(self, batch: int) -> None:
        # Not the peak that getrusage knows: a process inherits its parent's, which is the whole JVM's.
        used = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        if used > self.start.settings.stream_memory_mb * 2**20:
            raise TooMuch(
                f"batch {batch} took the stream's Python worker to {used >> 20} MB, with {len(self.seen):,} dedupe keys",
                remedy="the stream goes on with smaller batches; raise LINEAGE_STREAM_MEMORY_MB if the keys need it",
            )

    # Deciding.

    def _decide(self, arrived: DataFrame) -> tuple[DataFrame, Facts]:
        """Decode a batch once, and bring its facts here; once more if it has a schema that is new, or needs a library.

        Asking one costs every record a way through Python, a third of all CPU: it is left out until a record needs it.
        """
        while True:
            self._decided += 1
            view, library = DECIDED.format(self._decided % 3), self._library > 0
            decide(self.job, arrived, None, self.schemas, mark=False, library=library).createOrReplaceTempView(view)
            decided = self.job.spark.table(view).persist()
            facts = batch_facts.collect(decided, self.job.table)
            if facts.unclear:
                decided.unpersist()
                self._library = LIBRARY_BATCHES
                continue
            met = {int(one) for one in np.unique(facts.schema_id) if one >= 0} - self.ids
            new = {one for one in met if self.job.registry.schema(one) is not None}
            if not new:
                self._library = max(0, self._library - 1)
                return decided, facts
            decided.unpersist()
            self.ids = self.ids | new
            self.schemas = writers_of(self.job, self.ids)

    def _mark(self, facts: Facts) -> Marks:
        keys = facts.keys
        if stamps := self.seen.lacking(keys):
            self.seen.load(self._keys_below(facts, stamps), stamps)
        return self.seen.mark(keys)

    def _marked(self, decided: DataFrame, duplicates: Keys) -> DataFrame:
        return _with_duplicates(self.job.spark, decided, duplicates, self.job.topic.topic.partitions)

    def _keys_below(self, facts: Facts, stamps: Mapping[int, tuple[int, int]]) -> Keys:
        """Keys at lower offsets, stamped where the store knows nothing of them yet: out of raw, decoded."""
        from pyspark.sql import functions as F

        starts = {p: int(facts.offset[facts.partition == p].min()) for p in stamps}
        oldest = min(from_ms for from_ms, _ in stamps.values())
        lower = below(self.job, self.pair.writers.raw.read(), starts, oldest, lambda _: True)
        if lower is None:
            return facts.keys.where(np.zeros(len(facts.keys), bool))
        stamp, partition = F.unix_millis("timestamp"), F.col("partition")
        unknown = reduce(
            lambda left, right: left | right,
            ((partition == p) & (stamp >= since) & (stamp < until) for p, (since, until) in stamps.items()),
        )
        # No filter on what is decoded: Spark would decode once more for each time that the condition names it, in a method
        # too long to be compiled.
        found = decide(self.job, lower.where(unknown), None, self.schemas, mark=False)
        return batch_facts.collect(found, self.job.table).keys

    # Writing.

    def _write(
        self, one: Piece, marked: DataFrame, facts: Facts, spread: Array, batch: int | None, *, alone: bool
    ) -> None:
        """Commit what a batch brings of one slice; when another writer was first, what is then left of it."""
        left: Sequence[Ranges] = [one.ranges]

        def attempt(number: int) -> None:
            nonlocal left
            self.drain()
            if number > 1:
                self.pair.read()
                held = self.pair.raw.held(one.piece.key, self.job.topic.topic.id)
                left = [rest for ranges in left for rest in minus(ranges, held)]
            if one.piece.key in self.pair.raw.slices:
                self.pair.repair(self.job, self.schemas, one.piece.key)
            for ranges in list(left):
                self.drain()
                untouched = alone and number == 1
                self._commit(replace(one, ranges=ranges), marked, facts, spread, batch, number, whole=untouched)
                left = [rest for rest in left if rest is not ranges]

        until_won(self.job.settings, attempt)

    def _commit(
        self,
        one: Piece,
        marked: DataFrame,
        facts: Facts,
        spread: Array,
        batch: int | None,
        attempt: int,
        *,
        whole: bool,
    ) -> None:
        key, table, topic = one.piece.key, self.job.table, self.job.topic.topic
        if not whole:
            inside = _inside(facts, one.ranges)
            marked, facts, spread = marked.where(within([one.ranges])), facts.where(inside), spread[inside]
        raw_turn, silver_turn = self.pair.writers.raw.turn(key), self.pair.writers.silver.turn(key)
        counted = batch_facts.counted(facts, table.topic) if "counts" not in self.start.off else batch_facts.UNCOUNTED
        plan = Plan(one.ranges, [one.ranges], one.lost, ())
        in_two = len(np.unique(facts.high[spread]))
        # Reading every batch of such a topic twice more would cost more than the batch: they are measured when it closes.
        measure = not (topic.compacted or table.transactional or "counts" in self.start.off)
        tally = tallied(self.job, plan, counted, foreign_schemas(self.job, counted.schema_ids), in_two, measure)
        stated = {}
        if "counts" not in self.start.off:
            skew = batch_facts.skew_of(facts, of=topic.partitions, private=table.private_key, salt=topic.id)
            stated = {"skew": skew}
        decision = Decision("append", one.piece, plan, marked, tally, counted.schema_ids, batch, stated)
        self._prepare(self.pair.writers.silver, self.pair.silver.version)
        raw = commit_raw(self.job, self.pair.writers, decision, raw_turn, attempt)
        self._prepare(self.pair.writers.raw, raw.version)
        assert raw.record is not None
        record, versions = raw.record, (raw.version, raw.version + 1)

        def to_silver() -> None:
            commit_silver(self.job, self.pair.writers, marked, record, versions, silver_turn)

        self._pending = (key, self._silver.submit(to_silver))

    def _prepare(self, tail: Tail, version: int) -> None:
        """Have a table made ready for its next commit, beside what is done now. Raises what failed in it the time before."""
        if (before := self._prepared.pop(tail.asset, None)) is not None:
            before.result()
        if self.pair.writers.columns(tail) is not None:
            self._prepared[tail.asset] = self._ahead.submit(self._make_ready, tail.asset, version)

    def _make_ready(self, asset: str, version: int) -> None:
        """A checkpoint of the log now and then, and after it the table's state: Delta needs it before each commit, for row
        tracking and the transaction id, and would make that commit wait."""
        self._checkpoint(asset, version)
        if not {"turn", "row_tracking"} <= self.start.off:
            self.job.spark.sql(f"DESCRIBE DETAIL {tables.sql_name(self.job.lake, asset)}")

    def _checkpoint(self, asset: str, version: int) -> None:
        """Write a Delta checkpoint now and then.

        Row tracking makes Spark read the whole state before each commit, and each log file above the checkpoint costs it
        milliseconds; the more files a table has, the more a checkpoint costs, and the rarer it is written.
        """
        last, every = self._checkpointed.get(asset, (0, CHECKPOINT_EVERY))
        if version - last >= every:
            began = time.monotonic()
            table = open_table(self.job.lake, asset)
            if table is not None:
                table.create_checkpoint()
            took_s = time.monotonic() - began
            self._checkpointed[asset] = (version, max(CHECKPOINT_EVERY, int(took_s * CHECKPOINT_SHARE)))


def _inside(facts: Facts, ranges: Ranges) -> Array:
    inside = np.zeros(len(facts), bool)
    for p, held in ranges.items():
        inside |= (facts.partition == p) & (facts.offset >= held.start) & (facts.offset < held.end)
    return inside


def _with_duplicates(spark: SparkSession, decided: DataFrame, duplicates: Keys, partitions: Sequence[int]) -> DataFrame:
    """Decided rows with the fate of those records, which are named by place.

    A few are a set in the plan, which costs next to nothing; many would make the plan slow, and are joined.
    """
    import pyarrow as pa
    from pyspark.sql import functions as F

    if not len(duplicates):
        return decided
    if len(duplicates) <= MOST_IN_PLAN:
        width = max(partitions) + 1
        places = (duplicates.offset * width + duplicates.partition).tolist()
        again = (F.col("offset") * width + F.col("partition")).isin(places)
    else:
        places = pa.table(
            {"partition": duplicates.partition, "offset": duplicates.offset, AGAIN: [True] * len(duplicates)}
        )
        named = spark.createDataFrame(places)
        decided = decided.join(F.broadcast(named), ["partition", "offset"], "left")
        again = F.coalesce(F.col(AGAIN), F.lit(False))
    return decided.withColumns(
        {
            "fate": F.when(again, F.lit(Fate.duplicate.value)).otherwise(F.col("fate")),
            "late_by_s": F.when(~again, F.col("late_by_s")),
        }
    )
