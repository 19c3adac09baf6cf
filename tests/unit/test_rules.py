"""Checks as SQL, formats, and how Avro schemas are read under a contract."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from email_validator import validate_email
from hypothesis import given
from hypothesis import strategies as st

from lineage_assets.errors import ContractError
from lineage_assets.quality import formats, rules
from lineage_assets.quality.avro import reading
from lineage_assets.quality.contract import Column, Contract, shown


@pytest.mark.parametrize(
    ("kind", "arguments", "type_", "sql"),
    [
        ("gt", {"value": 0}, "bigint", "`a` > 0L"),
        ("le", {"value": 0.5}, "double", "`a` <= 0.5D"),
        ("ge", {"value": 0.1}, "decimal(9,2)", "`a` >= 0.1BD"),
        ("lt", {"value": 2**63}, "bigint", "`a` < 9223372036854775808BD"),
        ("eq", {"value": "it's \\"}, "string", "`a` = 'it\\'s \\\\'"),
        ("ne", {"value": True}, "boolean", "`a` <> true"),
        ("ge", {"value": datetime(2024, 1, 2)}, "timestamp", "`a` >= timestamp '2024-01-02T00:00:00+00:00'"),
        ("ge", {"value": date(2024, 1, 2)}, "date", "`a` >= date '2024-01-02'"),
        ("isin", {"values": ["x", "y"]}, "string", "`a` IN ('x', 'y')"),
        ("notin", {"values": [1]}, "int", "`a` NOT IN (1L)"),
        ("in_range", {"min_value": 1, "max_value": 3}, "int", "(`a` >= 1L AND `a` <= 3L)"),
        (
            "in_range",
            {"min_value": 1, "max_value": 3, "include_min": False, "include_max": False},
            "int",
            "(`a` > 1L AND `a` < 3L)",
        ),
        ("str_startswith", {"string": "x"}, "string", "startswith(`a`, 'x')"),
        ("str_endswith", {"string": "x"}, "string", "endswith(`a`, 'x')"),
        ("str_length", {"max_value": 3}, "string", "(char_length(`a`) <= 3)"),
        ("str_contains", {"pattern": "x+"}, "string", "`a` RLIKE '(?dU)x+'"),
        ("str_matches", {"pattern": "x|y"}, "string", "`a` RLIKE '(?dU)\\\\A(?:x|y)'"),
    ],
)
def test_a_check_has_its_sql(kind: str, arguments: dict[str, object], type_: str, sql: str) -> None:
    assert rules.check_sql(kind, arguments, "a", type_) == f"`a` IS NULL OR {sql}"


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (True, "bigint"),
        ("1", "bigint"),
        (1, "string"),
        (float("nan"), "double"),
        (float("inf"), "bigint"),
        (datetime(2024, 1, 1, tzinfo=UTC), "date"),
        (date(2024, 1, 1), "timestamp"),
        (b"x", "binary"),
        (Decimal("1E+40"), "decimal(38,0)"),
    ],
)
def test_a_value_that_does_not_fit_the_column_is_refused(value: object, type_: str) -> None:
    with pytest.raises(rules.Uncompilable):
        rules.literal(value, type_)


@pytest.mark.parametrize(
    ("pattern", "java"),
    [
        (r"\d+", r"(?dU)\A(?:\d+)"),
        (r"a{,3}", r"(?dU)\A(?:a{0,3})"),
        (r"a{2}b{x", r"(?dU)\A(?:a{2}b\{x)"),
        (r"[[&a]", r"(?dU)\A(?:[\[\&a])"),
        (r"[]a]", r"(?dU)\A(?:[\]a])"),
        (r"[^]a]", r"(?dU)\A(?:[^\]a])"),
        (r"a\Z", r"(?dU)\A(?:a\z)"),
        (r"(?i)a", r"(?dUiu)\A(?:a)"),
        (re.compile("a", re.IGNORECASE | re.DOTALL), r"(?dUisu)\A(?:a)"),
        (r"\\(?:a)", r"(?dU)\A(?:\\(?:a))"),
    ],
)
def test_a_python_pattern_becomes_a_java_pattern(pattern: str | re.Pattern[str], java: str) -> None:
    assert rules.java_regex(pattern, at_start=True) == java


@pytest.mark.parametrize("pattern", ["(", "(?P<a>x)", "(a)(?(1)b)", "(?#c)a", "(?x)a", r"\N{DIGIT ONE}", "(?a)a"])
def test_a_pattern_that_java_reads_otherwise_is_refused(pattern: str) -> None:
    with pytest.raises(rules.Uncompilable):
        rules.java_regex(pattern, at_start=True)


@pytest.mark.parametrize(
    ("format_", "good", "bad"),
    [
        ("phone", ["+4915112345678"], ["4915112345678", "+0151", "+49 151", "+491511234567890123"]),
        ("uuid", ["85d4f5f9-506d-4675-a252-7ea85b4dc46b"], ["85d4f5f9506d4675a2527ea85b4dc46b", "x" * 36]),
        ("ipv4", ["1.2.3.4", "255.255.255.255", "10.0.0.0"], ["1.2.3", "256.1.1.1", "1.2.3.4.5", "1.2.3.4."]),
    ],
)
def test_formats_by_pattern(format_: str, good: list[str], bad: list[str]) -> None:
    pattern = rules.PATTERNS[format_]
    assert pattern is not None
    assert all(re.match(pattern, text) for text in good)
    assert not any(re.match(pattern, text) for text in bad)


def test_emails_are_checked_by_form() -> None:
    good = ["ann@shop.com", "a.b+c@mail.shop.org", "jürgen@müller.de"]
    bad = [
        "",
        "ann",
        "ann@",
        "@shop.com",
        "ann@shop",
        "a..b@shop.com",
        "ann@localhost",
        "ann@shop.test",
        "a b@shop.com",
    ]
    assert all(formats.is_email(text) for text in good)
    assert not any(formats.is_email(text) for text in bad)


@given(st.from_regex(formats._PLAIN, fullmatch=True).filter(lambda text: len(text) <= formats.PLAIN_LENGTH))
def test_an_address_that_needs_no_library_is_one_that_it_accepts(text: str) -> None:
    validate_email(text, check_deliverability=False, test_environment=False)


@given(st.from_regex(formats._NEVER, fullmatch=True))
def test_a_text_that_needs_no_library_is_one_that_it_refuses(text: str) -> None:
    with pytest.raises(ValueError):
        validate_email(text, check_deliverability=False, test_environment=False)


@given(st.text(max_size=40))
def test_no_text_stops_the_email_check(text: str) -> None:
    assert formats.is_email(text) in (True, False)


def test_a_batch_of_emails_keeps_nulls_and_order() -> None:
    batch = pa.array(["ann@shop.com", None, "x", "ann@shop.com"])
    assert formats.email_batch(batch).to_pylist() == [True, None, False, True]
    assert formats.email_batch(pa.array([], pa.string())).to_pylist() == []


def test_names_in_messages_hold_no_control_characters() -> None:
    assert shown("a\u0001b\n") == "a\\u0001b\\u000a"
    assert shown("größe 1") == "größe 1"


def contract_of(*fields: str) -> Contract:
    return Contract("C", tuple(Column(field, f"col{i}", "string") for i, field in enumerate(fields)))


def test_the_reader_has_the_writers_fields_under_other_names() -> None:
    writer = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "userId", "type": "int"}, {"name": "UserID", "type": ["null", "long"]}],
    }
    found = reading(contract_of("UserID", "missing", "userId"), json.dumps(writer))
    assert [None if one is None else (one.name, one.type) for one in found.fields] == [
        ("c1", "BIGINT"),
        None,
        ("c0", "INT"),
    ]
    reader = json.loads(found.reader)
    assert [one.get("aliases") for one in reader["fields"]] == [["userId"], ["UserID"], None]
    assert reader["fields"][-1] == json.loads(found.writer)["fields"][-1]


def test_a_recursive_field_is_left_out_and_its_types_stay_known() -> None:
    node = {
        "type": "record",
        "name": "Node",
        "fields": [
            {"name": "next", "type": ["null", "Node"]},
            {"name": "kind", "type": {"type": "enum", "name": "E", "symbols": ["A"]}},
        ],
    }
    writer = {
        "type": "record",
        "name": "R",
        "namespace": "n.s",
        "fields": [
            {"name": "tree", "type": node},
            {"name": "self", "type": {"type": "array", "items": "R"}},
            {"name": "kept", "type": "E"},
            {"name": "again", "type": ["null", "n.s.E"]},
        ],
    }
    found = reading(contract_of("tree", "self", "kept", "again"), json.dumps(writer))
    kept, again, _ = json.loads(found.reader)["fields"]
    assert kept["type"] == {"type": "enum", "name": "E", "namespace": "n.s", "symbols": ["A"]}
    assert again["type"] == ["null", "n.s.E"]
    assert [one and one.type for one in found.fields] == [None, None, "STRING", "STRING"]


@pytest.mark.parametrize(
    ("schema", "type_"),
    [
        ("long", "BIGINT"),
        ({"type": "long"}, "BIGINT"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "TIMESTAMP"),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, "TIMESTAMP_NTZ"),
        ({"type": "int", "logicalType": "date"}, "DATE"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}, "DECIMAL(5,2)"),
        ({"type": "string", "logicalType": "uuid"}, "STRING"),
        ({"type": "array", "items": "int"}, "ARRAY"),
        (["null", "string"], "STRING"),
        (["int", "null", "long"], "BIGINT"),
        (["float", "double"], "DOUBLE"),
        (["int", "string"], "UNION"),
        (["null"], "NULL"),
        ({"type": "fixed", "name": "F", "size": 3}, "BINARY"),
    ],
)
def test_an_avro_type_arrives_as_a_spark_type(schema: object, type_: str) -> None:
    writer = {"type": "record", "name": "R", "fields": [{"name": "a", "type": schema}]}
    (field,) = reading(contract_of("a"), json.dumps(writer)).fields
    assert field is not None and field.type == type_


@pytest.mark.parametrize("schema", ['"string"', "[]", "{", '{"type": "enum", "name": "E", "symbols": []}'])
def test_a_schema_that_is_no_record_is_refused(schema: str) -> None:
    with pytest.raises(ContractError):
        reading(contract_of("a"), schema)
