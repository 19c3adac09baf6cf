"""The bench's table: the shop's clicks, over any topic.

Belongs here: the declaration. Does not belong here: making its topic (rig.py), streaming it (streams.py).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path

from lineage_assets.lineage.slices import Grain
from lineage_assets.spark.event_table import EventTable


def declare(name: str) -> EventTable:
    """The shop's clicks as its defs.yaml declares them, over another topic and with other tables."""
    from lineage_assets.quality.load import load_contract

    folder = Path(str(files("lineage_assets").joinpath("defs/clicks")))
    return EventTable(
        name=name,
        topic=name,
        format="avro",
        grain=Grain.hour,
        since=Grain.day.floor(datetime.now(UTC) - timedelta(days=1)),
        contract=load_contract(folder / "contract.py", "Click"),
        select=(folder / "clean.sql").read_text(),
        event_time="occurred_at",
        unique_by=("event_id",),
    )
