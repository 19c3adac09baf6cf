"""process(slice): from a slice's bytes to raw with its fates, and from raw's decision to silver.

Belongs here: the bounded way through the one transformation, a slice at a time, whole. Does not belong here: the stream's
way (micro_batch.py), the commits of both (commit.py), which offsets a slice covers (kafka/cuts.py).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from lineage_assets.errors import TransientError
from lineage_assets.lineage import lease
from lineage_assets.lineage.commits import Commit, Tail
from lineage_assets.lineage.content import Content
from lineage_assets.lineage.offsets import span
from lineage_assets.lineage.slices import Slice
from lineage_assets.spark.commit import Decision, Writers, commit_raw, commit_silver, foreign_schemas
from lineage_assets.spark.decide import IN_SLICE, decide, known_ids, writers_of
from lineage_assets.spark.job import Job
from lineage_assets.spark.reads import arrivals, look_back, plan_reads
from lineage_assets.spark.session import until_won
from lineage_assets.spark.tally import Counted, count, skew_of, spread_keys, tallied

PATIENCE_S = 60.0
"""How long a bounded run waits for a stream to pass the slice that it wants."""
EARLY_MS = 300_000
"""How long before a slice begins its records are usually stamped at the earliest: on their way, by clocks that differ."""
ROWS_A_TASK, FEWEST_TASKS = 250_000, 4
"""A task's share of a slice, which it sorts and keeps in memory: an hour of fifty million events in four would not fit."""
DECIDED = "lineage_decided"
"""A view in the writer's own session: later queries over it do not send and analyse the whole plan again."""


@dataclass(frozen=True, slots=True)
class Processed:
    """The two commits of a slice; the record of each says all that is known of it."""

    raw: Commit
    silver: Commit


def process(job: Job, piece: Slice) -> Processed:
    """Decide a slice from its bytes and replace it in raw and in silver.

    Bytes come from raw where it has them, else from Kafka. Raises FatalError when all that raw lacks is gone,
    TransientError when a service is away.
    """
    _await_stream(job, piece)
    return until_won(job.settings, lambda attempt: _process(job, piece, attempt))


def _await_stream(job: Job, piece: Slice) -> None:
    """While a stream of the topic runs, a slice is its own until raw holds all of it: two writers would only race.

    Raises TransientError for a slice that the stream does not pass in time.
    """
    until, wanted = time.monotonic() + PATIENCE_S, job.topic.ranges(piece)
    content = Content(Tail(job.lake, f"raw/{job.table.name}"))
    while running := lease.live(job.lake, job.topic.topic.name):
        content.read()
        ends = content.ends(job.topic.topic.id)
        passed = all(ends.get(p, 0) >= held.end for p, held in wanted.items() if held.span)
        if passed and piece != job.topic.open_slice:
            return
        if piece == job.topic.open_slice or time.monotonic() > until:
            raise TransientError(
                f"slice {piece.key} of raw/{job.table.name} is being written by the stream of {job.topic.topic.name} "
                f"(process {running.pid} on {running.host})",
                remedy="wait until the slice is closed and the stream has passed it, or stop the stream",
            )
        time.sleep(0.5)


@dataclass(frozen=True, slots=True)
class Assumed:
    """What is taken for granted before a slice is read, to read it once: checked by the count, which sees every record."""

    schema_ids: frozenset[int]
    look_back_from_ms: int

    def corrected(self, job: Job, counted: Counted) -> Assumed | None:
        """None when the assumption held; else what the records say."""
        ids = self.schema_ids | {one for one in counted.all_schema_ids if job.registry.schema(one) is not None}
        from_ms = self.look_back_from_ms
        if counted.earliest_ms is not None:
            from_ms = min(from_ms, counted.earliest_ms - job.table.window_ms)
        better = Assumed(frozenset(ids), from_ms)
        return None if better == self else better


def _assume(job: Job, piece: Slice, history: Sequence[Commit]) -> Assumed:
    """Schemas of the subject and those that raw met before; a look-back that allows for stamps before the slice."""
    before_ms = int(piece.start.timestamp() * 1000) - EARLY_MS - job.table.window_ms
    return Assumed(known_ids(job, history), before_ms)


def _process(job: Job, piece: Slice, attempt: int) -> Processed:
    writers = Writers(job)
    history = writers.raw.read()
    writers.silver.read()
    raw_turn, silver_turn = writers.raw.turn(piece.key), writers.silver.turn(piece.key)
    plan = plan_reads(job, piece, history)
    tasks = max(FEWEST_TASKS, span(plan.ranges) // ROWS_A_TASK)
    job.spark.conf.set("spark.sql.shuffle.partitions", str(tasks))
    assumed: Assumed | None = _assume(job, piece, history)
    while assumed is not None:
        before = look_back(job, piece, history, assumed.look_back_from_ms) if job.table.unique_by else None
        rows = arrivals(job, piece, history, plan)
        decide(job, rows, before, writers_of(job, assumed.schema_ids)).createOrReplaceTempView(DECIDED)
        # Not persist(): a commit to raw makes Spark drop what it cached of plans that read raw, and decide all again.
        decided = job.spark.table(DECIDED).localCheckpoint(eager=False)
        counted = count(job, decided)
        assumed = assumed.corrected(job, counted)
        if assumed is None:
            foreign = foreign_schemas(job, counted.schema_ids)
            tally = tallied(job, plan, counted, foreign, spread_keys(job, decided))
            ours = decided.where(IN_SLICE)
            stated = {"skew": skew_of(job, decided, counted)}
            decision = Decision("replace", piece, plan, ours, tally, counted.schema_ids, stated=stated)
            raw = commit_raw(job, writers, decision, raw_turn, attempt)
            assert raw.record is not None
            versions = (raw.version, raw.version + 1)
            return Processed(raw, commit_silver(job, writers, ours, raw.record, versions, silver_turn))
    raise AssertionError("an assumption that held returns")
