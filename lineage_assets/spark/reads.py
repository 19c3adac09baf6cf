"""Where the bytes of a slice, and of what lies below it, come from: raw first, Kafka for what raw lacks.

Belongs here: planning and making those reads. Does not belong here: deciding about a record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING

from lineage_assets.errors import FatalError
from lineage_assets.kafka import client
from lineage_assets.lineage.commits import Commit, open_table
from lineage_assets.lineage.content import Entries, Lost, by_slice, held_ranges, lost_in, other_topics, without
from lineage_assets.lineage.offsets import OffsetRange, Ranges, clip, merge, minus, span
from lineage_assets.lineage.slices import Slice
from lineage_assets.spark import kafka_source, tables
from lineage_assets.spark.job import Job
from lineage_assets.spark.kafka_source import BASE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Plan:
    """Which offsets a slice covers (`ranges`), which Kafka must give, and which nobody has any more.

    `entries` are the commits by which raw holds the slice so far; none: raw has nothing of it.
    """

    ranges: Ranges
    to_read: Sequence[Ranges]
    lost: Lost
    entries: Entries


def plan_reads(job: Job, piece: Slice, history: Sequence[Commit]) -> Plan:
    """Split what a slice covers by where its bytes are.

    Raises FatalError when all that raw lacks is gone, when raw holds records of another topic of this name, and when
    raw has rows of the slice whose record is gone: going on would replace the archive by less.
    """
    entries = by_slice(history).get(piece.key, [])
    _refuse_unknown_rows(job, piece, entries)
    held = held_ranges(entries, job.topic.topic.id)
    # Another run may have seen more of the open slice than this one: what raw holds is never given back.
    wanted = merge(job.topic.ranges(piece), held)
    to_read: list[Ranges] = []
    lost = lost_in(entries)
    for missing in (left for piece_ in minus(wanted, held) for left in without(piece_, lost)):
        readable, gone = clip(missing, job.topic.begin)
        if span(readable):
            to_read.append(readable)
        for partition, range_ in gone.items():
            if range_.span:
                lost[partition] = (*lost.get(partition, ()), range_)
    if lost and not entries and not to_read:
        raise FatalError(
            f"slice {piece.key} of raw/{job.table.name}: retention removed {named(job.table.topic, lost)} "
            "before raw had read it; the slice is left as it is",
            remedy="bring the records back in a new topic, or leave this slice unmaterialized",
        )
    return Plan({p: _after_lost(range_, lost.get(p, ())) for p, range_ in wanted.items()}, to_read, lost, entries)


def _after_lost(covered: OffsetRange, lost: Sequence[OffsetRange]) -> OffsetRange:
    """A slice's range without what was lost at its beginning; a loss in its middle stays inside, and is stated."""
    for one in sorted(lost):
        if one.start <= covered.start < one.end:
            covered = OffsetRange(min(one.end, covered.end), covered.end)
    return covered


def _refuse_unknown_rows(job: Job, piece: Slice, entries: Entries) -> None:
    asset, topic = f"raw/{job.table.name}", job.topic.topic
    if others := other_topics(entries, topic.id):
        raise FatalError(
            f"slice {piece.key} of {asset} holds records of another topic {topic.name}, {', '.join(sorted(others))}: it was "
            f"deleted and made again as {topic.id}",
            remedy="give the new topic a table of another name; the old one is the archive of the old topic",
        )
    table = None if entries else open_table(job.lake, asset)
    if table is not None and table.file_uris(partition_filters=[(tables.SLICE, "=", piece.key)]):
        raise FatalError(
            f"{asset} has rows of slice {piece.key}, but no commit in its log says which offsets they are",
            remedy="restore the table's log, or write the slice elsewhere and drop it here",
        )


def named(topic: str, lost: Lost) -> str:
    """Offset ranges for people.

    >>> named("clicks", {0: (OffsetRange(5, 9),)})
    'clicks/0@5-9'
    """
    return ", ".join(f"{topic}/{p}@{one.start}-{one.end}" for p, spans in sorted(lost.items()) for one in spans)


def arrivals(job: Job, piece: Slice, history: Sequence[Commit], plan: Plan) -> DataFrame:
    """All records of a slice as they came, in the columns of BASE."""
    fresh = kafka_source.read(job.spark, job.settings, job.table.topic, plan.to_read)
    if not plan.entries:
        return fresh
    stored = tables.read_table(job.spark, job.lake, f"raw/{job.table.name}", history[0].version)
    return stored.where(f"{tables.SLICE} = '{piece.key}'").select(*BASE).unionByName(fresh)


def look_back(job: Job, piece: Slice, history: Sequence[Commit], from_ms: int) -> DataFrame | None:
    """Records below a slice, stamped since `from_ms` or later: what can make one of its records a duplicate.

    None when nothing lies below the slice.
    """
    starts = {p: span_.start for p, span_ in job.topic.ranges(piece).items() if span_.start}
    return below(job, history, starts, from_ms, lambda key: key < piece.key)


def below(
    job: Job, history: Sequence[Commit], starts: Mapping[int, int], from_ms: int, among: Callable[[str], bool]
) -> DataFrame | None:
    """Records at offsets below `starts`, stamped since `from_ms` or later; `among` says which slices of raw can hold them.

    The broker's index names the first offset stamped at or after an instant, so all below that offset is too old. What
    raw holds is found by its own timestamps: the log may no longer begin where raw does.
    """
    from pyspark.sql import functions as F

    if not starts:
        return None
    frames: list[DataFrame] = []
    slices = by_slice(history)
    own = [key for key in slices if key is not None and among(key)]
    if own:
        lower = reduce(
            lambda left, right: left | right,
            ((F.col("partition") == p) & (F.col("offset") < start) for p, start in starts.items()),
        )
        stored = tables.read_table(job.spark, job.lake, f"raw/{job.table.name}", history[0].version)
        recent = F.col("timestamp") >= F.timestamp_millis(F.lit(from_ms))
        mine = F.col(tables.SLICE).isin(own) & (F.col("topic_id") == job.topic.topic.id)
        frames.append(stored.where(mine & recent & lower).select(*BASE))
    held = [held_ranges(slices[key], job.topic.topic.id) for key in own]
    if pieces := _below_in_kafka(job, held, starts, from_ms):
        frames.append(kafka_source.read(job.spark, job.settings, job.table.topic, pieces))
    return reduce(lambda left, right: left.unionByName(right), frames) if frames else None


def _below_in_kafka(job: Job, held: Sequence[Ranges], starts: Mapping[int, int], from_ms: int) -> list[Ranges]:
    """Offset ranges below `starts`, stamped since `from_ms` or later, that raw lacks."""
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
    for ranges in held:
        pieces = [left for whole in pieces for left in minus(whole, ranges) if span(left)]
    return pieces
