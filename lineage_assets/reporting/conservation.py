"""Whether a topic's records are all in raw, once, and raw's decisions in silver: rows against records against offsets.

Belongs here: counting rows without Spark, and holding them against what commits say and the broker has. Does not belong
here: records against the ledger and Dagster (differences.py), verdicts of checks (quality/checks.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lineage_assets.errors import ContractError
from lineage_assets.kafka import client, gaps
from lineage_assets.kafka.cuts import SlicedTopic
from lineage_assets.lineage import ledger
from lineage_assets.lineage.commits import Lake, open_table
from lineage_assets.lineage.content import lost_offsets
from lineage_assets.lineage.ledger import TopicRef
from lineage_assets.lineage.offsets import OffsetRange
from lineage_assets.lineage.record import CommitRecord
from lineage_assets.lineage.slices import Grain
from lineage_assets.reporting.covered import Key
from lineage_assets.reporting.differences import Difference, Table
from lineage_assets.settings import Settings

REMAKE = "materialize the slice again"


@dataclass(frozen=True, slots=True)
class Source:
    """A topic and the name of the tables that keep it: `raw/<table>` and `silver/<table>`."""

    topic: str
    table: str
    grain: Grain


@dataclass(frozen=True, slots=True)
class Counted:
    """Rows of one partition of a slice."""

    rows: int
    offsets: int
    lowest: int
    highest: int


def differences(
    settings: Settings, sources: Sequence[Source], tables: Mapping[str, Table], *, with_topics: bool = True
) -> Iterator[Difference]:
    """Rows against records of raw and silver, and with a broker, raw against the topic."""
    lake = settings.lake_env
    for source in sources:
        raw, silver = tables.get(f"raw/{source.table}"), tables.get(f"silver/{source.table}")
        sliced = None
        if raw is not None and with_topics:
            try:
                sliced = _sliced(settings, lake, source)
            except ContractError as error:
                what = f"raw cannot be held against its topic: {error.message}"
                yield Difference("topic", raw.managed.asset, None, what, error.remedy, known=True)
        if raw is not None:
            yield from _rows_of_raw(settings, lake, source, raw, sliced)
            if sliced is not None:
                yield from _offsets(raw, sliced)
        if silver is not None:
            yield from _rows_of_silver(lake, silver)


def _sliced(settings: Settings, lake: Lake, source: Source) -> SlicedTopic | None:
    """The topic as of now with the cuts that it has; None as long as it has none. Takes none."""
    topic = client.describe(settings, source.topic)
    cuts = ledger.cuts(lake, TopicRef(settings.kafka_alias, source.topic, topic.id))
    if not cuts:
        return None
    begin, end = client.begin_offsets(settings, topic), client.end_offsets(settings, topic)
    return SlicedTopic(topic, source.grain, cuts, begin, end)


def _offsets(raw: Table, sliced: SlicedTopic) -> Iterator[Difference]:
    """The records' ranges against the topic's cuts and ends: no hole below the newest held offset, no overlap."""
    asset, topic_id = raw.managed.asset, sliced.topic.id
    held: dict[int, list[tuple[OffsetRange, Key]]] = defaultdict(list)
    lost: dict[int, list[OffsetRange]] = defaultdict(list)
    covers = {piece.key: ranges for piece, ranges in sliced.slices()}
    for key, record in _records(raw):
        for topic in (one for one in record.topics if one.topic_id == topic_id):
            for partition, span in topic.ranges.items():
                allowed = covers.get(key or "", {}).get(partition)
                if span.span and (allowed is None or span.start < allowed.start or span.end > allowed.end):
                    what = f"partition {partition}: it holds {span}, and its cuts are {allowed or 'not there'}"
                    yield Difference("topic", asset, key, what, "find out which writer took offsets of another slice")
                if span.span:
                    held[partition].append((span, key))
        for partition, spans in lost_offsets(record).items():
            lost[partition] += spans
            told = ", ".join(f"partition {partition}: {one}" for one in spans)
            what = f"{told}: removed by retention before they were read"
            yield Difference("topic", asset, key, what, "", known=True)
    for partition, spans_of in sorted(held.items()):
        yield from _in_a_row(asset, partition, spans_of, lost[partition], sliced)


def _in_a_row(
    asset: str,
    partition: int,
    held: Iterable[tuple[OffsetRange, Key]],
    lost: Iterable[OffsetRange],
    sliced: SlicedTopic,
) -> Iterator[Difference]:
    """One partition: from the first cut to the newest held offset, everything once."""
    at = sliced.cuts[0].offsets.get(partition, 0)
    spans = sorted([*held, *((one, None) for one in lost)], key=lambda one: (one[0], one[1] or ""))
    for span, key in spans:
        if span.start > at:
            what = f"partition {partition}: offsets {OffsetRange(at, span.start)} are missing before it"
            yield Difference("topic", asset, key, what, "materialize the slices that have them")
        elif span.start < at and key is not None and span.end > span.start:
            what = f"partition {partition}: offsets {OffsetRange(span.start, min(at, span.end))} are in two slices"
            yield Difference("topic", asset, key, what, REMAKE)
        at = max(at, span.end)
    end = sliced.end.get(partition, 0)
    if at > end:
        what = f"partition {partition}: it holds offsets up to {at}, and the topic ends at {end}"
        yield Difference(
            "topic", asset, None, what, "the broker lost records that were read: do not remake these slices"
        )


def _records(table: Table) -> list[tuple[Key, CommitRecord]]:
    return [
        (key, state.whole.record)
        for key, state in sorted(table.slices.states.items(), key=lambda one: one[0] or "")
        if state.whole.record is not None and not state.whole.gap
    ]


def _rows_of_raw(
    settings: Settings, lake: Lake, source: Source, raw: Table, sliced: SlicedTopic | None
) -> Iterator[Difference]:
    """Per slice and partition: rows, distinct offsets and their ends against the ranges; per slice the fates."""
    asset = raw.managed.asset
    for key, record in _records(raw):
        counted, fates = _count(lake, raw, key, "partition", "offset", "fate")
        ranges = {p: one for topic in record.topics for p, one in topic.ranges.items() if one.span}
        if len({topic.topic_id for topic in record.topics if any(one.span for one in topic.ranges.values())}) > 1:
            continue  # two topics of one name in one slice: offsets of both stand side by side, and say so in its checks
        for partition in sorted(ranges.keys() | counted.keys()):
            found = counted.get(partition, Counted(0, 0, -1, -1))
            span = ranges.get(partition, OffsetRange(0, 0))
            if found.offsets != found.rows:
                what = f"partition {partition}: {found.rows - found.offsets} rows repeat an offset"
                yield Difference("rows", asset, key, what, REMAKE)
            if found.rows and not (span.start <= found.lowest and found.highest < span.end):
                what = f"partition {partition}: rows from {found.lowest} to {found.highest}, and it should hold {span}"
                yield Difference("rows", asset, key, what, REMAKE)
            missing = span.span - found.offsets - _explained(record, partition, span)
            if missing and sliced is not None:
                missing = _missing_by_broker(settings, source, sliced, record, partition, span, found, missing)
            if missing:
                what = f"partition {partition}: {missing} of {span.span} offsets {span} have neither row nor gap"
                yield Difference("rows", asset, key, what, REMAKE)
        stated = dict(sorted((name, number) for name, number in record.counts.items() if number and name != "late"))
        if fates != stated:
            yield Difference("rows", asset, key, f"its rows are {fates}, and its records say {stated}", REMAKE)


def _explained(record: CommitRecord, partition: int, span: OffsetRange) -> int:
    """Offsets of a range that have no row for a reason: measured gaps, and losses inside it."""
    gone = sum(record.stated.get("gaps", {}).get(str(partition), {}).values())
    lost = lost_offsets(record).get(partition, ())
    return int(gone) + sum(max(0, min(span.end, one.end) - max(span.start, one.start)) for one in lost)


def _missing_by_broker(
    settings: Settings,
    source: Source,
    sliced: SlicedTopic,
    record: CommitRecord,
    partition: int,
    span: OffsetRange,
    found: Counted,
    missing: int,
) -> int:
    """Gaps of an open slice are not measured yet: a reader is asked what it is given, where the topic still has it all."""
    if sliced.begin.get(partition, 0) > span.start or all(one.topic_id != sliced.topic.id for one in record.topics):
        return missing
    return gaps.measure(settings, source.topic, {partition: span})[partition].committed - found.offsets


def _rows_of_silver(lake: Lake, silver: Table) -> Iterator[Difference]:
    """Per slice: one row for each ok record of raw's decision, and as many late ones."""
    asset = silver.managed.asset
    for key, record in _records(silver):
        counted, marks = _count(
            lake, silver, key, "_partition", "_offset", "CASE WHEN _late_by_s IS NULL THEN 'in time' ELSE 'late' END"
        )
        rows, offsets = sum(one.rows for one in counted.values()), sum(one.offsets for one in counted.values())
        if rows != offsets:
            yield Difference("rows", asset, key, f"{rows - offsets} rows repeat an offset", REMAKE)
        for what, there, said in (
            ("rows", rows, record.counts.get("ok", 0)),
            ("late rows", marks.get("late", 0), record.counts.get("late", 0)),
        ):
            if there != said:
                yield Difference("rows", asset, key, f"{there} {what}, and its records say {said}", REMAKE)


