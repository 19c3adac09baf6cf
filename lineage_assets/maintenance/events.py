"""Old events in Dagster's storage: removed, all but the newest of every asset, partition and check.

Belongs here: the one function that deletes from Dagster's tables; it has no public call that keeps the newest. Does not
belong here: storing events (reporting/store.py), logs of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lineage_assets.errors import FatalError
from lineage_assets.maintenance.policy import Policy

if TYPE_CHECKING:
    import dagster as dg

AT_ONCE = 500
"""Rows of a transaction: the daemon writes to the same database."""
MATERIALIZATION = "ASSET_MATERIALIZATION"
OF_ASSETS = (MATERIALIZATION, "ASSET_MATERIALIZATION_PLANNED", "ASSET_OBSERVATION")
OF_CHECKS = ("ASSET_CHECK_EVALUATION", "ASSET_CHECK_EVALUATION_PLANNED")
KINDS = (*OF_ASSETS, *OF_CHECKS)


@dataclass(frozen=True, slots=True)
class Thinned:
    """How many events and check results were removed, and how many events of assets are left."""

    events: int
    check_results: int
    left: int


def thin(
    instance: dg.DagsterInstance, policy: Policy, say: Callable[[str], None], now: datetime | None = None
) -> Thinned:
    """Remove what is older than the policy.

    Of each asset and partition stay the newest event of each kind and the newest materialization that no run reported,
    which tells all that was before it; of each check and partition its newest result, and what that is about.
    """
    from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage

    storage = instance.event_log_storage
    if not isinstance(storage, SqlEventLogStorage):
        raise FatalError(
            f"events cannot be removed from Dagster's {type(storage).__name__}",
            remedy="keep Dagster's event log in SQLite or Postgres",
        )
    border = ((now or datetime.now(UTC)) - policy.events_after).astimezone(UTC).replace(tzinfo=None)
    with storage.index_connection() as connection:
        checks = _old_checks(connection, border)
        events = _old_events(connection, border, set(checks))
    removed = 0
    for some in _pieces(checks):
        _delete_checks(storage, some)
    for some in _pieces(events):
        _delete_events(storage, some)
        removed += len(some)
        say(f"Dagster: {removed:,} of {len(events):,} old events removed")
    with storage.index_connection() as connection:
        left = _count(connection)
    return Thinned(len(events), len(checks), left)


def _old_checks(connection: Any, border: datetime) -> list[int]:
    """Ids of old check results that are neither the newest of their check and partition nor its newest verdict."""
    from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable
    from sqlalchemy import func, select

    columns = AssetCheckExecutionsTable.c
    place = (columns.asset_key, columns.check_name, columns.partition)
    newest = select(func.max(columns.id)).group_by(*place)
    verdict = newest.where(columns.evaluation_event.is_not(None))
    # By its own time: a rebuild stores the results of long ago today.
    at = func.coalesce(columns.evaluation_event_timestamp, columns.create_timestamp)
    wanted = select(columns.id).where(at < border, columns.id.not_in(newest), columns.id.not_in(verdict))
    return [int(one) for one in connection.execute(wanted.order_by(columns.id)).scalars()]


def _old_events(connection: Any, border: datetime, old_checks: set[int]) -> list[int]:
    from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, SqlEventLogStorageTable
    from sqlalchemy import func, or_, select

    columns, checks = SqlEventLogStorageTable.c, AssetCheckExecutionsTable.c
    ours = columns.asset_key.is_not(None) & columns.dagster_event_type.in_(OF_ASSETS)
    place = (columns.asset_key, columns.dagster_event_type, columns.partition)
    newest = select(func.max(columns.id)).where(ours).group_by(*place)
    runless = newest.where(columns.dagster_event_type == MATERIALIZATION, columns.run_id == "")
    of_checks = columns.dagster_event_type.in_(OF_CHECKS)
    old = select(columns.id).where(
        columns.timestamp < border,
        or_(ours & columns.id.not_in(newest) & columns.id.not_in(runless), of_checks),
    )
    about = select(checks.id, checks.evaluation_event_storage_id, checks.materialization_event_storage_id)
    kept = {
        int(event)
        for id, *events in connection.execute(about)
        if int(id) not in old_checks
        for event in events
        if event is not None
    }
    # Events of checks have their place in the table of checks: they go with their row there.
    return [int(one) for one in connection.execute(old.order_by(columns.id)).scalars() if int(one) not in kept]


def _delete_checks(storage: Any, ids: list[int]) -> None:
    from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable

    with storage.index_transaction() as connection:
        connection.execute(AssetCheckExecutionsTable.delete().where(AssetCheckExecutionsTable.c.id.in_(ids)))


def _delete_events(storage: Any, ids: list[int]) -> None:
    from dagster._core.storage.event_log.schema import AssetEventTagsTable, SqlEventLogStorageTable

    with storage.index_transaction() as connection:
        connection.execute(AssetEventTagsTable.delete().where(AssetEventTagsTable.c.event_id.in_(ids)))
        connection.execute(SqlEventLogStorageTable.delete().where(SqlEventLogStorageTable.c.id.in_(ids)))


def _count(connection: Any) -> int:
    from dagster._core.storage.event_log.schema import SqlEventLogStorageTable
    from sqlalchemy import func, select

    columns = SqlEventLogStorageTable.c
    return int(connection.execute(select(func.count()).where(columns.dagster_event_type.in_(KINDS))).scalar() or 0)


def counts(instance: dg.DagsterInstance, since: datetime) -> tuple[int, int]:
    """How many events of assets and checks Dagster's storage has, and how many of them are younger than `since`."""
    from dagster._core.storage.event_log.schema import SqlEventLogStorageTable
    from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
    from sqlalchemy import func, select

    storage = instance.event_log_storage
    assert isinstance(storage, SqlEventLogStorage)
    columns = SqlEventLogStorageTable.c
    young = columns.timestamp >= since.astimezone(UTC).replace(tzinfo=None)
    with storage.index_connection() as connection:
        query = select(func.count()).where(columns.dagster_event_type.in_(KINDS), young)
        return _count(connection), int(connection.execute(query).scalar() or 0)


def _pieces(ids: list[int]) -> Iterator[list[int]]:
    for at in range(0, len(ids), AT_ONCE):
        yield ids[at : at + AT_ONCE]
