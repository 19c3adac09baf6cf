"""Make one slice of a window table from the same slice of its source.

Belongs here: the read, the write, the record. Does not belong here: the SQL (window_table.py).

While a stream appends to the source, only the windows that its new rows touch are made again, each from all rows of the
slice that are in it: every row of the table is still made whole by one commit (law 5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING

from lineage_assets.errors import TransientError
from lineage_assets.lineage.commits import Commit, Lake, Tail, commits, since
from lineage_assets.lineage.content import blocking_failures, by_slice, newest_by_slice, summary
from lineage_assets.lineage.offsets import OffsetRange
from lineage_assets.lineage.record import CommitRecord, TableInput, output_schema_hash
from lineage_assets.lineage.slices import Slice
from lineage_assets.settings import Settings
from lineage_assets.spark import tables
from lineage_assets.spark.session import until_won
from lineage_assets.spark.window_table import SLICE_ROWS, WindowTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

MOST_WINDOWS = 100
"""When new rows touch more windows than these, the slice is made again whole."""
YEAR_ONE_S, YEAR_10000_S = -62_135_596_800, 253_402_300_800
"""Spark knows times beyond these years; a record does not name them."""
HARMLESS = frozenset({"create", "schema", "compact"})
"""Kinds of commit that leave the rows of every slice as they were."""


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
    """Bring a slice of the window table to what its source's slice says now.

    Raises SliceHeld when a check holds the source's slice, TransientError when the source has no such slice yet.
    """
    return until_won(job.settings, lambda attempt: _make_slice(job, piece, attempt))


def _make_slice(job: WindowJob, piece: Slice, attempt: int) -> Commit:
    from pyspark.sql import functions as F

    table, lake, source = job.table, job.settings.lake_env, job.table.source
    tail = Tail(lake, table.asset)
    output = tail.read()
    turn = tail.turn(piece.key)
    before = newest_by_slice(output).get(piece.key)
    read = None if before is None else _consumed(before[1], source)
    history = _history(lake, source, read)
    entries = by_slice(history).get(piece.key)
    if not entries:
        raise TransientError(f"{source} has no slice {piece.key}", remedy=f"materialize {source} for {piece.key} first")
    if failures := blocking_failures(summary(entries)):
        raise SliceHeld(
            f"{source} {piece.key} is held by {', '.join(failures)}; {table.asset} is left as it is",
            remedy="repair the records or the contract, then materialize the slice again",
        )
    at, source_id = history[0].version, tables.table_id(lake, source)
    rows = tables.read_table(job.spark, lake, source, at).where(F.col(tables.SLICE) == piece.key)
    windows: Sequence[int] | None = None
    if before is not None and read is not None and _goes_on(output, before, read, table, source_id):
        new = appended_since(history, piece.key, read.commits[1] if read.commits else 0)
        windows = None if new is None else _touched(job, rows, new)
    if windows is not None:
        rows = _in_windows(rows, table, windows)
    rows.createOrReplaceTempView(SLICE_ROWS)
    made = job.spark.sql(table.sql).withColumn(tables.SLICE, F.lit(piece.key)).coalesce(1).persist()
    try:
        columns, count = dict(made.dtypes), made.count()
        if windows is not None:
            count += _kept(job, piece, windows, output[0].version)
        consumed = (entries[-1][0].version, entries[0][0].version + 1)
        written = CommitRecord(
            asset=table.asset,
            env=job.settings.env,
            kind="replace",
            slice=piece.key,
            inputs=(TableInput(source, source_id, consumed, at),),
            counts={"rows": count},
            reasons={},
            schema=output_schema_hash(list(columns.items())),
            contract="",
            code=table.code,
            run=job.run,
            written_at=datetime.now(UTC),
            attempt=attempt,
            stated={} if windows is None else {"windows": [_instant(second) for second in windows]},
        )
        tables.ensure_table(job.spark, lake, table.asset, columns, written, table.private)
        return tables.replace_slice(made, tail, written, turn, None if windows is None else _predicate(windows))
    finally:
        made.unpersist()


# What of the source is new.


def _consumed(record: CommitRecord, source: str) -> TableInput | None:
    return next((one for one in record.tables if one.table == source and one.commits is not None), None)


def _history(lake: Lake, source: str, read: TableInput | None) -> list[Commit]:
    """The source's commits, newest first: all, or from the beginning of what a slice has consumed before."""
    if read is not None and read.commits is not None:
        first = read.commits[0]
        later = since(lake, source, first - 1)[::-1]
        undone = any(one.restored_to is not None and one.restored_to < first for one in later)
        if later and later[-1].version == first and not undone:
            return later
    return commits(lake, source)


