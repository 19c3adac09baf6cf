"""Cuts of topics, by topic id: written once, by whoever comes first.

Belongs here: their table, and its rule of who wins. Does not belong here: how a cut is found (kafka/cuts.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lineage_assets.lineage.commits import Lake, open_table
from lineage_assets.lineage.ledger.tables import LedgerTable
from lineage_assets.lineage.slices import Cut

CUTS = "ledger/cuts"


@dataclass(frozen=True, slots=True)
class TopicRef:
    """A topic as the ledger knows it. `topic_id` is the broker's UUID: a recreated topic is another topic."""

    cluster: str
    name: str
    topic_id: str


def cuts(lake: Lake, topic: TopicRef) -> list[Cut]:
    """All cuts of a topic, oldest first."""
    table = open_table(lake, CUTS)
    return [] if table is None else _read(table, topic)


def topics(lake: Lake) -> list[TopicRef]:
    """Every topic that has cuts, those that were deleted since included."""
    table = open_table(lake, CUTS)
    if table is None:
        return []
    rows = table.to_pyarrow_table(columns=["cluster", "topic", "topic_id"]).group_by(["cluster", "topic", "topic_id"])
    found = rows.aggregate([]).to_pylist()
    return sorted(
        (TopicRef(one["cluster"], one["topic"], one["topic_id"]) for one in found),
        key=lambda one: (one.cluster, one.name, one.topic_id),
    )


def add_cuts(lake: Lake, topic: TopicRef, wanted: Sequence[Cut], how: str) -> list[Cut]:
    """Insert cuts and return all that stand. The first insert of an instant wins; a later one is ignored.

    `how` is `index` (by the broker's timestamp index) or `arrival`.
    """
    stands: list[Cut] = []

    def missing(table: Any) -> list[dict[str, Any]]:
        standing = _read(table, topic)
        known = {cut.at for cut in standing}
        new = [cut for cut in wanted if cut.at not in known]
        stands[:] = sorted([*standing, *new], key=lambda cut: cut.at)
        return _rows(topic, new, how)

    TABLE.append(lake, f"cuts of {topic.name}", missing)
    return stands


def _schema() -> Any:
    import pyarrow as pa

    instant = pa.timestamp("us", tz="UTC")
    return pa.schema(
        [
            ("cluster", pa.string()),
            ("topic", pa.string()),
            ("topic_id", pa.string()),
            ("at", instant),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("how", pa.string()),
            ("taken_at", instant),
        ]
    )


TABLE = LedgerTable(CUTS, _schema, ["topic_id"], ("topic_id", "at"))


def _rows(topic: TopicRef, new: Sequence[Cut], how: str) -> list[dict[str, Any]]:
    fixed = {"cluster": topic.cluster, "topic": topic.name, "topic_id": topic.topic_id}
    now = datetime.now(UTC)
    return [
        {**fixed, "at": cut.at, "partition": partition, "offset": offset, "how": how, "taken_at": now}
        for cut in new
        for partition, offset in sorted(cut.offsets.items())
    ]


def _read(table: Any, topic: TopicRef) -> list[Cut]:
    by_instant: dict[datetime, dict[int, int]] = defaultdict(dict)
    columns = ["at", "partition", "offset"]
    rows = table.to_pyarrow_table(filters=[("topic_id", "=", topic.topic_id)], columns=columns).to_pylist()
    for row in rows:
        by_instant[row["at"].astimezone(UTC)][row["partition"]] = row["offset"]
    return [Cut(at, offsets) for at, offsets in sorted(by_instant.items())]
