"""Metadata of assets and materializations, in the keys of the graph: from declarations and commit records.

Belongs here: building Dagster's metadata values. Does not belong here: reading tables, sending events.

Integers above 2^53 travel as text, alone or inside JSON: the UI is JavaScript.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from lineage_assets.lineage import record as records
from lineage_assets.lineage import skew
from lineage_assets.lineage.columns import Lineage
from lineage_assets.lineage.commits import Commit
from lineage_assets.lineage.offsets import Ranges
from lineage_assets.lineage.record import CommitRecord
from lineage_assets.spark.event_table import LINEAGE_COLUMNS, EventTable
from lineage_assets.spark.job import RAW
from lineage_assets.spark.process import Processed
from lineage_assets.spark.tables import SLICE

EXACT_IN_JAVASCRIPT = 2**53
SHOWN_KEYS = 5

RAW_DESCRIPTIONS = {
    "partition": "Partition of the topic.",
    "offset": "Offset in the partition.",
    "timestamp": "Kafka timestamp, UTC.",
    "timestamp_type": "0: set by the producer. 1: set by the broker.",
    "key": "The record's key, as it came.",
    "value": "The record's value, as it came.",
    "headers": "The record's headers in their order, repeated names included.",
    "topic_id": "The broker's id of the topic: one that was deleted and made again has another.",
    "schema_id": "Id of the writer's schema in the registry.",
    "fate": "What became of the record: ok, dead, duplicate, tombstone, control or erased.",
    "reasons": "Why it is dead: every rule that it broke.",
    "warnings": "Rules that it broke and that do not make it dead.",
    "late_by_s": "Seconds between the event and its arrival, where that exceeds the grace.",
    "contract": "Hash of the contract by which its fate was decided.",
    SLICE: "The slice that the record arrived in.",
}
LINEAGE_DESCRIPTIONS = {
    "_partition": "Partition of the record that this row came from.",
    "_offset": "Offset of the record that this row came from.",
    "_timestamp": "Kafka timestamp of that record, UTC.",
    "_late_by_s": "Seconds between the event and its arrival, where that exceeds the grace.",
}


def raw_schema() -> dg.TableSchema:
    """Columns of a raw table."""
    return dg.TableSchema([dg.TableColumn(name, kind, RAW_DESCRIPTIONS[name]) for name, kind in RAW.items()])


ENVELOPE = {
    "key": ("bytes", "The record's key."),
    "value": ("bytes", "The record's value, as its producer wrote it."),
    "headers": ("array<struct<key:string,value:bytes>>", "Names and values in their order."),
    "timestamp": ("timestamp", "Kafka timestamp: of the producer or of the broker, as the topic is configured."),
    "partition": ("int", "Partition of the topic."),
    "offset": ("bigint", "Offset in the partition."),
}


def envelope() -> list[dg.TableColumn]:
    """What every record of a topic has, beside the fields of its value."""
    return [dg.TableColumn(name, kind, description) for name, (kind, description) in ENVELOPE.items()]


def topic_column(field: str) -> str:
    """A field of the value among the columns of its topic.

    >>> topic_column("amount"), topic_column("timestamp")
    ('amount', 'value.timestamp')
    """
    return f"value.{field}" if field in ENVELOPE else field


def raw_lineage(topic: dg.AssetKey) -> dg.TableColumnLineage:
    """What raw keeps of a topic's record: its envelope, name by name."""
    same = {
        name: [dg.TableColumnDep(topic, name)]
        for name in ("partition", "offset", "timestamp", "key", "value", "headers")
    }
    decided = {
        name: [dg.TableColumnDep(topic, "value")] for name in ("schema_id", "fate", "reasons", "warnings", "late_by_s")
    }
    arrived = {SLICE: [dg.TableColumnDep(topic, "partition"), dg.TableColumnDep(topic, "offset")]}
    stamped = {"timestamp_type": [dg.TableColumnDep(topic, "timestamp")], "topic_id": []}
    return dg.TableColumnLineage({**same, **stamped, **decided, **arrived})


def silver_schema(table: EventTable, lineage: Lineage) -> dg.TableSchema:
    """Columns of a silver table: those of its SQL, described and tagged by the contract columns they come from."""
    by_column = {one.column: one for one in table.contract.columns}
    found = []
    for name, sources in lineage.columns.items():
        origins = [by_column[one.column] for one in sources if one.column in by_column]
        described = by_column.get(name) or (origins[0] if len(origins) == 1 else None)
        tags = {tag: "" for origin in origins for tag in origin.tags}
        found.append(
            dg.TableColumn(name, lineage.types[name].lower(), described.description if described else None, tags=tags)
        )
    found += [dg.TableColumn(name, kind, LINEAGE_DESCRIPTIONS[name]) for name, kind in LINEAGE_COLUMNS.items()]
    return dg.TableSchema([*found, dg.TableColumn(SLICE, "string", RAW_DESCRIPTIONS[SLICE])])


def silver_column_lineage(
    table: EventTable, lineage: Lineage, raw: dg.AssetKey, topic: dg.AssetKey
) -> dg.TableColumnLineage:
    """A silver column comes from raw's bytes, and within them from fields of the topic's records."""
    fields = {one.column: one.field for one in table.contract.columns}
    deps = {
        name: [
            dg.TableColumnDep(raw, "value"),
            *(dg.TableColumnDep(topic, topic_column(fields[one.column])) for one in sources),
        ]
        for name, sources in lineage.columns.items()
    }
    own = {name: [dg.TableColumnDep(raw, name.removeprefix("_"))] for name in LINEAGE_COLUMNS}
    return dg.TableColumnLineage({**deps, **own, SLICE: [dg.TableColumnDep(raw, SLICE)]})


