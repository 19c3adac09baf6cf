"""Raw and silver of one topic as a stream sees them: what both hold, and silver brought to what raw decided.

Belongs here: reading the two together, and the repair after an end between their commits. Does not belong here: the
commits themselves (commit.py), records that neither has (micro_batch.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

from lineage_assets.errors import FatalError
from lineage_assets.lineage.content import Content, by_slice, summary
from lineage_assets.lineage.fates import Fate
from lineage_assets.lineage.offsets import Ranges
from lineage_assets.lineage.record import CommitRecord
from lineage_assets.spark import decide, tables
from lineage_assets.spark.commit import Writers, commit_silver
from lineage_assets.spark.job import Job
from lineage_assets.spark.kafka_source import BASE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class Pair:
    """The two tables' contents, as last read, and who writes them."""

    def __init__(self, writers: Writers) -> None:
        self.writers = writers
        self.raw, self.silver = Content(writers.raw), Content(writers.silver)

    def read(self) -> None:
        """Read what was committed since. Raises FatalError when one of them was restored."""
        self.read_raw()
        self.silver.read()
        refuse_restored(self.silver)

    def read_raw(self) -> None:
        """The same of raw alone."""
        self.raw.read()
        refuse_restored(self.raw)

    def repair(self, job: Job, schemas: decide.Writers, key: str) -> None:
        """Give silver what raw decided of a slice and silver lacks. Raises FatalError where it cannot be decoded now."""
        if (entry := self.raw.slices.get(key)) is None:
            return
        made = self.silver.slices.get(key)
        consumed = _consumed(made, self.writers.raw.asset)
        if entry[0].version < consumed:
            return
        turn = self.writers.silver.turn(key)
        history = self.writers.raw.read()
        every = by_slice(history)[key]
        new = [one for one in every if one[0].version >= consumed]
        whole = made is None or any(record.kind != "append" for _, record in new)
        entries = every if whole else new
        decision = replace(summary(entries), kind="replace" if whole else "append")
        rows = self._decided_rows(job, schemas, key, decision, history[0].version)
        through = (entries[-1][0].version, entries[0][0].version + 1)
        commit_silver(job, self.writers, rows, decision, through, turn)
        self.read()

    def _decided_rows(
        self, job: Job, schemas: decide.Writers, key: str, decision: CommitRecord, version: int
    ) -> DataFrame:
        """Rows of raw with the fate that they were given, decoded once more."""
        from pyspark.sql import functions as F

        stored = tables.read_table(job.spark, job.lake, self.writers.raw.asset, version)
        topic = F.col("topic_id") == job.topic.topic.id
        ranges = next(one.ranges for one in decision.topics if one.topic_id == job.topic.topic.id)
        mine = stored.where((F.col(tables.SLICE) == key) & topic & within([ranges]))
        given = mine.select(*BASE, F.col("fate").alias("given_fate"), F.col("late_by_s").alias("given_late"))
        decided = decide.decide(job, given, None, schemas, mark=False)
        decided = decided.withColumns({"fate": F.col("given_fate"), "late_by_s": F.col("given_late")})
        unreadable = decided.where((F.col("fate") == Fate.ok.value) & F.col("record").isNull()).count()
        if unreadable:
            raise FatalError(
                f"slice {key} of {self.writers.raw.asset} holds {unreadable} ok records, decided by contract "
                f"{decision.contract[:12]}, that contract {job.table.contract.hash[:12]} cannot decode; silver lacks them",
                remedy=f"materialize raw and silver of {job.table.name} {key}: that decides the slice again",
            )
        return decided


def refuse_restored(content: Content) -> None:
    """Raises FatalError when someone restored a table: the tables no longer fit each other."""
    if content.restored is not None:
        raise FatalError(
            f"{content.asset} was restored to version {content.restored.restored_to} by commit {content.restored.version}",
            remedy="run `lineage stream resume NAME --from-table`: it brings raw and silver to one common cut",
        )


def within(pieces: Sequence[Ranges]) -> Column:
    """Whether a record lies in one of those ranges."""
    from pyspark.sql import functions as F

    inside = [
        (F.col("partition") == p) & (F.col("offset") >= held.start) & (F.col("offset") < held.end)
        for ranges in pieces
        for p, held in ranges.items()
        if held.span
    ]
    return reduce(lambda left, right: left | right, inside, F.lit(False))


def _consumed(made: tuple[object, CommitRecord] | None, raw: str) -> int:
    """The first version of raw that a slice of silver has not consumed."""
    if made is None:
        return 0
    return max((one.commits[1] for one in made[1].tables if one.table == raw and one.commits), default=0)
