"""Follows a silver table as any reader could, and measures how old each row is when it is seen.

Belongs here: polling the table's log, reading the files that it names, ages of rows. Does not belong here: whose rows
they are, what the figures mean.

A row is seen when its value is in this process's memory: after its commit was found in the log and its file was read.
Its age then is this machine's clock minus the record's Kafka timestamp. `python -m lineage_assets.bench.reader '<JSON of
Follow>'` prints its `Seen` as JSON when SIGTERM ends it.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import unquote

from lineage_assets.bench.histogram import Histogram
from lineage_assets.lineage.commits import Lake
from lineage_assets.settings import settings

STAMP = "_timestamp"
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Follow:
    """Which table to follow. Rows whose Kafka timestamp lies in `[from_ms, to_ms)` count."""

    asset: str
    from_ms: int
    to_ms: int
    poll_s: float = POLL_S
    after: int = -1
    """The version after which to begin: what is older was there before."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """One version as it was seen: when, how many rows that count, and the least and greatest age of them."""

    version: int
    seen_ms: int
    rows: int
    youngest_ms: int
    oldest_ms: int


@dataclass(slots=True)
class Seen:
    """All that was seen. `cpu_s` is this reader's own, without its start."""

    latency: Histogram = field(default_factory=Histogram)
    arrived: list[Arrived] = field(default_factory=list)
    rows_outside: int = 0
    """Rows whose timestamp lies outside the wanted time."""
    versions: int = 0
    rewrites: int = 0
    """Versions that moved or replaced rows (compaction, a bounded run): theirs are not new."""
    cpu_s: float = 0.0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As the process tells it."""
        return {
            "latency": self.latency.summary(),
            "histogram_ms": {str(latency): count for latency, count in sorted(self.latency.counts.items())},
            "arrived": [asdict(one) for one in self.arrived],
            "rows_outside": self.rows_outside,
            "versions": self.versions,
            "rewrites": self.rewrites,
            "cpu_s": self.cpu_s,
            "seconds": self.seconds,
        }


class Log:
    """The commits of a Delta table and its files, on local disk or in an object store. No checkpoint is needed: it only goes on."""

    def __init__(self, lake: Lake, asset: str) -> None:
        from pyarrow import fs

        if "://" in lake.root:
            from deltalake.fs import DeltaStorageHandler

            store = fs.PyFileSystem(DeltaStorageHandler(lake.root, dict(lake.storage_options) or None))
            self._files = fs.SubTreeFileSystem(asset, store)
        else:
            self._files = fs.SubTreeFileSystem(lake.path(asset), fs.LocalFileSystem())

    def commit(self, version: int) -> list[dict[str, Any]] | None:
        """The actions of a version; None while it does not exist."""
        try:
            with self._files.open_input_stream(f"_delta_log/{version:020d}.json") as file:
                return [json.loads(line) for line in file.read().splitlines() if line]
        except FileNotFoundError:
            return None

    def stamps(self, path: str) -> Any:
        """The Kafka timestamps, in ms, of a data file's rows."""
        import pyarrow as pa
        from pyarrow import parquet

        with self._files.open_input_file(unquote(path)) as file:
            column = parquet.ParquetFile(file).read(columns=[STAMP]).column(STAMP)
        return column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())


def new_files(actions: list[dict[str, Any]]) -> list[str] | None:
    """Paths of the files that a commit brought; None if it took files away too, so that their rows are not new."""
    if any("remove" in one for one in actions):
        return None
    return [one["add"]["path"] for one in actions if "add" in one and one["add"].get("dataChange", True)]


def follow(lake: Lake, want: Follow, stop: threading.Event) -> Seen:
    """Follow the table until `stop`, and what is there by then."""
    log, seen, after = Log(lake, want.asset), Seen(), want.after
    began, cpu = time.monotonic(), time.process_time()
    while True:
        # Asked before the look: what was committed until then is seen by this last one.
        last = stop.is_set()
        for version, actions in _following(log, after):
            after = version
            seen.versions += 1
            paths = new_files(actions)
            seen.rewrites += paths is None
            for path in paths or ():
                _see(log, path, version, want, seen)
        if last:
            break
        stop.wait(want.poll_s)
    seen.cpu_s, seen.seconds = time.process_time() - cpu, time.monotonic() - began
    return seen


def _following(log: Log, version: int) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    while (actions := log.commit(version + 1)) is not None:
        version += 1
        yield version, actions


def _see(log: Log, path: str, version: int, want: Follow, seen: Seen) -> None:
    import pyarrow.compute as pc

    stamps = log.stamps(path)
    now_us = time.time_ns() // 1000
    within = pc.and_(pc.greater_equal(stamps, want.from_ms * 1000), pc.less(stamps, want.to_ms * 1000))
    wanted = stamps.filter(within)
    seen.rows_outside += len(stamps) - len(wanted)
    if not len(wanted):
        return
    ages = pc.divide(pc.subtract(now_us, wanted), 1000)
    counted: Counter[int] = Counter()
    for pair in pc.value_counts(ages).to_pylist():
        counted[pair["values"]] += pair["counts"]
    seen.latency.add(counted)
    seen.arrived.append(Arrived(version, now_us // 1000, len(wanted), min(counted), max(counted)))


def run(want: Follow) -> None:
    """The process: follow this home's table until a signal, then tell what was seen."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    # Loaded before the first row is there to be seen: half a second of imports is no latency of the table.
    import pyarrow.compute
    import pyarrow.parquet  # noqa: F401

    print(f"following {want.asset}", file=sys.stderr, flush=True)
    print(json.dumps(follow(settings().lake_env, want, stop).to_json()))


if __name__ == "__main__":
    run(Follow(**json.loads(sys.argv[1])))
