"""The rules of a contract over decoded values: reasons, warnings and fate.

Belongs here: what every format has in common once its fields are values. Does not belong here: formats.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lineage_assets.lineage.fates import Fate
from lineage_assets.quality.contract import (
    DECIDED_BY_DECODING,
    FINITE,
    FORMAT,
    REQUIRED,
    TYPE,
    Column,
    Contract,
    Rule,
)
from lineage_assets.quality.formats import clear_email_column, email_column
from lineage_assets.quality.rules import quoted
from lineage_assets.spark.decode import DECODE, OUTCOME, UNCLEAR
from lineage_assets.spark.decode_values import Found

BASE, PROBLEM, _OPEN = "_base", "_problem", "_open"
_BETWEEN = "\u0001"
"""Stands between messages while they are one text; `contract.shown` keeps it out of them."""


def based(df: DataFrame, *more: Expression) -> DataFrame:
    """The given columns in one struct, `_base`: a contract may have columns of the same names. What an earlier decision
    added is left out."""
    given = df.drop(*OUTCOME, "framing")
    return given.select(F.struct("*").alias(BASE), *more)


def decided(
    df: DataFrame, contract: Contract, found: Sequence[Found | None], problem: Expression, library: bool
) -> DataFrame:
    """The columns of `_base`, and what was decided: see decode.py.

    `found` has each contract column's field (None: no record can have it); `problem` says why a record could not be
    decoded, null if it was. Without `library` a fate is UNCLEAR where only a library can answer.
    """
    # The contract's columns stand on their own here, for the rules' SQL; the record's other columns wait in `_base`.
    values, parts, wrongs = [], [], []
    for index, (one, field) in enumerate(zip(contract.columns, found, strict=True)):
        value, present, type_name = field or (F.lit(None), F.lit(False), F.lit(None).cast("string"))
        values.append(value.cast(one.type).alias(one.column))
        parts += [present.alias(f"_present_{index}"), type_name.alias(f"_type_{index}")]
        misfit = F.col(f"_present_{index}") & F.col(quoted(one.column)).isNull()
        wrongs.append(F.when(misfit, F.col(f"_type_{index}")).alias(_wrong(index)))
    names = [F.col(quoted(one.column)) for one in contract.columns]
    flat = df.select(BASE, problem.alias(PROBLEM), *values, *parts).select(BASE, PROBLEM, *names, *wrongs)
    has_value, problem = F.col(f"{BASE}.value").isNotNull(), F.col(PROBLEM)
    asked = [
        (_answer(rule), F.when(has_value & problem.isNull(), F.col(quoted(rule.column))))
        for rule in contract.rules
        if rule.kind == FORMAT and rule.sql == DECIDED_BY_DECODING
    ]
    answer = email_column if library else clear_email_column
    if asked:
        flat = flat.select("*", *(answer(text).alias(name) for name, text in asked))
    open_ = [] if library else [text.isNotNull() & F.col(name).isNull() for name, text in asked]
    broken = {severity: _broken(contract, severity) for severity in ("ERROR", "WARN")}
    listed = flat.select(
        f"{BASE}.*",
        F.when(has_value & problem.isNull(), F.struct(*names)).alias("record"),
        F.when(has_value, F.coalesce(F.concat(F.lit(DECODE), problem), broken["ERROR"])).alias("reasons"),
        F.when(has_value & problem.isNull(), broken["WARN"]).alias("warnings"),
        reduce(lambda left, right: left | right, open_, F.lit(False)).alias(_OPEN),
    )
    fate = (
        F.when(F.col("value").isNull(), Fate.tombstone.value)
        .when(F.col(_OPEN), UNCLEAR)
        .when(F.col("reasons") != "", Fate.dead.value)
        .otherwise(Fate.ok.value)
    )
    return listed.withColumns({"reasons": _as_list("reasons"), "warnings": _as_list("warnings"), "fate": fate}).drop(
        _OPEN
    )


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
