"""A topic's slices as runless materializations.

Belongs here: which slices are news and what each says. Does not belong here: taking cuts, Dagster's storage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import dagster as dg

from lineage_assets.kafka.cuts import SlicedTopic, slice_topic
from lineage_assets.kafka.registry import Registry
from lineage_assets.lineage.content import held_ranges
from lineage_assets.lineage.logs import Logs
from lineage_assets.lineage.offsets import Ranges, clip, minus, span
from lineage_assets.lineage.record import SchemaUse
from lineage_assets.lineage.schemas import fingerprint
from lineage_assets.lineage.slices import Grain, Slice
from lineage_assets.reporting.metadata import number, ranges_text
from lineage_assets.settings import Settings


@dataclass(frozen=True, slots=True)
class TopicAsset:
    """A declared topic, as far as reporting it needs to know."""

    key: dg.AssetKey
    name: str
    format: str
    grain: Grain
    since: datetime
    transactional: bool = False


def sliced(settings: Settings, topic: TopicAsset) -> SlicedTopic:
    """The topic's cuts and offsets as of now; takes the cuts that are due."""
    return slice_topic(settings, settings.lake_env, topic.name, topic.grain, topic.since)


def report(
    settings: Settings, topic: TopicAsset, reader: str | None, before: Reported, logs: Logs | None = None
) -> tuple[list[dg.AssetMaterialization], Reported]:
    """Materializations of the slices that are news since `before`. `reader` names the raw table that consumes the topic.

    Raises ContractError for a topic that does not exist, TransientError when broker or registry are away.
    """
    now = sliced(settings, topic)
    news, after = to_report(now, before)
    if not news:
        return [], after
    schemas = registered(settings, f"{topic.name}-value") if topic.format == "avro" else ()
    behind = None if reader is None else lag_of(settings, now, reader, logs)
    return [
        materialization(topic.key, now, piece, ranges, schemas, behind, topic.transactional) for piece, ranges in news
    ], after


def registered(settings: Settings, subject: str) -> tuple[SchemaUse, ...]:
    """All versions of a subject, oldest first."""
    return tuple(
        SchemaUse(subject, one.id, one.version, fingerprint(one.text)) for one in Registry(settings).versions(subject)
    )


def lag_of(settings: Settings, now: SlicedTopic, reader: str, logs: Logs | None = None) -> int:
    """Records that the topic has and raw lacks, by raw's own records: a stream commits no offsets to Kafka."""
    stored = (logs or Logs()).slices(settings.lake_env, f"raw/{reader}")
    missing = 0
    for piece, ranges in now.slices():
        for left in minus(ranges, held_ranges([stored[piece.key]] if piece.key in stored else (), now.topic.id)):
            readable, _ = clip(left, now.begin)
            missing += span(readable)
    return missing


@dataclass(frozen=True, slots=True)
class Reported:
    """What was reported of a topic before: closed slices up to one, and the open one at some offsets.

    Kept as a sensor's cursor. Another topic id is another topic, of which nothing was reported.
    """

    topic_id: str = ""
    closed_until: str = ""
    open_ends: Mapping[str, list[str]] | None = None

    def to_json(self) -> dict[str, Any]:
        return {"topic_id": self.topic_id, "closed_until": self.closed_until, "open_ends": self.open_ends}


def to_report(sliced: SlicedTopic, before: Reported) -> tuple[list[tuple[Slice, Ranges]], Reported]:
    """The slices that are news, oldest first, and what is reported afterwards. A closed slice without a record is none."""
    if before.topic_id != sliced.topic.id:
        before = Reported(sliced.topic.id)
    *closed, (opened, growing) = sliced.slices()
    news = [(piece, ranges) for piece, ranges in closed if piece.key > before.closed_until and span(ranges)]
    ends = ranges_text(growing)
    if span(growing) and ends != before.open_ends:
        news.append((opened, growing))
    closed_until = closed[-1][0].key if closed else before.closed_until
    return news, Reported(sliced.topic.id, closed_until, ends)


def materialization(
    asset: dg.AssetKey,
    sliced: SlicedTopic,
    piece: Slice,
    ranges: Ranges,
    schemas: Sequence[SchemaUse],
    lag_records: int | None,
    transactional: bool = False,
) -> dg.AssetMaterialization:
    """One slice of a topic. Span and record count are two values: compaction and transactions leave holes."""
    metadata: dict[str, Any] = {
        "kafka/topic_id": sliced.topic.id,
        "kafka/ranges": dg.MetadataValue.json(ranges_text(ranges)),
        "kafka/offset_span": number(span(ranges)),
        "kafka/partitions": len(sliced.topic.partitions),
        "slice/closed": piece != sliced.open_slice,
    }
    if not (sliced.topic.compacted or transactional):
        metadata["kafka/records"] = number(span(ranges))
    if lag_records is not None:
        metadata["kafka/lag"] = number(lag_records)
    if schemas:
        metadata["schema/versions"] = dg.MetadataValue.json(
            [
                {"subject": one.subject, "id": one.id, "version": one.version, "fingerprint": one.fingerprint}
                for one in schemas
            ]
        )
        metadata["schema/fingerprint"] = schemas[-1].fingerprint
    return dg.AssetMaterialization(asset_key=asset, partition=piece.key, metadata=metadata)
