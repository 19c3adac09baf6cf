"""Closed slices of many small files, made few: by Spark, beside streams and runs, with the merged record of the slice.

Belongs here: which slices, and their `compact` records. Does not belong here: the statement (spark/tables.py), what is
closed (closed.py).
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lineage_assets.errors import TransientError
from lineage_assets.lineage.commits import Lake, Tail, open_table
from lineage_assets.lineage.content import THROUGH
from lineage_assets.lineage.record import CommitRecord
from lineage_assets.lineage.slices import Grain
from lineage_assets.maintenance import gaps
from lineage_assets.maintenance.closed import Closed
from lineage_assets.maintenance.policy import Policy
from lineage_assets.reporting.collector import Managed
from lineage_assets.settings import Settings
from lineage_assets.spark import tables as managed_tables
from lineage_assets.spark.session import explain, lost_race, session, translated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAYERS = ("raw", "silver", "gold")
"""In this order: silver takes over what raw's record says of gaps."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Compacted:
    """A slice whose files were rewritten; `version` is None when a writer was first: the slice waits for the next time."""

    asset: str
    slice: str
    files_before: int
    files_after: int
    version: int | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """A closed slice with more small files than there should be."""

    asset: str
    slice: str
    files: int
    grain: Grain


def wanted(lake: Lake, tables: Sequence[Managed], policy: Policy) -> Iterator[Wanted]:
    """The slices that are to be compacted, raw before silver before gold, oldest first."""
    closed = Closed(lake)
    for layer in LAYERS:
        for table in tables:
            if table.grain is None or not table.asset.startswith(f"{layer}/"):
                continue
            crowded = {key: n for key, n in small_files(lake, table.asset, policy).items() if n > policy.most_files}
            for key in sorted(crowded):
                if closed.closed(table.asset, key, table.grain):
                    yield Wanted(table.asset, key, crowded[key], table.grain)


def small_files(lake: Lake, asset: str, policy: Policy) -> dict[str, int]:
    """Per slice the number of its small files."""
    import pyarrow as pa

    table = open_table(lake, asset)
    if table is None:
        return {}
    files = pa.table(table.get_add_actions(flatten=True)).select(["partition._slice", "size_bytes"])
    found: dict[str, int] = defaultdict(int)
    for key, size in zip(files["partition._slice"].to_pylist(), files["size_bytes"].to_pylist(), strict=True):
        if key is not None and size < policy.small:
            found[key] += 1
    return dict(found)


def compact(settings: Settings, found: Sequence[Wanted], policy: Policy, say: Say) -> list[Compacted]:
    """Compact what is wanted. Nothing is started, and Spark not asked, when nothing is."""
    if not found:
        return []
    done = []
    with session(settings) as spark, translated(settings):
        _gently(spark, policy)
        closed = Closed(settings.lake_env)
        for number, one in enumerate(found, 1):
            say(f"compacting {one.asset} {one.slice} ({number} of {len(found)}): {one.files} small files")
            done.append(_compact(settings, spark, closed, one, policy))
            closed.forget(one.asset)
    return done


def _gently(spark: SparkSession, policy: Policy) -> None:
    """One file at a time: a stream has the other core."""
    for name, value in (("maxFileSize", policy.target), ("minFileSize", policy.small), ("maxThreads", 1)):
        spark.conf.set(f"spark.databricks.delta.optimize.{name}", str(value))


def _compact(settings: Settings, spark: SparkSession, closed: Closed, one: Wanted, policy: Policy) -> Compacted:
    from pyspark.errors import PySparkException

    record = record_of(settings, closed, one.asset, one.slice)
    try:
        commit = managed_tables.compact(spark, Tail(settings.lake_env, one.asset), record)
    except PySparkException as error:
        if not lost_race(error):
            raise explain(str(error), settings) or TransientError(
                f"{one.asset} {one.slice} could not be compacted: {str(error).splitlines()[0]}",
                remedy="look at the Spark server's log; the slice is as it was",
            ) from error
        commit = None
    after = small_files(settings.lake_env, one.asset, policy).get(one.slice, 0)
    return Compacted(one.asset, one.slice, one.files, after, None if commit is None else commit.version)


def record_of(settings: Settings, closed: Closed, asset: str, key: str) -> CommitRecord:
    """All that a slice holds, as of the newest version that changed its rows."""
    entry = closed.whole(asset, key)
    assert entry is not None
    commit, whole = entry
    layer, _, name = asset.partition("/")
    if layer == "raw":
        whole = gaps.measured(settings, whole)
    elif layer == "silver" and (raw := closed.whole(f"raw/{name}", key)) is not None:
        whole = gaps.as_in(whole, raw[1])
    return replace(
        whole,
        kind="compact",
        run=f"maintain/{uuid.uuid4().hex[:12]}",
        attempt=1,
        batch=None,
        written_at=datetime.now(UTC),
        stated={**whole.stated, THROUGH: commit.version},
    )
