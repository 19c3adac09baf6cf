"""Processes that outlive their starter: found again, told apart, ended. They are small shells, no services.

Belongs here: process.py. Does not belong here: parts of the stack.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest

from lineage_assets.stack import process

ENDLESS = ("sleep", "1000")
STUBBORN = (
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()",
)


@pytest.fixture
def stack_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for record in process.records(tmp_path):
        process.stop(record, timeout_s=0.1)


def start(stack_dir: Path, *argv: str, part: str = "thing") -> process.Record:
    return process.start(stack_dir, part, argv, env=dict(os.environ), cwd=stack_dir, log=stack_dir / "thing.log")


def end(record: process.Record) -> None:
    psutil.wait_procs(process.tree(record), timeout=5)


def test_a_started_process_is_found_again_by_its_record(stack_dir: Path) -> None:
    record = start(stack_dir, *ENDLESS)
    assert process.read(stack_dir, "thing") == record
    assert process.leader(record) is not None
    # Its shell forks before it becomes what it starts.
    wait_for(lambda: psutil.Process(child(record)).name() == "sleep")
    assert process.memory_mb(process.tree(record)) >= 1


def test_a_process_is_in_a_session_of_its_own(stack_dir: Path) -> None:
    record = start(stack_dir, *ENDLESS)
    assert os.getsid(record.pid) == record.pid != os.getsid(0)


def test_a_process_is_ended_with_all_below_it(stack_dir: Path) -> None:
    record = start(stack_dir, "sh", "-c", "sleep 1000 & sleep 1000; true")
    wait_for(lambda: [p.name() for p in process.tree(record)].count("sleep") == 2)
    tree = process.tree(record)
    assert process.stop(record, timeout_s=5) == "stopped"
    assert not any(p.is_running() for p in tree)
    assert process.stop(record, timeout_s=5) == "gone"


def test_a_process_ends_when_asked_though_its_starter_ignores_the_signal(stack_dir: Path) -> None:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        record = start(stack_dir, *ENDLESS)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    child(record)
    assert process.stop(record, timeout_s=10) == "stopped"


def test_a_process_that_ignores_the_polite_signal_is_killed(stack_dir: Path) -> None:
    record = start(stack_dir, *STUBBORN)
    wait_for(lambda: "up" in process.tail(record.log_path))
    assert process.stop(record, timeout_s=0.2) == "killed"
    assert process.leader(record) is None


def test_a_pid_that_another_process_has_now_is_left_alone(stack_dir: Path) -> None:
    bystander = subprocess.Popen(ENDLESS, start_new_session=True)
    try:
        ours = start(stack_dir, *ENDLESS)
        record = replace(ours, pid=bystander.pid, identity="another start")
        assert process.leader(record) is None
        assert process.stop(record, timeout_s=1) == "gone"
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_record_from_before_there_were_identities_is_known_by_its_date(stack_dir: Path) -> None:
    record = start(stack_dir, *ENDLESS)
    old = replace(record, identity="", started_at=psutil.Process(record.pid).create_time())
    assert process.leader(old) is not None
    assert process.leader(replace(old, started_at=old.started_at - 60)) is None


def test_a_process_is_found_again_after_the_clock_was_set(stack_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = start(stack_dir, *ENDLESS)
    true_time, true_creation = time.time, psutil.Process.create_time
    monkeypatch.setattr(time, "time", lambda: true_time() + 3600)
    monkeypatch.setattr(psutil.Process, "create_time", lambda one: true_creation(one) + 3600)
    found = process.read(stack_dir, "thing")
    assert found is not None and process.leader(found) is not None
    child(record)
    assert process.stop(record, timeout_s=10) == "stopped"


def test_who_asks_for_a_thread_dump_by_name_does_not_end_the_keeper(stack_dir: Path) -> None:
    record = start(stack_dir, *ENDLESS)
    child(record)
    os.kill(record.pid, signal.SIGQUIT)
    psutil.Process(child(record)).terminate()
    wait_for(lambda: process.leader(record) is None)
    assert "SIGTERM" in process.exit_text(stack_dir, "thing")


def test_the_exit_code_is_known_afterwards_even_to_others(stack_dir: Path) -> None:
    end(start(stack_dir, "sh", "-c", "exit 7"))
    assert process.exit_text(stack_dir, "thing") == "exit code 7"


def test_a_process_that_somebody_killed_says_so(stack_dir: Path) -> None:
    record = start(stack_dir, *ENDLESS)
    psutil.Process(child(record)).kill()
    wait_for(lambda: process.leader(record) is None)
    assert "SIGKILL" in process.exit_text(stack_dir, "thing")


def test_without_an_exit_file_how_it_ended_is_unknown(stack_dir: Path) -> None:
    assert "unknown" in process.exit_text(stack_dir, "thing")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"part": "x", "extra": 1}'])
def test_a_torn_or_foreign_pid_file_is_no_record(stack_dir: Path, text: str) -> None:
    path = process.record_path(stack_dir, "thing")
    path.parent.mkdir()
    path.write_text(text)
    assert process.read(stack_dir, "thing") is None
    assert process.records(stack_dir) == []


def test_records_are_private_and_whole(stack_dir: Path) -> None:
    record = start(stack_dir, *ENDLESS)
    path = process.record_path(stack_dir, "thing")
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text()) == asdict(record)
    assert [p.name for p in path.parent.iterdir()] == ["thing.json"]


def test_a_forgotten_process_leaves_no_file(stack_dir: Path) -> None:
    end(start(stack_dir, "true"))
    process.forget(stack_dir, "thing")
    assert list((stack_dir / "pids").iterdir()) == []


def test_the_tail_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {n}\n" for n in range(10_000)))
    assert process.tail(log, lines=2) == "line 9998\nline 9999"
    assert process.tail(tmp_path / "none") == ""


def test_a_grown_log_is_put_aside_at_the_next_start(stack_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_LOG_BYTES_KEPT", 3)
    (stack_dir / "thing.log").write_text("long")
    end(start(stack_dir, "true"))
    assert (stack_dir / "thing.log.1").read_text() == "long"
    assert (stack_dir / "thing.log").read_text() == ""


def child(record: process.Record) -> int:
    # Between fork and exec it is still the shell, whose handler would swallow a signal.
    wait_for(lambda: process.main_pid(record) != record.pid and psutil.Process(process.main_pid(record)).name() != "sh")
    return process.main_pid(record)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    tick = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in 20 s"
        tick.wait(0.01)
