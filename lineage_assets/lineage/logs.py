"""What tables hold, for a process that asks again and again: each commit is read from its Delta log once.

Belongs here: keeping content between two ticks of a sensor. Does not belong here: reading a log (commits.py),
comparing (reporting/behind.py, marts/state.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from lineage_assets.lineage.commits import Lake, Tail, open_table
from lineage_assets.lineage.content import Content, Slices


@dataclass(slots=True)
class _Known:
    table_id: str
    version: int
    content: Content


class Logs:
    """The tables of all lakes that were asked for."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Known] = {}

    def slices(self, lake: Lake, asset: str) -> Slices:
        """Per slice what a table holds now; empty for a table that does not exist."""
        table = open_table(lake, asset)
        if table is None:
            self._known.pop((lake.root, asset), None)
            return {}
        table_id, version = str(table.metadata().id), int(table.version())
        known = self._known.get((lake.root, asset))
        # A table that was made again, or brought back from a backup, is another one: what is known says nothing of it.
        if known is None or known.table_id != table_id or known.version > version:
            known = self._known[lake.root, asset] = _Known(table_id, version, Content(Tail(lake, asset)))
        known.content.read()
        known.version = version
        return known.content.slices
