"""What is running under a home, from pid files and the processes themselves: reads only, starts and stops nothing.

Belongs here: the state of every part, and the memory of all that belongs to a home, Dagster's processes included.
Does not belong here: how it is printed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import psutil

from lineage_assets.settings import Settings
from lineage_assets.stack import parts, ports, process

State = Literal["running", "starting", "stopped", "dead", "yours"]

# Programs of which a process with our LINEAGE_HOME counts as ours; a shell that exported the variable does not.
_PROGRAMS = ("python", "java", "dagster", "lineage", "dbt")


@dataclass(frozen=True, slots=True)
class PartState:
    """One row of `lineage status`. `address` holds no secret; `memory_mb` is the part's whole process tree's."""

    part: str
    state: State
    address: str = ""
    pid: int | None = None
    uptime_s: int | None = None
    memory_mb: int = 0
    log: str = ""
    note: str = ""


def states(settings: Settings) -> list[PartState]:
    """Every part of the stack, then other processes that were started under this home."""
    theirs = parts.yours(settings)
    rows = [
        PartState(kind.name, "yours", theirs[kind.name]) if kind.name in theirs else of_part(settings, kind.name)
        for kind in parts.KINDS
    ]
    known = {kind.name for kind in parts.KINDS}
    recorded = [record for record in process.records(settings.stack_dir) if record.part not in known]
    rows += [of_record(settings.stack_dir, record) for record in recorded]
    counted = {p.pid for record in process.records(settings.stack_dir) for p in process.tree(record)}
    return rows + _others(settings.home, counted)


def of_part(settings: Settings, part: str) -> PartState:
    record = process.read(settings.stack_dir, part)
    if record is None:
        return PartState(part, "stopped")
    row = of_record(settings.stack_dir, record)
    port = _port(record.address)
    if row.state == "running" and port and not ports.answers(port):
        return replace(row, state="starting", note=f"port {port} is not open")
    return row


def of_record(stack_dir: Path, record: process.Record) -> PartState:
    tree = process.tree(record)
    if not tree:
        return PartState(record.part, "dead", log=record.log, note=process.exit_text(stack_dir, record.part))
    return PartState(
        part=record.part,
        state="running",
        address=record.address,
        pid=process.main_pid(record),
        uptime_s=int(time.time() - record.started_at),
        memory_mb=process.memory_mb(tree),
        log=record.log,
    )


def total_memory_mb(rows: Iterable[PartState]) -> int:
    return sum(row.memory_mb for row in rows)


def _others(home: Path, counted: set[int]) -> list[PartState]:
    """Processes with this home in their environment: Dagster's, and commands at work. Not this one, nor its callers."""
    me = psutil.Process()
    skipped = counted | {me.pid} | {p.pid for p in me.parents()}
    found: dict[str, list[psutil.Process]] = {}
    for candidate in psutil.process_iter():
        if candidate.pid in skipped:
            continue
        try:
            if candidate.name().startswith(_PROGRAMS) and _home_of(candidate) == str(home):
                name = "dagster" if any("dagster" in word for word in candidate.cmdline()[:6]) else "other"
                found.setdefault(name, []).append(candidate)
        except psutil.Error:
            continue
    return [
        PartState(
            part=name,
            state="running",
            pid=min(p.pid for p in processes),
            memory_mb=process.memory_mb(processes),
            note=f"{len(processes)} process{'es' if len(processes) > 1 else ''}",
        )
        for name, processes in sorted(found.items())
    ]


def _home_of(candidate: psutil.Process) -> str:
    """The absolute LINEAGE_HOME of a process; empty when it has none. A relative one is below its working directory."""
    chosen = candidate.environ().get("LINEAGE_HOME", "")
    return str(Path(candidate.cwd(), chosen).absolute()) if chosen else ""


def _port(address: str) -> int:
    from urllib.parse import urlsplit

    return urlsplit(address if "://" in address else f"//{address}").port or 0
