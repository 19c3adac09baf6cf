"""The two commits of a decided slice, or of what a batch brings of it: raw with its fates, silver from raw's decision.

Belongs here: records and writes that a bounded run and the stream share. Does not belong here: deciding (process.py,
micro_batch.py), what an outcome means (quality/checks.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from lineage_assets.lineage.commits import Commit, Tail, Turn
from lineage_assets.lineage.content import state_lost
from lineage_assets.lineage.fates import Fate
from lineage_assets.lineage.record import CommitRecord, SchemaUse, TableInput, TopicInput, output_schema_hash
from lineage_assets.lineage.schemas import fingerprint
from lineage_assets.lineage.slices import Slice
from lineage_assets.quality.checks import Failing, Tally, outcomes
from lineage_assets.spark import tables
from lineage_assets.spark.event_table import LINEAGE_COLUMNS, RECORDS, row_wise
from lineage_assets.spark.job import RAW, Job
from lineage_assets.spark.reads import Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_A_FILE = 150_000
"""A file is written by one core: large ones would leave the others idle. Compaction makes few of many."""
MOST_REASONS = 40
PRIVATE_IN_RAW = ("key", "value", "headers", "reasons")


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about records of one slice: `rows` holds them with fate, reasons and their decoded `record`.

    `kind` says whether they are the slice whole, or come on top of what it has.
    """

    kind: Literal["replace", "append"]
    piece: Slice
    plan: Plan
    rows: DataFrame
    tally: Tally
    schema_ids: frozenset[int]
    batch: int | None = None
    stated: Mapping[str, Any] = field(default_factory=dict)


class Writers:
    """The two tables of a job: their commits as last read, and whether they were made sure of.

    `off` names what a measurement leaves out (bench/): `record`, `turn`, `row_tracking`.
    """

    def __init__(self, job: Job, off: frozenset[str] = frozenset()) -> None:
        self.raw = Tail(job.lake, f"raw/{job.table.name}")
        self.silver = Tail(job.lake, f"silver/{job.table.name}")
        self._off = off
        self._ensured: dict[str, dict[str, str]] = {}

    def ensure(
        self, job: Job, tail: Tail, columns: dict[str, str], record: CommitRecord, private: tuple[str, ...]
    ) -> None:
        """`tables.ensure_table`, once for the same columns."""
        if self._ensured.get(tail.asset) != columns:
            row_tracking = "row_tracking" not in self._off
            tables.ensure_table(job.spark, job.lake, tail.asset, columns, record, private, row_tracking=row_tracking)
            self._ensured[tail.asset] = columns

    def columns(self, tail: Tail) -> dict[str, str] | None:
        """The columns that a table was made sure of to have."""
        return self._ensured.get(tail.asset)

    def write(self, rows: DataFrame, tail: Tail, record: CommitRecord, turn: Turn) -> Commit:
        """One commit of rows that are a slice whole, or come on top of it, as the record's kind says."""
        if left_out := self._off & {"record", "turn"}:
            return tables.append_without(rows, tail, record, turn, left_out)
        if record.kind == "append":
            return tables.append(rows, tail, record, turn)
        return tables.replace_slice(rows, tail, record, turn)


def commit_raw(job: Job, writers: Writers, decision: Decision, turn: Turn, attempt: int) -> Commit:
    """Write the records of a decision to raw, with the record of what was decided."""
    from pyspark.sql import functions as F

    table, plan, tally = job.table, decision.plan, decision.tally
    topic = TopicInput(
        table.topic, job.settings.kafka_alias, job.topic.topic.id, plan.ranges, schema_uses(job, decision.schema_ids)
    )
    record = CommitRecord(
        asset=writers.raw.asset,
        env=job.settings.env,
        kind=decision.kind,
        slice=decision.piece.key,
        inputs=(topic,),
        counts={**{fate.value: tally.fate(fate) for fate in Fate}, "late": tally.late},
        reasons=_most_frequent(tally.reasons),
        schema=output_schema_hash(list(RAW.items())),
        contract=table.contract.hash,
        code=table.code,
        run=job.run,
        written_at=datetime.now(UTC),
        attempt=attempt,
        batch=decision.batch,
        checks=outcomes(table.contract, tally, table.unique_by),
        stated={**_stated(plan, tally), **decision.stated},
    )
    rows = decision.rows.withColumns(
        {
            "topic_id": F.lit(topic.topic_id),
            "contract": F.lit(table.contract.hash),
            tables.SLICE: F.lit(decision.piece.key),
        }
    )
    writers.ensure(job, writers.raw, RAW, record, PRIVATE_IN_RAW)
    return writers.write(_files(rows.select(*RAW), tally.rows), writers.raw, record, turn)


def commit_silver(
    job: Job, writers: Writers, rows: DataFrame, decision: CommitRecord, raw: tuple[int, int], turn: Turn
) -> Commit:
    """Write the ok records among `rows` to silver through the table's SQL, under the decision that raw holds.

    `raw` are the commits (half open) of raw whose rows these are.
    """
    from pyspark.sql import functions as F

    table = job.table
    rows.where(F.col("fate") == Fate.ok.value).select(
        "record.*", *(F.col(name.removeprefix("_")).alias(name) for name in LINEAGE_COLUMNS)
    ).createOrReplaceTempView(RECORDS)
    made = job.spark.sql(_checked_sql(table.select_sql, f"select of {writers.silver.asset}"))
    made = made.withColumn(tables.SLICE, F.lit(decision.slice))
    # Asking Spark for them is a question to the server: a stream's batches all have the same.
    columns = writers.columns(writers.silver) or dict(made.dtypes)
    record = replace(
        decision,
        asset=writers.silver.asset,
        inputs=(*decision.inputs, TableInput(writers.raw.asset, writers.raw.table_id, raw)),
        schema=output_schema_hash(list(columns.items())),
        written_at=datetime.now(UTC),
        stated={name: value for name, value in decision.stated.items() if name != "skew"},
    )
    writers.ensure(job, writers.silver, columns, record, table.private_columns)
    return writers.write(_files(made, decision.counts[Fate.ok.value]), writers.silver, record, turn)


@lru_cache(maxsize=16)
def _checked_sql(sql: str, where: str) -> str:
    return row_wise(sql, where)


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


def schema_uses(job: Job, schema_ids: frozenset[int]) -> tuple[SchemaUse, ...]:
    """The registered schemas among those ids; an id that the registry does not know is a record's fault, not a schema."""
    if job.table.format != "avro":
        return ()
    versions = {one.id: one.version for one in job.registry.versions(job.table.subject)}
    return tuple(
        SchemaUse(job.table.subject, schema_id, versions.get(schema_id), fingerprint(info.text))
        for schema_id in sorted(schema_ids)
        if (info := job.registry.schema(schema_id)) is not None and info.type == "AVRO"
    )


def foreign_schemas(job: Job, schema_ids: frozenset[int]) -> tuple[int, ...]:
    """Ids of schemas that are registered, but not under the topic's subject."""
    return tuple(use.id for use in schema_uses(job, schema_ids) if use.version is None)


def _stated(plan: Plan, tally: Tally) -> dict[str, Any]:
    stated: dict[str, Any] = {}
    if plan.lost:
        stated["lost"] = state_lost(plan.lost)
    if tally.gaps:
        stated["gaps"] = {str(p): dict(kinds) for p, kinds in sorted(tally.gaps.items())}
    return stated
