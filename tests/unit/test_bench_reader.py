"""The latency reader beside tables made by deltalake: it sees each new row once, and how old it is.

Belongs here: bench/reader.py. Does not belong here: Spark's tables (tests/integration/test_bench_load.py).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lineage_assets.bench.reader import Follow, Log, Seen, follow, new_files
from lineage_assets.lineage.commits import Lake

ASSET = "silver/clicks"
FAR = 2**53


@pytest.fixture(params=["path", "url"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    """A lake named as a path, and the same as a URL, which is read as an object store is."""
    return Lake(str(tmp_path) if request.param == "path" else f"file://{tmp_path}")


def add(lake: Lake, stamps_ms: Sequence[int], slice_key: str = "10") -> None:
    """Append rows with these Kafka timestamps."""
    stamps = pa.array([stamp * 1000 for stamp in stamps_ms], pa.timestamp("us", tz="UTC"))
    rows = pa.table({"_timestamp": stamps, "_slice": [slice_key] * len(stamps_ms), "other": ["x"] * len(stamps_ms)})
    write_deltalake(lake.path(ASSET), rows, mode="append", partition_by=["_slice"])


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def seen_at_once(lake: Lake, from_ms: int = 0, to_ms: int = FAR, after: int = -1) -> Seen:
    """What is there, in one look."""
    stop = threading.Event()
    stop.set()
    return follow(lake, Follow(ASSET, from_ms, to_ms, after=after), stop)


def test_each_row_is_seen_once_with_its_age(lake: Lake) -> None:
    now = now_ms()
    add(lake, [now - 5_000, now - 5_000, now - 1_000])
    add(lake, [now - 3_000], "11")

    seen = seen_at_once(lake)

    late = now_ms() - now
    assert seen.latency.count == 4 and seen.versions == 2
    for age, found in zip((1_000, 3_000, 5_000, 5_000), sorted(seen.latency.counts.elements()), strict=True):
        assert age <= found <= age + late
    assert [(one.version, one.rows) for one in seen.arrived] == [(0, 3), (1, 1)]
    assert seen.arrived[0].youngest_ms < 2_500 and seen.arrived[0].oldest_ms >= 5_000


def test_rows_outside_the_wanted_time_are_counted_apart(lake: Lake) -> None:
    add(lake, [999, 1_000, 1_999, 2_000])

    seen = seen_at_once(lake, 1_000, 2_000)

    assert (seen.latency.count, seen.rows_outside) == (2, 2)


def test_what_was_there_before_is_not_looked_at(lake: Lake) -> None:
    add(lake, [1, 2, 3])
    add(lake, [4])

    seen = seen_at_once(lake, after=0)

    assert (seen.latency.count, seen.versions) == (1, 1)


def test_compaction_and_replacement_bring_no_new_rows(lake: Lake) -> None:
    add(lake, [1, 2])
    add(lake, [3])
    DeltaTable(lake.path(ASSET)).optimize.compact()
    rows = DeltaTable(lake.path(ASSET)).to_pyarrow_table()
    write_deltalake(lake.path(ASSET), rows, mode="overwrite", predicate="_slice = '10'", partition_by=["_slice"])
    add(lake, [4])

    seen = seen_at_once(lake)

    assert (seen.latency.count, seen.versions, seen.rewrites) == (4, 5, 2)


def test_a_table_that_appears_later_is_followed_until_the_stop(lake: Lake) -> None:
    found: list[Seen] = []
    stop = threading.Event()
    thread = threading.Thread(target=lambda: found.append(follow(lake, Follow(ASSET, 0, FAR, poll_s=0.01), stop)))
    thread.start()
    for stamp in range(3):
        add(lake, [stamp])
    stop.set()
    thread.join(20)

    assert found[0].latency.count == 3, "the last look is after the stop"


def test_files_of_a_commit_that_says_nothing_of_data_change_are_new() -> None:
    assert new_files([{"add": {"path": "a"}}, {"commitInfo": {}}]) == ["a"]
    assert new_files([{"add": {"path": "a", "dataChange": False}}]) == []
    assert new_files([{"add": {"path": "a"}}, {"remove": {"path": "b", "dataChange": False}}]) is None


def test_stamps_of_old_spark_files_are_read_too(tmp_path: Path) -> None:
    """INT96, without a zone, in nanoseconds."""
    from pyarrow import parquet

    table = pa.table({"_timestamp": pa.array([1_796_000_000_123 * 10**6], pa.timestamp("ns"))})
    (tmp_path / "silver/clicks").mkdir(parents=True)
    parquet.write_table(table, tmp_path / "silver/clicks/f=1.parquet", use_deprecated_int96_timestamps=True)

    assert Log(Lake(str(tmp_path)), ASSET).stamps("f%3D1.parquet").to_pylist() == [1_796_000_000_123_000]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The reader as the bench starts it, over a home of its own."""
    command = [
        sys.executable,
        "-m",
        "lineage_assets.bench.reader",
        json.dumps({"asset": ASSET, "from_ms": 0, "to_ms": FAR}),
    ]
    env = {**os.environ, "LINEAGE_HOME": str(tmp_path), "LINEAGE_LAKE": "", "LINEAGE_ENV": "dev"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        yield started
        started.kill()


def test_the_process_tells_what_it_saw_when_it_is_ended(tmp_path: Path, process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    assert process.stderr.readline() == "following silver/clicks\n"
    add(Lake(f"{tmp_path}/lake/dev"), [now_ms() - 500] * 3)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)

    told = json.loads(out)
    assert told["latency"]["count"] == 3 and 500 <= told["latency"]["p50_ms"] < 30_000
    assert told["arrived"][0]["version"] == 0
    assert 0 < told["cpu_s"] < 5
