"""Managed Delta tables: made with their properties, replaced slice by slice, each commit with its record.

Belongs here: every write to a managed table, and finding the version that a write became.
Does not belong here: what is written.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from lineage_assets.errors import FatalError
from lineage_assets.lineage import record as records
from lineage_assets.lineage.commits import Commit, Lake, Tail, Turn, open_table
from lineage_assets.lineage.record import CommitRecord, Kind
from lineage_assets.spark.session import LostRace, lost_race

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
SLICE = "_slice"
PROPERTIES = {
    "delta.enableRowTracking": "true",
    # The log is where a commit's record stands. `lineage maintain` shortens it once the ledger holds every record.
    "delta.logRetentionDuration": "interval 36500 days",
    # A checkpoint costs seconds of a stream that commits once a second: `lineage maintain` writes them beside it.
    "delta.checkpointInterval": "1000",
}
"""What every managed table has."""
HAVE_STATISTICS = ("string", "bigint", "int", "double", "float", "timestamp", "date", "decimal")
"""Types for which Delta keeps minimum and maximum per file."""

CREATED_BY_ANOTHER = ("DELTA_PROTOCOL_CHANGED", "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION")
"""What Delta says to the second of two writers that make a table: it has changed, or its folder is there already."""

CREATE_TIMEOUT_S, CREATE_PAUSE_S = 60.0, 0.1
"""Delta's IF NOT EXISTS takes a folder for a table: when it did nothing, another writer may not have committed yet."""


def ensure_table(
    spark: SparkSession,
    lake: Lake,
    asset: str,
    columns: dict[str, str],
    record: CommitRecord,
    private: Iterable[str] = (),
    *,
    row_tracking: bool = True,
) -> None:
    """Make the table of an asset, or add the columns that it lacks, in a commit of its own with its own record.

    `columns` maps names to Spark types; `private` ones get no file statistics, which would stand in the log for ever.
    Raises FatalError when a column exists with another type: rewriting history is nothing that a write may do.
    """
    until = time.monotonic() + CREATE_TIMEOUT_S
    while (table := open_table(lake, asset)) is None:
        _create(spark, lake, asset, columns, record, private, row_tracking)
        if time.monotonic() > until:
            raise FatalError(
                f"{lake.path(asset)} exists and is no table: a writer was stopped while it made it",
                remedy="remove that folder, which holds no data, and run this again",
            )
        time.sleep(CREATE_PAUSE_S)
    present = {field.name: _spark_type(field.type) for field in table.schema().fields}
    for name, wanted in columns.items():
        if present.get(name, wanted) != wanted:
            raise FatalError(
                f"{asset}.{name} is {present[name]} in {lake.path(asset)} and {wanted} in its declaration",
                remedy="keep the old type, or give the column a new name",
            )
    missing = {name: kind for name, kind in columns.items() if name not in present}
    if missing:
        _add_columns(spark, lake, asset, missing, record)


def replace_slice(rows: DataFrame, tail: Tail, record: CommitRecord, turn: Turn, within: str | None = None) -> Commit:
    """Replace a slice, in one commit that carries the record; returns that commit.

    `within` is a predicate on the table's own columns: only the slice's rows that fulfil it are replaced, by rows that do.
    `turn` is of when the content of the slice was last looked at. Raises what Spark raises, and LostRace; `lost_race`
    tells in both a conflict with another writer, who was first.
    """
    where = f"{SLICE} = '{record.slice}'" + (f" AND ({within})" if within else "")
    return _write(rows, tail, record, turn, "overwrite", {"replaceWhere": where})


def append(rows: DataFrame, tail: Tail, record: CommitRecord, turn: Turn) -> Commit:
    """Add rows to a slice, in one commit that carries the record; returns that commit. Raises as `replace_slice`."""
    return _write(rows, tail, record, turn, "append", {})


def append_without(rows: DataFrame, tail: Tail, record: CommitRecord, turn: Turn, off: frozenset[str]) -> Commit:
    """Add rows without the record, the turn, or both (`off`): what a measurement compares with."""
    own = {} if "record" in off else _record_option(record)
    own |= {} if "turn" in off else _turn_options(turn)
    rows.write.format("delta").mode("append").options(**own).save(tail.lake.path(tail.asset))
    return Commit(-1, 0, "WRITE", record) if "record" in off else committed(tail, record)


def _write(
    rows: DataFrame, tail: Tail, record: CommitRecord, turn: Turn, mode: str, options: Mapping[str, str]
) -> Commit:
    own = _record_option(record) | _turn_options(turn)
    rows.write.format("delta").mode(mode).options(**own, **options).save(tail.lake.path(tail.asset))
    return committed(tail, record)


def _record_option(record: CommitRecord) -> dict[str, str]:
    return {"userMetadata": records.to_json(record)}


def _turn_options(turn: Turn) -> dict[str, str]:
    # With a transaction id Delta also makes a commit that changes no file: an empty slice is a result too.
    return {"txnAppId": turn.app_id, "txnVersion": str(turn.number)}


