"""The ledger: Delta tables with what no commit can hold for good. Today: the cuts.

Belongs here: the ledger's tables, their schemas, and their rule of who wins.
Does not belong here: how a cut is found (kafka/cuts.py), what a Delta log says (commits.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lineage_assets.errors import TransientError
from lineage_assets.lineage.commits import Lake, open_table
from lineage_assets.lineage.slices import Cut

CUTS = "ledger/cuts"
ATTEMPTS = 50
"""Writers of the ledger are few and a commit takes milliseconds: 50 lost races in a row mean a fault."""


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


def add_cuts(lake: Lake, topic: TopicRef, wanted: Sequence[Cut], how: str) -> list[Cut]:
    """Insert cuts and return all that stand. The first insert of an instant wins; a later one is ignored.

    `how` is `index` (by the broker's timestamp index) or `arrival`. The insert is a compare-and-swap on the table's
    version: deltalake refuses an append, when told not to retry, if another writer was there since the table was read.
    """
    from deltalake import CommitProperties, write_deltalake
    from deltalake.exceptions import CommitFailedError

    for _ in range(ATTEMPTS):
        table = open_table(lake, CUTS) or _create(lake)
        standing = _read(table, topic)
        known = {cut.at for cut in standing}
        new = [cut for cut in wanted if cut.at not in known]
        if not new:
            return standing
        try:
            write_deltalake(
                table, _rows(topic, new, how), mode="append", commit_properties=CommitProperties(max_commit_retries=0)
            )
        except CommitFailedError:
            continue
        return sorted([*standing, *new], key=lambda cut: cut.at)
    raise TransientError(
        f"{ATTEMPTS} attempts to add cuts of {topic.name} to {lake.path(CUTS)} lost to other writers",
        remedy="try again",
    )


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


def _create(lake: Lake) -> Any:
    """Make the table; of several writers that do so at once the first makes it, and the others find it there."""
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError

    options = dict(lake.storage_options) or None
    try:
        DeltaTable.create(lake.path(CUTS), _schema(), mode="ignore", partition_by=["topic_id"], storage_options=options)
    except CommitFailedError:
        if open_table(lake, CUTS) is None:
            raise
    return open_table(lake, CUTS)


def _rows(topic: TopicRef, new: Sequence[Cut], how: str) -> Any:
    import pyarrow as pa

    fixed = {"cluster": topic.cluster, "topic": topic.name, "topic_id": topic.topic_id}
    now = datetime.now(UTC)
    rows = [
        {**fixed, "at": cut.at, "partition": partition, "offset": offset, "how": how, "taken_at": now}
        for cut in new
        for partition, offset in sorted(cut.offsets.items())
    ]
    return pa.Table.from_pylist(rows, schema=_schema())


def _read(table: Any, topic: TopicRef) -> list[Cut]:
    by_instant: dict[datetime, dict[int, int]] = defaultdict(dict)
    columns = ["at", "partition", "offset"]
    rows = table.to_pyarrow_table(filters=[("topic_id", "=", topic.topic_id)], columns=columns).to_pylist()
    for row in rows:
        by_instant[row["at"].astimezone(UTC)][row["partition"]] = row["offset"]
    return [Cut(at, offsets) for at, offsets in sorted(by_instant.items())]
