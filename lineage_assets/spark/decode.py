"""Raw bytes -> a record, the reasons against it, and its fate before duplicates are looked for.

Belongs here: framing, Avro and JSON as Spark expressions, the rules of a contract applied. Does not belong here: which
records, duplicates and lateness (decide.py), what a rule means (quality/), the registry.

No record stops a query: every expression here answers null where it cannot answer. Avro's own limits must be set in the
JVM (`org.apache.avro.limits.*.maxLength`), or a corrupt length can ask for all its memory; stack/spark.py does so.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lineage_assets.errors import ContractError
from lineage_assets.lineage.fates import Fate
from lineage_assets.quality.avro import TAIL_BYTES, Reading, reading
from lineage_assets.quality.contract import (
    DECIDED_BY_DECODING,
    FINITE,
    FORMAT,
    REQUIRED,
    TYPE,
    Column,
    Contract,
    Rule,
    shown,
)
from lineage_assets.quality.formats import email_column
from lineage_assets.quality.rules import quoted
from lineage_assets.spark.decode_values import Found, arrived_as, parsed_from

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

DECODE = "decode: "
"""How the reason of a record that could not be decoded begins."""

OUTCOME = ("record", "reasons", "warnings", "fate")
HEADER_BYTES = 5
_TAIL = secrets.token_bytes(TAIL_BYTES)
_AFTER_JSON = secrets.randbelow(2**62)
"""What is put behind a payload to see that it ends where its datum ends. Random, so that no payload can hold it."""

_BASE, _PROBLEM = "_base", "_problem"
_BETWEEN = "\u0001"
"""Stands between messages while they are one text; `contract.shown` keeps it out of them."""


def wire_format(df: DataFrame) -> DataFrame:
    """Adds `schema_id` (int, null without a whole header) and `framing`, what is wrong with the Confluent header.

    The header is a zero byte and the id of the writer's schema, four bytes, big endian.
    """
    header = F.conv(F.hex(F.substring("value", 2, 4)), 16, 10).try_cast("bigint")
    signed = F.when(header >= 2**31, header - 2**32).otherwise(header).try_cast("int")
    framed = df.withColumn("framing", _framing())
    return framed.withColumn("schema_id", F.when(F.col("value").isNotNull() & F.col("framing").isNull(), signed))


def decode_avro(
    df: DataFrame, contract: Contract, writers: Mapping[int, str], problems: Mapping[int, str]
) -> DataFrame:
    """Decides records in the Confluent wire format; `df` has `value` and the `schema_id` of `wire_format`.

    `writers` has the writer's schema (JSON) by id; `problems` says what is wrong with other ids. An id in neither is
    unknown. Adds `record`, `reasons`, `warnings` and `fate` (see `_decided`). A payload must end where its datum ends:
    trailing bytes are found as surely as missing ones.
    """
    from pyspark.sql.avro.functions import from_avro

    known: dict[int, Reading] = {}
    said = dict(problems)
    for schema_id, schema in sorted(writers.items()):
        try:
            known[schema_id] = reading(contract, schema)
        except ContractError as error:
            said[schema_id] = f"schema id {schema_id}: {error.message}"
    id_, framing = F.col(f"{_BASE}.schema_id"), F.col("_framing")
    payload = F.concat(F.substr(F.col(f"{_BASE}.value"), F.lit(HEADER_BYTES + 1)), F.lit(_TAIL))
    base = df.drop(*OUTCOME, "framing").select(F.struct("*").alias(_BASE), _framing().alias("_framing"))
    datum = {
        schema_id: F.when(
            framing.isNull() & (id_ == schema_id),
            from_avro(payload, one.writer, {"avroSchema": one.reader, "mode": "PERMISSIVE"}),
        ).alias(f"_datum_{index}")
        for index, (schema_id, one) in enumerate(known.items())
    }
    read = base.select(_BASE, "_framing", *datum.values())
    problem = F.when(framing.isNotNull(), framing)
    columns: list[Found | None] = [None] * len(contract.columns)
    for index, (schema_id, one) in enumerate(known.items()):
        tail = F.col(f"_datum_{index}.{one.tail}")
        problem = problem.when(
            id_ == schema_id,
            F.when(tail.isNull(), f"truncated or corrupt payload (schema id {schema_id})").when(
                tail != F.lit(_TAIL), f"trailing bytes after the payload (schema id {schema_id})"
            ),
        )
        for at, (column, field) in enumerate(zip(contract.columns, one.fields, strict=True)):
            if field is not None:
                found = arrived_as(column, F.col(f"_datum_{index}.{field.name}"), field.type)
                columns[at] = found.where(id_ == schema_id, columns[at])
    for schema_id, text in sorted(said.items()):
        problem = problem.when(id_ == schema_id, text)
    problem = problem.otherwise(F.concat(F.lit("unknown schema id "), id_.cast("string")))
    return _decided(read, contract, columns, problem)


def decode_json(df: DataFrame, contract: Contract) -> DataFrame:
    """Decides records that are JSON objects; `df` has `value`. Adds `record`, `reasons`, `warnings` and `fate`.

    Strict: RFC 8259 in UTF-8, one object and nothing behind it, no field twice, names with their case. A value of
    another JSON type than the contract's breaks the type rule: nothing is cast. A whole number may be written with a
    fraction of zero (`5.0`), a decimal may have no more places than its type, an instant has its zone. A field twice in
    a nested object is told as invalid JSON.
    """
    value = F.col(f"{_BASE}.value")
    text = value.cast("string")
    # VARIANT ends reading at the end of the first value: a list with a known number behind shows what else there is.
    wrapped = F.concat(F.lit("["), text, F.lit(f",{_AFTER_JSON}]"))
    usable = F.is_valid_utf8(text) & text.rlike(r"^[ \t\r\n]*\{")
    parsed = df.drop(*OUTCOME, "framing").select(F.struct("*").alias(_BASE))
    parsed = parsed.withColumn("_parsed", F.when(usable, F.try_parse_json(wrapped)))
    names = F.json_object_keys(text)
    ends = F.try_variant_get("_parsed", "$[1]", "bigint").eqNullSafe(F.lit(_AFTER_JSON))
    problem = (
        F.when(F.length(value) == 0, "empty value")
        .when(~F.is_valid_utf8(text), "not valid UTF-8")
        .when(~text.rlike(r"^[ \t\r\n]*\{"), "not a JSON object")
        .when(
            F.col("_parsed").isNull(),
            F.when(F.size(names) > F.size(F.array_distinct(names)), "duplicate field").otherwise("not valid JSON"),
        )
        .when(~ends, "text after the JSON object")
    )
    # One step of the plan for each thing that is asked of more than once, or Spark works it out at each place.
    fields = [_member(column).alias(f"_f{index}") for index, column in enumerate(contract.columns)]
    types = [F.schema_of_variant(f"_f{index}").alias(f"_t{index}") for index in range(len(contract.columns))]
    found = parsed.select(_BASE, problem.alias(_PROBLEM), *fields).select("*", *types)
    values = [parsed_from(one, F.col(f"_f{i}"), F.col(f"_t{i}")) for i, one in enumerate(contract.columns)]
    return _decided(found, contract, values, F.col(_PROBLEM))


def _framing() -> Expression:
    """Null for a whole header. A first byte that is text is a record without the wire format: JSON, most often."""
    value = F.col("value")
    first = F.substring(value, 1, 1)
    is_text = first.between(F.lit(b" "), F.lit(b"~")) | first.isin(F.lit(b"\t"), F.lit(b"\n"), F.lit(b"\r"))
    return (
        F.when(F.length(value) == 0, "empty value")
        .when(is_text, "no magic byte")
        .when(first != F.lit(b"\x00"), F.concat(F.lit("unknown magic 0x"), F.hex(first)))
        .when(F.length(value) < HEADER_BYTES, f"shorter than {HEADER_BYTES} bytes")
    )


def _member(column: Column) -> Expression:
    """A field of the JSON object, as VARIANT."""
    name = column.field
    if '"' in name and "'" in name:
        raise ContractError(
            f"the field {shown(name)} holds both kinds of quotes: Spark cannot ask for it", remedy="rename the field"
        )
    path = f"$[0]['{name}']" if '"' in name else f'$[0]["{name}"]'
    return F.try_variant_get("_parsed", path, "variant")


def _decided(
    df: DataFrame, contract: Contract, found: Sequence[Found | None], problem: Expression
) -> DataFrame:
    """The columns of `_base`, and what was decided.

    `record` (struct of the contract's columns; null for tombstones and what could not be decoded), `reasons` (array of
    messages of severity ERROR, or the one that begins with `decode: `), `warnings`, `fate` (tombstone, dead or ok).
    """
    # The contract's columns stand on their own here, for the rules' SQL; the record's other columns wait in `_base`.
    values, wrongs = [], []
    for index, (one, field) in enumerate(zip(contract.columns, found, strict=True)):
        value, wrong = field or (F.lit(None), F.lit(None))
        values.append(value.cast(one.type).alias(one.column))
        wrongs.append(wrong.cast("string").alias(_wrong(index)))
    flat = df.select(_BASE, problem.alias(_PROBLEM), *values, *wrongs)
    has_value, problem = F.col(f"{_BASE}.value").isNotNull(), F.col(_PROBLEM)
    formats = [
        email_column(F.when(has_value & problem.isNull(), F.col(quoted(rule.column)))).alias(_answer(rule))
        for rule in contract.rules
        if rule.kind == FORMAT and rule.sql == DECIDED_BY_DECODING
    ]
    if formats:
        flat = flat.select("*", *formats)
    broken = {severity: _broken(contract, severity) for severity in ("ERROR", "WARN")}
    listed = flat.select(
        f"{_BASE}.*",
        F.when(
            has_value & problem.isNull(), F.struct(*[F.col(quoted(one.column)) for one in contract.columns])
        ).alias("record"),
        F.when(has_value, F.coalesce(F.concat(F.lit(DECODE), problem), broken["ERROR"])).alias("reasons"),
        F.when(has_value & problem.isNull(), broken["WARN"]).alias("warnings"),
    )
    fate = (
        F.when(F.col("value").isNull(), Fate.tombstone.value)
        .when(F.col("reasons") != "", Fate.dead.value)
        .otherwise(Fate.ok.value)
    )
    return listed.withColumns({"reasons": _as_list("reasons"), "warnings": _as_list("warnings"), "fate": fate})


def _as_list(name: str) -> Expression:
    # array_compact over many conditions is a loop that Spark does not compile; joining and splitting is compiled.
    text = F.col(name)
    return F.when(text != "", F.split(text, _BETWEEN)).otherwise(F.array().cast("array<string>"))


def _broken(contract: Contract, severity: str) -> Expression:
    """The messages of all broken rules of a severity, as one text."""
    parts = [
        _message(column, index, rule)
        for index, column in enumerate(contract.columns)
        for rule in column.rules
        if rule.severity == severity
    ]
    return F.concat_ws(_BETWEEN, *parts) if parts else F.lit("")


def _message(column: Column, index: int, rule: Rule) -> Expression:
    value, wrong = F.col(quoted(column.column)), F.col(_wrong(index))
    if rule.kind == REQUIRED:
        return F.when(value.isNull() & wrong.isNull(), rule.message)
    if rule.kind == TYPE:
        return F.when(wrong.isNotNull(), F.concat(F.lit(f"{rule.message}, got "), wrong))
    if rule.kind == FORMAT and rule.sql == DECIDED_BY_DECODING:
        return F.when(~F.col(_answer(rule)), rule.message)
    if rule.kind == FINITE:
        return F.when(~F.expr(rule.sql), rule.message)
    # A number that is not finite has its own reason: NaN would be above every bound as well.
    asked = F.when(~F.expr(rule.sql), rule.message)
    finite = column.rule(FINITE)
    return F.when(F.expr(finite.sql), asked) if finite else asked


def _wrong(index: int) -> str:
    return f"_wrong_{index}"


def _answer(rule: Rule) -> str:
    return f"_format_{rule.column}"
