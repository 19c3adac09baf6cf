"""Make one slice of a window table from the same slice of its source.

Belongs here: the read, the write, the record. Does not belong here: the SQL (window_table.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lineage_assets.errors import TransientError
from lineage_assets.lineage.commits import Commit, blocking_failures, commits, newest_by_slice
from lineage_assets.lineage.record import CommitRecord, TableInput, output_schema_hash
from lineage_assets.lineage.slices import Slice
from lineage_assets.settings import Settings
from lineage_assets.spark import tables
from lineage_assets.spark.session import until_won
from lineage_assets.spark.window_table import SLICE_ROWS, WindowTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SliceHeld(TransientError):
    """A failing blocking check holds the source's slice: nothing is made from it until it passes."""


@dataclass(frozen=True, slots=True)
class WindowJob:
    """What making slices of a window table works with."""

    spark: SparkSession
    settings: Settings
    table: WindowTable
    run: str


def make_slice(job: WindowJob, piece: Slice) -> Commit:
    """Replace a slice of the window table by what its source's slice says now.

    Raises SliceHeld when a check holds the source's slice, TransientError when the source has no such slice yet.
    """
    return until_won(job.settings, lambda attempt: _make_slice(job, piece, attempt))


def _make_slice(job: WindowJob, piece: Slice, attempt: int) -> Commit:
    from pyspark.sql import functions as F

    lake, source = job.settings.lake_env, job.table.source
    history = commits(lake, source)
    newest = newest_by_slice(history).get(piece.key)
    if newest is None:
        raise TransientError(f"{source} has no slice {piece.key}", remedy=f"materialize {source} for {piece.key} first")
    commit, record = newest
    if failures := blocking_failures(record):
        raise SliceHeld(
            f"{source} {piece.key} is held by {', '.join(failures)}; {job.table.asset} is left as it is",
            remedy="repair the records or the contract, then materialize the slice again",
        )
    at = history[0].version
    rows = tables.read_table(job.spark, lake, source, at).where(F.col(tables.SLICE) == piece.key)
    rows.createOrReplaceTempView(SLICE_ROWS)
    made = job.spark.sql(job.table.sql).withColumn(tables.SLICE, F.lit(piece.key)).coalesce(1).persist()
    try:
        columns, count = dict(made.dtypes), made.count()
        written = CommitRecord(
            asset=job.table.asset,
            env=job.settings.env,
            kind="replace",
            slice=piece.key,
            inputs=(TableInput(source, tables.table_id(lake, source), (commit.version, commit.version + 1), at),),
            counts={"rows": count},
            reasons={},
            schema=output_schema_hash(list(columns.items())),
            contract="",
            code=job.table.code,
            run=job.run,
            written_at=datetime.now(UTC),
            attempt=attempt,
        )
        tables.ensure_table(job.spark, lake, job.table.asset, columns, written, job.table.private)
        return tables.replace_slice(made, lake, job.table.asset, written, count)
    finally:
        made.unpersist()
