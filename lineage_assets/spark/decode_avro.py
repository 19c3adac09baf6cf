"""Avro in the Confluent wire format, as Spark expressions.

Belongs here: the header, one from_avro for each writer's schema. Does not belong here: schemas (quality/avro.py).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from lineage_assets.errors import ContractError
from lineage_assets.quality.avro import TAIL_BYTES, Reading, reading
from lineage_assets.quality.contract import Contract
from lineage_assets.spark.decode_rules import BASE, based, decided
from lineage_assets.spark.decode_values import Found, arrived_as

HEADER_BYTES = 5
_TAIL = secrets.token_bytes(TAIL_BYTES)
"""What is put behind a payload to see that it ends where its datum ends. Random, so that no payload can hold it."""


def wire_format(df: DataFrame) -> DataFrame:
    """`decode.wire_format`."""
    header = F.conv(F.hex(F.substring("value", 2, 4)), 16, 10).try_cast("bigint")
    signed = F.when(header >= 2**31, header - 2**32).otherwise(header).try_cast("int")
    framed = df.withColumn("framing", _framing())
    return framed.withColumn("schema_id", F.when(F.col("value").isNotNull() & F.col("framing").isNull(), signed))


def decode(
    df: DataFrame, contract: Contract, writers: Mapping[int, str], problems: Mapping[int, str], library: bool
) -> DataFrame:
    """`decode.decode_avro`."""
    known: dict[int, Reading] = {}
    said = dict(problems)
    for schema_id, schema in sorted(writers.items()):
        try:
            known[schema_id] = reading(contract, schema)
        except ContractError as error:
            said[schema_id] = f"schema id {schema_id}: {error.message}"
    id_, framing = F.col(f"{BASE}.schema_id"), F.col("_framing")
    payload = F.concat(F.substr(F.col(f"{BASE}.value"), F.lit(HEADER_BYTES + 1)), F.lit(_TAIL))
    base = based(df, _framing().alias("_framing"))
    datum = {
        schema_id: F.when(
            framing.isNull() & (id_ == schema_id),
            from_avro(payload, one.writer, {"avroSchema": one.reader, "mode": "PERMISSIVE"}),
        ).alias(f"_datum_{index}")
        for index, (schema_id, one) in enumerate(known.items())
    }
    read = base.select(BASE, "_framing", *datum.values())
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
    return decided(read, contract, columns, problem, library)


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
