"""Decoding on the real Spark: what is accepted, what is dead and why, and that no record stops a query."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from lineage_assets.quality.contract import Contract
from lineage_assets.quality.load import load_contract
from lineage_assets.settings import Settings
from lineage_assets.spark import decode
from tests.cases import case

CONTRACTS = """\
from datetime import date, datetime

import numpy as np
import pandera.pandas as pa


class Customer(pa.DataFrameModel):
    id: str
    v: int


class Tick(pa.DataFrameModel):
    n: np.int32
    s: str


class Measured(pa.DataFrameModel):
    id: int
    amount: float
    ts: datetime


class Odd(pa.DataFrameModel):
    userId: int
    upper: int = pa.Field(alias="UserID", nullable=True)
    order: int = pa.Field(alias="order id")
    euros: float = pa.Field(alias="price.eur")
    price: str = pa.Field(nullable=True, metadata={"json": True})


class Typed(pa.DataFrameModel):
    i: np.int32 = pa.Field(nullable=True)
    l: int = pa.Field(nullable=True)
    f: float = pa.Field(nullable=True)
    b: bool = pa.Field(nullable=True)
    s: str = pa.Field(nullable=True)
    t: datetime = pa.Field(nullable=True)
    ms: datetime = pa.Field(nullable=True, metadata={"epoch": "ms"})
    d: date = pa.Field(nullable=True)
    n: pa.Decimal = pa.Field(nullable=True, dtype_kwargs={"precision": 6, "scale": 2})
    x: bytes = pa.Field(nullable=True)


class Ruled(pa.DataFrameModel):
    kind: str = pa.Field(isin=["it's", 'say "x"', "a\\\\b"], str_length={"min_value": 2, "max_value": 7})
    code: str = pa.Field(nullable=True, str_matches=r"[a-z]+-\\d{2}$")
    price: float = pa.Field(in_range={"min_value": 0, "max_value": 10, "include_max": False})
    email: str = pa.Field(nullable=True, metadata={"format": "email"})
    phone: str = pa.Field(nullable=True, metadata={"format": "phone", "severity": "WARN"})
    key: int = pa.Field(nullable=True, gt=0, raise_warning=True)


class Wide(pa.DataFrameModel):
    n: int
    s: str = pa.Field(nullable=True)
    ts: datetime
    amount: pa.Decimal = pa.Field(dtype_kwargs={"precision": 9, "scale": 2})
    day: date
    kind: str
    upper: str = pa.Field(alias="S", nullable=True)
    added: str = pa.Field(nullable=True)
