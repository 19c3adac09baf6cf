"""The ledger's own tables: few files instead of many. No row is ever removed.

Belongs here: their compaction, vacuum and logs. Does not belong here: what is in them (lineage/ledger).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from lineage_assets.lineage import ledger
from lineage_assets.lineage.commits import Lake, open_table
from lineage_assets.maintenance import logs
from lineage_assets.maintenance.policy import Policy
from lineage_assets.maintenance.vacuum import vacuum

MOST_FILES = 4
"""Of a partition; more are made one."""


@dataclass(frozen=True, slots=True)
class Tidied:
    """A table of the ledger: its data files before and after, and what was removed from storage."""

    asset: str
    files_before: int
    files_after: int
    removed_files: int
    removed_log_files: int


def tidy(lake: Lake, policy: Policy) -> list[Tidied]:
    """Compact, vacuum and shorten the log of every table of the ledger. Writers that lose to it try again by themselves."""
    return [done for one in ledger.TABLES if (done := _tidy(lake, one.asset, policy)) is not None]


def _tidy(lake: Lake, asset: str, policy: Policy) -> Tidied | None:
    from deltalake.exceptions import CommitFailedError

    table = open_table(lake, asset)
    if table is None:
        return None
    before = len(table.file_uris())
    if any(number > MOST_FILES for number in _by_partition(table).values()):
        try:
            table.optimize.compact(max_concurrent_tasks=1)
        except CommitFailedError:
            # Another process compacts the same files: it does the work.
            table.update_incremental()
    after = len(table.file_uris())
    logs.checkpoint(lake, asset, policy)
    removed = vacuum(lake, asset, policy)
    shortened = logs.shorten(lake, asset, policy)
    return Tidied(
        asset, before, after, 0 if removed is None else removed.files, 0 if shortened is None else shortened.files
    )


def _by_partition(table: object) -> Counter[str]:
    import pyarrow as pa

    paths: list[str] = pa.table(table.get_add_actions(flatten=True))["path"].to_pylist()  # type: ignore[attr-defined]
    return Counter(path.rpartition("/")[0] for path in paths)
