"""JSON objects, as Spark expressions over VARIANT.

Belongs here: what is a JSON object and what is in it. Does not belong here: values of each type (decode_values.py).
"""

from __future__ import annotations

import secrets

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lineage_assets.errors import ContractError
from lineage_assets.quality.contract import Column, Contract, shown
from lineage_assets.spark.decode_rules import BASE, PROBLEM, based, decided
from lineage_assets.spark.decode_values import parsed_from

_BEHIND = secrets.randbelow(2**62)
"""What is put behind an object to see that nothing else is there. Random, so that no payload can hold it."""


def decode(df: DataFrame, contract: Contract, library: bool) -> DataFrame:
    """`decode.decode_json`."""
    value = F.col(f"{BASE}.value")
    text = value.cast("string")
    # VARIANT ends reading at the end of the first value: a list with a known number behind shows what else there is.
    wrapped = F.concat(F.lit("["), text, F.lit(f",{_BEHIND}]"))
    usable = F.is_valid_utf8(text) & text.rlike(r"^[ \t\r\n]*\{")
    parsed = based(df)
    parsed = parsed.withColumn("_parsed", F.when(usable, F.try_parse_json(wrapped)))
    names = F.json_object_keys(text)
    ends = F.try_variant_get("_parsed", "$[1]", "bigint").eqNullSafe(F.lit(_BEHIND))
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
    found = parsed.select(BASE, problem.alias(PROBLEM), *fields).select("*", *types)
    values = [parsed_from(one, F.col(f"_f{i}"), F.col(f"_t{i}")) for i, one in enumerate(contract.columns)]
    return decided(found, contract, values, F.col(PROBLEM), library)


def _member(column: Column) -> Expression:
    """A field of the JSON object, as VARIANT."""
    name = column.field
    if '"' in name and "'" in name:
        raise ContractError(
            f"the field {shown(name)} holds both kinds of quotes: Spark cannot ask for it", remedy="rename the field"
        )
    path = f"$[0]['{name}']" if '"' in name else f'$[0]["{name}"]'
    return F.try_variant_get("_parsed", path, "variant")
