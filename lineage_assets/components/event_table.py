"""`lineage_assets.components.EventTable`: raw, silver, dead letters and late events of one topic.

Belongs here: the declaration, its four assets and their checks, and the step that makes them slice by slice.
Does not belong here: the processing (spark/process.py), the wording of metadata (reporting/metadata.py).
"""

# No postponed annotations here: Dagster reads the type of `context` and does not resolve text.

from collections.abc import Iterator
from typing import Any

import dagster as dg
from pydantic import Field, PrivateAttr

from lineage_assets.components.declared import folder, known_type, nearest, siblings, told_with_line
from lineage_assets.components.topic import Topic
from lineage_assets.errors import ContractError
from lineage_assets.lineage.columns import Lineage
from lineage_assets.lineage.durations import seconds
from lineage_assets.lineage.names import node_name
from lineage_assets.quality import checks
from lineage_assets.quality.contract import Contract
from lineage_assets.quality.load import load_contract
from lineage_assets.reporting import metadata
from lineage_assets.reporting.verdicts import results
from lineage_assets.settings import settings
from lineage_assets.spark import event_table as engine

Reported = dg.MaterializeResult[Any] | dg.AssetCheckResult


class EventTable(dg.Component, dg.Model, dg.Resolvable):
    """The tables of a topic whose records are events: `raw/`, `silver/`, `dead_letters/` and `late/<name>`."""

    name: str = Field(description="Name of the tables.")
    topic: str = Field(description="A topic declared in this code location.")
    contract: str = Field(description="<file>.<class> of the pandera model beside this file, such as contract.Click.")
    select: str | None = Field(None, description="File with Spark SQL over `records`, one row in and one row out.")
    event_time: str | None = Field(None, description="The column that says when an event happened.")
    grace: str = Field("1h", description="A record that arrives later than this after its event is marked late.")
    unique_by: list[str] = Field([], description="The dedupe key: a record that repeats it is a duplicate.")
    dedupe_window: str = Field("10m", description="How far back, by Kafka timestamp, duplicates are looked for.")
    owners: list[str] = []
    description: str | None = None
    group: str | None = Field(None, description="Group in the UI. Default: the layer, such as silver.")
    _built: engine.EventTable | None = PrivateAttr(None)

    @property
    def built(self) -> engine.EventTable:
        """What process(slice) works from, after the code location was built."""
        assert self._built is not None, "the definitions were not built"
        return self._built

    def topic_of(self, context: dg.ComponentLoadContext) -> Topic:
        """The declaration of the table's topic."""
        topics = {one.name: one for one in siblings(context, Topic)}
        if self.topic not in topics:
            raise ContractError(f"no Topic {self.topic!r} is declared", remedy=nearest(self.topic, list(topics)))
        return topics[self.topic]

    def load_contract(self, context: dg.ComponentLoadContext) -> Contract:
        """The compiled contract."""
        module, _, name = self.contract.rpartition(".")
        if not module:
            raise ContractError(
                f"{self.contract!r} names no class", remedy="write <file>.<class>, such as contract.Click"
            )
        return load_contract(folder(context) / f"{module}.py", name)

    def field_columns(self, context: dg.ComponentLoadContext) -> list[dg.TableColumn]:
        """The topic's fields as its contract knows them."""
        with told_with_line(context, "contract", self.contract):
            contract = self.load_contract(context)
        return [
            dg.TableColumn(
                metadata.topic_column(one.field), one.type, one.description, tags={tag: "" for tag in one.tags}
            )
            for one in contract.columns
        ]

    def declared(self, context: dg.ComponentLoadContext) -> engine.EventTable:
        """What process(slice) works from. Raises DeclarationError for a mistake, with file and line."""
        with told_with_line(context, "topic", self.topic):
            topic = self.topic_of(context)
        with told_with_line(context, "contract", self.contract):
            contract = self.load_contract(context)
        columns = [one.column for one in contract.columns]
        for attribute, names in (("event_time", [self.event_time]), ("unique_by", self.unique_by)):
            with told_with_line(context, attribute, names[0] if names else ""):
                for name in names:
                    if name is not None and name not in columns:
                        raise ContractError(f"the contract has no column {name!r}", remedy=nearest(name, columns))
        with told_with_line(context, "grace", self.grace):
            grace_ms = seconds(self.grace) * 1000
        with told_with_line(context, "dedupe_window", self.dedupe_window):
            window_ms = seconds(self.dedupe_window) * 1000
        with told_with_line(context, "select", self.select):
            select = self._select(context)
        return engine.EventTable(
            name=self.name,
            topic=self.topic,
            format=topic.format,
            grain=topic.grain,
            since=topic.since,
            contract=contract,
            select=select,
            event_time=self.event_time,
            grace_ms=grace_ms,
            unique_by=tuple(self.unique_by),
            window_ms=window_ms,
            transactional=topic.transactional,
            private_key=all(one.field != topic.key or "pii" in one.tags for one in contract.columns),
        )

    def _select(self, context: dg.ComponentLoadContext) -> str | None:
        if self.select is None:
            return None
        file = folder(context) / self.select
        if not file.is_file():
            raise ContractError(
                f"{file} does not exist",
                remedy=nearest(self.select, [one.name for one in folder(context).glob("*.sql")]),
            )
        sql = file.read_text()
        engine.row_wise(sql, str(file))
        return sql

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        table = self._built = self.declared(context)
        topic = self.topic_of(context)
        with told_with_line(context, "select", self.select):
            lineage = silver_lineage(table)
        return dg.Definitions(assets=[_assets(self, table, topic, lineage)])


