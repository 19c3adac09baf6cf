"""A pandera model becomes a contract.

Belongs here: what of pandera is understood, and the errors about the rest. Imports pandera, which takes seconds: only
load.py imports this module, and only for a contract that it has not compiled before.
Does not belong here: SQL (rules.py), files and the cache (load.py).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

import pandera.pandas as pa
from pandera import dtypes

from lineage_assets.errors import ContractError
from lineage_assets.lineage.names import column_names
from lineage_assets.quality import rules
from lineage_assets.quality.contract import FINITE, FORMAT, REQUIRED, TYPE, Column, Contract, Rule, Severity, shown

Where = Callable[[str | None], str]
"""Names the place of a field, or of the class, for messages."""

METADATA = ("format", "pii", "tags", "max_share", "severity", "epoch", "json")
TYPES = (
    "str, int, numpy.int32, float, numpy.float32, bool, datetime, date, bytes, "
    'pa.Decimal with dtype_kwargs={"precision": …, "scale": …}'
)
CHECKS = ", ".join(rules.SUPPORTED) + ", and metadata={'format': …}"
DEFAULT_MAX_SHARE = 0.05
VALUES_SHOWN = 160

_CHECK_NAMES = {
    "greater_than": "gt",
    "greater_than_or_equal_to": "ge",
    "less_than": "lt",
    "less_than_or_equal_to": "le",
    "equal_to": "eq",
    "not_equal_to": "ne",
}
# Options of a field or of the model that change what is accepted, and what to do instead.
_REFUSED_OPTIONS = {
    "unique": "name the key in the table's `unique_by`: a row alone cannot tell",
    "coerce": "declare the type that the event holds: a value of another type is a broken contract",
    "regex": "declare each field by name",
    "default": "declare the field nullable, and put coalesce() into the table's SQL",
}
_EXPECTED = {
    "timestamp": "timestamp (ISO 8601 with zone)",
    "date": "date (YYYY-MM-DD)",
    "binary": "binary (base64)",
}


def compile_model(model: type[pa.DataFrameModel], where: Where) -> Contract:
    """The contract of a pandera model. ContractError names class, field and check, and what is supported."""
    schema = model.to_schema()
    if schema.checks:
        named = ", ".join(str(check.name) for check in schema.checks)
        raise ContractError(
            f"{where(None)}: checks over the whole frame cannot be decided for one record: {named}",
            remedy="check one field at a time, or use a dbt test",
        )
    for option in ("strict", "coerce", "unique", "ordered", "add_missing_columns", "drop_invalid_rows"):
        if getattr(schema, option, None):
            raise ContractError(
                f"{where(None)}: Config.{option} is not supported",
                remedy=_REFUSED_OPTIONS.get(option, "leave it out: fields that no contract names stay in raw"),
            )
    if any(schema.parsers or ()) or any(column.parsers for column in schema.columns.values()):
        raise ContractError(
            f"{where(None)}: parsers are not supported", remedy="change values in the table's SQL, after the contract"
        )
    if not schema.columns:
        raise ContractError(f"{where(None)}: the model has no fields", remedy="declare at least one field")
    annotations = {info.name: annotation.arg for annotation, info in model.__fields__.values()}
    columns = column_names([str(name) for name in schema.columns])
    return Contract(
        name=model.__name__,
        doc=(model.__doc__ or "").strip(),
        columns=tuple(
            _column(str(name), columns[str(name)], declared, annotations.get(name), where)
            for name, declared in schema.columns.items()
        ),
    )


def _column(field: str, column: str, declared: Any, annotation: Any, where: Where) -> Column:
    for option, remedy in _REFUSED_OPTIONS.items():
        if getattr(declared, option, None):
            raise ContractError(f"{where(field)}: {option} is not supported", remedy=remedy)
    type_ = _type(declared.dtype, annotation)
    if type_ is None:
        name = getattr(annotation, "__name__", None) or declared.dtype
        raise ContractError(f"{where(field)}: the type {name} is not supported", remedy=f"use one of {TYPES}")
    known = dict(declared.metadata or {})
    _check_metadata(known, where(field))
    # Optional[...] lets a field be absent: an event does not tell absent from null once it is a row.
    nullable = bool(declared.nullable) or not declared.required
    encoding = _encoding(known, type_, where(field))
    tags = tuple(sorted({*(known.get("tags") or ()), *(["pii"] if known.get("pii") else [])}))
    made = _Rules(field, column, type_, float(known.get("max_share", DEFAULT_MAX_SHARE)))
    implicit = [] if nullable else [made.rule(REQUIRED, "required")]
    expected = "timestamp (epoch)" if encoding.startswith("epoch") else _EXPECTED.get(type_, type_)
    implicit.append(made.rule(TYPE, f"expected {expected}"))
    if type_ in ("double", "float"):
        implicit.append(made.rule(FINITE, "finite", sql=rules.finite_sql(column)))
    severity: Severity = known.get("severity", "ERROR")
    own = [_declared(made, check, severity, where(field)) for check in declared.checks]
    if "format" in known:
        own.append(_format(made, known["format"], severity, where(field)))
    return Column(
        field=field,
        column=column,
        type=type_,
        nullable=nullable,
        description=(declared.description or declared.title or "").strip(),
        tags=tags,
        encoding=encoding,
        rules=(*implicit, *own),
    )


class _Rules:
    """Makes the rules of one column."""

    def __init__(self, field: str, column: str, type_: str, max_share: float) -> None:
        self.field, self.column, self.type, self.max_share = field, column, type_, max_share

    def rule(self, kind: str, said: str, **more: Any) -> Rule:
        return Rule(
            name=f"{self.column}__{kind}",
            column=self.column,
            kind=kind,
            message=f"{shown(self.field)}: {shown(said)}",
            max_share=self.max_share,
            **more,
        )


def _declared(made: _Rules, check: Any, severity: Severity, where: str) -> Rule:
    """A rule of one pandera check."""
    kind = _CHECK_NAMES.get(check.name, check.name)
    if kind not in rules.SUPPORTED or not check.statistics:
        raise ContractError(f"{where}: the check {check.name} cannot run in Spark", remedy=f"supported are {CHECKS}")
    arguments = _arguments(kind, check.statistics)
    try:
        sql = rules.check_sql(kind, arguments, made.column, made.type)
    except rules.Uncompilable as error:
        raise ContractError(f"{where}: {kind} cannot be used: {error}", remedy=f"supported are {CHECKS}") from error
    return made.rule(
        kind,
        f"{kind}({_said(arguments)})",
        arguments={name: _plain(value) for name, value in arguments.items()},
        severity="WARN" if check.raise_warning else severity,
        sql=sql,
    )


def _format(made: _Rules, format_: Any, severity: Severity, where: str) -> Rule:
    if format_ not in rules.PATTERNS:
        known = list(rules.PATTERNS)
        raise ContractError(f"{where}: no format {format_!r} is known", remedy=_nearest(str(format_), known))
    if made.type != "string":
        raise ContractError(f"{where}: a format needs the type str, not {made.type}", remedy="declare the field as str")
    sql = rules.format_sql(format_, made.column)
    more = {} if sql is None else {"sql": sql}
    return made.rule(FORMAT, f"format({format_})", arguments={"format": format_}, severity=severity, **more)


def _arguments(kind: str, statistics: Mapping[str, Any]) -> dict[str, Any]:
    """A check's numbers under one name a meaning; defaults left out."""
    given = {name: value for name, value in statistics.items() if value is not None}
    if kind in rules.COMPARED:
        return {"value": next(iter(given.values()))}
    if kind in ("isin", "notin"):
        return {"values": list(next(iter(given.values())))}
    if kind == "in_range":
        return {name: value for name, value in given.items() if value is not True}
    return given


