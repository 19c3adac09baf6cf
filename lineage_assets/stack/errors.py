"""What can go wrong with the embedded stack, each with the part, the place and the remedy in its words.

Belongs here: error types of this package. Does not belong here: deciding when to raise them.
"""

from __future__ import annotations

from pathlib import Path

from lineage_assets.errors import LineageError, TransientError


class StackError(LineageError):
    """The embedded stack cannot be started, stopped or read as asked."""


class DownloadFailed(StackError, TransientError):
    """A jar could not be fetched, or what came is not what was locked."""


class JarsMissing(StackError):
    """The cache lacks jars of the lock file."""


class PortInUse(StackError):
    """Another process listens where a part should."""

    def __init__(self, part: str, port: int, owner: str, variable: str) -> None:
        super().__init__(
            f"{part} cannot listen on 127.0.0.1:{port}: the port is in use by {owner}",
            remedy=f"stop that process, or set {variable} to another port (0: any free one)",
        )


class DiskFull(StackError):
    """Too little room where the stack keeps its data."""

    def __init__(self, place: Path, free_mb: int, needed_mb: int) -> None:
        super().__init__(
            f"{place} has {free_mb} MB free, the stack needs at least {needed_mb} MB",
            remedy="free some space, or set LINEAGE_HOME to a folder on another disk",
        )


class PartDied(StackError):
    """A part's process ended by itself."""

    def __init__(self, part: str, how: str, log: Path, tail: str) -> None:
        super().__init__(
            f"{part} died: {how}{_last_lines(tail)}",
            remedy=f"read its log {log}, then run `lineage up` again",
        )


class NotReady(StackError, TransientError):
    """A part runs but did not answer in time."""

    def __init__(self, part: str, timeout_s: float, why: str, log: Path, tail: str) -> None:
        super().__init__(
            f"{part} was not ready after {timeout_s:.0f} s ({why}){_last_lines(tail)}",
            remedy=f"read its log {log}; if the machine is only slow, run `lineage up` again: it waits for what runs",
        )


def _last_lines(tail: str) -> str:
    return f"; its last lines were:\n{tail}\n" if tail else "; it wrote nothing"
