"""Part (f): CPU and bytes per million events, of the stream and of the same work as bounded runs.

Belongs here: the bounded side, over the topic that a stream has been through. Does not belong here: the stream's side
(latency.py measures it).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from lineage_assets.bench.meter import Stored, metered, stored
from lineage_assets.bench.rig import Rig, fresh_lake, rows
from lineage_assets.errors import FatalError
from lineage_assets.lineage.offsets import span
from lineage_assets.spark.event_table import EventTable


@dataclass(frozen=True, slots=True)
class Batch:
    """Every slice of a topic, each made whole by one `process(slice)`."""

    events: int
    slices: int
    seconds: float
    cpu_s: float
    bytes: Mapping[str, Stored]

    @property
    def cpu_s_per_million(self) -> float:
        return self.cpu_s / self.events * 1e6


def measure(rig: Rig, table: EventTable) -> Batch:
    """Make every slice of a topic into an empty lake, as hourly runs do. Nothing may be sent into the topic meanwhile."""
    from lineage_assets.kafka.cuts import slice_topic
    from lineage_assets.kafka.registry import Registry
    from lineage_assets.spark.job import Job
    from lineage_assets.spark.process import process
    from lineage_assets.spark.session import session

    events = rig.records(table)
    with fresh_lake(rig, "batch") as there, session(there.settings) as spark:
        config = there.settings
        sliced = slice_topic(config, config.lake_env, table.topic, table.grain, table.since, now=datetime.now(UTC))
        job = Job(spark, config, table, sliced, "bench", Registry(config))
        pieces = [piece for piece, ranges in sliced.slices() if span(ranges)]
        rig.say("batch", f"making {events:,} events in {len(pieces)} slices by bounded runs")
        began = time.monotonic()
        with metered(there.trees()) as usage:
            for piece in pieces:
                process(job, piece)
            seconds = time.monotonic() - began
        tables = [f"raw/{table.name}", f"silver/{table.name}"]
        if (made := rows(config, tables[0])) != events:
            raise FatalError(
                f"bounded runs made {made:,} of {events:,} rows of {tables[0]}", remedy="run `lineage verify`"
            )
        return Batch(
            events, len(pieces), seconds, usage.cpu("spark", "bench"), {one: stored(config, one) for one in tables}
        )
