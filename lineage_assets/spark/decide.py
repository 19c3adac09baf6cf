"""The fate of each record of a slice: decoded, held against the contract, looked for among lower offsets.

Belongs here: the columns that raw keeps about a record. Does not belong here: where bytes come from, writing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lineage_assets.lineage.commits import Commit
from lineage_assets.lineage.fates import Fate
from lineage_assets.spark import decode
from lineage_assets.spark.event_table import EventTable
from lineage_assets.spark.job import Job

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame


IN_SLICE = "_in_slice"
"""Column of decided rows: false for those of the look-back, which only decide about others."""


@dataclass(frozen=True, slots=True)
class Writers:
    """Writers' schemas by id, and for other ids what is wrong with them. An id in neither is unknown."""

    schemas: Mapping[int, str]
    problems: Mapping[int, str]


def decide(
    job: Job, rows: DataFrame, before: DataFrame | None, writers: Writers, mark: bool = True, library: bool = True
) -> DataFrame:
    """Every record with fate, reasons, warnings, `late_by_s`, and its decoded columns in `record`.

    `rows` and `before` (the look-back below the slice) have the columns of BASE; both are in the result, told apart by
    IN_SLICE. Without `mark` duplicates are still `ok`: the stream finds them by the keys that it has seen. Without
    `library` a fate may be decode.UNCLEAR.
    """
    from pyspark.sql import functions as F

    table = job.table
    both = rows.withColumn(IN_SLICE, F.lit(True))
    if before is not None:
        both = both.unionByName(before.withColumn(IN_SLICE, F.lit(False)))
    if table.format == "avro":
        decided = decode.decode_avro(
            decode.wire_format(both), table.contract, writers.schemas, writers.problems, library
        )
    else:
        decided = decode.decode_json(both.withColumn("schema_id", F.lit(None).cast("int")), table.contract, library)
    if table.unique_by and mark:
        decided = _mark_duplicates(decided, table)
    late = F.lit(None).cast("bigint")
    if table.event_time:
        behind_ms = F.unix_millis("timestamp") - F.unix_millis(F.col("record").getField(table.event_time))
        is_late = (F.col("fate") == Fate.ok.value) & (behind_ms > table.grace_ms)
        late = F.when(is_late, F.floor(behind_ms / 1000).cast("bigint"))
    return decided.withColumn("late_by_s", late)


def known_ids(job: Job, history: Iterable[Commit]) -> frozenset[int]:
    """The schemas that a topic's records are expected to have: the subject's, and those that raw met before."""
    if job.table.format != "avro":
        return frozenset()
    met = {use.id for one in history if one.record for topic in one.record.topics for use in topic.schemas}
    return frozenset(met | {one.id for one in job.registry.versions(job.table.subject)})


def writers_of(job: Job, schema_ids: Iterable[int]) -> Writers:
    """Look schema ids up in the registry. Raises TransientError when it is away."""
    schemas: dict[int, str] = {}
    problems: dict[int, str] = {}
    for schema_id in sorted(schema_ids):
        info = job.registry.schema(schema_id)
        if info is None:
            problems[schema_id] = f"unknown schema id {schema_id}"
        elif info.type != "AVRO":
            problems[schema_id] = f"schema id {schema_id} is {info.type}, not AVRO"
        else:
            schemas[schema_id] = info.text
    return Writers(schemas, problems)


def whole_key(table: EventTable) -> Expression:
    """Whether a record can be a duplicate, or make another one: decoded, not dead, and with every field of the key."""
    from pyspark.sql import functions as F

    whole = F.col("fate") == Fate.ok.value
    for name in table.unique_by:
        whole = whole & F.col("record").getField(name).isNotNull()
    return whole


def _mark_duplicates(rows: DataFrame, table: EventTable) -> DataFrame:
    """Law 3: a lower offset of the partition holds the same key, decoded and not dead, at most the window earlier.

    A lower offset that is stamped later counts too, so the newest timestamp among the lower ones decides. Records
    without a whole key get a partition of their own by offset, or they would all be sorted as one.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    key = [F.col("record").getField(name) for name in table.unique_by]
    whole = whole_key(table)
    alone = F.when(~whole, F.col("offset"))
    lower = Window.partitionBy("partition", *key, alone).orderBy("offset").rangeBetween(Window.unboundedPreceding, -1)
    millis = F.unix_millis("timestamp")
    again = whole & (F.max(millis).over(lower) >= millis - table.window_ms)
    return rows.withColumn("fate", F.when(again, F.lit(Fate.duplicate.value)).otherwise(F.col("fate")))