def committed(tail: Tail, record: CommitRecord) -> Commit:
    """The commit that carries this very record. Raises LostRace when another writer's took its turn."""
    for commit in tail.read():
        if commit.record == record:
            return commit
    raise LostRace(f"another writer of {tail.asset} {record.slice} was first", remedy="try again")


def read_table(spark: SparkSession, lake: Lake, asset: str, version: int | None = None) -> DataFrame:
    """A managed table, whole, at a version if one is given."""
    reader = spark.read.format("delta")
    return (reader if version is None else reader.option("versionAsOf", version)).load(lake.path(asset))


def table_id(lake: Lake, asset: str) -> str:
    """The table's own UUID: a table that was dropped and made again is another table."""
    table = open_table(lake, asset)
    return "" if table is None else str(table.metadata().id)


def restore(spark: SparkSession, tail: Tail, version: int, record: CommitRecord) -> None:
    """Bring back a table's content of a version, in a commit that carries the record.

    The content that the table has already is said to be meant, by a commit that changes nothing.
    """
    if version == tail.read()[0].version:
        nothing = read_table(spark, tail.lake, tail.asset).limit(0)
        _write(nothing, tail, record, tail.turn("restore"), "append", {})
        return
    with _recorded(spark, record):
        spark.sql(f"RESTORE TABLE {sql_name(tail.lake, tail.asset)} TO VERSION AS OF {version}").collect()


def compact(spark: SparkSession, tail: Tail, record: CommitRecord) -> Commit | None:
    """Rewrite the files of a slice as few, in a commit that carries the record; no row changes.

    None when Delta found nothing to gain. Raises what Spark raises; `lost_race` tells when a writer of the slice was first.
    """
    with _recorded(spark, record):
        spark.sql(f"OPTIMIZE {sql_name(tail.lake, tail.asset)} WHERE {SLICE} = '{record.slice}'").collect()
    return next((one for one in tail.read() if one.record == record), None)


@contextmanager
def _recorded(spark: SparkSession, record: CommitRecord) -> Iterator[None]:
    """Commits of statements that take no write option carry the record, by the session's setting."""
    spark.conf.set(USER_METADATA, records.to_json(record))
    try:
        yield
    finally:
        spark.conf.unset(USER_METADATA)


def _add_columns(spark: SparkSession, lake: Lake, asset: str, missing: dict[str, str], record: CommitRecord) -> None:
    """ALTER TABLE, tolerating another writer that adds the same columns at the same time."""
    try:
        with _recorded(spark, _without_rows(record, "schema")):
            spark.sql(f"ALTER TABLE {sql_name(lake, asset)} ADD COLUMNS ({_column_list(missing)})")
    except Exception:
        table = open_table(lake, asset)
        if table is None or not missing.keys() <= {field.name for field in table.schema().fields}:
            raise


def _without_rows(record: CommitRecord, kind: Kind) -> CommitRecord:
    """The record of a commit that changes no row, by the writer of the given one."""
    return replace(record, kind=kind, slice=None, inputs=(), counts={}, reasons={}, checks=(), stated={})


def _create(
    spark: SparkSession,
    lake: Lake,
    asset: str,
    columns: dict[str, str],
    record: CommitRecord,
    private: Iterable[str],
    row_tracking: bool,
) -> None:
    """CREATE TABLE, tolerating another writer that makes the same table at the same time."""
    indexed = ",".join(
        f"`{name}`"
        for name, kind in columns.items()
        if name not in set(private) | {SLICE} and kind.startswith(HAVE_STATISTICS)
    )
    properties = {**PROPERTIES, "delta.dataSkippingStatsColumns": indexed}
    properties |= {} if row_tracking else {"delta.enableRowTracking": "false"}
    try:
        with _recorded(spark, _without_rows(record, "create")):
            spark.sql(
                f"CREATE TABLE IF NOT EXISTS {sql_name(lake, asset)} ({_column_list(columns)}) USING delta "
                f"PARTITIONED BY ({SLICE}) TBLPROPERTIES ("
                + ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
                + ")"
            )
    except Exception as error:
        # The caller looks whether the other writer's table is there, and comes again until it is.
        if not (lost_race(error) or any(code in str(error) for code in CREATED_BY_ANOTHER)):
            raise


def sql_name(lake: Lake, asset: str) -> str:
    """A managed table as Spark's SQL names it."""
    return f"delta.`{lake.path(asset)}`"


def _column_list(columns: dict[str, str]) -> str:
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def _spark_type(field_type: object) -> str:
    """A deltalake type in Spark's words, as `DataType.simpleString` spells it."""
    from deltalake.schema import ArrayType, PrimitiveType, StructType

    match field_type:
        case PrimitiveType():
            return {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}.get(
                field_type.type, field_type.type
            )
        case ArrayType():
            return f"array<{_spark_type(field_type.element_type)}>"
        case StructType():
            return "struct<" + ",".join(f"{field.name}:{_spark_type(field.type)}" for field in field_type.fields) + ">"
    raise FatalError(f"type {field_type} has no place in a managed table")
