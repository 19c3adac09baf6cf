"""How Avro payloads of one writer's schema are read under a contract.

Belongs here: the writer's and the reader's schema for Spark's from_avro, and what type each field arrives as.
Does not belong here: the registry (kafka/registry.py), Spark expressions (spark/decode.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lineage_assets.errors import ContractError
from lineage_assets.quality.contract import Contract

TAIL_BYTES = 8
"""A field of this many bytes is put behind the writer's own, and as many known bytes behind each payload. They come out
only where the datum ended exactly where the payload did: so truncated payloads and trailing bytes are both found."""

_PRIMITIVES = {
    "null": "NULL",
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "bytes": "BINARY",
    "string": "STRING",
}
_LOGICAL = {
    ("int", "date"): "DATE",
    ("long", "timestamp-millis"): "TIMESTAMP",
    ("long", "timestamp-micros"): "TIMESTAMP",
    ("long", "local-timestamp-millis"): "TIMESTAMP_NTZ",
    ("long", "local-timestamp-micros"): "TIMESTAMP_NTZ",
}
_COMPLEX = {"record": "STRUCT", "array": "ARRAY", "map": "MAP", "enum": "STRING", "fixed": "BINARY"}


@dataclass(frozen=True, slots=True)
class ReadField:
    """Where a contract's column comes out of from_avro, and as which Spark type: `BIGINT`, `STRUCT`, `UNION`, …"""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Reading:
    """The two schemas that from_avro gets, as JSON; the field of each contract column (None: the writer has none); the
    name of the field with the known bytes."""

    writer: str
    reader: str
    fields: tuple[ReadField | None, ...]
    tail: str


def reading(contract: Contract, writer_schema: str) -> Reading:
    """How to read one writer's payloads. ContractError when the schema is not that of a record.

    The reader's schema has the writer's fields with the writer's types, so that resolution never fails; whether a type
    fits is decided for each record. Fields that no contract names are read too: Avro skips without looking, and a
    negative length in a skipped field would send it backwards, for ever. Only recursive types, which Spark refuses, are
    skipped. Fields get names of ours, with the writer's as alias: Spark would not tell apart names that differ by case.
    """
    try:
        writer = json.loads(writer_schema)
    except ValueError as error:
        raise ContractError("the writer's schema is not JSON", remedy="look at it in the registry") from error
    if not isinstance(writer, dict) or writer.get("type") != "record":
        raise ContractError("the writer's schema is not a record", remedy="events are records")
    own = [field["name"] for field in writer["fields"]]
    prefix = "c"
    while any(name.startswith(prefix) for name in own):
        prefix += "_"
    tail_name = f"{prefix}tail"
    tail = {"name": tail_name, "type": {"type": "fixed", "name": f"{prefix}tail_bytes", "size": TAIL_BYTES}}
    named = _Names()
    named.learn(writer, None)
    namespace = _namespace(writer, None)
    named.open.append(_full_name(writer["name"], writer.get("namespace")))
    found: dict[str, ReadField] = {}
    read: list[dict[str, Any]] = []
    for number, field in enumerate(writer["fields"]):
        whole = named.finite(field["type"], namespace)
        if whole is not None:
            name = f"{prefix}{number}"
            found[field["name"]] = ReadField(name, named.spark_type(field["type"], namespace))
            read.append({"name": name, "aliases": [field["name"]], "type": whole})
    head = {key: writer[key] for key in ("type", "name", "namespace") if key in writer}
    return Reading(
        writer=json.dumps({**writer, "fields": [*writer["fields"], tail]}),
        reader=json.dumps({**head, "fields": [*read, tail]}),
        fields=tuple(found.get(column.field) for column in contract.columns),
        tail=tail_name,
    )


def _namespace(schema: Mapping[str, Any], outer: str | None) -> str | None:
    """The namespace inside a named type: its own, that of its dotted name, or the one around it."""
    name = str(schema.get("name", ""))
    return name.rpartition(".")[0] if "." in name else schema.get("namespace", outer)


class _Names:
    """Named types of a schema. A reference may stand in a field that the reader keeps, and its definition in one that
    it drops: definitions are put where they are first needed."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[dict[str, Any], str | None]] = {}
        self.written: set[str] = set()
        self.open: list[str] = []
        self.recursive = False

    def learn(self, schema: Any, outer: str | None) -> None:
        """Remember every named type with the namespace around it."""
        if isinstance(schema, list):
            for one in schema:
                self.learn(one, outer)
        elif isinstance(schema, dict):
            kind = schema.get("type")
            if kind in ("record", "enum", "fixed"):
                self.known[_full_name(schema["name"], schema.get("namespace", outer))] = (schema, outer)
                outer = _namespace(schema, outer)
            for field in schema.get("fields", ()):
                self.learn(field["type"], outer)
            for part in ("items", "values"):
                if part in schema:
                    self.learn(schema[part], outer)
            if isinstance(kind, dict | list):
                self.learn(kind, outer)

    def finite(self, schema: Any, outer: str | None) -> Any:
        """The schema as `whole` answers it; None when it refers to itself."""
        written, self.recursive = set(self.written), False
        made = self.whole(schema, outer)
        if self.recursive:
            self.written = written
        return None if self.recursive else made

    def whole(self, schema: Any, outer: str | None) -> Any:
        """The schema with each named type defined where it first stands, under its full name."""
        if isinstance(schema, list):
            return [self.whole(one, outer) for one in schema]
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return schema
            full = _full_name(schema, outer)
            full = full if full in self.known else schema
            self.recursive |= full in self.open
            if full in self.written or full not in self.known:
                return full
            definition, around = self.known[full]
            return self.whole(definition, around)
        kind = schema.get("type")
        if kind not in ("record", "enum", "fixed"):
            parts = {key: self.whole(schema[key], outer) for key in ("items", "values") if key in schema}
            inner = {"type": self.whole(kind, outer)} if isinstance(kind, dict | list) else {}
            return {**schema, **parts, **inner}
        full = _full_name(schema["name"], schema.get("namespace", outer))
        if full in self.written:
            return full
        self.written.add(full)
        inside = _namespace(schema, outer)
        made = {key: value for key, value in schema.items() if key not in ("name", "namespace", "fields")}
        made["name"] = full.rpartition(".")[2]
        made["namespace"] = full.rpartition(".")[0]
        if kind == "record":
            self.open.append(full)
            made["fields"] = [{**one, "type": self.whole(one["type"], inside)} for one in schema["fields"]]
            self.open.pop()
        return made

    def spark_type(self, schema: Any, outer: str | None) -> str:
        """What from_avro makes of a schema. A union with null is its other branch."""
        if isinstance(schema, list):
            branches = [one for one in schema if one != "null"]
            kinds = {self.spark_type(one, outer) for one in branches}
            if len(branches) <= 1 or kinds in ({"INT", "BIGINT"}, {"FLOAT", "DOUBLE"}):
                # Spark reads int with long as long, and float with double as double: the alphabetically first of them.
                return min(kinds, default="NULL")
            return "UNION"
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return _PRIMITIVES[schema]
            full = _full_name(schema, outer)
            definition, around = self.known.get(full) or self.known[schema]
            return self.spark_type(definition, around)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.spark_type(kind, outer)
        logical = schema.get("logicalType")
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return f"DECIMAL({schema['precision']},{schema.get('scale', 0)})"
        if (kind, logical) in _LOGICAL:
            return _LOGICAL[kind, logical]
        return _COMPLEX.get(kind) or self.spark_type(str(kind), outer)


def _full_name(name: str, namespace: str | None) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"
