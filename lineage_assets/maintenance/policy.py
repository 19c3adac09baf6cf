"""How long what is kept, and from when on something is worth doing.

Belongs here: the numbers, and refusing those that would break a reader. Does not belong here: doing it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from lineage_assets.errors import ContractError
from lineage_assets.lineage import durations
from lineage_assets.settings import Settings

SHORTEST_VACUUM = timedelta(days=1)
"""A bounded run reads one version for as long as it takes, and `stream resume` restores an earlier one."""
SHORTEST_LOG = timedelta(hours=1)
"""Whoever reads a log asks for files that were there a moment ago, and pins of marts name versions of an hour ago."""


@dataclass(frozen=True, slots=True)
class Policy:
    """`vacuum_after`: files that no version of so long holds are removed. `log_after`: the same of log files that the
    ledger has. `events_after`: of Dagster's events, all but the newest of each place."""

    vacuum_after: timedelta = timedelta(days=7)
    log_after: timedelta = timedelta(days=1)
    events_after: timedelta = timedelta(days=30)
    most_files: int = 8
    """A closed slice of more small files than these is compacted."""
    small: int = 32 * 1024 * 1024
    """Bytes below which a file is small."""
    target: int = 256 * 1024 * 1024
    """Bytes of a file that compaction makes."""
    commits: int = 100
    """So many commits since a log's last checkpoint, and it gets one."""


def policy(settings: Settings) -> Policy:
    """The policy by the settings. Raises ContractError for a time that would take files from under a reader."""
    named = {name: _time(name, getattr(settings, name)) for name in ("vacuum_after", "log_after", "events_after")}
    for name, shortest in (("vacuum_after", SHORTEST_VACUUM), ("log_after", SHORTEST_LOG)):
        if named[name] < shortest:
            raise ContractError(
                f"{name} is {named[name]}: runs, pins and `lineage stream resume` need {shortest} at least",
                remedy=f"raise LINEAGE_{name.upper()}",
            )
    return Policy(named["vacuum_after"], named["log_after"], named["events_after"])


def _time(name: str, text: str) -> timedelta:
    try:
        return timedelta(seconds=durations.seconds(text))
    except ContractError as error:
        raise ContractError(f"{name}: {error.message}", remedy=f"correct LINEAGE_{name.upper()}") from error
