"""Schema fingerprints: what must be equal and what must differ."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage_assets.errors import ContractError
from lineage_assets.lineage.schemas import canonical_form, crc64, fingerprint, json_schema_hash, schema_hash
from tests.cases import case

INPUT: dict[str, Any] = case("C10")["input"]
EXPECTED: dict[str, Any] = case("C10")["expected"]


def little_endian(schema: Any) -> str:
    return crc64(schema).to_bytes(8, "little").hex()


def variants() -> dict[str, Any]:
    base = INPUT["base"]
    made = {
        name: copy.deepcopy(base)
        for name in ("other_namespace", "field_order_swapped", "union_order_swapped", "symbol_added")
    }
    made["other_namespace"]["namespace"] = "shop.events.v2"
    fields = made["field_order_swapped"]["fields"]
    fields[0], fields[1] = fields[1], fields[0]
    last = made["union_order_swapped"]["fields"][2]
    last["type"] = ["Channel", "null"]
    del last["default"]
    made["symbol_added"]["fields"][1]["type"]["symbols"].append("SHOP")
    return made


def test_c10_the_base_has_its_known_fingerprints() -> None:
    assert f"{crc64(INPUT['base']):016x}" == EXPECTED["base"]["crc64_avro_u64"]
    assert little_endian(INPUT["base"]) == EXPECTED["base"]["crc64_avro_bytes_le"]
    assert fingerprint(INPUT["base"]) == EXPECTED["base"]["sha256"]
    assert f"{crc64(INPUT['known_vector']):016x}" == EXPECTED["known_vector"]["crc64_avro_u64"]


def test_c10_another_spelling_of_the_same_schema_is_equal() -> None:
    for spelling in (INPUT["same_meaning"], json.dumps(INPUT["same_meaning"], indent=3)):
        assert canonical_form(spelling) == canonical_form(INPUT["base"])
        assert fingerprint(spelling) == EXPECTED["base"]["sha256"]


@pytest.mark.parametrize("name", ["other_namespace", "field_order_swapped", "union_order_swapped", "symbol_added"])
def test_c10_another_schema_differs(name: str) -> None:
    assert little_endian(variants()[name]) == EXPECTED[name]["crc64_avro_bytes_le"]


def test_c10_nested_namespaces_are_inherited_and_a_second_use_is_a_name() -> None:
    nested, expected = INPUT["nested_namespaces"], EXPECTED["nested_namespaces"]
    form = json.loads(canonical_form(nested))
    first, second, third = form["fields"]
    names = [form["name"], first["type"]["name"], first["type"]["fields"][0]["type"]["name"], second["type"]["name"]]
    assert names == expected["canonical_names"]
    assert third["type"] == expected["third_field_type"]
    assert little_endian(nested) == expected["crc64_avro_bytes_le"]
    assert fingerprint(nested) == expected["sha256"]


@pytest.mark.parametrize(
    ("schema", "form"),
    [
        ('"long"', '"long"'),
        ({"type": "long"}, '"long"'),
        ({"type": {"type": ["null", {"type": "int"}]}}, '["null","int"]'),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, '"bytes"'),
        ({"type": "fixed", "size": "012", "name": "x.F"}, '{"name":"x.F","type":"fixed","size":12}'),
        (
            {"values": {"type": "array", "items": "int"}, "type": "map"},
            '{"type":"map","values":{"type":"array","items":"int"}}',
        ),
        ({"type": "error", "name": "E", "fields": []}, '{"name":"E","type":"record","fields":[]}'),
        (
            {"type": "record", "name": "é", "fields": [{"name": "n", "type": [{"type": "é"}, "null"]}]},
            '{"name":"é","type":"record","fields":[{"name":"n","type":["é","null"]}]}',
        ),
        (
            '{"type":"record","name":"R","namespace":"a","fields":[{"name":"\\u0066","type":'
            '{"type":"enum","name":"E","namespace":"","symbols":["X"]}},{"name":"g","type":"E"},{"name":"h","type":"R"}]}',
            '{"name":"a.R","type":"record","fields":[{"name":"f","type":{"name":"E","type":"enum","symbols":["X"]}},'
            '{"name":"g","type":"E"},{"name":"h","type":"a.R"}]}',
        ),
    ],
)
def test_the_canonical_form_follows_the_specification(schema: Any, form: str) -> None:
    assert canonical_form(schema) == form


def _record(types: list[Any], namespace: str | None, dotted: bool) -> dict[str, Any]:
    fields = [{"name": f"f{index}", "type": kind, "doc": "x"} for index, kind in enumerate(types)]
    space = {"namespace": namespace} if namespace is not None else {}
    return {"type": "record", "name": "d.R" if dotted else "R", "fields": fields, **space}


def _numbered(schema: Any, numbers: Iterator[int]) -> Any:
    """The schema with another name for every record: a name may be defined once only."""
    if isinstance(schema, list):
        return [_numbered(one, numbers) for one in schema]
    if not isinstance(schema, dict):
        return schema
    copied = {key: _numbered(value, numbers) if key != "namespace" else value for key, value in schema.items()}
    return copied | ({"name": f"{schema['name']}{next(numbers)}"} if schema["type"] == "record" else {})


LEAVES = st.sampled_from(["int", "long", "string", "bytes", {"type": "double"}, {"type": "int", "logicalType": "date"}])
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(_record, st.lists(inner, min_size=1, max_size=3), st.sampled_from([None, "a", "b.c"]), st.booleans())
        | st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(lambda values: {"type": "map", "values": values}, inner)
    ),
    max_leaves=8,
).map(lambda schema: _numbered(schema, itertools.count()))


@given(SCHEMAS)
def test_the_canonical_form_is_that_of_fastavro_and_its_own(schema: Any) -> None:
    from fastavro.schema import to_parsing_canonical_form

    form = canonical_form(schema)
    assert form == to_parsing_canonical_form(copy.deepcopy(schema))
    assert canonical_form(form) == form


@pytest.mark.parametrize(
    "schema", ["{", {}, 3, {"type": "array"}, {"type": "record", "name": "R"}, {"type": "record", "fields": []},
               {"type": "record", "name": "R", "fields": [3]}, {"type": "fixed", "name": "F", "size": "many"}],
)  # fmt: skip
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(ContractError, match="Avro"):
        canonical_form(schema)


def test_our_hash_sees_what_changes_a_reader_and_not_documentation() -> None:
    def amount(**more: Any) -> dict[str, Any]:
        kind = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2} | more.pop("kind", {})
        return {"type": "record", "name": "A", "fields": [{"name": "x", "type": kind, **more}]}

    changed = [
        amount(),
        amount(kind={"scale": 3}),
        amount(kind={"precision": 10}),
        amount(kind={"logicalType": "other"}),
        amount(default="\u0000"),
        amount(aliases=["y"]),
        amount(kind={"connect.name": "io.debezium.time.Date"}),
    ]
    assert len({schema_hash(schema) for schema in changed}) == len(changed)
    assert len({fingerprint(schema) for schema in changed}) == 1
    assert schema_hash(amount(doc="what it costs", order="ignore")) == schema_hash(amount())
    assert schema_hash(amount(aliases=["y", "z"])) == schema_hash(amount(aliases=["z", "y"]))


def test_our_hash_is_blind_to_how_names_are_spelled() -> None:
    whole = {"type": "record", "name": "a.R", "fields": [{"name": "n", "type": ["null", "R"]}]}
    apart = {"type": "record", "namespace": "a", "name": "R", "fields": [{"name": "n", "type": ["null", "a.R"]}]}
    assert schema_hash(json.dumps(whole)) == schema_hash(apart)


def test_fields_of_json_have_no_order() -> None:
    assert json_schema_hash({"a": "int", "b": "string"}) == json_schema_hash({"b": "string", "a": "int"})
    assert json_schema_hash({"a": "int"}) != json_schema_hash({"a": "bigint"})
