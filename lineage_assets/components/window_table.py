"""`lineage_assets.components.WindowTable`: tumbling windows by key over an event table.

Belongs here: the declaration, its asset, and the step that makes it slice by slice.
Does not belong here: the SQL (spark/window_table.py), running it (spark/windows.py).
"""

# No postponed annotations here: Dagster reads the type of `context` and does not resolve text.

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import dagster as dg
from pydantic import Field

from lineage_assets.components.declared import known_type, nearest, siblings, told_with_line
from lineage_assets.components.event_table import EventTable, silver_lineage
from lineage_assets.errors import ContractError
from lineage_assets.lineage.columns import column_lineage
from lineage_assets.lineage.durations import seconds
from lineage_assets.lineage.names import node_name
from lineage_assets.lineage.slices import Grain
from lineage_assets.reporting import metadata
from lineage_assets.settings import settings
from lineage_assets.spark import window_table as engine
from lineage_assets.spark.event_table import LINEAGE_COLUMNS
from lineage_assets.spark.tables import SLICE


class WindowTable(dg.Component, dg.Model, dg.Resolvable):
    """A `gold/` table: per slice one row for each key and window. Readers add up the slices."""

    name: str = Field(description="Name of the table.")
    source: str = Field(description="The silver table it is made from, such as silver/clicks.")
    window: str = Field(description="Length of a window, such as 5m.")
    by: list[str] = Field(description="Columns whose values each have windows of their own.")
    measures: dict[str, str] = Field(
        description="Column name: count, sum, min, max or approx_count_distinct of something."
    )
    owners: list[str] = []
    description: str | None = None
    group: str | None = Field(None, description="Group in the UI. Default: gold.")

    def event_table(self, context: dg.ComponentLoadContext) -> EventTable:
        """The declaration of the source."""
        tables = {f"silver/{one.name}": one for one in siblings(context, EventTable)}
        if self.source not in tables:
            raise ContractError(f"no table {self.source!r} is declared", remedy=nearest(self.source, list(tables)))
        return tables[self.source]

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        with told_with_line(context, "source", self.source):
            source = self.event_table(context)
            events = source.declared(context)
            if events.event_time is None:
                raise ContractError(f"{self.source} declares no event_time", remedy="windows need one: add it there")
        columns = {**silver_lineage(events).types, **LINEAGE_COLUMNS}
        for name in self.by:
            with told_with_line(context, "by", name):
                if name not in columns:
                    raise ContractError(f"{self.source} has no column {name!r}", remedy=nearest(name, list(columns)))
        with told_with_line(context, "window", self.window):
            window_s = seconds(self.window)
        with told_with_line(context, "measures", ""):
            table = engine.WindowTable(
                self.name,
                self.source,
                events.event_time,
                window_s,
                tuple(self.by),
                engine.measures(self.measures, self.name),
            )
            lineage = column_lineage(table.sql, "spark", {engine.SLICE_ROWS: columns})
            if lineage.unresolved:
                raise ContractError(
                    f"cannot tell where {', '.join(lineage.unresolved)} comes from",
                    remedy=nearest(lineage.unresolved[0], list(columns)),
                )
            personal = set(events.private_columns)
            private = [name for name, found in lineage.columns.items() if any(one.column in personal for one in found)]
            table = replace(table, private=tuple(private))
        topic = source.topic_of(context)
        made_of = dg.AssetKey(self.source.split("/"))
        deps = {
            name: [dg.TableColumnDep(made_of, one.column) for one in sources]
            for name, sources in lineage.columns.items()
        }
        deps[SLICE] = [dg.TableColumnDep(made_of, SLICE)]
        types = {**lineage.types, **table.known_types}
        with told_with_line(context, "measures", ""):
            schema = [dg.TableColumn(name, known_type(types, name), table.describe(name)) for name in lineage.columns]
        spec = dg.AssetSpec(
            table.asset.split("/"),
            deps=[self.source.split("/")],
            description=self.description or f"{self.source} in windows of {self.window} by {', '.join(self.by)}.",
            kinds={"delta", "spark"},
            group_name=self.group or "gold",
            owners=self.owners or source.owners,
            code_version=table.code,
            partitions_def=topic.partitions,
            metadata={
                "dagster/column_schema": dg.TableSchema(
                    [*schema, dg.TableColumn(SLICE, "string", "The slice whose rows are in it.")]
                ),
                "dagster/column_lineage": dg.TableColumnLineage(
                    {**deps, SLICE: [dg.TableColumnDep(dg.AssetKey(self.source.split("/")), SLICE)]}
                ),
                "lineage/conserves": "nothing: one row stands for many events of a key and window",
            },
        )
        return dg.Definitions(assets=[_asset(table, spec, events.grain)])


def _asset(table: engine.WindowTable, spec: dg.AssetSpec, grain: Grain) -> dg.AssetsDefinition:
    @dg.multi_asset(
        name=node_name(["windows", table.name]),
        specs=[spec],
        partitions_def=spec.partitions_def,
        required_resource_keys={"pyspark"},
        op_tags={"dagster/kind": "spark"},
    )
    def windows(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[Any]]:
        from lineage_assets.lineage.slices import Slice
        from lineage_assets.spark.windows import WindowJob, make_slice

        job = WindowJob(context.resources.pyspark.spark_session, settings(), table, context.run_id)
        commit = make_slice(job, Slice.of(context.partition_key, grain))
        yield dg.MaterializeResult(asset_key=spec.key, metadata=metadata.of_table(commit))

    return windows
