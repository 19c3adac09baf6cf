"""CPU time, peak memory and bytes on disk of what a bench part runs.

Belongs here: sampling process trees, sizes of tables. Does not belong here: what the figures are for.

CPU of a tree is what its living processes used and what they collected of children that ended. A process that nobody
waited for is lost between two samples; the parts of the stack have none that matters.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from lineage_assets.settings import Settings
from lineage_assets.stack import process

MEMORY_EVERY_S = 5.0
Trees = Mapping[str, Callable[[], Sequence[psutil.Process]]]
"""Name of a part -> its processes now."""


@dataclass(slots=True)
class Usage:
    """What the parts used while it was measured."""

    seconds: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)
    peak_mb: dict[str, int] = field(default_factory=dict)
    """Part, and each kind of process in it as `part/program`; all of a part at one moment."""

    def cpu(self, *parts: str) -> float:
        """Of some parts together; a part that never ran used nothing."""
        return sum(self.cpu_s.get(part, 0.0) for part in parts)


def stack_trees(settings: Settings) -> Trees:
    """The embedded parts that run under this home, Dagster's included. A part of yours runs elsewhere and is not seen."""

    def tree(part: str) -> Callable[[], Sequence[psutil.Process]]:
        def now() -> Sequence[psutil.Process]:
            record = process.read(settings.stack_dir, part)
            return [] if record is None else process.tree(record)

        return now

    return {record.part: tree(record.part) for record in process.records(settings.stack_dir)}


def pid_tree(pid: int) -> Callable[[], Sequence[psutil.Process]]:
    """The processes from a pid down, while it lives."""

    def now() -> Sequence[psutil.Process]:
        try:
            root = psutil.Process(pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    return now


def cpu_s(processes: Sequence[psutil.Process]) -> float:
    """User and system time of the processes and of their children that ended."""
    total = 0.0
    for one in processes:
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


@contextmanager
def metered(trees: Trees, *, memory_every_s: float = MEMORY_EVERY_S) -> Iterator[Usage]:
    """Measure while the block runs. CPU is final at its end, memory the highest of samples.

    A part that starts or ends inside the block counts with what it used inside it.
    """
    usage, stop = Usage(), threading.Event()
    before = {name: cpu_s(tree()) for name, tree in trees.items()}
    began = time.monotonic()

    def look() -> None:
        for name, tree in trees.items():
            processes = tree()
            # A tree that has ended reads as nothing: what it used until the last look stays.
            used = cpu_s(processes) - before[name]
            usage.cpu_s[name] = max(usage.cpu_s.get(name, 0.0), used)
            for label, some in _by_program(name, processes).items():
                usage.peak_mb[label] = max(usage.peak_mb.get(label, 0), process.memory_mb(some))

    def sample() -> None:
        while not stop.wait(memory_every_s):
            look()

    sampler = threading.Thread(target=sample, name="meter", daemon=True)
    sampler.start()
    try:
        yield usage
    finally:
        stop.set()
        sampler.join()
        look()
        usage.seconds = time.monotonic() - began


def _by_program(name: str, processes: Sequence[psutil.Process]) -> dict[str, list[psutil.Process]]:
    """The part as a whole, and its processes by program where there is more than one kind."""
    kinds: dict[str, list[psutil.Process]] = {}
    for one in processes:
        try:
            kinds.setdefault(f"{name}/{one.name()}", []).append(one)
        except psutil.NoSuchProcess:
            continue
    whole = {name: [one for some in kinds.values() for one in some]}
    return whole | (kinds if len(kinds) > 1 else {})


@dataclass(frozen=True, slots=True)
class Stored:
    """Bytes of a table on disk: of data files that are part of it now, of all other files, and of its log."""

    live: int
    other: int
    log: int

    def __add__(self, more: Stored) -> Stored:
        return Stored(self.live + more.live, self.other + more.other, self.log + more.log)


def stored(settings: Settings, asset: str) -> Stored:
    """Bytes of a table; all zero when it does not exist. In an object store only those of live files are known."""
    from lineage_assets.lineage.commits import open_table

    table = open_table(settings.lake_env, asset)
    if table is None:
        return Stored(0, 0, 0)
    import pyarrow as pa

    live = sum(pa.table(table.get_add_actions(flatten=True)).column("size_bytes").to_pylist())
    log = data = 0
    root = Path(settings.lake_env.path(asset))
    for folder, _, names in os.walk(root):
        size = sum((Path(folder) / name).stat().st_size for name in names)
        if "_delta_log" in Path(folder).relative_to(root).parts:
            log += size
        else:
            data += size
    return Stored(live, data - live, log)
