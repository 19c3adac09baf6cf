"""What one processing of slices works with.

Belongs here: the value that binds session, settings, declaration and topic, and the tables' layout.
Does not belong here: doing anything with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lineage_assets.kafka.cuts import SlicedTopic
from lineage_assets.kafka.registry import Registry
from lineage_assets.lineage.commits import Lake
from lineage_assets.settings import Settings
from lineage_assets.spark.event_table import EventTable
from lineage_assets.spark.kafka_source import BASE
from lineage_assets.spark.tables import SLICE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RAW = {
    **BASE,
    "topic_id": "string",
    "schema_id": "int",
    "fate": "string",
    "reasons": "array<string>",
    "warnings": "array<string>",
    "late_by_s": "bigint",
    "contract": "string",
    SLICE: "string",
}
"""Columns of every raw table: the record as it came, and what was decided about it."""


@dataclass(frozen=True, slots=True)
class Job:
    """`run` is the id of the run or stream that writes; it stands in every record."""

    spark: SparkSession
    settings: Settings
    table: EventTable
    topic: SlicedTopic
    run: str
    registry: Registry

    @property
    def lake(self) -> Lake:
        return self.settings.lake_env
