"""One row for each key out of one row for each (key, slice).

Belongs here: how measures of an aggregate that is kept per slice add up. Does not belong here: reading tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lineage_assets.errors import ContractError

if TYPE_CHECKING:
    import pyarrow as pa

PLAIN = {"sum": "sum", "min": "min", "max": "max"}
"""Measures that pyarrow merges by itself."""
THETA = "theta"
"""An estimate of distinct values; the column `<measure>_sketch` holds the Apache DataSketches theta sketch behind it."""
LG_K = 12
"""Size of the merged sketch, as Spark's `theta_sketch_agg` makes them by default."""
ROW = "__row"


@dataclass(frozen=True, slots=True)
class Merge:
    """The key of the merged rows, and how each measure adds up: sum, min, max or theta."""

    by: tuple[str, ...]
    measures: Mapping[str, str]

    @classmethod
    def of(cls, asset: str, declared: Mapping[str, Any]) -> Merge:
        """From a source's `meta.merge`. ContractError when it is not of the form {by: [...], measures: {...}}."""
        by, measures = declared.get("by"), declared.get("measures")
        if not (isinstance(by, Sequence) and not isinstance(by, str) and by and isinstance(measures, Mapping)):
            raise ContractError(
                f"meta.merge of source {asset} is {dict(declared)}",
                remedy="give `by`, a list of columns, and `measures`, columns with how each merges",
            )
        wrong = {name: how for name, how in measures.items() if how not in PLAIN and how != THETA}
        if wrong:
            raise ContractError(
                f"meta.merge of source {asset} merges {wrong}", remedy=f"use one of {', '.join([*PLAIN, THETA])}"
            )
        return cls(tuple(by), dict(measures))

    @property
    def columns(self) -> list[str]:
        """The columns that merging reads."""
        return [*self.by, *self.measures, *(sketch(name) for name in self.distinct)]

    @property
    def distinct(self) -> list[str]:
        """The measures that are estimates of distinct values."""
        return [name for name, how in self.measures.items() if how == THETA]


def sketch(measure: str) -> str:
    """The column that holds a measure's sketch."""
    return f"{measure}_sketch"


def merge_rows(rows: pa.Table, how: Merge) -> pa.Table:
    """Rows with `how.columns` -> one row for each key, with the key and the measures, types unchanged.

    Only keys with more than one row touch their sketches; everything else stays in Arrow.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if rows.num_rows == 0:
        return rows.select([*how.by, *how.measures])
    numbered = rows.select([*how.by, *how.measures]).append_column(ROW, pa.array(range(rows.num_rows), pa.int64()))
    plain = [(name, PLAIN[kind]) for name, kind in how.measures.items() if kind != THETA]
    groups = numbered.group_by(list(how.by), use_threads=False).aggregate([*plain, (ROW, "list")])
    members = groups[f"{ROW}_list"].combine_chunks()
    first = pc.list_element(members, 0)
    several = pc.indices_nonzero(pc.greater(pc.list_value_length(members), 1)).to_pylist()

    merged = {name: groups[name] for name in how.by}
    for name, kind in how.measures.items():
        if kind == THETA:
            estimates = rows[name].combine_chunks().take(first)
            unions = [_united(rows, name, members[at].as_py()) for at in several]
            merged[name] = _replaced(estimates, several, unions)
        else:
            merged[name] = groups[f"{name}_{PLAIN[kind]}"].cast(rows.schema.field(name).type)
    return pa.table(merged)


def _united(rows: pa.Table, measure: str, members: Sequence[int]) -> int:
    """Distinct values over several rows, by the union of their sketches."""
    import datasketches

    union = datasketches.theta_union(LG_K)
    column = rows[sketch(measure)]
    for at in members:
        stored = column[at].as_py()
        if stored is None:
            continue
        try:
            union.update(datasketches.compact_theta_sketch.deserialize(stored))
        except (ValueError, RuntimeError) as error:
            raise ContractError(
                f"{sketch(measure)} holds {len(stored)} bytes that are no theta sketch: {error}",
                remedy="materialize the source's slices again",
            ) from error
    return round(float(union.get_result().get_estimate()))


def _replaced(values: pa.Array, at: Sequence[int], new: Sequence[int]) -> pa.Array:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if not at:
        return values
    mask = np.zeros(len(values), dtype=bool)
    mask[at] = True
    return pc.replace_with_mask(values, pa.array(mask), pa.array(new).cast(values.type))
