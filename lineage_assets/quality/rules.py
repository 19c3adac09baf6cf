"""A declared check as Spark SQL.

Belongs here: literals, regular expressions, one expression a kind of check. Does not belong here: reading a pandera
model (compiler.py), running an expression (spark/decode.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

NUMBERS = ("bigint", "int", "double", "float", "decimal")
COMPARED = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "=", "ne": "<>"}
SUPPORTED = (
    *COMPARED,
    "in_range",
    "isin",
    "notin",
    "str_matches",
    "str_contains",
    "str_startswith",
    "str_endswith",
    "str_length",
)


class Uncompilable(ValueError):
    """Why a check has no SQL; the caller knows the file, class and field."""


def quoted(column: str) -> str:
    """A column's name in SQL."""
    return "`" + column.replace("`", "``") + "`"


def text_literal(text: str) -> str:
    """A string in Spark SQL, with Spark's own escapes.

    >>> print(text_literal("it's a \\\\d"))
    'it\\'s a \\\\d'
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def literal(value: Any, type_: str) -> str:
    """A Python value as a Spark SQL literal fit to be compared with a column of a type. Uncompilable when it is not.

    >>> literal(0, "bigint"), literal(0.5, "decimal(9,2)"), literal("a", "string")
    ('0L', '0.5BD', "'a'")
    """
    family = type_.partition("(")[0]
    if isinstance(value, bool):
        if family == "boolean":
            return "true" if value else "false"
    elif family in NUMBERS and isinstance(value, int | float | Decimal):
        return _number(value, family)
    elif family == "string" and isinstance(value, str):
        return text_literal(value)
    elif family == "timestamp" and isinstance(value, datetime):
        # A contract's naive instants are UTC, like those of the events.
        instant = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return f"timestamp '{instant.isoformat()}'"
    elif family == "date" and isinstance(value, date) and not isinstance(value, datetime):
        return f"date '{value.isoformat()}'"
    raise Uncompilable(f"{value!r} ({type(value).__name__}) cannot be compared with a column of type {type_}")


def _number(value: int | float | Decimal, family: str) -> str:
    if not math.isfinite(value):
        raise Uncompilable(f"{value!r} is not a finite number")
    if family in ("double", "float"):
        return f"{float(value)!r}D"
    if isinstance(value, int) and -(2**63) < value < 2**63:
        return f"{value}L"
    try:
        digits = f"{Decimal(repr(value) if isinstance(value, float) else value):f}"
    except InvalidOperation as error:
        raise Uncompilable(f"{value!r} is not a number") from error
    if len(digits.strip("-").replace(".", "")) > 38:
        raise Uncompilable(f"{value!r} has more than 38 digits")
    return f"{digits}BD"


def check_sql(kind: str, arguments: Mapping[str, Any], column: str, type_: str) -> str:
    """The SQL of one check: true where it holds. An absent value holds.

    >>> check_sql("ge", {"value": 0}, "amount_cents", "bigint")
    '`amount_cents` IS NULL OR `amount_cents` >= 0L'
    """
    name = quoted(column)
    make = _MAKERS.get(kind)
    if make is None:
        raise Uncompilable(f"the check {kind} is not supported")
    if kind.startswith("str_") and type_ != "string":
        raise Uncompilable(f"{kind} needs a column of type string, not {type_}")
    return f"{name} IS NULL OR {make(name, type_, arguments)}"


def finite_sql(column: str) -> str:
    """Neither NaN nor an infinity. Spark orders NaN above everything."""
    name = quoted(column)
    return f"{name} IS NULL OR ({name} < double('Infinity') AND {name} > double('-Infinity'))"


def format_sql(format_: str, column: str) -> str | None:
    """The SQL of a format that a pattern decides; None for those that formats.py checks by a library."""
    pattern = PATTERNS[format_]
    return None if pattern is None else check_sql("str_matches", {"pattern": pattern}, column, "string")


PATTERNS: dict[str, str | None] = {
    "email": None,
    "phone": r"\+[1-9][0-9]{6,14}\Z",
    "uuid": r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\Z",
    "ipv4": r"((25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])(\.(?=[0-9])|\Z)){4}\Z",
}
"""Formats by name. phone is E.164: a plus sign, then 7 to 15 digits."""


def _compared(symbol: str) -> Callable[[str, str, Mapping[str, Any]], str]:
    return lambda name, type_, arguments: f"{name} {symbol} {literal(arguments['value'], type_)}"


def _in_range(name: str, type_: str, arguments: Mapping[str, Any]) -> str:
    above = ">=" if arguments.get("include_min", True) else ">"
    below = "<=" if arguments.get("include_max", True) else "<"
    low, high = literal(arguments["min_value"], type_), literal(arguments["max_value"], type_)
    return f"({name} {above} {low} AND {name} {below} {high})"


def _listed(values: Iterable[Any], type_: str) -> str:
    members = [literal(value, type_) for value in values]
    if not members:
        raise Uncompilable("an empty list of values")
    return f"({', '.join(members)})"


def _length(name: str, _: str, arguments: Mapping[str, Any]) -> str:
    bounds = {"exact_value": "=", "min_value": ">=", "max_value": "<="}
    parts = [
        f"char_length({name}) {symbol} {int(arguments[key])}" for key, symbol in bounds.items() if key in arguments
    ]
    if not parts:
        raise Uncompilable("str_length without a bound")
    return "(" + " AND ".join(parts) + ")"


_MAKERS: dict[str, Callable[[str, str, Mapping[str, Any]], str]] = {
    **{kind: _compared(symbol) for kind, symbol in COMPARED.items()},
    "in_range": _in_range,
    "isin": lambda name, type_, arguments: f"{name} IN {_listed(arguments['values'], type_)}",
    "notin": lambda name, type_, arguments: f"{name} NOT IN {_listed(arguments['values'], type_)}",
    # pandera matches at the beginning of the text, like Python's re.match.
    "str_matches": lambda name, _, a: f"{name} RLIKE {text_literal(java_regex(a['pattern'], at_start=True))}",
    "str_contains": lambda name, _, a: f"{name} RLIKE {text_literal(java_regex(a['pattern'], at_start=False))}",
    "str_startswith": lambda name, _, a: f"startswith({name}, {text_literal(a['string'])})",
    "str_endswith": lambda name, _, a: f"endswith({name}, {text_literal(a['string'])})",
    "str_length": _length,
}

_REGEX_FLAGS = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s"}
_REFUSED_GROUPS = {"(?P": "named groups", "(?(": "conditional groups", "(?#": "comments"}


def java_regex(pattern: str | re.Pattern[str], *, at_start: bool) -> str:
    r"""A Python regular expression for Java's engine, which Spark runs: the same language, or Uncompilable.

    Unix lines and Unicode classes are switched on, as Python has them; what the two engines read differently inside
    a class (`[`, `&`) is escaped.

    >>> print(java_regex(r"[a-z[&]+\Z", at_start=True))
    (?dU)\A(?:[a-z\[\&]+\z)
    """
    flags = "dU"
    if isinstance(pattern, re.Pattern):
        unknown = pattern.flags & ~(re.UNICODE | re.IGNORECASE | re.MULTILINE | re.DOTALL)
        if unknown:
            raise Uncompilable(f"the flags {re.RegexFlag(unknown)!r} of the regular expression")
        flags += "".join(letter for flag, letter in _REGEX_FLAGS.items() if pattern.flags & flag)
        flags += "u" if pattern.flags & re.IGNORECASE else ""
        pattern = pattern.pattern
    try:
        re.compile(pattern)
    except re.error as error:
        raise Uncompilable(f"{pattern!r} is not a regular expression: {error}") from error
    for beginning, what in _REFUSED_GROUPS.items():
        if beginning in pattern.replace("\\\\", "").replace("\\(", ""):
            raise Uncompilable(f"{what} in the regular expression {pattern!r}")
    inline = re.match(r"\(\?([aiLmsux]+)\)", pattern)
    if inline:
        if set(inline[1]) - set("ims"):
            raise Uncompilable(f"the inline flags {inline[1]} of {pattern!r}")
        flags += inline[1] + ("u" if "i" in inline[1] else "")
        pattern = pattern[inline.end() :]
    body = _java_body(pattern)
    return f"(?{flags})\\A(?:{body})" if at_start else f"(?{flags}){body}"


def _java_body(pattern: str) -> str:
    parts: list[str] = []
    at, in_class = 0, False
    while at < len(pattern):
        one = pattern[at]
        if one == "\\":
            pair = pattern[at : at + 2]
            if pair in ("\\U", "\\N"):
                raise Uncompilable(f"{pair} in the regular expression {pattern!r}")
            parts.append("\\z" if pair == "\\Z" else pair)
            at += 2
            continue
        if in_class:
            if one == "]":
                in_class = False
            parts.append("\\" + one if one in "[&" else one)
        elif one == "[":
            in_class = True
            # A `]` straight after the opening is a plain character in Python.
            opening = re.compile(r"\[(\^?)(\]?)").match(pattern, at)
            if opening is None:
                raise Uncompilable(f"the class in {pattern!r}")
            parts.append("[" + opening[1] + ("\\]" if opening[2] else ""))
            at = opening.end()
            continue
        elif one == "{" and not re.compile(r"\{\d+(,\d*)?\}").match(pattern, at):
            upto = re.compile(r"\{,(\d+)\}").match(pattern, at)
            parts.append("{0," + upto[1] + "}" if upto else "\\{")
            at = upto.end() if upto else at + 1
            continue
        else:
            parts.append(one)
        at += 1
    return "".join(parts)
