"""The count of a decided slice: fates, reasons, offsets, and the gaps that no reader is given.

Belongs here: the queries over decided rows and the measuring of gaps that they make necessary.
Does not belong here: verdicts (quality/checks.py).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lineage_assets.kafka import gaps
from lineage_assets.lineage.fates import Fate, balance
from lineage_assets.lineage.offsets import OffsetRange, Ranges
from lineage_assets.lineage.skew import KEYS, skew
from lineage_assets.quality.checks import Failing, Tally
from lineage_assets.spark.decide import IN_SLICE
from lineage_assets.spark.job import Job
from lineage_assets.spark.reads import Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Counted:
    """One pass over decided rows: the numbers of the slice, and what its reading assumed and can now check.

    `schema_ids` are those of the slice, `all_schema_ids` those of the look-back as well; `earliest_ms` is the oldest
    Kafka timestamp of the slice, None when it is empty.
    """

    fates: Mapping[int, Mapping[Fate, int]]
    reasons: Mapping[str, Failing]
    repeated_offsets: int
    late: int
    schema_ids: frozenset[int]
    all_schema_ids: frozenset[int]
    earliest_ms: int | None
    extent: Mapping[int, tuple[int, int]]
    """Per partition the lowest and the highest offset."""


def count(job: Job, decided: DataFrame) -> Counted:
    """Count decided rows in one query: a row for each record, and one more for each of its reasons."""
    from pyspark.sql import functions as F

    reason = F.explode(F.concat(F.array(F.lit("")), F.col("reasons"), F.col("warnings"))).alias("reason")
    place = F.when(F.col("reason") != "", F.col("offset"))
    rows = (
        decided.select(IN_SLICE, "partition", "offset", "timestamp", "schema_id", "fate", "late_by_s", reason)
        .groupBy(IN_SLICE, "partition", "fate", "reason")
        .agg(
            F.count("*").alias("records"),
            F.count_distinct("offset").alias("offsets"),
            F.min("offset").alias("lowest"),
            F.max("offset").alias("highest"),
            F.count("late_by_s").alias("late"),
            F.unix_millis(F.min("timestamp")).alias("earliest_ms"),
            F.collect_set("schema_id").alias("schema_ids"),
            F.slice(F.sort_array(F.collect_list(place)), 1, EXAMPLES).alias("first"),
        )
        .collect()
    )
    of_records = [row for row in rows if row.reason == ""]
    own = [row for row in of_records if row[IN_SLICE]]
    fates: dict[int, dict[Fate, int]] = defaultdict(dict)
    for row in own:
        fates[row.partition][Fate(row.fate)] = row.records
    return Counted(
        fates=dict(fates),
        reasons=_reasons(job.table.topic, [row for row in rows if row.reason and row[IN_SLICE]]),
        repeated_offsets=sum(row.records - row.offsets for row in own),
        late=sum(row.late for row in own),
        schema_ids=frozenset(one for row in own for one in row.schema_ids),
        all_schema_ids=frozenset(one for row in of_records for one in row.schema_ids),
        earliest_ms=min((row.earliest_ms for row in own), default=None),
        extent={
            partition: (
                min(row.lowest for row in own if row.partition == partition),
                max(row.highest for row in own if row.partition == partition),
            )
            for partition in fates
        },
    )


def tallied(
    job: Job, plan: Plan, counted: Counted, foreign_schemas: tuple[int, ...], spread: int, measure: bool = True
) -> Tally:
    """The whole tally of a slice. Gaps are asked of a second client only where offsets and records differ.

    Without `measure` they are taken as what the topic is declared to have, and stated as `unmeasured`.
    """
    gap_kinds = _gaps(job, plan, counted.fates) if measure else _unmeasured(plan, counted.fates)
    # A loss inside the slice is a fault of its own: it is no gap, and not missing a second time.
    accounted = {p: sum(gap_kinds.get(p, {}).values()) + _lost_inside(p, plan) for p in plan.ranges}
    return Tally(
        ranges=plan.ranges,
        fates=counted.fates,
        reasons=counted.reasons,
        balance=balance(plan.ranges, counted.fates, accounted),
        gaps=gap_kinds,
        lost=plan.lost,
        late=counted.late,
        repeated_offsets=Failing(counted.repeated_offsets),
        outside=_outside(plan.ranges, counted.extent),
        foreign_schemas=foreign_schemas,
        keys_in_two_partitions=spread,
    )


def skew_of(job: Job, decided: DataFrame, counted: Counted) -> Mapping[str, Any]:
    """The heaviest keys of a slice, and how evenly the topic's partitions are filled."""
    from pyspark.sql import functions as F

    counts = decided.where(IN_SLICE).groupBy("key").agg(F.count("*").alias("records"))
    heaviest = counts.orderBy(F.desc("records"), "key").limit(2 * KEYS + 1).collect()
    topic = job.topic.topic
    by_partition = {p: sum(counted.fates.get(p, {}).values()) for p in topic.partitions}
    return skew(
        by_partition,
        {None if row.key is None else bytes(row.key): row.records for row in heaviest[: 2 * KEYS]},
        private=job.table.private_key,
        floor=heaviest[2 * KEYS].records if len(heaviest) > 2 * KEYS else 0,
        salt=topic.id,
    )


