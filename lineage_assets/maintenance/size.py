"""How large everything is, and what it grew by in a day: tables, ledger, Dagster's storage, topics.

Belongs here: measuring, from logs and file lists alone. Does not belong here: printing (commands/size.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from lineage_assets.lineage import ledger
from lineage_assets.lineage.commits import Lake, open_table
from lineage_assets.maintenance.files import LOG, listed
from lineage_assets.settings import Settings

if TYPE_CHECKING:
    import dagster as dg

A_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Grown:
    """What was added in the last 24 hours, by the files and commits that are there now."""

    rows: int = 0
    data_bytes: int = 0
    log_bytes: int = 0
    commits: int = 0


@dataclass(frozen=True, slots=True)
class TableSize:
    """A Delta table. `unused_bytes` are of files that its newest version does not hold: older versions, or nobody."""

    asset: str
    rows: int
    data_bytes: int
    unused_bytes: int
    files: int
    log_bytes: int
    log_files: int
    commits: int
    last_day: Grown


@dataclass(frozen=True, slots=True)
class FolderSize:
    """A folder of files that are no table. `last_day_bytes` is None where nobody can say."""

    name: str
    bytes: int
    files: int
    last_day_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class EventsSize:
    """Dagster's storage: its files, where it keeps files, and its events of assets and checks."""

    bytes: int | None
    events: int
    last_day_events: int


def table_size(lake: Lake, asset: str, now: datetime | None = None) -> TableSize | None:
    """The size of a table; None where there is none.

    A file counts for the last day by when it was written, also when a compaction wrote it again: then by its slice's rows
    the table is larger than it grew.
    """
    import pyarrow as pa

    table = open_table(lake, asset)
    if table is None:
        return None
    since = (now or datetime.now(UTC)) - A_DAY
    files = pa.table(table.get_add_actions(flatten=True)).select(["size_bytes", "num_records", "modification_time"])
    live = files.to_pylist()
    there = listed(lake, asset)
    log = [one for one in there if one.path.startswith(f"{LOG}/")]
    on_disk = sum(one.bytes for one in there) - sum(one.bytes for one in log)
    data_bytes = sum(one["size_bytes"] for one in live)
    new = [one for one in live if one["modification_time"] >= since.timestamp() * 1000]
    commits = [one for one in log if one.path.endswith(".json")]
    return TableSize(
        asset=asset,
        rows=sum(one["num_records"] or 0 for one in live),
        data_bytes=data_bytes,
        unused_bytes=max(0, on_disk - data_bytes),
        files=len(live),
        log_bytes=sum(one.bytes for one in log),
        log_files=len(log),
        commits=int(table.version()) + 1,
        last_day=Grown(
            rows=sum(one["num_records"] or 0 for one in new),
            data_bytes=sum(one["size_bytes"] for one in new),
            log_bytes=sum(one.bytes for one in log if one.changed_at >= since),
            commits=sum(1 for one in commits if one.changed_at >= since),
        ),
    )


def tables(lake: Lake, assets: Iterable[str], now: datetime | None = None) -> list[TableSize]:
    """Of tables that exist, those of the ledger after the others."""
    wanted = [*sorted(set(assets)), *(one.asset for one in ledger.TABLES)]
    return [size for asset in wanted if (size := table_size(lake, asset, now)) is not None]


def folder_size(name: str, folders: Sequence[Path], now: datetime | None = None) -> FolderSize:
    """What lies below local folders. Files that vanish while this counts them are not counted."""
    since = ((now or datetime.now(UTC)) - A_DAY).timestamp()
    whole = count = young = 0
    for path in (path for folder in folders for path in folder.rglob("*")):
        try:
            stat = path.stat()
        except FileNotFoundError:
            continue
        if path.is_file():
            count, whole = count + 1, whole + stat.st_size
            young += stat.st_size if stat.st_ctime >= since else 0
    return FolderSize(name, whole, count, young)


def topics(settings: Settings, names: Iterable[str]) -> list[FolderSize]:
    """Bytes of topics in the embedded broker; of a broker of yours, nothing: it is asked for much else already."""
    logs = settings.stack_dir / "kafka" / "data"
    if settings.kafka_bootstrap or not logs.is_dir():
        return []
    found = []
    for name in sorted(set(names)):
        folders = [one for one in logs.glob(f"{name}-*") if one.name.removeprefix(f"{name}-").isdecimal()]
        size = folder_size(f"kafka/{settings.kafka_alias}/{name}", folders)
        found.append(FolderSize(size.name, size.bytes, size.files))
    return found


def dagster(settings: Settings, instance: dg.DagsterInstance, now: datetime | None = None) -> EventsSize:
    """Dagster's storage; without its bytes where it is in a database server."""
    from lineage_assets.maintenance.events import counts

    events, young = counts(instance, (now or datetime.now(UTC)) - A_DAY)
    folders = [settings.dagster_home / name for name in ("history", "runs", "schedules", "storage")]
    there = [folder for folder in folders if folder.is_dir()]
    return EventsSize(folder_size("dagster", there).bytes if there else None, events, young)