def _goes_on(
    output: Sequence[Commit],
    before: tuple[Commit, CommitRecord],
    read: TableInput,
    table: WindowTable,
    source_id: str,
) -> bool:
    """Whether what the slice holds is what its record says, made of this very source by the same code."""
    foreign = any(one.record is None for one in output if one.version > before[0].version)
    return not foreign and before[1].code == table.code and read.table_id == source_id


def appended_since(history: Sequence[Commit], key: str, version: int) -> Mapping[int, Sequence[OffsetRange]] | None:
    """The offsets that were added to a slice from `version` on; None if its rows changed in any other way, or may have.

    `history` is the source's, newest first.
    """
    if not history or history[-1].version > version:
        return None
    if sum(one.version >= version for one in history) <= history[0].version - version:
        return None  # the log does not reach that far, and the ledger gave only what the content is made of
    found: dict[int, list[OffsetRange]] = {}
    for commit in history:
        record = commit.record
        if commit.version < version:
            break
        if record is None or record.kind == "restore":
            return None
        if record.kind in HARMLESS or record.slice not in (key, None):
            continue
        if record.kind != "append":
            return None
        for topic in record.topics:
            for partition, held in topic.ranges.items():
                if held.span:
                    found.setdefault(partition, []).append(held)
    return {partition: _joined(ranges) for partition, ranges in found.items()}


def _joined(ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """The same offsets in as few ranges as can be, in order."""
    joined: list[OffsetRange] = []
    for one in sorted(ranges):
        if joined and one.start <= joined[-1].end:
            joined[-1] = OffsetRange(joined[-1].start, max(joined[-1].end, one.end))
        else:
            joined.append(one)
    return joined


# The windows of new rows.


def _touched(job: WindowJob, rows: DataFrame, new: Mapping[int, Sequence[OffsetRange]]) -> list[int] | None:
    """The seconds at which the windows of the rows at those offsets start, in order; None if they are too many to name."""
    from pyspark.sql import functions as F

    second = F.expr(job.table.start_second)
    starts = rows.where(_at(new)).where(second.isNotNull()).select(second.cast("bigint").alias("second")).distinct()
    found = sorted(row["second"] for row in starts.limit(MOST_WINDOWS + 1).collect())
    nameable = all(YEAR_ONE_S <= second < YEAR_10000_S for second in found)
    return found if nameable and len(found) <= MOST_WINDOWS else None


def _at(places: Mapping[int, Sequence[OffsetRange]]) -> Column:
    from pyspark.sql import functions as F

    inside = [
        (F.col("_partition") == partition) & (F.col("_offset") >= held.start) & (F.col("_offset") < held.end)
        for partition, ranges in sorted(places.items())
        for held in ranges
    ]
    return reduce(lambda left, right: left | right, inside, F.lit(False))


def _in_windows(rows: DataFrame, table: WindowTable, windows: Sequence[int]) -> DataFrame:
    """The rows of those windows. The bounds on the event time are for the files' statistics, with room to spare."""
    from pyspark.sql import functions as F

    if not windows:
        return rows.where(F.lit(False))
    time = F.col(table.time)
    first, last = windows[0] - table.window_s, windows[-1] + 2 * table.window_s
    near = (time >= F.timestamp_seconds(F.lit(first))) & (time < F.timestamp_seconds(F.lit(last)))
    return rows.where(near).where(F.expr(table.start_second).isin(list(windows)))


def _predicate(windows: Sequence[int]) -> str:
    """What `replaceWhere` takes beside the slice. No row is without a window: `IS NULL` replaces nothing."""
    if not windows:
        return "window_start IS NULL"
    return f"window_start IN ({', '.join(f'timestamp_seconds({second})' for second in windows)})"


def _kept(job: WindowJob, piece: Slice, windows: Sequence[int], version: int) -> int:
    """How many rows of the slice stay as they are."""
    from pyspark.sql import functions as F

    stored = tables.read_table(job.spark, job.settings.lake_env, job.table.asset, version)
    return int(stored.where(F.col(tables.SLICE) == piece.key).where(~F.expr(_predicate(windows))).count())


def _instant(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat().replace("+00:00", "Z")
