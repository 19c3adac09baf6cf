"""Managed tables without Spark: a log written by hand, commit by commit, each with its record.

Belongs here: helpers without a verdict. Does not belong here: tests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable

from lineage_assets.lineage import record as records
from lineage_assets.lineage.commits import Lake
from lineage_assets.lineage.offsets import OffsetRange
from lineage_assets.lineage.record import CheckOutcome, CommitRecord, TableInput, TopicInput

T0 = datetime(2026, 3, 1, 10, tzinfo=UTC)
TEN, ELEVEN = "2026-03-01-10", "2026-03-01-11"
COLUMNS = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("fate", pa.string()), ("_slice", pa.string())])


def at_ms(seconds: float) -> int:
    """Milliseconds since 1970 of so many seconds after T0."""
    return int((T0 + timedelta(seconds=seconds)).timestamp() * 1000)


def check(name: str = "amount", failed: int = 0, total: int = 10, severity: str = "ERROR", **more: Any) -> CheckOutcome:
    return CheckOutcome(name, failed == 0, severity, failed, total, blocking=True, **more)  # type: ignore[arg-type]


def record(
    asset: str = "raw/clicks",
    kind: str = "append",
    slice: str | None = TEN,
    ranges: Mapping[int, tuple[int, int]] | None = None,
    run: str = "stream/clicks/1",
    checks: Sequence[CheckOutcome] = (),
    counts: Mapping[str, int] | None = None,
    seconds: float = 0,
    tables: Sequence[TableInput] = (),
    stated: Mapping[str, Any] | None = None,
) -> CommitRecord:
    """A record; its counts are all `ok` by its ranges, if not given."""
    spans = {p: OffsetRange(*pair) for p, pair in (ranges or {}).items()}
    rows = sum(one.span for one in spans.values())
    topics = (TopicInput("clicks", "local", "t1", spans),) if ranges is not None else ()
    return CommitRecord(
        asset=asset, env="dev", kind=kind, slice=slice, inputs=(*topics, *tables),  # type: ignore[arg-type]
        counts={"ok": rows, "dead": 0, "late": 0} if counts is None else dict(counts),
        reasons={}, schema="h", contract="c", code="k", run=run, written_at=T0 + timedelta(seconds=seconds),
        checks=tuple(checks), stated=dict(stated or {}),
    )  # fmt: skip


class Written:
    """A table whose log is written by hand: version 0 creates it."""

    def __init__(self, lake: Lake, asset: str = "raw/clicks") -> None:
        self.lake, self.asset = lake, asset
        self.log = Path(lake.path(asset)) / "_delta_log"
        properties = {"userMetadata": records.to_json(record(asset, "create", None))}
        DeltaTable.create(
            lake.path(asset),
            COLUMNS,
            partition_by=["_slice"],
            commit_properties=CommitProperties(custom_metadata=properties),
        )
        self.version = 0
        file = self.log / f"{0:020}.json"
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        for one in actions:
            if "commitInfo" in one:
                one["commitInfo"]["timestamp"] = at_ms(0)
        file.write_text("".join(json.dumps(one) + "\n" for one in actions))
        self.id = str(DeltaTable(lake.path(asset)).metadata().id)

    def commit(self, one: CommitRecord | None, seconds: float = 0, **info: Any) -> int:
        """The next version, with a record or without, so many seconds after T0. Returns the version."""
        self.version += 1
        told: dict[str, Any] = {"timestamp": at_ms(seconds), "operation": "WRITE", "operationParameters": {}, **info}
        if one is not None:
            told["userMetadata"] = records.to_json(one)
        self.log.joinpath(f"{self.version:020}.json").write_text(json.dumps({"commitInfo": told}) + "\n")
        return self.version

    def append(self, start: int, end: int, seconds: float = 0, **more: Any) -> int:
        """A stream's commit of offsets of partition 0."""
        told = record(self.asset, ranges={0: (start, end)}, seconds=seconds, **more)
        return self.commit(told, seconds)

    def restore(self, to: int, seconds: float = 0) -> int:
        """Somebody's RESTORE to an older version."""
        return self.commit(None, seconds, operation="RESTORE", operationParameters={"version": str(to)})

    def clean(self, below: int) -> None:
        """What log retention does: a checkpoint, and older commit files removed."""
        DeltaTable(self.lake.path(self.asset)).create_checkpoint()
        for version in range(below):
            self.log.joinpath(f"{version:020}.json").unlink()
