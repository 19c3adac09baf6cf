"""Processes that outlive the command that started them, and the files by which they are found again.

Belongs here: starting detached, recognising (pid and start), ending, memory and exit codes of one process tree.
Does not belong here: what is started, or when it counts as ready.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

# The small shell in front stays until its child ends, and writes down how: nobody else is there to be told.
# Signals to the group reach the child too; the trap keeps the shell alive to see the end. QUIT asks a JVM for its threads,
# and who sends it finds the shell by the same words.
_KEEPER = 'trap : TERM INT HUP QUIT; "$@"; code=$?; printf %s "$code" > "$0.tmp"; mv "$0.tmp" "$0"; exit "$code"'

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

# What a JVM with -XX:+ExitOnOutOfMemoryError ends with.
OUT_OF_MEMORY = 3

_LOG_BYTES_KEPT = 10 << 20

# Dates of starts are read from the kernel with this precision.
_DATE_TOLERANCE_S = 0.05


@dataclass(frozen=True, slots=True)
class Record:
    """One started process, kept in `<stack>/pids/<part>.json`. The pid is a session leader's, the part is below it."""

    part: str
    pid: int
    started_at: float
    log: str
    address: str = ""
    identity: str = ""

    @property
    def log_path(self) -> Path:
        return Path(self.log)


def record_path(stack_dir: Path, part: str) -> Path:
    return stack_dir / "pids" / f"{part}.json"


def exit_path(stack_dir: Path, part: str) -> Path:
    return stack_dir / "pids" / f"{part}.exit"


def start(
    stack_dir: Path,
    part: str,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    log: Path,
    address: str = "",
) -> Record:
    """Starts a process in a session of its own, with its output in `log`, and records it."""
    record_path(stack_dir, part).parent.mkdir(parents=True, exist_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    exit_file = exit_path(stack_dir, part)
    exit_file.unlink(missing_ok=True)
    if log.exists() and log.stat().st_size > _LOG_BYTES_KEPT:
        log.replace(log.with_name(f"{log.name}.1"))
    with log.open("ab") as out:
        child = subprocess.Popen(
            [*_answering_signals(), "/bin/sh", "-c", _KEEPER, str(exit_file), *argv],
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    record = Record(part, child.pid, time.time(), str(log), address, _identity(child.pid))
    write_private(record_path(stack_dir, part), json.dumps(asdict(record)))
    return record


def read(stack_dir: Path, part: str) -> Record | None:
    """The record of a part; None if it was not started, or the file is no record (a torn or foreign one)."""
    try:
        return Record(**json.loads(record_path(stack_dir, part).read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def forget(stack_dir: Path, part: str) -> None:
    record_path(stack_dir, part).unlink(missing_ok=True)
    exit_path(stack_dir, part).unlink(missing_ok=True)


def records(stack_dir: Path) -> list[Record]:
    """All records under a stack's folder, also those of other commands, such as Dagster's."""
    found = (read(stack_dir, path.stem) for path in sorted((stack_dir / "pids").glob("*.json")))
    return [record for record in found if record]


def leader(record: Record) -> psutil.Process | None:
    """The process of a record, if it is alive and the same one."""
    try:
        process = psutil.Process(record.pid)
        if record.identity:
            same = _identity(record.pid) == record.identity
        else:
            # Written before there were identities, when a part was known by its date alone.
            same = abs(process.create_time() - record.started_at) < _DATE_TOLERANCE_S
        if same and process.status() == psutil.STATUS_ZOMBIE:
            _reap(record.pid)
            return None
        return process if same else None
    except psutil.NoSuchProcess:
        return None


def tree(record: Record) -> list[psutil.Process]:
    """The leader and everything below it; empty when it is gone."""
    process = leader(record)
    if process is None:
        return []
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def main_pid(record: Record) -> int:
    """The pid of the part itself, below the shell that waits for it."""
    below = tree(record)[1:]
    return below[0].pid if below else record.pid


def memory_mb(processes: Sequence[psutil.Process]) -> int:
    """Memory of the processes, in MiB: a page that several share counts once, in parts (the kernel's PSS).

    Spark's Python workers are forks of one process: their resident sizes would count most of it once for each.
    """
    total = 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied:
            total += process.memory_info().rss
    return -(-total // 2**20)


def exit_text(stack_dir: Path, part: str) -> str:
    """How a part ended, in words, as far as it is known."""
    try:
        code = int(exit_path(stack_dir, part).read_text())
    except (FileNotFoundError, ValueError):
        return "how it ended is unknown (its machine may have stopped)"
    if code == 128 + signal.SIGKILL:
        return "killed by signal SIGKILL (by someone, or by the system for lack of memory)"
    if code - 128 in set(signal.Signals):
        return f"killed by signal {signal.Signals(code - 128).name}"
    if code == OUT_OF_MEMORY:
        return f"exit code {code} (its heap limit was too low for its work)"
    return f"exit code {code}"


def stop(record: Record, timeout_s: float) -> str:
    """Ends the process of a record and all below it, and no other: SIGTERM, then SIGKILL when time is up.

    Returns `stopped`, `killed`, or `gone` when there was nothing to end.
    """
    processes = tree(record)
    if not processes:
        return "gone"
    _signal_group(record.pid, signal.SIGTERM)
    _, left = psutil.wait_procs(processes, timeout=timeout_s)
    for process in left:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(left, timeout=timeout_s)
    return "killed" if left else "stopped"


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log, or nothing if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 16_384))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""


def write_private(path: Path, text: str) -> None:
    """Writes a file whole or not at all, readable by its owner only."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    scratch.replace(path)


def _identity(pid: int) -> str:
    """Tells a process from another one that has its pid later. Raises psutil.NoSuchProcess.

    Linux tells the ticks since the machine began; a date made of them moves by a second whenever the clock is set.
    """
    if not sys.platform.startswith("linux"):
        return f"{psutil.Process(pid).create_time():.2f}"
    try:
        # The name, in parentheses, may hold anything; the start is the 20th field after it.
        ticks = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19].decode()
    except (FileNotFoundError, ProcessLookupError) as error:
        raise psutil.NoSuchProcess(pid) from error
    return f"{_boot()}/{ticks}"


def _boot() -> str:
    """Tells this start of the machine from others; empty where a sandbox hides it."""
    file = Path("/proc/sys/kernel/random/boot_id")
    return file.read_text().strip() if file.exists() else ""


def _answering_signals() -> list[str]:
    """A command in front that undoes what a starter hands down: signals that it ignores its children would ignore too, and a
    shell cannot trap those. Such a stack would not end when it is asked to."""
    ignored = [one for one in _ENDING if signal.getsignal(one) is signal.SIG_IGN]
    names = ",".join(one.name.removeprefix("SIG") for one in ignored)
    return ["env", f"--default-signal={names}"] if ignored else []


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def _reap(pid: int) -> None:
    """Collects a child's exit status, if it is ours, so that no zombie stays while this command runs."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
