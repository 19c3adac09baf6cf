"""Maintenance inside the measured time: a Delta checkpoint of each table, and the compaction of a closed slice.

Belongs here: having it happen beside the stream, and saying how long it took. Does not belong here: the maintenance that a
user runs (`lineage maintain`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from lineage_assets.bench.rig import Rig
from lineage_assets.lineage import record as records
from lineage_assets.lineage.commits import THROUGH, by_slice, commits, open_table, summary
from lineage_assets.spark.event_table import EventTable


def maintain(rig: Rig, table: EventTable) -> Mapping[str, Any]:
    """Compact the oldest closed slice of raw and of silver, and write a checkpoint of each log; seconds that each took."""
    told: dict[str, Any] = {}
    for asset in (f"raw/{table.name}", f"silver/{table.name}"):
        rig.say("maintenance", f"compacting the oldest slice of {asset}, writing a checkpoint")
        began = time.monotonic()
        before, after = compact_oldest(rig, asset)
        compacted = time.monotonic()
        opened = open_table(rig.settings.lake_env, asset)
        assert opened is not None
        # By deltalake, off Spark's hot path; it keeps row tracking.
        opened.create_checkpoint()
        told[asset] = {
            "files_before": before,
            "files_after": after,
            "compaction_s": round(compacted - began, 2),
            "checkpoint_s": round(time.monotonic() - compacted, 2),
        }
    return told


def compact_oldest(rig: Rig, asset: str) -> tuple[int, int]:
    """OPTIMIZE the oldest slice, whose record then says all that its commits said; its files before and after."""
    from lineage_assets.spark.session import session, translated
    from lineage_assets.spark.tables import SLICE, USER_METADATA

    lake = rig.settings.lake_env
    slices = {key: entries for key, entries in by_slice(commits(lake, asset)).items() if key is not None}
    oldest = min(slices)
    entries = slices[oldest]
    whole = summary(entries)
    stated = {**whole.stated, THROUGH: entries[0][0].version}
    record = replace(whole, kind="compact", run="bench/maintain", written_at=datetime.now(UTC), stated=stated)

    def files() -> int:
        table = open_table(lake, asset)
        return len(table.file_uris(partition_filters=[(SLICE, "=", oldest)])) if table is not None else 0

    before = files()
    with session(rig.settings) as spark, translated(rig.settings):
        spark.conf.set(USER_METADATA, records.to_json(record))
        spark.sql(f"OPTIMIZE delta.`{lake.path(asset)}` WHERE {SLICE} = '{oldest}'").collect()
    return before, files()
