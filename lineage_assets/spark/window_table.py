"""The declaration of a per-slice window table, and the SQL that it stands for.

Belongs here: the value type, which measures can be merged over slices and how, the SQL. Does not belong here: running it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import lineage_assets
from lineage_assets.errors import ContractError
from lineage_assets.spark.event_table import syntax_error

if TYPE_CHECKING:
    from sqlglot import exp

SLICE_ROWS = "slice_rows"
"""The name by which the SQL sees the source's rows of one slice."""


class Merge(StrEnum):
    """How a measure of one key and window is put together from the rows of several slices."""

    sum = "sum"
    min = "min"
    max = "max"
    theta = "theta"


@dataclass(frozen=True, slots=True)
class Measure:
    """A column of the table. A `theta` measure also has `<name>_sketch`, from which slices are merged."""

    name: str
    sql: str
    merge: Merge


@dataclass(frozen=True, slots=True)
class WindowTable:
    """Tumbling windows by key over one source table: a row per (key, window, slice).

    Only the slice's own rows are in a row: readers merge the slices (`Measure.merge`), so a late event is simply part
    of a later slice. `time` is the source's event-time column; windows are aligned to the epoch, in UTC.
    """

    name: str
    source: str
    time: str
    window_s: int
    by: tuple[str, ...]
    measures: tuple[Measure, ...]
    private: tuple[str, ...] = ()
    """Columns made of personal data: they get no file statistics."""

    @property
    def asset(self) -> str:
        return f"gold/{self.name}"

    @property
    def known_types(self) -> dict[str, str]:
        """Spark types of the columns whose functions only Spark knows."""
        found = {"window_start": "timestamp", "window_end": "timestamp"}
        for measure in self.measures:
            if measure.merge is Merge.theta:
                found |= {measure.name: "bigint", f"{measure.name}_sketch": "binary"}
        return found

    def describe(self, column: str) -> str | None:
        """A column in words."""
        if column in ("window_start", "window_end"):
            return f"{'Start' if column == 'window_start' else 'End'} of the window, UTC; the end is not in it."
        for measure in self.measures:
            if column == measure.name:
                how = "approximate distinct count of " if measure.merge is Merge.theta else ""
                return f"{how}{measure.sql}, of this slice's rows; slices merge by {measure.merge.value}."
            if column == f"{measure.name}_sketch":
                return f"Theta sketch behind {measure.name}, to merge slices."
        return "Key of the windows." if column in self.by else None

    @property
    def code(self) -> str:
        """Version of all that decides what the table holds."""
        return hashlib.sha256(json.dumps([lineage_assets.__version__, self.sql]).encode()).hexdigest()[:16]

    @property
    def start_second(self) -> str:
        """Spark SQL for the second at which the window of a row starts; null for a row without an event time."""
        return f"floor(unix_micros(`{self.time}`) / {self.window_s * 1_000_000}) * {self.window_s}"

    @property
    def sql(self) -> str:
        """Spark SQL over `slice_rows`. A row without an event time is in no window."""
        keys = ", ".join(f"`{name}`" for name in self.by)
        start = f"timestamp_seconds({self.start_second})"
        end = f"timestamp_seconds((floor(unix_micros(`{self.time}`) / {self.window_s * 1_000_000}) + 1) * {self.window_s})"
        columns = [*(f"`{name}`" for name in self.by), f"{start} AS window_start", f"{end} AS window_end"]
        for measure in self.measures:
            if measure.merge is Merge.theta:
                sketch = f"theta_sketch_agg({measure.sql})"
                columns.append(f"theta_sketch_estimate({sketch}) AS `{measure.name}`")
                columns.append(f"{sketch} AS `{measure.name}_sketch`")
            else:
                columns.append(f"{measure.sql} AS `{measure.name}`")
        return (
            f"SELECT {', '.join(columns)} FROM {SLICE_ROWS} WHERE `{self.time}` IS NOT NULL "
            f"GROUP BY {keys}, window_start, window_end"
        )


def measures(declared: Mapping[str, str], where: str) -> tuple[Measure, ...]:
    """Read measures such as `event_count: count(*)`. `where` names the declaration for messages.

    Raises ContractError for what cannot be merged over slices: an average, an exact distinct count.
    """
    return tuple(_measure(name, text, where) for name, text in declared.items())


def _measure(name: str, text: str, where: str) -> Measure:
    import sqlglot
    from sqlglot import exp

    at = f"{where}: measure {name}: {text}"
    try:
        tree = sqlglot.parse_one(text, dialect="spark")
    except sqlglot.errors.ParseError as error:
        raise ContractError(f"{at}: not a Spark SQL expression: {syntax_error(error)}") from error
    match tree:
        case exp.ApproxDistinct():
            return Measure(name, _argument(tree, at), Merge.theta)
        case exp.Count() | exp.Sum() if tree.find(exp.Distinct):
            raise ContractError(
                f"{at}: distinct values of two slices cannot be added", remedy="use approx_count_distinct(…)"
            )
        case exp.Count() | exp.CountIf() | exp.Sum():
            return Measure(name, text, Merge.sum)
        case exp.Min():
            return Measure(name, text, Merge.min)
        case exp.Max():
            return Measure(name, text, Merge.max)
        case exp.Avg():
            raise ContractError(
                f"{at}: averages of two slices cannot be merged",
                remedy="declare a sum and a count, and divide when reading",
            )
    raise ContractError(
        f"{at}: cannot be merged over slices; expected count, count_if, sum, min, max or approx_count_distinct"
    )


def _argument(tree: exp.Expression, at: str) -> str:
    if tree.args.get("accuracy") is not None:
        raise ContractError(
            f"{at}: an own accuracy is not supported", remedy="leave it out: the sketch is exact up to 4096"
        )
    return str(tree.this.sql(dialect="spark"))
