"""Topics that were deleted and made again, and that somebody said are to go on in the same tables.

Belongs here: their table. Does not belong here: noticing that a topic is another one (spark/stream.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from lineage_assets.lineage.commits import Lake, open_table
from lineage_assets.lineage.ledger.tables import LedgerTable
from lineage_assets.lineage.ledger.topic_cuts import TopicRef

ACCEPTED = "ledger/accepted_topics"


def accepted(lake: Lake, topic: TopicRef) -> set[str]:
    """Ids of the earlier topics of that name whose records may stand beside this one's."""
    table = open_table(lake, ACCEPTED)
    return set() if table is None else _before(table, topic)


def accept(lake: Lake, topic: TopicRef, before: Sequence[str]) -> list[str]:
    """Say that a topic goes on where those of these ids ended. Returns the ids that were not accepted before."""
    new: list[str] = []

    def missing(table: Any) -> list[dict[str, Any]]:
        new[:] = sorted(set(before) - _before(table, topic))
        fixed = {"cluster": topic.cluster, "topic": topic.name, "topic_id": topic.topic_id}
        return [{**fixed, "before": one, "accepted_at": datetime.now(UTC)} for one in new]

    TABLE.append(lake, f"the topics before {topic.name}", missing)
    return new


def _schema() -> Any:
    import pyarrow as pa

    names = [(name, pa.string()) for name in ("cluster", "topic", "topic_id", "before")]
    return pa.schema([*names, ("accepted_at", pa.timestamp("us", tz="UTC"))])


TABLE = LedgerTable(ACCEPTED, _schema, ["cluster"])


def _before(table: Any, topic: TopicRef) -> set[str]:
    mine = [("cluster", "=", topic.cluster), ("topic_id", "=", topic.topic_id)]
    return set(table.to_pyarrow_table(filters=mine, columns=["before"])["before"].to_pylist())
