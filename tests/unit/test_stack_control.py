"""`up` and `down` with a part that is a small web server: the order of things and what is said, without real services.

Belongs here: control.py and state.py. Does not belong here: Kafka, registry, Spark (tests/integration).
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from lineage_assets.errors import NotRunning
from lineage_assets.settings import Settings, addresses_file
from lineage_assets.stack import control, parts, ports, process, state
from lineage_assets.stack.errors import DiskFull, JarsMissing, NotReady, PartDied, PortInUse
from lineage_assets.stack.part import Part

SERVER = (
    "from http.server import HTTPServer, SimpleHTTPRequestHandler as H\n"
    "import sys; print('serving', flush=True); HTTPServer(('127.0.0.1', int(sys.argv[1])), H).serve_forever()"
)


class Said(list[tuple[str, str]]):
    def __call__(self, part: str, text: str) -> None:
        self.append((part, text))


@pytest.fixture
def code() -> list[str]:
    """What the part runs; a test may put another program in."""
    return [SERVER]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: list[str]) -> Iterator[Settings]:
    for name in [n for n in os.environ if n.startswith(("LINEAGE_", "SPARK_"))]:
        monkeypatch.delenv(name)

    def build(settings: Settings, chosen: dict[str, int]) -> Part:
        port = chosen["kafka_port"]
        return Part(
            name="kafka",
            title="Kafka",
            argv=(sys.executable, "-c", code[0], str(port)),
            env=dict(os.environ),
            folder=settings.stack_dir / "kafka",
            ports=chosen,
            jars="kafka",
            address=f"127.0.0.1:{port}/;token=secret",
            shown=f"127.0.0.1:{port}",
            prepare=lambda: None,
            probe=lambda: "" if ports.answers(port) else "its port is not open yet",
            ready_timeout_s=5.0,
        )

    kind = parts.Kind("kafka", ("kafka_port",), lambda s: s.kafka_bootstrap, build)
    monkeypatch.setattr(parts, "KINDS", (kind,))
    monkeypatch.setattr(control.jars, "require", lambda names: None)
    monkeypatch.setattr(control, "POLL_S", 0.01)
    made = Settings(home=tmp_path / "home")
    yield made
    control.down(made)


def test_up_starts_a_part_and_down_ends_it(settings: Settings) -> None:
    (started,) = control.up(settings)
    assert (started.part, started.what) == ("kafka", "started")
    assert settings.kafka == f"{started.address}/;token=secret"
    with urllib.request.urlopen(f"http://{started.address}") as answer:
        assert answer.status == 200
    assert control.down(settings) == [("kafka", "stopped")]
    assert control.down(settings) == []
    with pytest.raises(NotRunning, match="lineage up"):
        _ = settings.kafka


def test_a_second_up_changes_nothing(settings: Settings) -> None:
    control.up(settings)
    before = tree(settings.home)
    (again,) = control.up(settings)
    assert again.what == "running"
    assert tree(settings.home) == before


def test_after_down_and_up_the_port_is_the_same(settings: Settings) -> None:
    (first,) = control.up(settings)
    control.down(settings)
    assert control.up(settings)[0].address == first.address


def test_a_part_with_an_address_in_the_settings_is_yours_and_not_started(settings: Settings) -> None:
    yours = settings.model_copy(update={"kafka_bootstrap": "broker.example:9092"})
    assert [(s.part, s.what, s.address) for s in control.up(yours)] == [("kafka", "yours", "broker.example:9092")]
    assert process.records(yours.stack_dir) == []
    assert [row.state for row in state.states(yours)] == ["yours"]


def test_a_port_of_the_settings_that_is_in_use_stops_up_before_anything_starts(settings: Settings) -> None:
    with socket.socket() as other:
        other.bind((ports.HOST, 0))
        other.listen()
        fixed = settings.model_copy(update={"kafka_port": other.getsockname()[1]})
        with pytest.raises(PortInUse, match=r"kafka .* LINEAGE_KAFKA_PORT"):
            control.up(fixed)
    assert process.records(settings.stack_dir) == []


def test_a_port_that_we_chose_and_another_took_is_chosen_anew(settings: Settings) -> None:
    (first,) = control.up(settings)
    control.down(settings)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((ports.HOST, int(first.address.split(":")[1])))
        other.listen()
        assert control.up(settings)[0].address != first.address


def test_a_part_that_dies_at_its_start_is_reported_with_exit_code_last_lines_and_log(
    settings: Settings, code: list[str]
) -> None:
    code[0] = "import sys; print('cannot read the thing'); sys.exit(4)"
    with pytest.raises(PartDied) as caught:
        control.up(settings)
    log = settings.stack_dir / "logs" / "kafka.log"
    assert "kafka died: exit code 4" in caught.value.message
    assert "cannot read the thing" in caught.value.message
    assert str(log) in caught.value.remedy
    assert not addresses_file(settings).exists()


def test_a_part_that_never_answers_is_reported_with_the_reason(
    settings: Settings, code: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code[0] = "import signal; print('thinking', flush=True); signal.pause()"
    (kind,) = parts.KINDS
    impatient = parts.Kind(kind.name, kind.port_settings, kind.yours, lambda s, p: quick(kind.build(s, p)))
    monkeypatch.setattr(parts, "KINDS", (impatient,))
    with pytest.raises(NotReady, match=r"(?s)kafka was not ready after 1 s \(its port is not open yet\).*thinking"):
        control.up(settings)


def test_a_part_that_died_later_is_dead_in_the_status_and_started_by_the_next_up(settings: Settings) -> None:
    control.up(settings)
    (row,) = state.states(settings)
    record = process.read(settings.stack_dir, "kafka")
    assert row.state == "running" and row.pid and record
    whole = process.tree(record)
    psutil.Process(row.pid).kill()
    psutil.wait_procs(whole, timeout=5)
    (row,) = state.states(settings)
    assert row.state == "dead" and "SIGKILL" in row.note and row.log.endswith("kafka.log")
    said = Said()
    assert control.up(settings, said)[0].what == "started"
    assert any("stale" in text and "SIGKILL" in text for _, text in said)


def test_a_stale_pid_file_is_recognised_said_and_cleaned(settings: Settings) -> None:
    control.up(settings)
    control.down(settings)
    mine = psutil.Process()
    path = process.record_path(settings.stack_dir, "kafka")
    record = process.Record("kafka", mine.pid, mine.create_time(), "kafka.log", identity="another start")
    path.write_text(json.dumps({name: getattr(record, name) for name in record.__slots__}))
    assert [row.state for row in state.states(settings)] == ["dead"]
    said = Said()
    assert control.down(settings, said) == [("kafka", "gone")]
    assert ("kafka", "was not running any more; its stale pid file is removed") in said
    assert not path.exists() and mine.is_running()


def test_down_also_ends_what_other_commands_recorded_first(settings: Settings) -> None:
    control.up(settings)
    env = {**os.environ, "LINEAGE_HOME": str(settings.home)}
    argv, log = (sys.executable, "-c", "import signal; signal.pause()"), settings.stack_dir / "dagster.log"
    process.start(settings.stack_dir, "dagster", argv, env=env, cwd=settings.home, log=log)
    assert [(row.part, row.state) for row in state.states(settings)] == [("kafka", "running"), ("dagster", "running")]
    assert control.down(settings) == [("dagster", "stopped"), ("kafka", "stopped")]


def test_a_full_disk_is_told_before_anything_starts(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        total: int
        used: int
        free: int

    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(1 << 40, 1 << 40, 5 << 20))
    with pytest.raises(DiskFull, match=r"5 MB free.* LINEAGE_HOME") as caught:
        control.up(settings)
    assert str(settings.home) in caught.value.message
    assert process.records(settings.stack_dir) == []


def test_missing_jars_are_told_before_anything_starts(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(names: list[str]) -> None:
        raise JarsMissing(f"jars of {names} are missing", remedy="run `make setup`")

    monkeypatch.setattr(control.jars, "require", absent)
    with pytest.raises(JarsMissing):
        control.up(settings)
    assert process.records(settings.stack_dir) == []


def test_the_addresses_are_private_and_the_status_shows_no_secret(settings: Settings) -> None:
    control.up(settings)
    assert addresses_file(settings).stat().st_mode & 0o777 == 0o600
    assert "secret" not in repr(state.states(settings))


def test_memory_counts_processes_that_carry_the_home_in_their_environment(settings: Settings, tmp_path: Path) -> None:
    control.up(settings)
    argv = (sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()", "dagster")
    for place, home in (("ours", settings.home), ("theirs", tmp_path / "elsewhere")):
        env = {**os.environ, "LINEAGE_HOME": str(home)}
        (tmp_path / place).mkdir()
        process.start(tmp_path / place, "dagster", argv, env=env, cwd=tmp_path, log=tmp_path / place / "log")
    try:
        deadline = time.monotonic() + 20
        while any(process.tail(tmp_path / place / "log") != "up" for place in ("ours", "theirs")):
            assert time.monotonic() < deadline
            threading.Event().wait(0.01)
        rows = state.states(settings)
        assert [(row.part, row.note) for row in rows] == [("kafka", ""), ("dagster", "1 process")]
        assert state.total_memory_mb(rows) == sum(row.memory_mb for row in rows) > 10
    finally:
        for place in ("ours", "theirs"):
            for record in process.records(tmp_path / place):
                process.stop(record, timeout_s=5)


def test_status_of_a_home_that_never_ran_is_stopped_and_makes_nothing(settings: Settings) -> None:
    assert [row.state for row in state.states(settings)] == ["stopped"]
    assert not settings.home.exists()


def tree(home: Path) -> dict[str, int]:
    """All files but logs, with their time of change."""
    return {str(p): p.stat().st_mtime_ns for p in home.rglob("*") if p.is_file() and p.suffix != ".log"}


def quick(part: Part) -> Part:
    return replace(part, ready_timeout_s=0.6)
