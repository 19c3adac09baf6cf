"""What Dagster's storage already holds of assets, partitions and checks.

Belongs here: reading Dagster's event storage beside a run. Does not belong here: what to report, storing it (store.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
from dagster._core.event_api import PartitionKeyFilter
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecord

PAGE = 100

ALIVE = [dg.DagsterRunStatus[name] for name in ("QUEUED", "NOT_STARTED", "STARTING", "STARTED", "CANCELING")]
"""States of a run that is on its way."""


@dataclass(frozen=True, slots=True)
class Materialized:
    """A stored materialization: `run_id` is empty for one that no run reported."""

    storage_id: int
    run_id: str
    partition: str | None
    at: float
    metadata: dict[str, Any]


def newest_materializations(
    instance: dg.DagsterInstance, asset: dg.AssetKey, partitions: Sequence[str | None]
) -> dict[str | None, Materialized]:
    """Per partition (None: the asset has none) its newest materialization, if it has one."""
    found: dict[str | None, Materialized] = {}
    keys = [key for key in partitions if key is not None]
    for some in (keys[at : at + 500] for at in range(0, len(keys), 500)):
        ids = instance.event_log_storage.get_latest_storage_id_by_partition(
            asset, dg.DagsterEventType.ASSET_MATERIALIZATION, set(some)
        )
        if ids:
            wanted = dg.AssetRecordsFilter(asset_key=asset, storage_ids=list(ids.values()))
            records = instance.fetch_materializations(wanted, limit=len(ids)).records
            found.update({one.partition_key: _materialized(one) for one in records})
    if None in partitions:
        whole = next(materializations(instance, asset, None), None)
        if whole is not None:
            found[None] = whole
    return found


def materializations(
    instance: dg.DagsterInstance, asset: dg.AssetKey, partition: str | None, before: int | None = None
) -> Iterator[Materialized]:
    """Materializations of one partition, or of an asset without partitions, newest first, in pages."""
    while True:
        wanted = dg.AssetRecordsFilter(
            asset_key=asset,
            asset_partitions=None if partition is None else [partition],
            before_storage_id=before,
        )
        records = instance.fetch_materializations(wanted, limit=PAGE).records
        for one in records:
            if one.partition_key == partition:
                yield _materialized(one)
        if len(records) < PAGE:
            return
        before = records[-1].storage_id


def newest_checks(
    instance: dg.DagsterInstance, keys: Sequence[dg.AssetCheckKey], partition: str | None
) -> dict[dg.AssetCheckKey, dg.AssetCheckEvaluation]:
    """The newest result of each check for a partition, or of those without one; none where a run died before it."""
    found = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys, PartitionKeyFilter(key=partition))
    return {key: data for key, one in found.items() if (data := _evaluation(one)) is not None}


def alive_runs(instance: dg.DagsterInstance) -> set[str]:
    """Runs that are on their way: they report what they made themselves."""
    return {run.run_id for run in instance.get_runs(dg.RunsFilter(statuses=ALIVE))}


def _materialized(one: dg.EventLogRecord) -> Materialized:
    made = one.asset_materialization
    assert made is not None
    values = {name: value.value for name, value in made.metadata.items()}
    return Materialized(one.storage_id, one.run_id, one.partition_key, one.timestamp, values)


def _evaluation(one: AssetCheckExecutionRecord) -> dg.AssetCheckEvaluation | None:
    told = None if one.event is None else one.event.dagster_event
    data = None if told is None else told.event_specific_data
    return data if isinstance(data, dg.AssetCheckEvaluation) else None


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
