"""Many runless events into Dagster's storage at once: all of them or none, with times of their own.

Belongs here: the one place that uses private functions of Dagster's event storage. Does not belong here: what to report.

Dagster's public call stores one event at a time with the time of now, and refuses a second check result of a partition.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData as Target,
)
from dagster._core.events import AssetObservationData, StepMaterializationData
from dagster._core.events.log import EventLogEntry
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, SqlEventLogStorageTable
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster._serdes import serialize_value
from sqlalchemy import func, select

from lineage_assets.errors import FatalError, TransientError

Event = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation
Place = tuple[dg.AssetKey, str | None]
"""An asset, or one partition of it."""

MATERIALIZATION = "ASSET_MATERIALIZATION"


@dataclass(frozen=True, slots=True)
class Timed:
    """An event and when it happened, in seconds since 1970."""

    event: Event
    at: float


@dataclass(slots=True)
class _Batch:
    """Materializations of a batch by place: check results that come after them are about them."""

    stored: dict[Place, Target]


def store(
    instance: dg.DagsterInstance, events: Sequence[Timed], seen: Mapping[Place, int | None] | None = None
) -> None:
    """Store events in their order, in one transaction.

    A check result gets its place's newest materialization as its target, and a row of its own however often it is
    repeated. `seen` has the newest materialization that the caller knew of places: if another one came since, nothing
    is stored and TransientError raised, for the caller would report twice.
    """
    storage = instance.event_log_storage
    if not isinstance(storage, SqlEventLogStorage):
        raise FatalError(
            f"events cannot be written to Dagster's {type(storage).__name__}",
            remedy="keep Dagster's event log in SQLite or Postgres",
        )
    if not events:
        return
    batch = _Batch({})
    with storage.index_transaction() as connection:
        first: int | None = None
        for timed in events:
            entry = _entry(storage, connection, timed, batch)
            inserted = connection.execute(storage.prepare_insert_event(entry)).inserted_primary_key
            assert inserted is not None
            event_id = int(inserted[0])
            first = event_id if first is None else first
            _index(storage, connection, entry, event_id, batch)
        for place, known in (seen or {}).items():
            if _newest_below(connection, place, first) != known:
                raise TransientError(
                    f"{place[0].to_user_string()} {place[1] or ''} was reported by another process meanwhile",
                    remedy="nothing to do: the next look knows",
                )


def _entry(storage: SqlEventLogStorage, connection: Any, timed: Timed, batch: _Batch) -> EventLogEntry:
    """The log entry of an event. A check result needs a run id of its own: the storage keeps one result for each."""
    event, run_id = timed.event, ""
    data: Any
    match event:
        case dg.AssetMaterialization():
            kind, data = MATERIALIZATION, StepMaterializationData(event)
        case dg.AssetObservation():
            kind, data = "ASSET_OBSERVATION", AssetObservationData(event)
        case dg.AssetCheckEvaluation():
            kind, run_id = "ASSET_CHECK_EVALUATION", str(uuid.uuid4())
            place = (event.asset_key, event.partition)
            target = event.target_materialization_data or batch.stored.get(place) or _target(connection, place)
            data = _with_target(event, target)
    told = dg.DagsterEvent(event_type_value=kind, event_specific_data=data, job_name="")
    return EventLogEntry(  # type: ignore[no-untyped-call]
        user_message="",
        level=20,
        job_name="",
        run_id=run_id,
        error_info=None,
        timestamp=float(timed.at),
        step_key=None,
        dagster_event=told,
    )


def _index(storage: SqlEventLogStorage, connection: Any, entry: EventLogEntry, event_id: int, batch: _Batch) -> None:
    """What Dagster keeps beside the log itself, to find events by asset and by check."""
    told = entry.dagster_event
    assert told is not None
    data = told.event_specific_data
    if isinstance(data, dg.AssetCheckEvaluation):
        connection.execute(AssetCheckExecutionsTable.insert().values(**_check_row(entry, data, event_id)))
        return
    storage._store_asset_event_tags(connection, [entry], [event_id])
    storage._store_asset_event(connection, entry, event_id)
    if isinstance(data, StepMaterializationData):
        made = data.materialization
        batch.stored[made.asset_key, made.partition] = Target(
            storage_id=event_id, run_id=entry.run_id, timestamp=entry.timestamp
        )


def _check_row(entry: EventLogEntry, data: dg.AssetCheckEvaluation, event_id: int) -> dict[str, Any]:
    status = AssetCheckExecutionRecordStatus.SUCCEEDED if data.passed else AssetCheckExecutionRecordStatus.FAILED
    target = data.target_materialization_data
    return {
        "asset_key": data.asset_key.to_string(),
        "check_name": data.check_name,
        "partition": data.partition,
        "run_id": entry.run_id,
        "execution_status": status.value,
        "evaluation_event": serialize_value(entry),
        "evaluation_event_timestamp": datetime.fromtimestamp(entry.timestamp, UTC).replace(tzinfo=None),
        "evaluation_event_storage_id": event_id,
        "materialization_event_storage_id": None if target is None else target.storage_id,
    }


def _with_target(event: dg.AssetCheckEvaluation, target: Target | None) -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(
        asset_key=event.asset_key,
        check_name=event.check_name,
        passed=event.passed,
        metadata=event.metadata,
        target_materialization_data=target,
        severity=event.severity,
        description=event.description,
        blocking=event.blocking,
        partition=event.partition,
    )


def _of_place(place: Place) -> Any:
    columns = SqlEventLogStorageTable.c
    return (
        (columns.asset_key == place[0].to_string())
        & (columns.dagster_event_type == MATERIALIZATION)
        & (columns.partition.is_(None) if place[1] is None else columns.partition == place[1])
    )


def _newest_below(connection: Any, place: Place, below: int | None) -> int | None:
    columns = SqlEventLogStorageTable.c
    query = select(func.max(columns.id)).where(_of_place(place))
    if below is not None:
        query = query.where(columns.id < below)
    found: int | None = connection.execute(query).scalar()
    return found


def _target(connection: Any, place: Place) -> Target | None:
    """The newest stored materialization of a place."""
    columns = SqlEventLogStorageTable.c
    query = select(columns.id, columns.run_id, columns.timestamp).where(_of_place(place))
    row = connection.execute(query.order_by(columns.id.desc()).limit(1)).first()
    if row is None:
        return None
    return Target(storage_id=row[0], run_id=row[1], timestamp=row[2].replace(tzinfo=UTC).timestamp())
