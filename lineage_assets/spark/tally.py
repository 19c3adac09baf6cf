"""The count of a decided slice: fates, reasons, offsets, and the gaps that no reader is given.

Belongs here: the queries over decided rows and the measuring of gaps that they make necessary.
Does not belong here: verdicts (quality/checks.py).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from lineage_assets.kafka import gaps
from lineage_assets.lineage.fates import Fate, balance
from lineage_assets.lineage.offsets import Ranges
from lineage_assets.quality.checks import Failing, Tally
from lineage_assets.spark.job import Job
from lineage_assets.spark.reads import Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EXAMPLES = 3


def count(job: Job, decided: DataFrame, plan: Plan, foreign_schemas: tuple[int, ...]) -> Tally:
    """Count a slice once. Gaps are asked of a second client only where offsets and records differ."""
    from pyspark.sql import functions as F

    rows = (
        decided.groupBy("partition", "fate")
        .agg(
            F.count("*").alias("records"),
            F.count_distinct("offset").alias("offsets"),
            F.count("late_by_s").alias("late"),
        )
        .collect()
    )
    fates: dict[int, dict[Fate, int]] = defaultdict(dict)
    for row in rows:
        fates[row.partition][Fate(row.fate)] = row.records
    gap_kinds = _gaps(job, plan.ranges, fates)
    return Tally(
        ranges=plan.ranges,
        fates=dict(fates),
        reasons=_reasons(job, decided),
        balance=balance(plan.ranges, fates, {p: sum(kinds.values()) for p, kinds in gap_kinds.items()}),
        gaps=gap_kinds,
        lost=plan.lost,
        late=sum(row.late for row in rows),
        repeated_offsets=Failing(sum(row.records - row.offsets for row in rows)),
        foreign_schemas=foreign_schemas,
        keys_in_two_partitions=_spread_keys(job, decided),
    )


def _reasons(job: Job, decided: DataFrame) -> dict[str, Failing]:
    """Per reason the number of records and the first three of them."""
    from pyspark.sql import functions as F

    first = F.slice(F.sort_array(F.collect_list(F.struct("partition", "offset"))), 1, EXAMPLES)
    found = (
        decided.select("partition", "offset", F.explode(F.concat("reasons", "warnings")).alias("reason"))
        .groupBy("reason")
        .agg(F.count("*").alias("records"), first.alias("first"))
        .collect()
    )
    topic = job.table.topic
    return {
        row.reason: Failing(row.records, tuple(f"{topic}/{one.partition}@{one.offset}" for one in row.first))
        for row in found
    }


def _spread_keys(job: Job, decided: DataFrame) -> int:
    """How many keys stand in two partitions of the slice."""
    from pyspark.sql import functions as F

    if not job.table.unique_by or len(job.topic.topic.partitions) == 1:
        return 0
    key = [F.col("record").getField(name).alias(name) for name in job.table.unique_by]
    keyed = decided.where(F.col("fate") == Fate.ok.value).select("partition", *key).dropna(subset=[*job.table.unique_by])
    spread = keyed.groupBy(*job.table.unique_by).agg(F.min("partition").alias("a"), F.max("partition").alias("b"))
    return spread.where("a <> b").count()


def _gaps(job: Job, ranges: Ranges, fates: dict[int, dict[Fate, int]]) -> dict[int, dict[str, int]]:
    """Gaps by kind, in partitions whose offsets and records differ.

    A hole is only accepted where something can make one: compaction, or transactions (aborted records seen, or the
    topic declared so). Anywhere else it stays unexplained, and conservation fails.
    """
    differing = {p: r for p, r in ranges.items() if r.span != sum(fates.get(p, {}).values())}
    if not differing:
        return {}
    compacted = "compact" in job.topic.topic.config.get("cleanup.policy", "")
    found: dict[int, dict[str, int]] = {}
    for partition, delivered in gaps.measure(job.settings, job.table.topic, differing).items():
        kinds = {"aborted": delivered.aborted} if delivered.aborted else {}
        holes = differing[partition].span - delivered.uncommitted
        if holes and (compacted or job.table.transactional or delivered.aborted):
            kinds["compacted" if compacted else "markers"] = holes
        if kinds:
            found[partition] = kinds
    return found