def _outside(ranges: Ranges, extent: Mapping[int, tuple[int, int]]) -> int:
    """How often rows begin below or end above what the slice covers: at least as many rows do not belong to it."""
    nothing = OffsetRange(0, 0)
    return sum(
        (lowest < ranges.get(p, nothing).start) + (highest >= ranges.get(p, nothing).end)
        for p, (lowest, highest) in extent.items()
    )


def _reasons(topic: str, rows: Sequence[Row]) -> dict[str, Failing]:
    """Per reason the number of records and the first three of them."""
    counts: Counter[str] = Counter()
    places: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        counts[row.reason] += row.records
        places[row.reason] += [(row.partition, offset) for offset in row.first]
    return {
        reason: Failing(number, tuple(f"{topic}/{p}@{offset}" for p, offset in sorted(places[reason])[:EXAMPLES]))
        for reason, number in counts.items()
    }


def spread_keys(job: Job, decided: DataFrame) -> int:
    """How many keys stand in two partitions of the slice."""
    from pyspark.sql import functions as F

    if not job.table.unique_by or len(job.topic.topic.partitions) == 1:
        return 0
    key = [F.col("record").getField(name).alias(name) for name in job.table.unique_by]
    keyed = (
        decided.where(F.col(IN_SLICE) & (F.col("fate") == Fate.ok.value))
        .select("partition", *key)
        .dropna(subset=[*job.table.unique_by])
    )
    spread = keyed.groupBy(*job.table.unique_by).agg(F.min("partition").alias("a"), F.max("partition").alias("b"))
    return int(spread.where("a <> b").count())


def _gaps(job: Job, plan: Plan, fates: Mapping[int, Mapping[Fate, int]]) -> dict[int, dict[str, int]]:
    """Gaps by kind. Those of offsets that raw held before are as they were measured then; Kafka may have none left.

    A hole is only accepted where something can make one: compaction, or transactions (aborted records seen, or the
    topic declared so). Anywhere else it stays unexplained, and conservation fails.
    """
    found: dict[int, dict[str, int]] = defaultdict(dict)
    for _, record in plan.entries:
        for partition, kinds in record.stated.get("gaps", {}).items():
            _add(found[int(partition)], kinds)
    topic = job.topic.topic
    # What raw held can be measured again as long as Kafka has all of it, and no compaction has come since.
    anew = {
        p: r
        for p, r in plan.ranges.items()
        if not topic.compacted and job.topic.begin.get(p, 0) <= r.start and _unexplained(p, plan, fates, found)
    }
    for partition in anew:
        found.pop(partition, None)
    fresh = [{p: r for p, r in piece.items() if p not in anew} for piece in plan.to_read]
    for piece in (anew, *fresh):
        differing = {p: r for p, r in piece.items() if r.span and _unexplained(p, plan, fates, found)}
        for partition, delivered in gaps.measure(job.settings, job.table.topic, differing).items():
            kinds = {"aborted": delivered.aborted} if delivered.aborted else {}
            holes = differing[partition].span - delivered.uncommitted
            if holes and (topic.compacted or job.table.transactional or delivered.aborted):
                kinds["compacted" if topic.compacted else "markers"] = holes
            _add(found[partition], kinds)
    return {p: kinds for p, kinds in found.items() if kinds}


def _unmeasured(plan: Plan, fates: Mapping[int, Mapping[Fate, int]]) -> dict[int, dict[str, int]]:
    """Offsets of which no record came, for now without a kind."""
    holes = {p: r.span - sum(fates.get(p, {}).values()) - _lost_inside(p, plan) for p, r in plan.ranges.items()}
    return {p: {"unmeasured": number} for p, number in holes.items() if number > 0}


def _unexplained(
    partition: int, plan: Plan, fates: Mapping[int, Mapping[Fate, int]], known: Mapping[int, Mapping[str, int]]
) -> bool:
    """Whether offsets and records of a partition differ by more than what is known of it."""
    explained = sum(fates.get(partition, {}).values()) + sum(known.get(partition, {}).values())
    return plan.ranges[partition].span != explained + _lost_inside(partition, plan)


def _lost_inside(partition: int, plan: Plan) -> int:
    """How many offsets were lost in the middle of what the slice covers of a partition."""
    covered = plan.ranges[partition]
    return sum(
        max(0, min(covered.end, one.end) - max(covered.start, one.start)) for one in plan.lost.get(partition, ())
    )


def _add(to: dict[str, int], kinds: Mapping[str, int]) -> None:
    for kind, number in kinds.items():
        to[kind] = to.get(kind, 0) + number
