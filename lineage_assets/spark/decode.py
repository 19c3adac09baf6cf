"""Raw bytes -> a record, the reasons against it, and its fate before duplicates are looked for.

Belongs here: what others call. Does not belong here: the Spark expressions (decode_avro.py, decode_json.py,
decode_values.py, decode_rules.py; late, for they import pyspark), which records, duplicates and lateness (decide.py).

Every function answers the columns that it was given and adds to them:

- `record`: struct of the contract's columns; null for tombstones and for what could not be decoded
- `reasons`: array of the messages of broken rules of severity ERROR, or the one that begins with `decode: `
- `warnings`: array of the messages of broken rules of severity WARN
- `fate`: tombstone, dead or ok

No record stops a query: every expression answers null where it cannot answer. Avro's own limits must be set in Spark's
JVM (`-Dorg.apache.avro.limits.string.maxLength=…`, likewise `bytes` and `collectionItems`), or a corrupt length can ask
for all of its memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lineage_assets.quality.contract import Contract

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DECODE = "decode: "
"""How the reason of a record that could not be decoded begins."""

OUTCOME = ("record", "reasons", "warnings", "fate")

UNCLEAR = "unclear"
"""Instead of a fate, where a record's text is of a format that only a library decides, and none was asked."""


def wire_format(df: DataFrame) -> DataFrame:
    """Adds `schema_id` (int, null without a whole header) and `framing`, what is wrong with the Confluent header.

    The header is a zero byte and the id of the writer's schema, four bytes, big endian.
    """
    from lineage_assets.spark import decode_avro

    return decode_avro.wire_format(df)


def decode_avro(
    df: DataFrame,
    contract: Contract,
    writers: Mapping[int, str],
    problems: Mapping[int, str],
    library: bool = True,
) -> DataFrame:
    """Decides records in the Confluent wire format; `df` has `value` and the `schema_id` of `wire_format`.

    `writers` has the writer's schema (JSON) by id; `problems` says what is wrong with other ids. An id in neither is
    unknown. Without `library` no Python runs in Spark, and a fate may be UNCLEAR. A payload must end where its datum ends:
    trailing bytes are found as surely as missing ones.
    """
    from lineage_assets.spark.decode_avro import decode

    return decode(df, contract, writers, problems, library)


def decode_json(df: DataFrame, contract: Contract, library: bool = True) -> DataFrame:
    """Decides records that are JSON objects; `df` has `value`. Adds `record`, `reasons`, `warnings` and `fate`.

    Strict: RFC 8259 in UTF-8, one object and nothing behind it, no field twice, names with their case. A value of
    another JSON type than the contract's breaks the type rule: nothing is cast. A whole number may be written with a
    fraction of zero (`5.0`), a decimal may have no more places than its type, an instant has its zone. A field twice in
    a nested object is told as invalid JSON.
    """
    from lineage_assets.spark.decode_json import decode

    return decode(df, contract, library)
