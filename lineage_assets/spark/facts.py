"""What must be known of each record of a micro-batch to count it: a few narrow columns, brought here as Arrow.

Belongs here: the columns, and counting on them. Does not belong here: counting in Spark (tally.py), duplicates (seen.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lineage_assets.lineage.fates import Fate
from lineage_assets.lineage.skew import KEYS, skew
from lineage_assets.quality.checks import Failing
from lineage_assets.spark.decide import whole_key
from lineage_assets.spark.event_table import EventTable
from lineage_assets.spark.seen import Array, Keys
from lineage_assets.spark.tally import EXAMPLES, Counted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

FATES = tuple(Fate)
MOST_NAMED = 200
"""Reasons of one batch that are named with examples; garbage can hold a different one in each record."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Records of a batch as columns. `fate` is a place in FATES, -1 where it is unclear; `whole` tells whose dedupe key is
    `high` and `low`."""

    partition: Array
    offset: Array
    stamp_ms: Array
    schema_id: Array
    fate: Array
    late: Array
    whole: Array
    high: Array
    low: Array
    key: Any
    complaints: Any

    def __len__(self) -> int:
        return len(self.partition)

    def where(self, chosen: Array) -> Facts:
        """The records of a mask."""
        import pyarrow as pa

        picked = {name: getattr(self, name)[chosen] for name in self.__slots__ if name not in ("key", "complaints")}
        mask = pa.array(chosen)
        return Facts(**picked, key=self.key.filter(mask), complaints=self.complaints.filter(mask))

    @property
    def unclear(self) -> bool:
        """Whether a record's fate needs a library that was not asked (decode.UNCLEAR)."""
        return bool((self.fate < 0).any())

    @property
    def keys(self) -> Keys:
        """Those that can be duplicates."""
        all_of_them = Keys(self.high, self.low, self.partition, self.offset, self.stamp_ms)
        return all_of_them.where(self.whole)

    def with_duplicates(self, duplicate: Array) -> Facts:
        """The same after duplicates were found among `keys`: a duplicate is not ok, and not late."""
        fate, late = self.fate.copy(), self.late.copy()
        at = np.flatnonzero(self.whole)[duplicate]
        fate[at] = FATES.index(Fate.duplicate)
        late[at] = False
        columns = {name: getattr(self, name) for name in self.__slots__}
        return Facts(**{**columns, "fate": fate, "late": late})


def columns(table: EventTable) -> list[Column]:
    """The facts of decided rows, as Spark computes them."""
    from pyspark.sql import functions as F

    codes = F.array_position(F.array(*(F.lit(fate.value) for fate in FATES)), F.col("fate")) - 1
    parts = [F.col("record").getField(name) for name in table.unique_by]
    whole = whole_key(table) if parts else F.lit(False)
    high, low = (F.xxhash64(*parts), F.xxhash64(F.lit(1), *parts)) if parts else (F.lit(0), F.lit(0))
    complaints = F.concat("reasons", "warnings")
    return [
        F.col("partition"),
        F.col("offset"),
        F.unix_millis("timestamp").alias("stamp_ms"),
        F.col("schema_id"),
        codes.cast("tinyint").alias("fate"),
        F.col("late_by_s").isNotNull().alias("late"),
        whole.alias("whole"),
        high.cast("bigint").alias("high"),
        low.cast("bigint").alias("low"),
        F.col("key"),
        F.when(F.size(complaints) > 0, complaints).alias("complaints"),
    ]


def collect(decided: DataFrame, table: EventTable) -> Facts:
    """Run the decision, and bring its facts here."""
    found: pa.Table = decided.select(*columns(table)).toArrow().combine_chunks()

    def column(name: str, kind: Any, default: int = 0) -> Array:
        return np.asarray(found[name].fill_null(default).to_numpy(zero_copy_only=False)).astype(kind)

    return Facts(
        partition=column("partition", np.int32),
        offset=column("offset", np.int64),
        stamp_ms=column("stamp_ms", np.int64),
        schema_id=column("schema_id", np.int64, -1),
        fate=column("fate", np.int8),
        late=column("late", bool, False),
        whole=column("whole", bool, False),
        high=column("high", np.int64).view(np.uint64),
        low=(column("low", np.int64) & 0xFFFFFFFF).astype(np.uint32),
        key=_whole_array(found["key"]),
        complaints=_whole_array(found["complaints"]),
    )


def _whole_array(column: Any) -> Any:
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return column


UNCOUNTED = Counted({}, {}, 0, 0, frozenset(), frozenset(), None, {})
"""What is known of records that a measurement does not count."""


def counted(facts: Facts, topic: str) -> Counted:
    """The count of some records, as `tally.count` gives it for a whole slice."""
    fates: dict[int, dict[Fate, int]] = {}
    extent: dict[int, tuple[int, int]] = {}
    for partition in np.unique(facts.partition).tolist():
        mine = facts.partition == partition
        codes, numbers = np.unique(facts.fate[mine], return_counts=True)
        fates[partition] = {FATES[code]: int(n) for code, n in zip(codes.tolist(), numbers.tolist(), strict=True)}
        offsets = facts.offset[mine]
        extent[partition] = (int(offsets.min()), int(offsets.max()))
    places = np.unique(np.stack([facts.partition.astype(np.int64), facts.offset]), axis=1).shape[1]
    ids = frozenset(int(one) for one in np.unique(facts.schema_id) if one >= 0)
    return Counted(
        fates=fates,
        reasons=_reasons(facts, topic),
        repeated_offsets=len(facts) - places,
        late=int(facts.late.sum()),
        schema_ids=ids,
        all_schema_ids=ids,
        earliest_ms=int(facts.stamp_ms.min()) if len(facts) else None,
        extent=extent,
    )


def _reasons(facts: Facts, topic: str) -> dict[str, Failing]:
    """Per reason or warning the number of records, and the first three of them."""
    import pyarrow.compute as pc

    told = pc.list_flatten(facts.complaints).dictionary_encode()
    if not len(told):
        return {}
    at = pc.list_parent_indices(facts.complaints).to_numpy(zero_copy_only=False)
    code = told.indices.to_numpy(zero_copy_only=False)
    order = np.lexsort((facts.offset[at], facts.partition[at]))
    at, code = at[order], code[order]
    counts = np.bincount(code)
    found: dict[str, Failing] = {}
    for one in np.argsort(-counts, kind="stable").tolist():
        first = at[np.flatnonzero(code == one)[:EXAMPLES]] if len(found) < MOST_NAMED else []
        places = tuple(f"{topic}/{facts.partition[i]}@{facts.offset[i]}" for i in first)
        found[told.dictionary[one].as_py()] = Failing(int(counts[one]), places)
    return found


def skew_of(facts: Facts, *, of: Sequence[int], private: bool, salt: str) -> Mapping[str, Any]:
    """The heaviest keys of some records, and how evenly the topic's partitions (`of`) are filled."""
    partitions, numbers = np.unique(facts.partition, return_counts=True)
    keys = facts.key.value_counts()
    counts = keys.field("counts").to_numpy()
    heaviest = np.argsort(-counts, kind="stable")
    top = keys.take(heaviest[: 2 * KEYS])
    named = dict(zip(top.field("values").to_pylist(), top.field("counts").to_pylist(), strict=True))
    floor = int(counts[heaviest[2 * KEYS]]) if len(counts) > 2 * KEYS else 0
    by_partition = {**dict.fromkeys(of, 0), **dict(zip(partitions.tolist(), numbers.tolist(), strict=True))}
    return skew(by_partition, named, private=private, floor=floor, salt=salt)
