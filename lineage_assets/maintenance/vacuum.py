"""Data files that no version within the policy's time holds.

Belongs here: finding and removing them, without a commit: a commit without rows would stand in the log as foreign.
Does not belong here: log files (logs.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

from lineage_assets.errors import ContractError
from lineage_assets.lineage import durations
from lineage_assets.lineage.commits import Lake, open_table
from lineage_assets.maintenance.files import LOG, File, listed, remove
from lineage_assets.maintenance.policy import Policy

KEPT = "delta.deletedFileRetentionDuration"
"""How long checkpoints remember what was removed. Without a memory, an old file could still be needed."""
DEFAULT_KEPT = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """Files that were removed from a table, and their bytes."""

    asset: str
    files: int
    bytes: int


def vacuum(lake: Lake, asset: str, policy: Policy, now: datetime | None = None) -> Vacuumed | None:
    """Remove what no version of the policy's time holds; None for a table that does not exist.

    Raises ContractError when the table forgets its removed files before that.
    """
    table = open_table(lake, asset)
    if table is None:
        return None
    kept = kept_for(table.metadata().configuration)
    if policy.vacuum_after > kept:
        raise ContractError(
            f"{asset} remembers removed files for {kept}, and vacuum_after is {policy.vacuum_after}",
            remedy=f"raise its property {KEPT}, or lower LINEAGE_VACUUM_AFTER",
        )
    hours = int(policy.vacuum_after.total_seconds() // 3600)
    border = (now or datetime.now(UTC)) - policy.vacuum_after
    # Dry: deltalake finds them and removes nothing. It also names files that no commit ever held.
    named = {unquote(path) for path in table.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)}
    if not named:
        return Vacuumed(asset, 0, 0)
    there = {file.path: file for file in listed(lake, asset) if _is_data(file)}
    # A file as young as this may belong to a write that is on its way, whatever anybody says of it.
    going = {path: file for path, file in there.items() if path in named and file.changed_at <= border}
    table.update_incremental()
    standing = {unquote(path) for path in _paths(table)}
    going = {path: file for path, file in going.items() if _checked(path) not in standing}
    removed = remove(lake, asset, going)
    return Vacuumed(asset, removed, sum(file.bytes for file in going.values()))


def kept_for(configuration: Mapping[str, str | None]) -> timedelta:
    """How long a table remembers removed files, by its properties.

    >>> kept_for({"delta.deletedFileRetentionDuration": "interval 2 days"}).days
    2
    """
    text = (configuration.get(KEPT) or "").removeprefix("interval ").strip()
    if not text:
        return DEFAULT_KEPT
    number, _, unit = text.partition(" ")
    return timedelta(seconds=durations.seconds(f"{number}{'d' if unit.startswith('day') else unit[:1]}"))


def _checked(path: str) -> str:
    """The file that a Hadoop checksum is of, or the file itself.

    >>> _checked("_slice=a/.part-1.parquet.crc")
    '_slice=a/part-1.parquet'
    """
    folder, separator, name = path.rpartition("/")
    if name.startswith(".") and name.endswith(".crc"):
        name = name[1:].removesuffix(".crc")
    return f"{folder}{separator}{name}"


def _is_data(file: File) -> bool:
    return not file.path.startswith(f"{LOG}/")


def _paths(table: Any) -> list[str]:
    import pyarrow as pa

    paths: list[str] = pa.table(table.get_add_actions(flatten=True))["path"].to_pylist()
    return paths
