"""Commit records as they stand in a Delta log: which commit holds what, newest first.

Belongs here: reading a table's log (deltalake, no JVM). Does not belong here: what the commits of a slice say together
(content.py), writing a table, the ledger's own tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lineage_assets.lineage import record as records
from lineage_assets.lineage.record import CommitRecord


@dataclass(frozen=True, slots=True)
class Lake:
    """Where an environment's tables are, and how deltalake gets at them."""

    root: str
    storage_options: Mapping[str, str] = field(default_factory=dict)

    def path(self, asset: str) -> str:
        """Path or URL of the Delta table of an asset such as `raw/clicks`."""
        return f"{self.root}/{asset}"


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of a table. `record` is None on a foreign commit: somebody else wrote it.

    `restored_to` is the version whose content a RESTORE brought back: the versions between are undone.
    """

    version: int
    timestamp_ms: int
    operation: str
    record: CommitRecord | None
    restored_to: int | None = None


def open_table(lake: Lake, asset: str, version: int | None = None) -> Any | None:
    """The `deltalake.DeltaTable` of an asset, or None when nothing was ever written there."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        return DeltaTable(lake.path(asset), version=version, storage_options=dict(lake.storage_options) or None)
    except TableNotFoundError:
        return None


def commits(lake: Lake, asset: str, limit: int | None = None, at: int | None = None) -> list[Commit]:
    """The commits that the log still holds, newest first, and below them those that the content is made of, out of the
    ledger (history.py). With a limit, of the log alone; with `at`, as of that version. None for a table that does not exist.
    """
    table = open_table(lake, asset)
    if table is None:
        return []
    return _history(table, limit) if limit is not None else _completed(lake, asset, table, at)


def since(lake: Lake, asset: str, after: int) -> list[Commit]:
    """The commits above version `after` that the log still holds, oldest first; reads no more of the log than those."""
    table = open_table(lake, asset)
    new = 0 if table is None else int(table.version()) - after
    return _history(table, new)[::-1] if table is not None and new > 0 else []


@dataclass(frozen=True, slots=True)
class Turn:
    """The right to write a slice of a table next: of two writers that planned from one content, one commits.

    Delta leaves a write out whose transaction id was used with this number or a higher one, and refuses one of two that
    commit at once.
    """

    app_id: str
    number: int


class Tail:
    """A table's commits for one who asks again and again: each is read from the log once."""

    def __init__(self, lake: Lake, asset: str) -> None:
        self.lake, self.asset = lake, asset
        self._table: Any | None = None
        self._known: list[Commit] = []

    def read(self) -> list[Commit]:
        """All commits as of now, newest first, as `commits` tells them."""
        if self._table is None:
            self._table = open_table(self.lake, self.asset)
            self._known = [] if self._table is None else _completed(self.lake, self.asset, self._table)
            return self._known
        self._table.update_incremental()
        if new := int(self._table.version()) - (self._known[0].version if self._known else -1):
            self._known = [*_history(self._table, new), *self._known]
        return self._known

    def turn(self, key: str) -> Turn:
        """The next turn of a slice, by what was last read."""
        app_id = f"lineage/{self.asset}/{key}"
        last = None if self._table is None else self._table.transaction_version(app_id)
        return Turn(app_id, 0 if last is None else int(last) + 1)

    @property
    def table_id(self) -> str:
        """The table's own UUID, empty when there was none: a table that was dropped and made again is another table."""
        return "" if self._table is None else str(self._table.metadata().id)


def _completed(lake: Lake, asset: str, table: Any, at: int | None = None) -> list[Commit]:
    from lineage_assets.lineage.history import completed

    log = [one for one in _history(table, None) if at is None or one.version <= at]
    return completed(lake, asset, str(table.metadata().id), log)


LOOK = 50
"""Commits by which a long history is told from one that was listed a moment later."""


def commit_infos(table: Any, limit: int | None = None) -> list[dict[str, Any]]:
    """What the log says of its newest commits (of all, without a limit), newest first, each with its own `version`.

    deltalake numbers what it lists from the version that the table is open at: a commit that comes in between makes all
    numbers too low by one. So it is asked until nobody has committed meanwhile; the table is at that version then.
    """
    found = table.history(limit) if limit is None else []
    while True:
        version = int(table.version())
        newest: list[dict[str, Any]] = table.history(LOOK if limit is None else limit)
        table.update_incremental()
        if int(table.version()) == version:
            break
        limit = None if limit is None else limit + int(table.version()) - version
    if limit is not None or not found:
        return newest
    bare = {name: value for name, value in found[0].items() if name != "version"}
    for place, one in enumerate(newest):
        if {name: value for name, value in one.items() if name != "version"} == bare:
            numbered = [{**info, "version": one["version"] - below} for below, info in enumerate(found)]
            return [*newest[:place], *numbered]
    # More than LOOK commits came while the whole history was read, or it was restarted.
    return commit_infos(table)


def _history(table: Any, limit: int | None) -> list[Commit]:
    found = []
    for entry in commit_infos(table, limit):
        restored = entry.get("operation") == "RESTORE"
        target = (entry.get("operationParameters") or {}).get("version") if restored else None
        found.append(
            Commit(
                version=entry["version"],
                timestamp_ms=entry.get("timestamp", 0),
                operation=entry.get("operation", ""),
                record=records.read(entry.get("userMetadata")),
                restored_to=None if target is None else int(target),
            )
        )
    return found
