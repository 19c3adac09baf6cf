"""Names that must travel through systems with narrower rules, and come back.

Belongs here: topic <-> asset path, asset path -> node name, field <-> column. Does not belong here: looking anything
up. Two different names never become one, also where a system ignores case or replaces `.` and `-`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import quote, unquote

from lineage_assets.errors import ContractError

NODE_NAME_LIMIT = 80
"""Node names stand in log lines, step keys and file names; a topic's name may have 249 characters."""

_PLAIN_PART = re.compile(r"[A-Za-z0-9]+(?:_[A-Za-z0-9]+)*")
_ESCAPE = re.compile(r"_x([0-9a-f]+)_")
_NEEDS_ESCAPE = re.compile(r"^[0-9_]|[^A-Za-z0-9_]|_(?=[xX])")
_EMPTY = "_x_"


def topic_asset(alias: str, topic: str) -> tuple[str, str, str]:
    """The asset path of a topic: kafka/<cluster alias>/<topic>.

    What no topic name may hold is percent-encoded, so a part has no slash.

    >>> topic_asset("local", "orders.v1")
    ('kafka', 'local', 'orders.v1')
    """
    if not alias or not topic:
        raise ContractError("a topic's asset needs a cluster alias and a topic", remedy="name both")
    return ("kafka", quote(alias, safe=""), quote(topic, safe=""))


def topic_of(path: Sequence[str]) -> tuple[str, str]:
    """Cluster alias and topic of an asset path. ValueError when the path is no topic's."""
    if len(path) != 3 or path[0] != "kafka":
        raise ValueError(f"{'/'.join(path)} is not the asset of a topic: kafka/<cluster alias>/<topic>")
    return unquote(path[1]), unquote(path[2])


def node_name(path: Sequence[str]) -> str:
    """The name of the Dagster node that makes an asset: `[A-Za-z0-9_]`, at most 80 characters, one for each path.

    Plain paths are joined by two underscores. Others, which Dagster's own rule would let collide, get a readable
    beginning and, after three underscores, a hash: no plain path contains three.

    >>> node_name(["silver", "clicks"])
    'silver__clicks'
    """
    joined = "__".join(path)
    # A single word can be one that Dagster or Python reserves; two underscores never are.
    if len(path) > 1 and len(joined) <= NODE_NAME_LIMIT and all(_PLAIN_PART.fullmatch(part) for part in path):
        return joined
    digest = hashlib.sha256("\0".join(path).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    readable = re.sub(r"_*[^A-Za-z0-9_]+_*", "_", joined)
    readable = re.sub(r"_{3,}", "__", readable)[: NODE_NAME_LIMIT - 19].strip("_")
    return f"{readable or 'asset'}___{digest}"


def column_name(field: str) -> str:
    """The column of a field: `[A-Za-z0-9_]`, not beginning with a digit, and with `field_name` as its inverse.

    A character that is no letter, digit or underscore becomes its code point in hex between `_x` and `_`. So do an
    underscore before an x (it would read as such an escape), a digit or underscore at the beginning (columns of ours
    begin with one).

    >>> column_name("price.eur"), column_name("order id"), column_name("user_id")
    ('price_x2e_eur', 'order_x20_id', 'user_id')
    """
    return _NEEDS_ESCAPE.sub(_escape, field) if field else _EMPTY


def field_name(column: str) -> str:
    """The field of a column that `column_name` or `column_names` made; any other text stays as it is."""
    return "" if column == _EMPTY else _ESCAPE.sub(_character, column)


def column_names(fields: Iterable[str]) -> dict[str, str]:
    """Field -> column, distinct also where case is ignored (Spark, Delta, DuckDB); `field_name` inverts each.

    Of fields that differ only by case the first keeps its name; in the others the capital letters are escaped, or
    every letter if that is not enough. So a field that is added at the end renames no column.

    >>> column_names(["userId", "UserID"])
    {'userId': 'userId', 'UserID': '_x55_ser_x49__x44_'}
    """
    columns: dict[str, str] = {}
    taken: set[str] = set()
    for field in dict.fromkeys(fields):
        candidates: tuple[Callable[[str], str], ...] = (column_name, _capitals_escaped, _letters_escaped)
        column = next(name for name in (encode(field) for encode in candidates) if name.lower() not in taken)
        columns[field] = column
        taken.add(column.lower())
    return columns


def _capitals_escaped(field: str) -> str:
    return re.sub(_NEEDS_ESCAPE.pattern + "|[A-Z]", _escape, field)


def _letters_escaped(field: str) -> str:
    return re.sub(_NEEDS_ESCAPE.pattern + "|[A-Za-z]", _escape, field)


def _escape(match: re.Match[str]) -> str:
    return f"_x{ord(match.group()):x}_"


def _character(match: re.Match[str]) -> str:
    return chr(int(match.group(1), 16))
