"""Fingerprints of schemas: which two texts mean the same.

Belongs here: Avro's parsing canonical form and hashes of it, our stricter hash, the hash of fields without a registry.
Does not belong here: asking a registry, decoding.

Our own canonical form, because libraries differ: avro 1.12 (Python) writes a named type out again at its second use,
fastavro 1.13 refuses a name inside an object ({"type": "shop.Channel"}). The rules are "Parsing Canonical Form for
Schemas" and "Schema Fingerprints" of the Avro specification.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from lineage_assets.errors import ContractError

_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_EMPTY = 0xC15D213AA4D7A795
# No effect on bytes or on how a reader reads them: documentation, and the order in which values sort.
_SILENT = frozenset({"doc", "order", "namespace"})


def canonical_form(schema: str | dict[str, Any] | list[Any]) -> str:
    """Avro's parsing canonical form of a schema, given as JSON text, a bare type name or a parsed schema.

    It leaves out logical types, defaults, aliases and documentation. ContractError when it is no Avro schema.
    """
    return _text(_Normal(everything=False).form(_parsed(schema), ""))


def fingerprint(schema: str | dict[str, Any] | list[Any]) -> str:
    """SHA-256 of the canonical form, in hex."""
    return hashlib.sha256(canonical_form(schema).encode()).hexdigest()


def crc64(schema: str | dict[str, Any] | list[Any]) -> int:
    """CRC-64-AVRO of the canonical form as an unsigned number; its bytes in a message are little endian."""
    value = _EMPTY
    for byte in canonical_form(schema).encode():
        value = (value >> 8) ^ _crc_table()[(value ^ byte) & 0xFF]
    return value


def schema_hash(schema: str | dict[str, Any] | list[Any]) -> str:
    """SHA-256 (hex) of all that changes what a reader gets.

    It also sees logical types, precision, scale, defaults, aliases and the properties of tools such as Connect. It does
    not see documentation, sort order, whitespace or how a name is spelled (namespace apart or in the name).
    """
    return hashlib.sha256(_text(_Normal(everything=True).form(_parsed(schema), "")).encode()).hexdigest()


def json_schema_hash(fields: Mapping[str, str]) -> str:
    """SHA-256 (hex) of the fields (name -> type) of a topic without a registry; their order means nothing in JSON."""
    return hashlib.sha256(_text(dict(sorted(fields.items()))).encode()).hexdigest()


def _text(form: Any) -> str:
    return json.dumps(form, separators=(",", ":"), ensure_ascii=False)


def _parsed(schema: str | dict[str, Any] | list[Any]) -> Any:
    if not isinstance(schema, str) or schema in _PRIMITIVES:
        return schema
    try:
        return json.loads(schema)
    except ValueError as error:
        raise ContractError(f"this is no Avro schema: {error}", remedy="give its JSON text") from error


class _Normal:
    """One pass over a schema that resolves names; `everything` keeps all properties that are not silent."""

    def __init__(self, *, everything: bool) -> None:
        self.everything = everything
        self.defined: set[str] = set()

    def form(self, schema: Any, namespace: str) -> Any:
        """The normal form of a schema within an enclosing namespace."""
        if isinstance(schema, str):
            return schema if schema in _PRIMITIVES else self._reference(schema, namespace)
        if isinstance(schema, list):
            return [self.form(branch, namespace) for branch in schema]
        if not isinstance(schema, dict) or "type" not in schema:
            raise ContractError(
                f"this is no Avro schema: {schema!r}"[:200], remedy='a schema is a name, a list or has a "type"'
            )
        try:
            return self._complex(schema, schema["type"], namespace)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"lacks {error}" if isinstance(error, KeyError) else f"cannot be read: {error}"
            raise ContractError(f"the Avro type {schema.get('name', schema['type'])!r} {what}"[:300]) from error

    def _complex(self, schema: dict[str, Any], kind: Any, namespace: str) -> Any:
        if kind == "array":
            form = {"type": "array", "items": self.form(schema["items"], namespace)}
        elif kind == "map":
            form = {"type": "map", "values": self.form(schema["values"], namespace)}
        elif kind in ("record", "error", "enum", "fixed"):
            form = self._named(schema, kind, namespace)
        else:
            inner = self.form(kind, namespace)
            rest = self._rest(schema, {"type"})
            # {"type": "long"} is "long", unless it says more than that.
            return {"type": inner, **rest} if rest else inner
        return form | self._rest(schema, form.keys())

    def _named(self, schema: dict[str, Any], kind: str, namespace: str) -> dict[str, Any]:
        name = schema["name"]
        if "." not in name:
            space = schema.get("namespace", namespace)
            name = f"{space}.{name}" if space else name
        self.defined.add(name)
        if kind == "enum":
            return {"name": name, "type": kind, "symbols": list(schema["symbols"])}
        if kind == "fixed":
            return {"name": name, "type": kind, "size": int(schema["size"])}
        space = name.rpartition(".")[0]
        fields = [self._field(field, space) for field in schema["fields"]]
        # The specification knows no "error" in the canonical form; Avro's own Java library writes a record.
        return {"name": name, "type": "record", "fields": fields}

    def _field(self, field: dict[str, Any], namespace: str) -> dict[str, Any]:
        form = {"name": field["name"], "type": self.form(field["type"], namespace)}
        return form | self._rest(field, form.keys())

    def _reference(self, name: str, namespace: str) -> str:
        full = f"{namespace}.{name}" if namespace and "." not in name else name
        # A type of the null namespace can be named from within another one, if that has none of this name.
        return name if full not in self.defined and name in self.defined else full

    def _rest(self, schema: dict[str, Any], known: Any) -> dict[str, Any]:
        if not self.everything:
            return {}
        rest = {name: value for name, value in sorted(schema.items()) if name not in known and name not in _SILENT}
        return rest | ({"aliases": sorted(rest["aliases"])} if "aliases" in rest else {})


@cache
def _crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_EMPTY & -(value & 1))
        table.append(value)
    return tuple(table)
