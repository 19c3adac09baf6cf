"""What Dagster's storage already holds, and runless events into it.

Belongs here: the few places that touch Dagster's event storage beside a run. Does not belong here: what to report.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dagster as dg


def newest_metadata(instance: dg.DagsterInstance, asset: dg.AssetKey, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Per partition the metadata of its newest materialization; two indexed queries, whatever the history."""
    if not keys:
        return {}
    ids = instance.event_log_storage.get_latest_storage_id_by_partition(
        asset, dg.DagsterEventType.ASSET_MATERIALIZATION, set(keys)
    )
    if not ids:
        return {}
    found = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=asset, storage_ids=list(ids.values())), limit=len(ids)
    ).records
    return {
        one.partition_key: {name: value.value for name, value in one.asset_materialization.metadata.items()}
        for one in found
        if one.partition_key is not None and one.asset_materialization is not None
    }


def without_known(
    instance: dg.DagsterInstance, events: Sequence[dg.AssetMaterialization]
) -> list[dg.AssetMaterialization]:
    """Drop events that say of their slice what its newest materialization says already.

    A tick that was killed half way through is run again, and the storage takes every event as a new one.
    """
    known: dict[dg.AssetKey, dict[str, dict[str, Any]]] = {}
    for asset in {event.asset_key for event in events}:
        keys = [event.partition for event in events if event.asset_key == asset and event.partition is not None]
        known[asset] = newest_metadata(instance, asset, keys)
    compared = ("kafka/topic_id", "kafka/ranges", "slice/closed")
    news = []
    for event in events:
        before = known[event.asset_key].get(event.partition or "", {})
        if any(before.get(name) != event.metadata[name].value for name in compared):
            news.append(event)
    return news
