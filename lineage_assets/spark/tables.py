"""Managed Delta tables: made with their properties, replaced slice by slice, each commit with its record.

Belongs here: every write to a managed table, and finding the version that a write became.
Does not belong here: what is written.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from lineage_assets.errors import FatalError
from lineage_assets.lineage import record as records
from lineage_assets.lineage.commits import Commit, Lake, commits, open_table
from lineage_assets.lineage.record import CommitRecord, Kind
from lineage_assets.spark.session import lost_race

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
SLICE = "_slice"
KEEP_LOG = {"delta.logRetentionDuration": "interval 36500 days"}
"""The log is where a commit's record stands. It may be shortened once the ledger holds every record."""
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
) -> None:
    """Make the table of an asset, or add the columns that it lacks, in a commit of its own with its own record.

    `columns` maps names to Spark types; `private` ones get no file statistics, which would stand in the log for ever.
    Raises FatalError when a column exists with another type: rewriting history is nothing that a write may do.
    """
    until = time.monotonic() + CREATE_TIMEOUT_S
    while (table := open_table(lake, asset)) is None:
        _create(spark, lake, asset, columns, record, private)
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


def replace_slice(rows: DataFrame, lake: Lake, asset: str, record: CommitRecord, count: int) -> Commit:
    """Replace a slice whole by `count` rows, in one commit that carries the record; returns that commit.

    Raises what Spark raises; `lost_race` tells a conflict with another writer, who was first.
    """
    assert record.slice is not None
    options = {"replaceWhere": f"{SLICE} = '{record.slice}'", "userMetadata": records.to_json(record)}
    if not count:
        # Delta leaves a commit out that changes no file. An empty slice is a result too: the transaction id makes it one.
        moment = int(record.written_at.timestamp() * 1_000_000)
        options |= {"txnAppId": f"lineage/empty/{record.run}/{record.slice}/{moment}", "txnVersion": "0"}
    rows.write.format("delta").mode("overwrite").options(**options).save(lake.path(asset))
    return committed(lake, asset, record)


def committed(lake: Lake, asset: str, record: CommitRecord) -> Commit:
    """The commit that carries this very record. It is among the newest: we wrote it a moment ago."""
    for limit in (10, 1000, None):
        for commit in commits(lake, asset, limit):
            if commit.record == record:
                return commit
    raise FatalError(
        f"the commit of {asset} {record.slice} by run {record.run} is not in the log of {lake.path(asset)}"
    )


def read_table(spark: SparkSession, lake: Lake, asset: str, version: int | None = None) -> DataFrame:
    """A managed table, whole, at a version if one is given."""
    reader = spark.read.format("delta")
    return (reader if version is None else reader.option("versionAsOf", version)).load(lake.path(asset))


def table_id(lake: Lake, asset: str) -> str:
    """The table's own UUID: a table that was dropped and made again is another table."""
    table = open_table(lake, asset)
    return "" if table is None else str(table.metadata().id)


def _add_columns(spark: SparkSession, lake: Lake, asset: str, missing: dict[str, str], record: CommitRecord) -> None:
    """ALTER TABLE, tolerating another writer that adds the same columns at the same time."""
    spark.conf.set(USER_METADATA, records.to_json(_without_rows(record, "schema")))
    try:
        spark.sql(f"ALTER TABLE {_sql_name(lake, asset)} ADD COLUMNS ({_column_list(missing)})")
    except Exception:
        table = open_table(lake, asset)
        if table is None or not missing.keys() <= {field.name for field in table.schema().fields}:
            raise
    finally:
        spark.conf.unset(USER_METADATA)


def _without_rows(record: CommitRecord, kind: Kind) -> CommitRecord:
    """The record of a commit that changes no row, by the writer of the given one."""
    return replace(record, kind=kind, slice=None, inputs=(), counts={}, reasons={}, checks=(), stated={})


def _create(
    spark: SparkSession, lake: Lake, asset: str, columns: dict[str, str], record: CommitRecord, private: Iterable[str]
) -> None:
    """CREATE TABLE, tolerating another writer that makes the same table at the same time."""
    indexed = ",".join(
        f"`{name}`"
        for name, kind in columns.items()
        if name not in set(private) | {SLICE} and kind.startswith(HAVE_STATISTICS)
    )
    properties = {"delta.enableRowTracking": "true", **KEEP_LOG, "delta.dataSkippingStatsColumns": indexed}
    spark.conf.set(USER_METADATA, records.to_json(_without_rows(record, "create")))
    try:
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {_sql_name(lake, asset)} ({_column_list(columns)}) USING delta "
            f"PARTITIONED BY ({SLICE}) TBLPROPERTIES ("
            + ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
            + ")"
        )
    except Exception as error:
        # The caller looks whether the other writer's table is there, and comes again until it is.
        if not (lost_race(error) or any(code in str(error) for code in CREATED_BY_ANOTHER)):
            raise
    finally:
        spark.conf.unset(USER_METADATA)


def _sql_name(lake: Lake, asset: str) -> str:
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
