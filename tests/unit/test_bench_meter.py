"""CPU, memory and bytes as they are measured, beside real processes and tables.

Belongs here: bench/meter.py.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from lineage_assets.bench.meter import Stored, cpu_s, metered, pid_tree, stored
from lineage_assets.settings import Settings

BUSY = """
import sys, time
held = bytearray(int(sys.argv[2]) << 20)
while time.process_time() < float(sys.argv[1]): pass
print("done", flush=True)
sys.stdin.readline()
"""


@contextmanager
def busy(cpu: float, mb: int) -> Iterator[subprocess.Popen[str]]:
    """A process that uses so much CPU and memory, says so, and ends with its standard input."""
    command = [sys.executable, "-c", BUSY, str(cpu), str(mb)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.communicate("\n", timeout=20)


def spoken(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline()


def test_a_process_is_charged_what_it_used_inside_the_block_and_its_highest_memory() -> None:
    with busy(0.3, 80) as one, metered({"one": pid_tree(one.pid), "gone": pid_tree(2**22 + 7)}) as usage:
        assert spoken(one) == "done\n"

    assert 0.2 < usage.cpu_s["one"] < 0.8
    assert 80 <= usage.peak_mb["one"] < 160
    assert usage.cpu_s["gone"] == 0 and usage.peak_mb["gone"] == 0
    assert usage.cpu("one", "gone", "never") == usage.cpu_s["one"]
    assert usage.seconds > 0.2


def test_what_was_used_before_is_not_charged() -> None:
    with busy(0.5, 1) as one:
        assert spoken(one) == "done\n"
        with metered({"one": pid_tree(one.pid)}) as usage:
            pass

    assert usage.cpu_s["one"] < 0.1


def test_a_part_that_starts_and_ends_inside_keeps_what_was_seen_of_it() -> None:
    pids: list[int] = []
    with metered({"one": lambda: pid_tree(pids[0])() if pids else []}, memory_every_s=0.02) as usage:
        with busy(0.3, 20) as one:
            pids.append(one.pid)
            assert spoken(one) == "done\n"
            deadline = time.monotonic() + 10
            while usage.cpu_s.get("one", 0) < 0.2 and time.monotonic() < deadline:
                time.sleep(0.01)
        assert pid_tree(one.pid)() == []

    assert usage.cpu_s["one"] >= 0.2 and usage.peak_mb["one"] >= 20


def test_children_that_ended_are_charged_to_their_parent() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    before = cpu_s([psutil.Process()])
    subprocess.run([sys.executable, "-c", burn], check=True)

    assert cpu_s([psutil.Process()]) - before >= 0.29


def test_bytes_of_a_table_are_told_apart(tmp_path: Path) -> None:
    settings = Settings(lake=str(tmp_path))
    path = settings.lake_env.path("raw/clicks")
    rows = pa.table({"a": list(range(1_000)), "_slice": ["10"] * 1_000})
    for _ in range(2):
        write_deltalake(path, rows, mode="overwrite", partition_by=["_slice"])
    files = {uri: Path(uri).stat().st_size for uri in map(str, Path(path).rglob("*.parquet"))}
    live = sum(files[uri] for uri in DeltaTable(path).file_uris())

    found = stored(settings, "raw/clicks")

    assert found.live == live > 0 and found.other == sum(files.values()) - live > 0
    assert found.log == sum(one.stat().st_size for one in Path(path, "_delta_log").iterdir())
    assert found + Stored(1, 1, 1) == Stored(found.live + 1, found.other + 1, found.log + 1)
    assert stored(settings, "raw/none") == Stored(0, 0, 0)
