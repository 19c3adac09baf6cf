"""One decoded field as the type that its contract names, or what stood there instead.

Belongs here: conversions from VARIANT and from Avro's Spark types. Does not belong here: payloads and rules (decode.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression

    from lineage_assets.quality.contract import Column

_INSTANT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})\z"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}\z"
_FIRST_S, _LAST_S = -62_135_596_800, 253_402_300_799
"""Years 1 to 9999, in seconds: what every reader of a Delta table can hold. Beyond lies a wrong unit, not a date."""
_PER_SECOND = {"epoch_s": 1, "epoch_ms": 1_000, "epoch_us": 1_000_000}


class Found(NamedTuple):
    """What stands in a field: the value as the contract's type, null where it is none; whether anything stands there at
    all; the name of the type that it has."""

    value: Expression
    present: Expression
    type_name: Expression

    def where(self, condition: Expression, other: Found | None) -> Found:
        """This where a condition holds, else the other."""
        if other is None:
            return Found(*(F.when(condition, part) for part in self))
        return Found(*(F.when(condition, a).otherwise(b) for a, b in zip(self, other, strict=True)))


def parsed_from(column: Column, member: Expression, type_: Expression) -> Found:
    """A field of a JSON object, given as VARIANT (null where the object has no such field) and its type's name."""
    family = column.type.partition("(")[0]
    present = type_ != "VOID"
    if column.encoding == "json":
        return Found(F.when(present, F.to_json(member)), present, type_)
    text = F.when(type_ == "STRING", F.try_variant_get(member, "$", "string"))
    # BIGINT, or a decimal without places: JSON knows no difference between 5 and 5.0.
    whole = (type_ == "BIGINT") | type_.endswith(",0)")
    if column.encoding:
        value = _from_epoch(F.when(whole, F.try_variant_get(member, "$", "bigint")), column.encoding)
    elif family == "string":
        value = text
    elif family in ("bigint", "int"):
        value = F.when(whole, F.try_variant_get(member, "$", family))
    elif family in ("double", "float"):
        number = type_.isin("BIGINT", "DOUBLE", "FLOAT") | type_.startswith("DECIMAL")
        value = F.when(number, F.try_variant_get(member, "$", family))
    elif family == "boolean":
        value = F.when(type_ == "BOOLEAN", F.try_variant_get(member, "$", "boolean"))
    elif family == "decimal":
        places = int(column.type.rstrip(")").partition(",")[2])
        exact = F.regexp_extract(type_, r"^DECIMAL\([0-9]+,([0-9]+)\)$", 1).try_cast("int") <= places
        value = F.when((type_ == "BIGINT") | exact, F.try_variant_get(member, "$", column.type))
    else:
        value = _from_text(text, family)
    return Found(value, present, F.regexp_extract(type_, "^[A-Z]+", 0))


def arrived_as(column: Column, field: Expression, type_: str) -> Found:
    """A field of an Avro record, given as the Spark type that from_avro made of the writer's."""
    value = _converted(column, field, type_)
    name = F.lit(type_.partition("(")[0])
    if type_ == "STRING":
        name = F.when(F.is_valid_utf8(field), name).otherwise("invalid UTF-8")
    return Found(F.lit(None).cast(column.type) if value is None else value, field.isNotNull(), name)


def _converted(column: Column, field: Expression, type_: str) -> Expression | None:
    """The field as the contract's type, null where it does not fit; None where the two types never fit."""
    family, arrived = column.type.partition("(")[0], type_.partition("(")[0]
    whole = arrived in ("INT", "BIGINT")
    text = F.when(F.is_valid_utf8(field), field) if arrived == "STRING" else None
    if column.encoding == "json":
        return F.to_json(field) if arrived in ("STRUCT", "ARRAY", "MAP") else text
    if column.encoding and whole:
        return _from_epoch(field.cast("bigint"), column.encoding)
    if family == "timestamp" and arrived == "TIMESTAMP":
        return _within_years(field)
    if family == "date" and arrived == "DATE":
        return F.when(F.year(field).between(1, 9999), field)
    if family in ("timestamp", "date") and text is not None:
        return _from_text(text, family)
    if family == "string":
        return text
    if family in ("bigint", "int") and whole:
        return field.try_cast(family)
    if family in ("double", "float") and (whole or arrived in ("FLOAT", "DOUBLE", "DECIMAL")):
        return field.cast(family)
    if family == "decimal" and (whole or arrived == "DECIMAL"):
        exact = field.try_cast(column.type)
        return F.when(exact == field, exact)
    if (family, arrived) in (("boolean", "BOOLEAN"), ("binary", "BINARY")):
        return field
    return None


def _from_text(text: Expression, family: str) -> Expression:
    if family == "timestamp":
        return _within_years(F.when(text.rlike(_INSTANT), text).try_cast("timestamp"))
    if family == "date":
        day = F.when(text.rlike(_DATE), text).try_cast("date")
        return F.when(F.year(day).between(1, 9999), day)
    return F.try_to_binary(text, F.lit("base64"))


def _from_epoch(number: Expression, encoding: str) -> Expression:
    scale = _PER_SECOND[encoding]
    # Held within the bounds before it is multiplied: an overflow would end the query.
    bounded = F.when(number.between(_FIRST_S * scale, _LAST_S * scale), number)
    return F.timestamp_micros(bounded * (1_000_000 // scale))


def _within_years(instant: Expression) -> Expression:
    return F.when(F.unix_seconds(instant).between(_FIRST_S, _LAST_S), instant)
