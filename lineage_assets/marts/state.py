"""Which marts are behind what they are made of.

Belongs here: the level-triggered comparison over commit records. Does not belong here: requesting runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lineage_assets.lineage.commits import Lake, open_table
from lineage_assets.lineage.content import Slices, held_with_sources
from lineage_assets.lineage.logs import Logs
from lineage_assets.lineage.record import TableInput


@dataclass(frozen=True, slots=True)
class Standing:
    """What there is to read of a table now: its newest commit that changed rows of slices that are not held, and those held."""

    table_id: str
    newest: int
    held: tuple[str, ...]


def behind(lake: Lake, marts: Mapping[str, Sequence[str]], logs: Logs | None = None) -> list[str]:
    """The marts whose newest record did not read what its inputs are now, each after the marts that it reads.

    `marts` maps a mart to the assets that it is made of, marts included. A mart over a mart that is behind is behind
    too, so that one run makes both. One with an input that was never written waits. Commits that change no rows
    (compaction, schema) and new commits of held slices make nothing behind. `logs` remembers what was read before.
    """
    logs = logs or Logs()
    standing = {asset: _standing(lake, asset, logs) for asset in {one for inputs in marts.values() for one in inputs}}
    found: list[str] = []
    seen: set[str] = set()

    def visit(mart: str) -> None:
        if mart in seen:
            return
        seen.add(mart)
        for one in marts[mart]:
            if one in marts:
                visit(one)
        made_anew = [one for one in marts[mart] if one in found]
        if any(standing[one] is None and one not in made_anew for one in marts[mart]):
            return
        if made_anew or _outdated(logs.slices(lake, mart), marts[mart], standing):
            found.append(mart)

    for mart in sorted(marts):
        visit(mart)
    return found


def _outdated(made: Slices, inputs: Sequence[str], standing: Mapping[str, Standing | None]) -> bool:
    newest = made.get(None)
    if newest is None:
        return True
    read = {one.table: one for one in newest[1].tables}
    return any(not _covers(read.get(asset), standing[asset]) for asset in inputs)


def _covers(read: TableInput | None, now: Standing | None) -> bool:
    if read is None or now is None:
        return False
    return read.table_id == now.table_id and (read.read_at or 0) >= now.newest and tuple(sorted(read.held)) == now.held


def _standing(lake: Lake, asset: str, logs: Logs) -> Standing | None:
    table = open_table(lake, asset)
    if table is None:
        return None
    slices = logs.slices(lake, asset)
    held = held_with_sources(slices, lambda source: logs.slices(lake, source))
    versions = [commit.version for key, (commit, _) in slices.items() if key not in held]
    return Standing(str(table.metadata().id), max(versions, default=0), tuple(sorted(held)))