def silver_lineage(table: engine.EventTable) -> Lineage:
    """Columns of silver with their types and the contract's columns that each comes from."""
    found = table.lineage
    if found.unresolved:
        raise ContractError(
            f"cannot tell where {', '.join(found.unresolved)} of silver/{table.name} comes from",
            remedy=nearest(found.unresolved[0], [one.column for one in table.contract.columns]),
        )
    for name in found.columns:
        known_type(found.types, name)
    return found


def _assets(declared: EventTable, table: engine.EventTable, topic: Topic, lineage: Lineage) -> dg.AssetsDefinition:
    specs = _specs(declared, table, topic, lineage)
    silver = dg.AssetKey(["silver", table.name])
    partitions = topic.partitions
    check_specs = [
        dg.AssetCheckSpec(
            one.name, asset=silver, description=one.description, blocking=one.blocking, partitions_def=partitions
        )
        for one in checks.declared(table.contract, table.unique_by)
    ]

    @dg.multi_asset(
        name=node_name(["events", table.name]),
        specs=specs,
        check_specs=check_specs,
        partitions_def=partitions,
        required_resource_keys={"pyspark"},
        op_tags={"dagster/kind": "spark"},
    )
    def events(
        context: dg.AssetExecutionContext,
    ) -> Iterator[Reported]:
        from lineage_assets.kafka.cuts import slice_topic
        from lineage_assets.kafka.registry import Registry
        from lineage_assets.lineage.slices import Slice
        from lineage_assets.spark.job import Job
        from lineage_assets.spark.process import process

        config = settings()
        sliced = slice_topic(config, config.lake_env, table.topic, table.grain, table.since)
        job = Job(context.resources.pyspark.spark_session, config, table, sliced, context.run_id, Registry(config))
        done = process(job, Slice.of(context.partition_key, table.grain))
        assert done.silver.record is not None
        for spec in specs:
            yield dg.MaterializeResult(asset_key=spec.key, metadata=metadata.of_event_asset(spec.key.path, table, done))
        yield from results(silver, done.silver.record.checks)

    return events


def _specs(declared: EventTable, table: engine.EventTable, topic: Topic, lineage: Lineage) -> list[dg.AssetSpec]:
    """The four assets: two tables, and two views over them that hold no copies."""
    raw, silver = dg.AssetKey(["raw", table.name]), dg.AssetKey(["silver", table.name])
    source = dg.AssetKey(topic.path)
    silver_schema = metadata.silver_schema(table, lineage)
    common: dict[str, Any] = {
        "owners": declared.owners or topic.owners,
        "code_version": table.code,
        "partitions_def": topic.partitions,
    }
    described = declared.description or table.contract.doc
    return [
        dg.AssetSpec(
            raw,
            deps=[source],
            group_name=declared.group or "raw",
            description=f"Every record of {table.topic} as it came, once, with its fate. {described}",
            kinds={"delta", "spark"},
            metadata={
                "dagster/column_schema": metadata.raw_schema(),
                "dagster/column_lineage": metadata.raw_lineage(source),
            },
            **common,
        ),
        dg.AssetSpec(
            silver,
            deps=[raw],
            group_name=declared.group or "silver",
            description=f"The ok records of {table.topic}, decoded and clean. {described}",
            kinds={"delta", "spark"},
            metadata={
                "dagster/column_schema": silver_schema,
                "dagster/column_lineage": metadata.silver_column_lineage(table, lineage, raw, source),
            },
            **common,
        ),
        dg.AssetSpec(
            ["dead_letters", table.name],
            group_name=declared.group or "dead_letters",
            deps=[raw],
            description=f"Records of {table.topic} that could not be decoded or broke the contract: rows of {raw.to_user_string()} "
            "with fate 'dead', whole, with their reasons. No copy.",
            kinds={"delta"},
            metadata={
                "dagster/column_schema": metadata.raw_schema(),
                "dagster/column_lineage": metadata.same_columns(metadata.raw_schema(), raw),
            },
            **common,
        ),
        dg.AssetSpec(
            ["late", table.name],
            group_name=declared.group or "late",
            deps=[silver],
            description=f"Rows of {silver.to_user_string()} that came more than {declared.grace} after their event, "
            "with `_late_by_s`. No copy.",
            kinds={"delta"},
            metadata={
                "dagster/column_schema": silver_schema,
                "dagster/column_lineage": metadata.same_columns(silver_schema, silver),
            },
            **common,
        ),
    ]
