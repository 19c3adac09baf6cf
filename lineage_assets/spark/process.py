"""process(slice): from a slice's bytes to raw with its fates, and from raw's decision to silver.

Belongs here: the one transformation that a bounded run and the stream share, up to its two commits.
Does not belong here: which offsets a slice covers (kafka/cuts.py), what an outcome means (quality/checks.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lineage_assets.lineage.commits import Commit, commits, state_lost
from lineage_assets.lineage.fates import Fate
from lineage_assets.lineage.record import CommitRecord, SchemaUse, TableInput, TopicInput, output_schema_hash
from lineage_assets.lineage.schemas import fingerprint
from lineage_assets.lineage.slices import Slice
from lineage_assets.quality.checks import Failing, Tally, outcomes
from lineage_assets.spark import tables
from lineage_assets.spark.decide import IN_SLICE, decide, writers_of
from lineage_assets.spark.event_table import LINEAGE_COLUMNS, RECORDS, row_wise
from lineage_assets.spark.job import RAW, Job
from lineage_assets.spark.reads import Plan, arrivals, look_back, plan_reads
from lineage_assets.spark.session import until_won
from lineage_assets.spark.tally import Counted, count, tallied

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_A_FILE = 1_000_000
MOST_REASONS = 40
EARLY_MS = 300_000
"""How long before a slice begins its records are usually stamped at the earliest: on their way, by clocks that differ."""
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
    return until_won(job.settings, lambda attempt: _process(job, piece, attempt))


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
    ids: set[int] = set()
    if job.table.format == "avro":
        ids |= {one.id for one in job.registry.versions(job.table.subject)}
        ids |= {use.id for one in history if one.record for topic in one.record.topics for use in topic.schemas}
    return Assumed(frozenset(ids), int(piece.start.timestamp() * 1000) - EARLY_MS - job.table.window_ms)


def _process(job: Job, piece: Slice, attempt: int) -> Processed:
    history = commits(job.lake, f"raw/{job.table.name}")
    plan = plan_reads(job, piece, history)
    assumed: Assumed | None = _assume(job, piece, history)
    while assumed is not None:
        before = look_back(job, piece, history, assumed.look_back_from_ms) if job.table.unique_by else None
        writers = writers_of(job, assumed.schema_ids)
        decide(job, arrivals(job, piece, history, plan), before, writers).createOrReplaceTempView(DECIDED)
        # Not persist(): a commit to raw makes Spark drop what it cached of plans that read raw, and decide all again.
        decided = job.spark.table(DECIDED).localCheckpoint(eager=False)
        counted = count(job, decided)
        assumed = assumed.corrected(job, counted)
        if assumed is None:
            tally = tallied(job, decided, plan, counted, _foreign(job, counted.schema_ids))
            return _commit(job, piece, plan, decided, tally, counted.schema_ids, attempt)
    raise AssertionError("an assumption that held returns")


def _commit(
    job: Job, piece: Slice, plan: Plan, decided: DataFrame, tally: Tally, schema_ids: frozenset[int], attempt: int
) -> Processed:
    from pyspark.sql import functions as F

    table = job.table
    topic = TopicInput(
        table.topic, job.settings.kafka_alias, job.topic.topic.id, plan.ranges, _schemas(job, schema_ids)
    )
    record = CommitRecord(
        asset=f"raw/{table.name}",
        env=job.settings.env,
        kind="replace",
        slice=piece.key,
        inputs=(topic,),
        counts={**{fate.value: tally.fate(fate) for fate in Fate}, "late": tally.late},
        reasons=_most_frequent(tally.reasons),
        schema=output_schema_hash(list(RAW.items())),
        contract=table.contract.hash,
        code=table.code,
        run=job.run,
        written_at=datetime.now(UTC),
        attempt=attempt,
        checks=outcomes(table.contract, tally, table.unique_by),
        stated=_stated(plan, tally),
    )
    rows = (
        decided.where(IN_SLICE)
        .withColumn("contract", F.lit(table.contract.hash))
        .withColumn(tables.SLICE, F.lit(piece.key))
    )
    tables.ensure_table(job.spark, job.lake, record.asset, RAW, record, private=("key", "value", "headers", "reasons"))
    raw = tables.replace_slice(_files(rows.select(*RAW), tally.rows), job.lake, record.asset, record, tally.rows)
    silver = _commit_silver(job, decided, tally, record, raw)
    return Processed(raw, silver)


def _commit_silver(job: Job, decided: DataFrame, tally: Tally, decision: CommitRecord, raw: Commit) -> Commit:
    """The ok rows of the decision that raw now holds, through the table's SQL."""
    from pyspark.sql import functions as F

    table = job.table
    asset = f"silver/{table.name}"
    decided.where(F.col(IN_SLICE) & (F.col("fate") == Fate.ok.value)).select(
        "record.*", *(F.col(name.removeprefix("_")).alias(name) for name in LINEAGE_COLUMNS)
    ).createOrReplaceTempView(RECORDS)
    rows = job.spark.sql(row_wise(table.select_sql, f"select of {asset}"))
    rows = rows.withColumn(tables.SLICE, F.lit(decision.slice))
    columns = dict(rows.dtypes)
    record = replace(
        decision,
        asset=asset,
        inputs=(
            *decision.inputs,
            TableInput(decision.asset, tables.table_id(job.lake, decision.asset), (raw.version, raw.version + 1)),
        ),
        schema=output_schema_hash(list(columns.items())),
        written_at=datetime.now(UTC),
    )
    tables.ensure_table(job.spark, job.lake, asset, columns, record, private=table.private_columns)
    kept = tally.fate(Fate.ok)
    return tables.replace_slice(_files(rows, kept), job.lake, asset, record, kept)


def _most_frequent(reasons: Mapping[str, Failing]) -> dict[str, int]:
    """Records per reason; the rare ones together. Garbage can hold a different unknown schema id in each record."""
    ranked = sorted(reasons.items(), key=lambda one: (-one[1].count, one[0]))
    found = {reason: failing.count for reason, failing in ranked[:MOST_REASONS]}
    if rest := ranked[MOST_REASONS:]:
        found[f"{len(rest)} other reasons"] = sum(failing.count for _, failing in rest)
    return found


def _files(rows: DataFrame, count: int) -> DataFrame:
    """Few files for few rows: a commit of ten thousand rows in 16 files is mostly overhead, now and for every reader."""
    return rows.coalesce(max(1, -(-count // ROWS_A_FILE)))


def _schemas(job: Job, schema_ids: frozenset[int]) -> tuple[SchemaUse, ...]:
    """The registered schemas among those ids; an id that the registry does not know is a record's fault, not a schema."""
    if job.table.format != "avro":
        return ()
    versions = {one.id: one.version for one in job.registry.versions(job.table.subject)}
    return tuple(
        SchemaUse(job.table.subject, schema_id, versions.get(schema_id), fingerprint(info.text))
        for schema_id in sorted(schema_ids)
        if (info := job.registry.schema(schema_id)) is not None and info.type == "AVRO"
    )


def _foreign(job: Job, schema_ids: frozenset[int]) -> tuple[int, ...]:
    """Ids of schemas that are registered, but not under the topic's subject."""
    return tuple(use.id for use in _schemas(job, schema_ids) if use.version is None)


def _stated(plan: Plan, tally: Tally) -> dict[str, Any]:
    stated: dict[str, Any] = {}
    if plan.lost:
        stated["lost"] = state_lost(plan.lost)
    if tally.gaps:
        stated["gaps"] = {str(p): dict(kinds) for p, kinds in sorted(tally.gaps.items())}
    return stated
