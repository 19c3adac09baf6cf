"""After a restore: bring raw and silver back to one common cut, so that a stream can go on from what they hold.

Belongs here: finding that cut, and the restores with their records. Does not belong here: the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lineage_assets.errors import TransientError
from lineage_assets.lineage import lease
from lineage_assets.lineage.commits import Commit, Tail
from lineage_assets.lineage.content import DATA_KINDS, standing
from lineage_assets.lineage.record import CommitRecord
from lineage_assets.settings import Settings
from lineage_assets.spark import tables
from lineage_assets.spark.event_table import EventTable
from lineage_assets.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def from_table(settings: Settings, table: EventTable) -> dict[str, int]:
    """Restore silver to where it knew no more than raw holds now, and say of both that this is meant.

    Returns the version whose content each table has. What raw holds and silver lacks is made again by the stream's start,
    what raw lacks is read again from Kafka. Raises TransientError while a stream of the topic runs.
    """
    lake = settings.lake_env
    if running := lease.live(lake, table.topic):
        raise TransientError(
            f"a stream of {table.topic} runs, as process {running.pid} on {running.host}",
            remedy=f"`lineage stream stop {table.topic}` first",
        )
    raw, silver = Tail(lake, f"raw/{table.name}"), Tail(lake, f"silver/{table.name}")
    targets = {raw: _newest(raw.read()), silver: common_cut(raw.read(), silver.read())}
    with session(settings) as spark:
        for tail, version in targets.items():
            if version is not None:
                _restore(spark, settings, table, tail, version)
    return {tail.asset: version for tail, version in targets.items() if version is not None}


def common_cut(raw: Sequence[Commit], silver: Sequence[Commit]) -> int | None:
    """The newest version of silver that was made only of what raw still holds. Histories are newest first."""
    newest = -1 if not raw else raw[0].version
    undone = [(one.restored_to, one.version) for one in standing(raw) if one.restored_to is not None]
    cut = _newest(silver)
    for commit in standing(silver):
        record = commit.record
        if record is None or record.kind not in DATA_KINDS:
            continue
        consumed = (one.commits for one in record.tables if one.commits is not None)
        # The last of a range stands for it: what was undone in raw is undone from some version on.
        if any(last - 1 > newest or any(low < last - 1 < high for low, high in undone) for _, last in consumed):
            cut = commit.version - 1
    return cut


def _newest(history: Sequence[Commit]) -> int | None:
    return history[0].version if history else None


def _restore(spark: SparkSession, settings: Settings, table: EventTable, tail: Tail, version: int) -> None:
    record = CommitRecord(
        asset=tail.asset,
        env=settings.env,
        kind="restore",
        slice=None,
        inputs=(),
        counts={},
        reasons={},
        schema="",
        contract=table.contract.hash,
        code=table.code,
        run=f"resume/{table.topic}",
        written_at=datetime.now(UTC),
        stated={"to": version},
    )
    tables.restore(spark, tail, version, record)