def same_columns(schema: dg.TableSchema, source: dg.AssetKey) -> dg.TableColumnLineage:
    """The lineage of a view: each column is the source's."""
    return dg.TableColumnLineage({one.name: [dg.TableColumnDep(source, one.name)] for one in schema.columns})


def of_event_asset(path: Sequence[str], table: EventTable, done: Processed) -> dict[str, Any]:
    """Metadata of one slice of raw, silver, dead_letters or late, as a run has just made it."""
    return of_slice(path, done.raw if table_behind(path) == f"raw/{table.name}" else done.silver)


def table_behind(path: Sequence[str]) -> str:
    """The table whose commits make an asset what it is: views have none of their own.

    >>> table_behind(["late", "clicks"]), table_behind(["gold", "visits"])
    ('silver/clicks', 'gold/visits')
    """
    layer = {"dead_letters": "raw", "late": "silver"}.get(path[0], path[0])
    return "/".join([layer, *path[1:]])


def of_slice(path: Sequence[str], commit: Commit) -> dict[str, Any]:
    """Metadata of one slice of any table or view, or of a whole mart, from the record of all that it holds."""
    assert commit.record is not None
    counts, name = commit.record.counts, "/".join(path[1:])
    told = of_commit(commit)
    match path[0]:
        case "raw":
            return {**told, **_rows(sum(count for fate, count in counts.items() if fate != "late"))}
        case "silver":
            return {**told, **_rows(counts.get("ok", 0))}
        case "dead_letters":
            where = f"raw/{name} WHERE fate = 'dead'"
            return {**told, **_rows(counts.get("dead", 0)), "lineage/rows": dg.MetadataValue.text(where)}
        case "late":
            where = f"silver/{name} WHERE _late_by_s IS NOT NULL"
            return {**told, **_rows(counts.get("late", 0)), "lineage/rows": dg.MetadataValue.text(where)}
    return of_table(commit) if commit.record.slice is not None else of_whole(commit)


def of_whole(commit: Commit) -> dict[str, Any]:
    """Metadata of a table without slices, such as a mart: which versions it was made of, and what was held back."""
    assert commit.record is not None
    tables = commit.record.tables
    return {
        **of_commit(commit),
        "dagster/row_count": dg.MetadataValue.int(commit.record.counts.get("rows", 0)),
        "lineage/inputs": dg.MetadataValue.json({one.table: str(one.read_at) for one in tables}),
        "lineage/held": dg.MetadataValue.json({one.table: list(one.held) for one in tables if one.held}),
    }


def of_table(commit: Commit) -> dict[str, Any]:
    """Metadata of one slice of a table that is made from other tables."""
    assert commit.record is not None
    return {**of_commit(commit), **_rows(commit.record.counts.get("rows", 0))}


def of_commit(commit: Commit) -> dict[str, Any]:
    """What a commit's record says, in the graph's keys."""
    record = commit.record
    assert record is not None
    found: dict[str, Any] = {
        "delta/version": number(commit.version),
        "delta/versions": dg.MetadataValue.text(f"[{commit.version}, {commit.version + 1})"),
        "lineage/commit": dg.MetadataValue.text(records.to_json(record)),
        **_topics(record),
    }
    if record.slice is not None:
        found["lineage/fates"] = dg.MetadataValue.json(dict(record.counts))
    if "skew" in record.stated:
        found |= _skew(record.stated["skew"])
    if record.reasons:
        found["lineage/reasons"] = dg.MetadataValue.json(dict(record.reasons))
    return found


def _skew(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The heaviest keys with their records, and how much fuller the fullest partition is than the mean."""
    keys = [
        dg.TableRecord({"key": "(none)" if one.name is None else one.name, "records": str(one.most)})
        for one in skew.heaviest_keys(summary)[:SHOWN_KEYS]
    ]
    columns = [dg.TableColumn("key", "string"), dg.TableColumn("records", "string", "At most so many.")]
    found: dict[str, Any] = {"skew/keys": dg.MetadataValue.table(keys, dg.TableSchema(columns))}
    if (imbalance := skew.imbalance(summary)) is not None:
        found["skew/imbalance"] = dg.MetadataValue.float(round(imbalance, 3))
    return found


def ranges_text(ranges: Ranges) -> dict[str, list[str]]:
    """Offset ranges for JSON that a browser reads: as text."""
    return {str(p): [str(r.start), str(r.end)] for p, r in sorted(ranges.items())}


def number(value: int) -> dg.MetadataValue[Any]:
    """An integer that a browser shows exactly.

    >>> number(2**60)
    TextMetadataValue(text='1152921504606846976')
    """
    return dg.MetadataValue.int(value) if abs(value) <= EXACT_IN_JAVASCRIPT else dg.MetadataValue.text(str(value))


def _topics(record: CommitRecord) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for topic in record.topics:
        found["kafka/topic_id"] = dg.MetadataValue.text(topic.topic_id)
        found["kafka/ranges"] = dg.MetadataValue.json(ranges_text(topic.ranges))
        if topic.schemas:
            found["schema/versions"] = dg.MetadataValue.json(
                [{"subject": one.subject, "id": one.id, "version": one.version} for one in topic.schemas]
            )
            found["schema/fingerprint"] = dg.MetadataValue.text(", ".join(one.fingerprint for one in topic.schemas))
    return found


def _rows(count: int) -> Mapping[str, Any]:
    return {"dagster/partition_row_count": dg.MetadataValue.int(count)}
