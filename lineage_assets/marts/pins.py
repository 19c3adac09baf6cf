"""Which version of each table a run of dbt reads.

Belongs here: choosing a pin, and the file in which a run states its pins. Does not belong here: reading rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lineage_assets.errors import FatalError, TransientError
from lineage_assets.lineage.commits import Lake, commits, open_table
from lineage_assets.lineage.content import held_with_sources, newest_by_slice
from lineage_assets.lineage.record import TableInput

PINS = "LINEAGE_MARTS_PINS"
"""Environment variable: path of the JSON file `{asset: {"version": …, "table_id": …, "held": […]}}` of a run's pins."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One version of one table, without the slices that a failing check held at that version."""

    version: int
    table_id: str
    held: tuple[str, ...] = ()

    def as_input(self, asset: str) -> TableInput:
        """What a commit record says of a table that was read at this pin."""
        return TableInput(table=asset, table_id=self.table_id, read_at=self.version, held=self.held)


def pin(lake: Lake, asset: str) -> Pin | None:
    """A table's newest version; None when it was never written."""
    table = open_table(lake, asset)
    if table is None:
        return None
    version = table.version()
    slices = newest_by_slice(commits(lake, asset, at=version))
    held = held_with_sources(slices, lambda source: newest_by_slice(commits(lake, source)))
    return Pin(version, str(table.metadata().id), tuple(sorted(held)))


def pin_all(lake: Lake, assets: Iterable[str]) -> dict[str, Pin]:
    """Pins of the assets that have a table. One without a table fails the models that read it, and only those."""
    found = ((asset, pin(lake, asset)) for asset in sorted(set(assets)))
    return {asset: one for asset, one in found if one is not None}


def open_pinned(lake: Lake, asset: str, at: Pin) -> Any:
    """The `deltalake.DeltaTable` at a pin. FatalError when the table is another one by now."""
    table = open_table(lake, asset, at.version)
    if table is None or str(table.metadata().id) != at.table_id:
        raise FatalError(
            f"{asset} at {lake.path(asset)} was dropped or made again after version {at.version} was pinned",
            remedy="run the marts again",
        )
    return table


def missing(lake: Lake, asset: str) -> TransientError:
    """The error for a table that nobody wrote yet."""
    return TransientError(
        f"{asset} has no table yet: nothing at {lake.path(asset)}", remedy=f"materialize {asset} first, then this mart"
    )


def write_pins(path: Path, pins: Mapping[str, Pin]) -> None:
    """State a run's pins before dbt starts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({asset: asdict(one) for asset, one in pins.items()}, sort_keys=True))


def read_pins(path: Path) -> dict[str, Pin]:
    """The pins that a run stated. FatalError when the file is missing or is no such file."""
    try:
        stated = json.loads(path.read_text())
        return {asset: Pin(one["version"], one["table_id"], tuple(one["held"])) for asset, one in stated.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FatalError(
            f"{PINS} names {path}, which holds no pins ({type(error).__name__}: {error})",
            remedy=f"unset {PINS} to pin at first use",
        ) from error
