"""Delta logs: checkpoints beside the writers, and what of a log may go once the ledger has it.

Belongs here: both, for managed tables and for the ledger's own. Does not belong here: reading a log for what it says
(lineage/commits.py, lineage/ledger).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from lineage_assets.lineage.commits import Lake, open_table
from lineage_assets.lineage.ledger import commit_records
from lineage_assets.maintenance.files import LogFiles, log_files, remove
from lineage_assets.maintenance.policy import Policy


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """A checkpoint that was written: the version, and how many commits a reader had to read before."""

    asset: str
    version: int
    commits: int


@dataclass(frozen=True, slots=True)
class Shortened:
    """Commits and other files that were removed from a log, which now begins at `begins`.

    `waits` says why no more of it went, empty when all that is old enough has gone.
    """

    asset: str
    begins: int
    commits: int
    files: int
    waits: str = ""


def checkpoint(lake: Lake, asset: str, policy: Policy) -> Checkpointed | None:
    """Write a checkpoint if the last one is far behind; None if it is not, or there is no table.

    By deltalake: its checkpoint keeps the transaction ids and the high-water mark of row tracking, and costs no stream
    a second.
    """
    log = log_files(lake, asset)
    behind = log.newest - log.last_checkpoint
    if log.newest < 0 or behind <= policy.commits:
        return None
    table = open_table(lake, asset)
    assert table is not None
    table.create_checkpoint()
    return Checkpointed(asset, int(table.version()), behind)


def shorten(lake: Lake, asset: str, policy: Policy, now: datetime | None = None) -> Shortened | None:
    """Remove what a log has below a checkpoint that is older than the policy, as far as the ledger holds its records.

    The versions from that checkpoint on can be read as before. None when nothing is old enough.
    """
    log = log_files(lake, asset)
    first = _oldest_needed(log, policy, now or datetime.now(UTC))
    old = sorted(version for version in log.commits if first is not None and version < first)
    if first is None or not old:
        return None
    waits = ""
    if not asset.startswith("ledger/"):
        held = commit_records.spans(lake, asset).get(commit_records.table_id_of(lake, asset) or "", [])
        missing = [version for version in old if not any(start <= version < end for start, end in held)]
        if missing:
            waits = f"version {missing[0]} is not in the ledger"
            # A checkpoint must stay below what stays: the log is cut at checkpoints only.
            first = max((version for version in log.checkpoints if version <= missing[0]), default=0)
            old = [version for version in old if version < first]
    paths = [log.commits[version].path for version in old]
    paths += [file.path for version, file in log.checksums if version < first]
    # Checkpoints last: whoever opens an old version while this runs finds a whole log or a clear error.
    paths += [file.path for version, parts in log.checkpoints.items() if version < first for file in parts]
    return Shortened(asset, first, len(old), remove(lake, asset, paths), waits)


def _oldest_needed(log: LogFiles, policy: Policy, now: datetime) -> int | None:
    """The newest checkpoint whose own commit is old enough: everything below it is older still."""
    border = now - policy.log_after
    old = [
        version
        for version in log.checkpoints
        if version in log.commits and version < log.newest and log.commits[version].changed_at <= border
    ]
    return max(old, default=None)
