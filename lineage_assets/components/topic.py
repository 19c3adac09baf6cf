"""`lineage_assets.components.Topic`: a Kafka topic as an asset, sliced by arrival.

Belongs here: the declaration and its asset. Does not belong here: its cuts (kafka/cuts.py), its events (reporting/).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import dagster as dg
from pydantic import Field

from lineage_assets.components.declared import partitions, siblings, told_with_line
from lineage_assets.errors import ContractError
from lineage_assets.lineage.names import topic_asset
from lineage_assets.lineage.slices import Grain
from lineage_assets.reporting import metadata
from lineage_assets.settings import settings


class Topic(dg.Component, dg.Model, dg.Resolvable):
    """A topic. Each slice (an hour by default) is a partition: what arrived in it, as offset ranges."""

    name: str = Field(description="The topic's name on the cluster.")
    format: Literal["avro", "json"] = Field(
        "avro", description="avro: subject <name>-value in the registry. json: none."
    )
    slices: Literal["hour", "day", "month"] = "hour"
    start: str | None = Field(None, description="First slice, as 2026-01-31. Default: the setting slices_since.")
    key: str | None = Field(None, description="The field by which producers key their records.")
    transactional: bool = Field(False, description="Producers use transactions: their markers are no lost records.")
    owners: list[str] = []
    description: str | None = None
    group: str | None = Field(None, description="Group in the UI. Default: kafka.")

    @property
    def grain(self) -> Grain:
        return Grain(self.slices)

    @property
    def since(self) -> datetime:
        """Start of the first slice."""
        written = self.start or settings().slices_since
        try:
            return datetime.fromisoformat(written).replace(tzinfo=UTC)
        except ValueError as error:
            raise ContractError(f"{written!r} is no date: {error}", remedy="write it as 2026-01-31") from error

    @property
    def path(self) -> tuple[str, ...]:
        """The asset's key."""
        return topic_asset(settings().kafka_alias, self.name)

    @property
    def partitions(self) -> dg.TimeWindowPartitionsDefinition:
        return partitions(self.grain, self.since)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        from lineage_assets.components.event_table import EventTable

        with told_with_line(context, "start", self.start):
            slices = self.partitions
        columns = metadata.envelope()
        for table in siblings(context, EventTable):
            if table.topic == self.name:
                columns += table.field_columns(context)
        spec = dg.AssetSpec(
            key=dg.AssetKey(self.path),
            description=self.description or f"The topic {self.name}, in slices of one {self.slices} by arrival.",
            kinds={"kafka", self.format},
            group_name=self.group or "kafka",
            owners=self.owners,
            partitions_def=slices,
            metadata={
                "dagster/column_schema": dg.TableSchema(columns=columns),
                "kafka/format": self.format,
                **({"kafka/key": self.key} if self.key else {}),
            },
        )
        return dg.Definitions(assets=[spec])
