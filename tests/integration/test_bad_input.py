"""Bad bytes and services that are away: what the user sees, and that no record vanishes and no slice stops.

Belongs here: whole slices on the real stack. Does not belong here: single expressions of decoding, mistakes in defs.yaml.
"""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandera.pandas as pa
import pytest
from pydantic import SecretStr

from lineage_assets.errors import ContractError, FatalError, LineageError, TransientError
from lineage_assets.kafka.registry import Registry
from lineage_assets.lineage.names import field_name
from lineage_assets.settings import Settings
from lineage_assets.spark.process import process
from lineage_assets.spark.session import session
from tests.cases import case
from tests.integration.engine import (
    EVENT_AVRO,
    T0,
    Engine,
    Sent,
    avro_bytes,
    check,
    contract_of,
    event,
    framed,
    fresh,
    record_of,
    slice_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNKNOWN_ID = 1_900_000_000
PROTOBUF = 'syntax = "proto3"; message Tick { int32 n = 1; string s = 2; }'


class Tick(pa.DataFrameModel):
    """Of case C12."""

    n: int
    s: str


def test_c12_every_fault_of_the_wire_format_has_its_reason_and_stops_nothing(
    stack: Settings, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    given, expected = case("C12")["input"], case("C12")["expected"]
    asked: Counter[int] = Counter()
    true = SchemaRegistryClient.get_schema

    def counting(self: Any, schema_id: int, *arguments: Any, **more: Any) -> Any:
        asked[schema_id] += 1
        return true(self, schema_id, *arguments, **more)

    monkeypatch.setattr(SchemaRegistryClient, "get_schema", counting)
    with fresh(stack, spark, tmp_path, format="avro", contract=contract_of(Tick)) as ticks:
        registry = Registry(stack)
        known = registry.register(ticks.table.subject, json.dumps(given["schema_id_42"]))
        protobuf = registry.register(f"{ticks.topic}-protobuf", PROTOBUF, schema_type="PROTOBUF")
        ids = {42: known, 43: protobuf, 999: UNKNOWN_ID}
        texts = {**given["records_hex"], **given["extra_record"]}
        ticks.send(*(Sent(with_id(texts[str(offset)], ids), offset) for offset in range(11)))
        ticks.send(*[Sent(framed(UNKNOWN_ID, b"\x0a"), 20)] * 20)
        asked.clear()

        done = ticks.process("10")

        rows = ticks.raw("10")
        assert len(rows) == 11 + 20 and expected["rows_lost"] == 0
        assert [row["offset"] for row in rows if row["fate"] == "tombstone"] == expected["tombstone"]
        decoded = {str(row["_offset"]): {"n": row["n"], "s": row["s"]} for row in ticks.silver("10")}
        assert decoded == expected["decoded"]
        reasons = {row["offset"]: row["reasons"] for row in rows[:11] if row["fate"] == "dead"}
        assert reasons == {
            1: [f"decode: unknown schema id {UNKNOWN_ID}"],
            2: [f"decode: truncated or corrupt payload (schema id {known})"],
            3: ["decode: no magic byte"],
            4: ["decode: unknown schema id 335544362"],
            5: ["decode: empty value"],
            7: ["decode: shorter than 5 bytes"],
            8: ["decode: unknown magic 0x01"],
            10: [f"decode: schema id {protobuf} is PROTOBUF, not AVRO"],
        }
        assert {str(offset) for offset in reasons} == set(expected["quarantine"])
        assert all(row["value"] is not None for row in rows if row["fate"] == "dead"), "whole, to be replayed"
        assert (asked[UNKNOWN_ID], asked[335544362]) == (1, 1), "not once for each record"
        undecodable = check(done, "decodable")
        assert (undecodable.failed, undecodable.total, undecodable.severity) == (28, 30, "ERROR")
        assert check(done, "conservation").passed
        assert [use.id for use in record_of(done.raw).topics[0].schemas] == [known]


def with_id(text: str | None, ids: dict[int, int]) -> bytes | None:
    """A record of the case with the ids that this registry gave."""
    if text is None:
        return None
    value = bytes.fromhex(text)
    id_ = int.from_bytes(value[1:5], "big") if len(value) >= 5 else -1
    return value[:1] + ids[id_].to_bytes(4, "big") + value[5:] if id_ in ids else value


def test_a_schema_of_another_subject_decodes_and_fails_a_check_by_its_id(
    stack: Settings, spark: SparkSession, tmp_path: Path
) -> None:
    with fresh(stack, spark, tmp_path, format="avro") as made:
        registry = Registry(stack)
        registry.register(made.table.subject, EVENT_AVRO)
        foreign_schema = EVENT_AVRO.replace('"Event"', f'"Other{made.topic[-10:]}"')
        foreign = registry.register(f"{made.topic}-other", foreign_schema)
        made.send(Sent(framed(foreign, avro_bytes(foreign_schema, {"id": "a", "amount": 1})), 1))

        done = made.process("10")

        assert [row["id"] for row in made.silver()] == ["a"]
        found = check(done, "known_schemas")
        assert (found.passed, found.severity, found.blocking, found.failed) == (False, "ERROR", True, 1)
        (use,) = record_of(done.raw).topics[0].schemas
        assert (use.id, use.version) == (foreign, None)


class Customer(pa.DataFrameModel):
    """Of case C08."""

    id: str
    v: int


def test_c08_tombstones_null_keys_empty_values_and_repeated_headers_are_kept_apart(
    stack: Settings, spark: SparkSession, tmp_path: Path
) -> None:
    given, expected = case("C08")["input"], case("C08")["expected"]
    with fresh(stack, spark, tmp_path, contract=contract_of(Customer)) as customers:
        customers.send(*(sent(one) for one in given["records"]))

        customers.process("10")

        rows = customers.raw()
        assert len(rows) == expected["bronze_rows"]
        assert [row["offset"] for row in rows if row["fate"] == "tombstone"] == expected["tombstones"]
        assert [row["offset"] for row in rows if row["key"] is None] == expected["null_keys"]
        assert [row["offset"] for row in rows if row["key"] == b""] == expected["empty_keys"]
        assert [row["offset"] for row in rows if row["fate"] == "dead"] == expected["quarantined_payloads"]
        assert [row["reasons"] for row in rows[3:5]] == [["decode: empty value"], ["decode: not a JSON object"]]
        assert rows[1]["value"] is None and rows[3]["value"] == b""
        assert headers(rows[0]) == [("trace", b"a"), ("trace", b"b")]
        assert headers(rows[5]) == [("bin", b"\xff\x00"), ("empty", None)]
        assert [(row["id"], row["v"]) for row in customers.silver()] == [("c-1", 1), ("c-2", 2), ("c-4", 4)]


def sent(one: dict[str, Any]) -> Sent:
    def data(text: str | None) -> bytes | None:
        if text is None:
            return None
        return bytes.fromhex(text[4:]) if text.startswith("hex:") else text.encode()

    headers_ = None if one["headers"] is None else [(name, data(value)) for name, value in one["headers"]]
    return Sent(data(one["value"]), one["offset"], data(one["key"]), headers=headers_)


def headers(row: dict[str, Any]) -> list[tuple[str, bytes | None]]:
    return [(one["key"], one["value"]) for one in row["headers"]]


class Measured(pa.DataFrameModel):
    """Of case C26."""

    id: int
    amount: float
    ts: datetime


MORE_LINES = {
    '{"id":20,"amount":Infinity,"ts":"2024-07-01T00:00:00Z"}': "dead",
    '{"id":21,"amount":-1e400,"ts":"2024-07-01T00:00:00Z"}': "dead",
    '{"id":22,"amount":"Infinity","ts":"2024-07-01T00:00:00Z"}': "dead",
    '{"id":23,"amount":1e308,"ts":"2024-07-01T00:00:00Z"}': "ok",
    '{"id":24,"amount":1,"ts":"2024-07-01T00:00:00"}': "dead",
    '{"id":25,"amount":1,"ts":"2024-07-01T00:00:00Z"} {}': "dead",
    '{"id":26,"id":27,"amount":1,"ts":"2024-07-01T00:00:00Z"}': "dead",
    '{"id":28,"amount":1,"ts":"2024-07-01T00:00:00Z","more":[{"x":null}]}': "ok",
}


def test_c26_nothing_becomes_null_nan_or_infinity_without_a_word(
    stack: Settings, spark: SparkSession, tmp_path: Path
) -> None:
    given, expected = case("C26")["input"], case("C26")["expected"]
    with fresh(stack, spark, tmp_path, contract=contract_of(Measured)) as measured:
        lines = [*given["lines"], *MORE_LINES]
        measured.send(*(Sent(line.encode(), at) for at, line in enumerate(lines)))

        measured.process("10")

        rows, own = measured.raw(), len(given["lines"])
        fates = [row["fate"] for row in rows]
        assert [at for at in range(own) if fates[at] == "dead"] == expected["quarantined_lines"]
        accepted = [row for row in measured.silver() if row["_offset"] < own]
        assert [(row["_offset"], row["id"], row["ts"]) for row in accepted] == [
            (one["line"], one["id"], datetime.fromisoformat(one["ts"])) for one in expected["accepted"]
        ]
        assert fates[own:] == list(MORE_LINES.values())
        assert [row["value"].decode() for row in rows] == lines, "raw text is kept"
        assert all(bool(row["reasons"]) == (row["fate"] == "dead") for row in rows)


def test_numbers_that_are_not_finite_are_dead_in_avro_too(stack: Settings, spark: SparkSession, tmp_path: Path) -> None:
    class Reading(pa.DataFrameModel):
        value: float = pa.Field(ge=0)

    schema = '{"type": "record", "name": "Reading", "fields": [{"name": "value", "type": "double"}]}'
    with fresh(stack, spark, tmp_path, format="avro", contract=contract_of(Reading)) as readings:
        id_ = Registry(stack).register(readings.table.subject, schema)
        values = [1.5, float("nan"), float("inf"), float("-inf"), -0.5]
        readings.send(*(Sent(framed(id_, avro_bytes(schema, {"value": value})), 1) for value in values))

        readings.process("10")

        assert [row["reasons"] for row in readings.raw()] == [
            [], *[["value: finite"]] * 3, ["value: ge(0)"]
        ]  # fmt: skip
        assert [row["value"] for row in readings.silver()] == [1.5]


class Odd(pa.DataFrameModel):
    """Of case C25: names that Delta would take for one, or refuse."""

    first: int = pa.Field(alias="userId")
    second: int = pa.Field(alias="UserID", nullable=True)
    order: int = pa.Field(alias="order id")
    price_eur: float = pa.Field(alias="price.eur")
    price: str = pa.Field(nullable=True, metadata={"json": True})


def test_c25_fields_that_differ_by_case_or_hold_dots_and_spaces_keep_their_values(
    stack: Settings, spark: SparkSession, tmp_path: Path
) -> None:
    given, expected = case("C25")["input"], case("C25")["expected"]
    with fresh(stack, spark, tmp_path, contract=contract_of(Odd)) as odd:
        odd.send(*(Sent(text.encode(), at) for at, text in enumerate(given["records"])))

        odd.process("10")

        fields = [
            {field_name(column): value for column, value in row.items() if not column.startswith("_") or "_x" in column}
            for row in odd.silver()
        ]
        assert fields[0] == {"userId": 1, "UserID": 2, "order id": 3, "price.eur": 4.5, "price": '{"eur":9}'}
        values = [fields[0][name] for name in ("userId", "UserID", "order id", "price.eur")]
        assert [*values, json.loads(fields[0]["price"])["eur"]] == expected["values_recoverable_record_0"]
        assert {name: value for name, value in fields[1].items() if value is not None} == expected["record_1"]


@pytest.fixture
def closed_port() -> str:
    """An address of this machine where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def shop(stack: Settings, spark: SparkSession, tmp_path: Path) -> Iterator[Engine]:
    with fresh(stack, spark, tmp_path) as made:
        made.send(event("a", at=1))
        yield made


def written(engine: Engine) -> list[str]:
    """Managed tables in the lake; the ledger's cuts are none of them."""
    lake = Path(engine.settings.lake)
    return [str(path) for layer in ("raw", "silver") for path in (lake / "dev").glob(f"{layer}/*")]


def assert_says(error: LineageError, *what: str) -> None:
    assert all(one in error.message for one in what), error.message
    assert error.remedy


def test_a_broker_that_is_down_is_named_with_its_address_and_nothing_is_written(shop: Engine, closed_port: str) -> None:
    with pytest.raises(TransientError) as caught:
        shop.with_settings(kafka_bootstrap=closed_port).process("10")
    assert_says(caught.value, f"Kafka at {closed_port} does not answer")
    assert not written(shop)


def test_a_broker_that_goes_down_while_spark_reads_is_named_too(shop: Engine, closed_port: str) -> None:
    impatient = {name: SecretStr("2000") for name in ("default.api.timeout.ms", "request.timeout.ms")}
    gone = shop.with_settings(kafka_bootstrap=closed_port, spark_kafka_config=impatient)

    with pytest.raises(TransientError) as caught:
        process(gone.job(shop.sliced()), slice_of("10"))

    assert_says(caught.value, "Kafka", closed_port)
    assert not written(shop)


def test_a_registry_that_is_down_is_named_without_its_password_and_nothing_is_written(
    shop: Engine, closed_port: str
) -> None:
    away = shop.with_settings(registry_url=f"http://user:s3cret@{closed_port}/apis/ccompat/v7").with_table(
        format="avro"
    )

    with pytest.raises(TransientError) as caught:
        away.process("10")

    assert_says(caught.value, f"schema registry at http://{closed_port}", "does not answer")
    assert "s3cret" not in str(caught.value)
    assert not written(shop)


def test_a_topic_that_does_not_exist_is_named_with_the_nearest_that_does(shop: Engine) -> None:
    with pytest.raises(ContractError) as caught:
        shop.with_table(topic=shop.topic + "s").process("10")
    assert_says(caught.value, f"topic {shop.topic}s does not exist", "cluster local")
    assert shop.topic in caught.value.remedy
    assert not written(shop)


def test_a_spark_server_that_is_down_is_said_with_what_to_do(stack: Settings, closed_port: str) -> None:
    away = stack.model_copy(update={"spark_remote": SecretStr(f"sc://{closed_port}")})

    with pytest.raises(TransientError) as caught, session(away) as spark:
        spark.range(1).collect()

    assert_says(caught.value, "Spark Connect", closed_port, "does not answer")
    assert "lineage up" in caught.value.remedy


def test_a_token_that_spark_refuses_is_said_and_not_shown(stack: Settings) -> None:
    address = stack.spark.partition("/;")[0]
    wrong = stack.model_copy(update={"spark_remote": SecretStr(f"{address}/;token=wr0ng")})

    with pytest.raises(FatalError) as caught, session(wrong) as spark:
        spark.range(1).collect()

    assert_says(caught.value, "refuses our token")
    assert "wr0ng" not in str(caught.value)


def test_a_slice_before_the_topic_began_is_an_empty_result(shop: Engine) -> None:
    early = slice_of("10").previous()
    done = process(shop.job(), early)
    assert early.start < T0
    assert set(record_of(done.raw).counts.values()) == {0}
    assert not shop.raw()