"""


@pytest.fixture(scope="module")
def spark(stack: Settings) -> Iterator[SparkSession]:
    session = SparkSession.builder.remote(stack.spark).create()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def contract_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("contracts") / "contract.py"
    path.write_text(CONTRACTS)
    return path


def raw(spark: SparkSession, values: Sequence[bytes | str | None]) -> DataFrame:
    rows = [(0, at, value.encode() if isinstance(value, str) else value) for at, value in enumerate(values)]
    return spark.createDataFrame(rows, "partition int, offset bigint, value binary")


def by_offset(decided: DataFrame) -> list[Row]:
    return sorted(decided.drop("value").collect(), key=lambda row: row.offset)


def json_rows(spark: SparkSession, file: Path, model: str, values: Sequence[bytes | str | None]) -> list[Row]:
    return by_offset(decode.decode_json(raw(spark, values), load_contract(file, model)))


def reasons(rows: Sequence[Row]) -> list[list[str]]:
    return [row.reasons for row in rows]


def fates(rows: Sequence[Row]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in rows:
        found.setdefault(row.fate, []).append(row.offset)
    return found


def test_c08_tombstones_empty_values_and_null_payloads(spark: SparkSession, contract_file: Path) -> None:
    given, expected = case("C08")["input"], case("C08")["expected"]
    rows = json_rows(spark, contract_file, "Customer", [one["value"] for one in given["records"]])
    assert len(rows) == expected["bronze_rows"]
    assert fates(rows) == {
        "tombstone": expected["tombstones"],
        "dead": expected["quarantined_payloads"],
        "ok": [0, 2, 5],
    }
    assert reasons(rows)[3:5] == [["decode: empty value"], ["decode: not a JSON object"]]
    assert rows[1].reasons == [] and rows[1].record is None


def test_c12_wire_format(spark: SparkSession, contract_file: Path) -> None:
    given, expected = case("C12")["input"], case("C12")["expected"]
    hexes = {**given["records_hex"], **given["extra_record"]}
    values = [None if hexes[str(at)] is None else bytes.fromhex(hexes[str(at)]) for at in range(len(hexes))]
    rows = by_offset(
        decode.decode_avro(
            decode.wire_format(raw(spark, values)),
            load_contract(contract_file, "Tick"),
            {42: json.dumps(given["schema_id_42"])},
            {999: "unknown schema id 999", 43: "schema id 43 is PROTOBUF, not AVRO"},
        )
    )
    assert fates(rows) == {"ok": [0, 9], "dead": [1, 2, 3, 4, 5, 7, 8, 10], "tombstone": expected["tombstone"]}
    assert {str(at): rows[at].record.asDict() for at in (0, 9)} == expected["decoded"]
    said = {
        **expected["quarantine"],
        "2": "truncated or corrupt payload (schema id 42)",
        "4": "unknown schema id 335544362",
    }
    assert {str(row.offset): row.reasons for row in rows if row.fate == "dead"} == {
        at: [f"decode: {reason}"] for at, reason in said.items()
    }


def test_c25_field_names_that_differ_by_case_or_are_odd(spark: SparkSession, contract_file: Path) -> None:
    contract = load_contract(contract_file, "Odd")
    rows = json_rows(spark, contract_file, "Odd", case("C25")["input"]["records"])
    assert fates(rows) == {"ok": [0, 1]}
    fields = {one.column: one.field for one in contract.columns}
    found = [{fields[name]: value for name, value in row.record.asDict().items()} for row in rows]
    assert found[0] == {"userId": 1, "UserID": 2, "order id": 3, "price.eur": 4.5, "price": '{"eur":9}'}
    assert {name: value for name, value in found[1].items() if value is not None} == case("C25")["expected"]["record_1"]


def test_c26_what_from_json_lets_pass(spark: SparkSession, contract_file: Path) -> None:
    given, expected = case("C26")["input"]["lines"], case("C26")["expected"]
    rows = json_rows(spark, contract_file, "Measured", given)
    assert fates(rows) == {"ok": [one["line"] for one in expected["accepted"]], "dead": expected["quarantined_lines"]}
    for one in expected["accepted"]:
        record = rows[one["line"]].record
        assert record.id == one["id"]
        assert record.ts.replace(tzinfo=UTC) == datetime.fromisoformat(one["ts"])
    assert reasons(rows)[1] == ["id: required", "amount: required"]
    assert reasons(rows)[3] == ["amount: expected double, got STRING"]
    assert reasons(rows)[5] == ["id: expected bigint, got STRING"]
    assert reasons(rows)[10] == ["amount: finite"]
    assert reasons(rows)[12] == ["ts: expected timestamp (ISO 8601 with zone), got STRING"]
    assert reasons(rows)[13] == ["id: required", "amount: required", "ts: required"]


def test_only_one_whole_json_object_is_a_record(spark: SparkSession, contract_file: Path) -> None:
    good = '{"id":"a","v":1}'
    values = {
        f" \n{good}\t": [],
        '{"id":"a","v":1,"more":{"x":[1]}}': [],
        '{"id":"a","v":1,"id":"b"}': ["decode: duplicate field"],
        '{"id":"a","v":1,"x":{"y":1,"y":2}}': ["decode: not valid JSON"],
        f"{good}{good}": ["decode: not valid JSON"],
        f"{good},{good}": ["decode: text after the JSON object"],
        f"{good},7": ["decode: text after the JSON object"],
        f"{good}] junk": ["decode: text after the JSON object"],
        "{'id':'a','v':1}": ["decode: not valid JSON"],
        '{"id":"a","v":1,}': ["decode: not valid JSON"],
        '{"id":"a","v":01}': ["decode: not valid JSON"],
        f"\ufeff{good}": ["decode: not a JSON object"],
        '""': ["decode: not a JSON object"],
        "{" * 3000: ["decode: not valid JSON"],
        '{"a":' * 2000 + "1" + "}" * 2000: ["decode: not valid JSON"],
    }
    assert reasons(json_rows(spark, contract_file, "Customer", list(values))) == list(values.values())
    (broken,) = json_rows(spark, contract_file, "Customer", [b'{"id":"\xff","v":1}'])
    assert broken.reasons == ["decode: not valid UTF-8"]


def test_json_values_are_never_cast_to_another_type(spark: SparkSession, contract_file: Path) -> None:
    accepted: list[tuple[str, str, Any]] = [
        ("i", "2147483647", 2147483647),
        ("l", "9223372036854775807", 2**63 - 1),
        ("l", "-9223372036854775808", -(2**63)),
        ("l", "5.0", 5),
        ("f", "5", 5.0),
        ("f", "1e-3", 0.001),
        ("b", "true", True),
        ("s", '""', ""),
        ("s", '"\\u00fc"', "ü"),
        ("t", '"2024-07-01T00:00:00Z"', datetime(2024, 7, 1)),
        ("t", '"2024-07-01T01:30:00.123456+01:30"', datetime(2024, 7, 1, 0, 0, 0, 123456)),
        ("ms", "1719792000123", datetime(2024, 7, 1, 0, 0, 0, 123000)),
        ("d", '"2024-02-29"', date(2024, 2, 29)),
        ("n", "1234.56", Decimal("1234.56")),
        ("n", "1.500", Decimal("1.50")),
        ("n", "7", Decimal("7.00")),
        ("x", '"AAH/"', b"\x00\x01\xff"),
        ("s", "null", None),
    ]
    refused = [
        ("i", "2147483648", "BIGINT"),
        ("l", "9223372036854775808", "DECIMAL"),
        ("l", "1.5", "DECIMAL"),
        ("l", "1e3", "DOUBLE"),
        ("l", '"1"', "STRING"),
        ("l", "true", "BOOLEAN"),
        ("l", "[1]", "ARRAY"),
        ("f", '"1"', "STRING"),
        ("b", "1", "BIGINT"),
        ("b", '"true"', "STRING"),
        ("s", "1", "BIGINT"),
        ("s", '{"a":1}', "OBJECT"),
        ("t", '"2024-07-01T00:00:00"', "STRING"),
        ("t", '"2024-07-01"', "STRING"),
        ("t", '"2024-07-01T00:00Z"', "STRING"),
        ("t", '"2024-06-31T00:00:00Z"', "STRING"),
        ("t", '"2024-07-01T24:00:00Z"', "STRING"),
        ("t", '"2024-07-01T00:00:00Z\\n"', "STRING"),
        ("t", "1719792000", "BIGINT"),
        ("ms", "9223372036854775807", "BIGINT"),
        ("ms", '"2024-07-01T00:00:00Z"', "STRING"),
        ("d", '"2023-02-29"', "STRING"),
        ("d", '"2024-1-1"', "STRING"),
        ("n", "1.234", "DECIMAL"),
        ("n", "12345.6", "DECIMAL"),
        ("n", "1e2", "DOUBLE"),
        ("x", '"%%%"', "STRING"),
    ]
    values = [f'{{"{name}":{text}}}' for name, text, _ in [*accepted, *refused]]
    rows = json_rows(spark, contract_file, "Typed", values)
    for (name, text, value), row in zip(accepted, rows, strict=False):
        assert (name, text, row.reasons, row.record[name]) == (name, text, [], value)
    for (name, text, got), row in zip(refused, rows[len(accepted) :], strict=True):
        assert row.record[name] is None
        assert (name, text, [reason.rpartition(", got ")[2] for reason in row.reasons]) == (name, text, [got])


def test_a_number_beyond_a_double_is_not_finite(spark: SparkSession, contract_file: Path) -> None:
    rows = json_rows(spark, contract_file, "Typed", ['{"f":1e400}', '{"f":-1e400}'])
    assert reasons(rows) == [["f: finite"], ["f: finite"]]


def test_declared_rules_decide_and_warn(spark: SparkSession, contract_file: Path) -> None:
    base = {"kind": "it's", "price": 1}
    cases: list[tuple[dict[str, Any], list[str], list[str]]] = [
        ({}, [], []),
        ({"kind": 'say "x"'}, [], []),
        ({"kind": "a\\b"}, [], []),
        ({"kind": "y" * 8}, ["kind: isin", "kind: str_length"], []),
        ({"code": "ab-12"}, [], []),
        ({"code": "ab-12x"}, ["code: str_matches"], []),
        ({"code": "_ab-12"}, ["code: str_matches"], []),
        ({"price": 0}, [], []),
        ({"price": 10}, ["price: in_range"], []),
        ({"price": -0.5}, ["price: in_range"], []),
        ({"email": "ann@shop.com", "phone": "+4915112345678", "key": 1}, [], []),
        ({"email": "ann"}, ["email: format"], []),
        ({"phone": "1", "key": 0}, [], ["phone: format", "key: gt"]),
    ]
    rows = json_rows(spark, contract_file, "Ruled", [json.dumps({**base, **one}) for one, _, _ in cases])
    for (given, broken, warned), row in zip(cases, rows, strict=True):
        assert (given, [reason.partition("(")[0] for reason in row.reasons]) == (given, broken)
        assert (given, [reason.partition("(")[0] for reason in row.warnings]) == (given, warned)
        assert row.fate == ("dead" if broken else "ok")


def test_columns_of_raw_and_an_earlier_decision_do_not_get_in_the_way(spark: SparkSession, contract_file: Path) -> None:
    contract = load_contract(contract_file, "Ruled")
    df = raw(spark, ['{"kind":"it\'s","price":1,"key":5}']).selectExpr("*", "cast('k' as binary) AS key")
    once = decode.decode_json(df, contract)
    twice = decode.decode_json(once, contract)
    assert twice.columns == once.columns == [*df.columns, "record", "reasons", "warnings", "fate"]
    (row,) = twice.collect()
    assert (bytes(row.key), row.record.key) == (b"k", 5)


WRITER: Mapping[str, Any] = {
    "type": "record",
    "name": "Event",
    "namespace": "shop",
    "fields": [
        {"name": "n", "type": "int"},
        {"name": "kind_before", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "s", "type": ["null", "string"]},
        {"name": "S", "type": "string"},
        {"name": "many", "type": {"type": "array", "items": "long"}},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "map", "type": {"type": "map", "values": "bytes"}},
        {"name": "kind", "type": "Kind"},
    ],
}
GOOD: Mapping[str, Any] = {
    "n": 5,
    "kind_before": "A",
    "s": "hello",
    "S": "HELLO",
    "many": [1, 2],
    "ts": datetime(2024, 7, 1, tzinfo=UTC),
    "amount": Decimal("12.50"),
    "day": date(2024, 7, 1),
    "map": {"k": b"v"},
    "kind": "B",
}


def wire(schema: Mapping[str, Any], record: Mapping[str, Any], schema_id: int = 7) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(dict(schema)), dict(record))
    return bytes([0]) + schema_id.to_bytes(4, "big") + out.getvalue()


def avro_rows(
    spark: SparkSession, contract: Contract, values: Sequence[bytes], writers: Mapping[int, Mapping[str, Any]]
) -> list[Row]:
    texts = {schema_id: json.dumps(schema) for schema_id, schema in writers.items()}
    return by_offset(decode.decode_avro(decode.wire_format(raw(spark, values)), contract, texts, {}))


def test_avro_is_read_under_the_contract(spark: SparkSession, contract_file: Path) -> None:
    rows = avro_rows(spark, load_contract(contract_file, "Wide"), [wire(WRITER, GOOD)], {7: WRITER})
    assert rows[0].reasons == []
    assert [*rows[0].record] == [
        5,
        "hello",
        datetime(2024, 7, 1),
        Decimal("12.50"),
        date(2024, 7, 1),
        "B",
        "HELLO",
        None,
    ]


def test_each_record_is_read_with_its_own_writers_schema(spark: SparkSession, contract_file: Path) -> None:
    first = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}, {"name": "s", "type": "string"}]}
    second = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "s", "type": ["null", "string"]},
            {"name": "x", "type": "long"},
            {"name": "n", "type": "long"},
        ],
    }
    third = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "n", "type": "string"}, {"name": "s", "type": "string"}],
    }
    rows = avro_rows(
        spark,
        load_contract(contract_file, "Tick"),
        [
            wire(first, {"n": 1, "s": "a"}, 1),
            wire(second, {"s": "b", "x": 9, "n": 2}, 2),
            wire(second, {"s": None, "x": 9, "n": 2}, 2),
            wire(second, {"s": "c", "x": 9, "n": 2**31}, 2),
            wire(third, {"n": "1", "s": "d"}, 3),
            wire(first, {"n": 1, "s": "a"}, 4),
        ],
        {1: first, 2: second, 3: third, 5: {"type": "fixed", "name": "F", "size": 1}},
    )
    assert [None if row.record is None else [*row.record] for row in rows] == [
        [1, "a"],
        [2, "b"],
        [2, None],
        [None, "c"],
        [None, "d"],
        None,
    ]
    assert reasons(rows) == [
        [],
        [],
        ["s: required"],
        ["n: expected int, got BIGINT"],
        ["n: expected int, got STRING"],
        ["decode: unknown schema id 4"],
    ]


def test_a_record_of_nulls_is_no_corrupt_record(spark: SparkSession, contract_file: Path) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "i", "type": ["null", "int"]}]}
    rows = avro_rows(
        spark,
        load_contract(contract_file, "Typed"),
        [wire(schema, {"i": None}), b"\x00\x00\x00\x00\x07", b"\x00\x00\x00\x00\x07\x00\x00"],
        {7: schema},
    )
    assert reasons(rows) == [
        [],
        ["decode: truncated or corrupt payload (schema id 7)"],
        ["decode: trailing bytes after the payload (schema id 7)"],
    ]


def test_avro_text_that_is_not_utf8_and_numbers_that_are_not_finite(spark: SparkSession, contract_file: Path) -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "s", "type": "string"}, {"name": "f", "type": "double"}],
    }
    payload = wire(schema, {"s": "ab", "f": float("nan")}).replace(b"ab", b"\xff\xfe")
    (row,) = avro_rows(spark, load_contract(contract_file, "Typed"), [payload], {7: schema})
    assert row.reasons == ["f: finite", "s: expected string, got invalid UTF-8"]


def zigzag(number: int) -> bytes:
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def mutated(chance: random.Random, payload: bytes) -> bytes:
    body = bytearray(payload)
    lengths = (-1, 2**30, 2**31 - 20, 2**31 - 1, 2**40, 2**63 - 1, -(2**63))
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(5, len(body) + 1)
        kind = chance.random()
        if kind < 0.5 and at < len(body):
            body[at] = chance.randrange(256)
        elif kind < 0.7:
            body[at:at] = zigzag(chance.choice(lengths))
        elif kind < 0.85:
            del body[at : at + chance.randint(1, 5)]
        else:
            del body[at:]
    return bytes(body)


def test_no_payload_stops_the_query_and_each_is_judged_as_by_another_decoder(
    spark: SparkSession, contract_file: Path
) -> None:
    chance = random.Random(3)
    payload = wire(WRITER, GOOD)
    values = [mutated(chance, payload) for _ in range(5000)]
    rows = avro_rows(spark, load_contract(contract_file, "Wide"), values, {7: WRITER})
    assert len(rows) == len(values)
    assert {row.fate for row in rows} == {"ok", "dead"}
    for value, row in zip(values, rows, strict=True):
        if row.record is not None:
            # What was decoded ends where the payload ends, so a strict decoder reads the same.
            source = io.BytesIO(value[5:])
            try:
                found = fastavro.schemaless_reader(
                    source, fastavro.parse_schema(dict(WRITER)), None, handle_unicode_errors="replace"
                )
            except (OverflowError, ValueError) as error:
                # Days and instants beyond Python's: read by Spark, and named in the reasons.
                assert row.reasons, error
                continue
            assert source.read() == b""
            assert row.record.n == found["n"]


def test_no_json_text_stops_the_query(spark: SparkSession, contract_file: Path) -> None:
    chance = random.Random(4)
    good = b'{"l":5,"f":1.5,"s":"x","t":"2024-07-01T00:00:00Z","ms":1719792000123,"d":"2024-07-01","n":1.25,"x":"AAE="}'
    values = []
    for _ in range(1500):
        body = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(body))
            body[at : at + chance.randint(0, 2)] = chance.choice(
                [b"9" * 30, b"e99", b"-", b'"', b"{", b"]", b"null", b"\x00", bytes([chance.randrange(256)])]
            )
        values.append(bytes(body))
    rows = json_rows(spark, contract_file, "Typed", values)
    assert len(rows) == len(values)
    for value, row in zip(values, rows, strict=True):
        if row.fate == "ok":
            assert isinstance(json.loads(value), dict)