def _count(
    lake: Lake, table: Table, key: Key, partition: str, offset: str, mark: str
) -> tuple[dict[int, Counted], dict[str, int]]:
    """Rows of a slice by partition and by some mark, at the version whose records were read."""
    import duckdb
    import pyarrow.compute as pc

    opened = open_table(lake, table.managed.asset, table.newest)
    assert opened is not None
    columns = {field.name for field in opened.schema().fields}
    wanted = [name for name in (partition, offset, "fate", "_late_by_s") if name in columns]
    rows = opened.to_pyarrow_dataset().scanner(columns=wanted, filter=pc.field("_slice") == key).to_reader()
    with duckdb.connect() as connection:
        connection.register("arriving", rows)
        # A reader is read once: both groupings come from one pass.
        found = connection.sql(
            f'SELECT "{partition}", {mark}, count(*), count(DISTINCT "{offset}"), min("{offset}"), max("{offset}"), '
            f'grouping("{partition}") FROM arriving GROUP BY GROUPING SETS (("{partition}"), ({mark}))'
        ).fetchall()
    by_partition = {int(row[0]): Counted(*(int(one) for one in row[2:6])) for row in found if not row[6]}
    return by_partition, dict(sorted((str(row[1]), int(row[2])) for row in found if row[6]))
