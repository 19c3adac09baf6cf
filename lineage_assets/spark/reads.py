"""Where the bytes of a slice, and of what lies below it, come from: raw first, Kafka for what raw lacks.

Belongs here: planning and making those reads. Does not belong here: deciding about a record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING

from lineage_assets.errors import FatalError
from lineage_assets.kafka import client
from lineage_assets.lineage.commits import Commit, by_slice, held_ranges
from lineage_assets.lineage.offsets import OffsetRange, Ranges, clip, merge, minus, span
from lineage_assets.lineage.slices import Slice
from lineage_assets.spark import kafka_source, tables
from lineage_assets.spark.job import Job
from lineage_assets.spark.kafka_source import BASE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Plan:
    """Which offsets a slice covers (`ranges`), which of them raw holds, Kafka has, and nobody has any more."""

    ranges: Ranges
    held: Ranges
    to_read: Sequence[Ranges]
    lost: Ranges


def plan_reads(job: Job, piece: Slice, history: Sequence[Commit]) -> Plan:
    """Split what a slice covers by where its bytes are. Raises FatalError when all that raw lacks is gone."""
    held = held_ranges(by_slice(history).get(piece.key, ()), job.topic.topic.id)
    # Another run may have seen more of the open slice than this one: what raw holds is never given back.
    wanted = merge(job.topic.ranges(piece), held)
    to_read: list[Ranges] = []
    lost: dict[int, OffsetRange] = {}
    for missing in minus(wanted, held):
        readable, gone = clip(missing, job.topic.begin)
        if span(readable):
            to_read.append(readable)
        lost.update({p: r for p, r in gone.items() if r.span})
    if lost and not span(held) and not to_read:
        raise FatalError(
            f"slice {piece.key} of raw/{job.table.name}: retention removed {named(job.table.topic, lost)} "
            "before raw had read it; the slice is left as it is",
            remedy="bring the records back in a new topic, or leave this slice unmaterialized",
        )
    covered = {p: OffsetRange(max(r.start, lost[p].end), r.end) if p in lost else r for p, r in wanted.items()}
    return Plan(covered, held, to_read, lost)


def named(topic: str, ranges: Ranges) -> str:
    """Offset ranges for people.

    >>> named("clicks", {0: OffsetRange(5, 9)})
    'clicks/0@5-9'
    """
    return ", ".join(f"{topic}/{p}@{r.start}-{r.end}" for p, r in sorted(ranges.items()))


def arrivals(job: Job, piece: Slice, history: Sequence[Commit], plan: Plan) -> DataFrame:
    """All records of a slice as they came, in the columns of BASE."""
    fresh = kafka_source.read(job.spark, job.settings, job.table.topic, plan.to_read)
    if not span(plan.held):
        return fresh
    stored = tables.read_table(job.spark, job.lake, f"raw/{job.table.name}", history[0].version)
    return stored.where(f"{tables.SLICE} = '{piece.key}'").select(*BASE).unionByName(fresh)


def look_back(job: Job, piece: Slice, history: Sequence[Commit], from_ms: int) -> DataFrame | None:
    """Records below a slice, stamped since `from_ms` or later: what can make one of its records a duplicate.

    None when nothing lies below the slice. The broker's index names the first offset stamped at or after an instant, so
    all below that offset is too old. What raw holds is found by its own timestamps: the log may no longer begin where
    raw does.
    """
    from pyspark.sql import functions as F

    starts = {p: span_.start for p, span_ in job.topic.ranges(piece).items() if span_.start}
    if not starts:
        return None
    frames: list[DataFrame] = []
    if history:
        below = reduce(
            lambda left, right: left | right,
            ((F.col("partition") == p) & (F.col("offset") < start) for p, start in starts.items()),
        )
        stored = tables.read_table(job.spark, job.lake, f"raw/{job.table.name}", history[0].version)
        recent = F.col("timestamp") >= F.timestamp_millis(F.lit(from_ms))
        frames.append(stored.where((F.col(tables.SLICE) < piece.key) & recent & below).select(*BASE))
    if pieces := _below_in_kafka(job, piece, history, starts, from_ms):
        frames.append(kafka_source.read(job.spark, job.settings, job.table.topic, pieces))
    return reduce(lambda left, right: left.unionByName(right), frames) if frames else None


def _below_in_kafka(
    job: Job, piece: Slice, history: Sequence[Commit], starts: Mapping[int, int], from_ms: int
) -> list[Ranges]:
    """Offset ranges below a slice, stamped since `from_ms` or later, that only Kafka has."""
    topic = job.topic
    # Before the epoch the broker's numbers are no times: -1 is the latest offset.
    since = datetime.fromtimestamp(max(from_ms, 0) / 1000, UTC)
    answers = client.offsets_for_times(job.settings, topic.topic, [since])
    wanted: dict[int, OffsetRange] = {}
    for partition, start in starts.items():
        first = max(answers[partition][0], topic.begin.get(partition, 0))
        if answers[partition][0] >= 0 and first < start:
            wanted[partition] = OffsetRange(first, start)
    pieces: list[Ranges] = [wanted] if wanted else []
    for key, entries in by_slice(history).items():
        if key is not None and key < piece.key:
            held = held_ranges(entries, topic.topic.id)
            pieces = [left for whole in pieces for left in minus(whole, held) if span(left)]
    return pieces
