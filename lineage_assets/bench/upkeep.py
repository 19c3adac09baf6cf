"""Maintenance inside the measured time: a Delta checkpoint of each table, and the compaction of a closed slice.

Belongs here: having it happen beside the stream, and saying how long it took. Does not belong here: the maintenance itself
(lineage_assets/maintenance), which `lineage maintain` runs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from lineage_assets.bench.rig import Rig
from lineage_assets.errors import FatalError
from lineage_assets.lineage.commits import open_table
from lineage_assets.maintenance import compaction
from lineage_assets.maintenance.policy import Policy
from lineage_assets.reporting.collector import Managed
from lineage_assets.spark.event_table import EventTable

FEW = 2
"""More files than these are compacted: a slice that was closed a moment ago has not gathered many."""


def maintain(rig: Rig, table: EventTable) -> Mapping[str, Any]:
    """Compact the oldest closed slice of raw and of silver, and write a checkpoint of each log; seconds that it took."""
    managed = [Managed(f"{layer}/{table.name}", table.grain) for layer in ("raw", "silver")]
    began = time.monotonic()
    policy = Policy(most_files=FEW)
    # The oldest of each: an hour that turns meanwhile would have another one rewritten.
    oldest = {one.asset: one for one in reversed(list(compaction.wanted(rig.settings.lake_env, managed, policy)))}
    found = [oldest[one.asset] for one in managed if one.asset in oldest]
    done = compaction.compact(rig.settings, found, policy, lambda text: rig.say("maintenance", text))
    took_s = time.monotonic() - began
    if {one.asset for one in done if one.version is not None} != {one.asset for one in managed}:
        raise FatalError(
            f"{', '.join(one.asset for one in managed)}: not both had a closed slice to compact",
            remedy="look at the ledger's cuts of the topic",
        )
    began = time.monotonic()
    for one in managed:
        opened = open_table(rig.settings.lake_env, one.asset)
        assert opened is not None
        # By deltalake, off Spark's hot path; it keeps row tracking.
        opened.create_checkpoint()
    files = {one.asset: {"files_before": one.files_before, "files_after": one.files_after} for one in done}
    return {**files, "compaction_s": round(took_s, 2), "checkpoints_s": round(time.monotonic() - began, 2)}
