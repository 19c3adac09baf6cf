"""Gaps that a stream left to be measured later: by kind, once a slice is closed, and its conservation by what they are.

Belongs here: from a slice's record and its rows to the record that says what its gaps are. Does not belong here: the
measuring itself (kafka/gaps.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lineage_assets.kafka import client, gaps
from lineage_assets.kafka.client import Topic
from lineage_assets.kafka.gaps import Delivered
from lineage_assets.lineage.commits import Lake, open_table
from lineage_assets.lineage.content import lost_offsets
from lineage_assets.lineage.offsets import OffsetRange, Ranges
from lineage_assets.lineage.record import CheckOutcome, CommitRecord, TopicInput
from lineage_assets.quality.checks import CONSERVATION
from lineage_assets.settings import Settings

UNMEASURED = "unmeasured"
"""The kind of gaps that were counted and not looked into."""


def unmeasured(record: CommitRecord) -> dict[int, int]:
    """Per partition how many gaps a record states without their kind."""
    stated = record.stated.get("gaps", {})
    return {int(p): int(kinds[UNMEASURED]) for p, kinds in stated.items() if kinds.get(UNMEASURED)}


def measured(settings: Settings, record: CommitRecord) -> CommitRecord:
    """The record of a closed slice of raw with its gaps measured; as it is when the topic cannot tell any more."""
    wanted = unmeasured(record)
    held = [one for one in record.topics if any(span.span for span in one.ranges.values())]
    if not wanted or len(held) != 1:
        return record
    topic = client.describe(settings, held[0].topic)
    if topic.id != held[0].topic_id:
        return record
    begin = client.begin_offsets(settings, topic)
    readable = {
        p: held[0].ranges[p] for p in wanted if p in held[0].ranges and begin.get(p, 0) <= held[0].ranges[p].start
    }
    if not readable:
        return record
    delivered = gaps.measure(settings, held[0].topic, readable)
    rows = rows_by_partition(settings.lake_env, record.asset, record.slice or "")
    return with_kinds(record, held[0], topic, delivered, rows)


def with_kinds(
    record: CommitRecord, held: TopicInput, topic: Topic, delivered: Mapping[int, Delivered], rows: Mapping[int, int]
) -> CommitRecord:
    """The record with the kinds of what was measured, and conservation as it is by them."""
    found: dict[str, dict[str, int]] = {p: dict(kinds) for p, kinds in record.stated.get("gaps", {}).items()}
    for partition, one in delivered.items():
        holes = held.ranges[partition].span - one.uncommitted - _lost_inside(record, partition, held.ranges[partition])
        kinds = {"aborted": one.aborted, "compacted" if topic.compacted else "markers": holes}
        found[str(partition)] = {kind: number for kind, number in kinds.items() if number > 0}
    stated = {**record.stated, "gaps": {p: kinds for p, kinds in sorted(found.items()) if kinds}}
    again = replace(record, stated=stated)
    return replace(again, checks=tuple(_evaluated(again, held.ranges, rows, one) for one in record.checks))


def as_in(record: CommitRecord, raw: CommitRecord) -> CommitRecord:
    """Silver's record with the gaps and the conservation that raw's record states of the same slice."""
    if "gaps" not in raw.stated or not unmeasured(record):
        return record
    said = {one.name: one for one in raw.checks}
    checks = tuple(said.get(one.name, one) if one.name == CONSERVATION else one for one in record.checks)
    return replace(record, stated={**record.stated, "gaps": raw.stated["gaps"]}, checks=checks)


def rows_by_partition(lake: Lake, asset: str, key: str) -> dict[int, int]:
    """How many rows of a slice are of which partition of the topic; one column is read."""
    import pyarrow.compute as pc

    table = open_table(lake, asset)
    if table is None:
        return {}
    counts: dict[int, int] = {}
    scanner = table.to_pyarrow_dataset().scanner(columns=["partition"], filter=pc.field("_slice") == key)
    for batch in scanner.to_batches():
        for one in pc.value_counts(batch.column(0)).to_pylist():
            counts[int(one["values"])] = counts.get(int(one["values"]), 0) + int(one["counts"])
    return counts


def _evaluated(record: CommitRecord, ranges: Ranges, rows: Mapping[int, int], check: CheckOutcome) -> CheckOutcome:
    if check.name != CONSERVATION:
        return check
    gaps_of: dict[str, Any] = record.stated.get("gaps", {})
    missing = sum(
        abs(span.span - rows.get(p, 0) - sum(gaps_of.get(str(p), {}).values()) - _lost_inside(record, p, span))
        for p, span in ranges.items()
    )
    missing += sum(rows[p] for p in rows.keys() - ranges.keys())
    missing += sum(one.span for spans in lost_offsets(record).values() for one in spans)
    return replace(check, passed=missing == 0, severity="ERROR", failed=missing)


def _lost_inside(record: CommitRecord, partition: int, covered: OffsetRange) -> int:
    spans = lost_offsets(record).get(partition, ())
    return sum(max(0, min(covered.end, one.end) - max(covered.start, one.start)) for one in spans)