def _said(arguments: Mapping[str, Any]) -> str:
    named = [
        _text(v) if n in ("value", "pattern", "string", "values") else f"{n}={_text(v)}" for n, v in arguments.items()
    ]
    text = ", ".join(named)
    return text if len(text) <= VALUES_SHOWN else text[: VALUES_SHOWN - 1] + "…"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_text(one) for one in value) + "]"
    return repr(value) if isinstance(value, str | int | float) else str(_plain(value))


def _plain(value: Any) -> Any:
    """A value as JSON holds it."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | bool | int | float) else str(getattr(value, "pattern", value))


def _check_metadata(known: Mapping[str, Any], where: str) -> None:
    for name, value in known.items():
        if name not in METADATA:
            raise ContractError(f"{where}: metadata {name!r} means nothing here", remedy=_nearest(str(name), METADATA))
        if name == "max_share" and not (_is_number(value) and 0 <= value <= 1):
            raise ContractError(f"{where}: max_share is {value!r}", remedy="it is a share, from 0 to 1")
        if name == "severity" and value not in ("ERROR", "WARN"):
            raise ContractError(f"{where}: severity is {value!r}", remedy="it is ERROR or WARN")
        if name in ("pii", "json") and not isinstance(value, bool):
            raise ContractError(f"{where}: {name} is {value!r}", remedy="it is True or False")
        if name == "tags" and not (isinstance(value, list | tuple) and all(isinstance(tag, str) for tag in value)):
            raise ContractError(f"{where}: tags is {value!r}", remedy="it is a list of words")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _encoding(known: Mapping[str, Any], type_: str, where: str) -> Any:
    if "epoch" in known:
        if known["epoch"] not in ("s", "ms", "us"):
            raise ContractError(f"{where}: epoch is {known['epoch']!r}", remedy="it is s, ms or us")
        if type_ != "timestamp":
            raise ContractError(f"{where}: epoch needs the type datetime, not {type_}", remedy="declare it as datetime")
        return f"epoch_{known['epoch']}"
    if known.get("json"):
        if type_ != "string":
            raise ContractError(f"{where}: json needs the type str, not {type_}", remedy="declare the field as str")
        return "json"
    return ""


def _type(declared: Any, annotation: Any) -> str | None:
    """Spark's name of a pandera type, None for those that no event decodes to."""
    if annotation is bytes:
        return "binary"
    if isinstance(declared, dtypes.Decimal):
        if annotation is Decimal:
            # It says nothing of places, and pandera would take none.
            return None
        # Spark and Delta end at 38 digits.
        fits = 0 <= declared.scale <= declared.precision <= 38
        return f"decimal({declared.precision},{declared.scale})" if fits else None
    # A Timestamp is a Date to pandera.
    if isinstance(declared, dtypes.Timestamp):
        return "timestamp"
    if isinstance(declared, dtypes.Date):
        return "date"
    if isinstance(declared, dtypes.Bool):
        return "boolean"
    if isinstance(declared, dtypes.Category | dtypes.Timedelta | dtypes.Complex | dtypes.UInt):
        return None
    if isinstance(declared, dtypes.Int):
        return {64: "bigint", 32: "int"}.get(declared.bit_width or 64)
    if isinstance(declared, dtypes.Float):
        return {64: "double", 32: "float"}.get(declared.bit_width or 64)
    return "string" if isinstance(declared, dtypes.String) else None


def _nearest(wrong: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(wrong, names, 1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(names)}"
