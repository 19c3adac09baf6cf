"""The job of a stream with a stand-in for the stream's command, and the supervisor that starts it again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lineage_assets import settings as settings_module
from lineage_assets.components import streams
from lineage_assets.components.streams import (
    ATTEMPT,
    DEAD_AFTER_S,
    FIRST_PAUSE_S,
    GIVES_UP_AFTER,
    STREAM,
    WORKED_S,
    Supervised,
    stream_job,
    supervise,
)
from lineage_assets.errors import FatalError
from lineage_assets.lineage import lease
from lineage_assets.lineage.lease import Lease
from lineage_assets.settings import Settings

JOB = stream_job("clicks")
HOST = "another-host"
Status = dg.DagsterRunStatus


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setenv("LINEAGE_HOME", str(tmp_path / "home"))
    settings_module.settings.cache_clear()
    yield settings_module.settings()
    settings_module.settings.cache_clear()


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def beat(settings: Settings, ago_s: float = 0.0, **more: Any) -> None:
    """A heartbeat of a stream on another machine: whether it lives is told by its time alone."""
    held = Lease("clicks", "o1", HOST, 1, datetime.now(UTC), **more)
    beat = lease.beat(settings.lake_env, held)
    at = (beat.beat_at - timedelta(seconds=ago_s)).isoformat()
    file = Path(settings.lake_env.root, "streams", "clicks.lease.json")
    file.write_text(file.read_text().replace(beat.beat_at.isoformat(), at))


def ran(instance: dg.DagsterInstance, status: Status, attempt: int | None = 1) -> dg.DagsterRun:
    """A run of the job that has come so far."""
    tags = {} if attempt is None else {ATTEMPT: str(attempt)}
    run = instance.create_run_for_job(JOB, tags=tags)
    if status in (Status.STARTED, Status.SUCCESS, Status.CANCELED, Status.FAILURE):
        event(instance, run, dg.DagsterEventType.PIPELINE_START)
    if status is Status.FAILURE:
        instance.report_run_failed(run, "the registry is away")
    if status is Status.CANCELED:
        instance.report_run_canceled(run)
    if status is Status.SUCCESS:
        event(instance, run, dg.DagsterEventType.PIPELINE_SUCCESS)
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    assert found.status is status
    return found


def event(instance: dg.DagsterInstance, run: dg.DagsterRun, kind: dg.DagsterEventType) -> None:
    instance.report_dagster_event(dg.DagsterEvent(event_type_value=kind.value, job_name=run.job_name), run.run_id)


def look(instance: dg.DagsterInstance, settings: Settings, later_s: float = 0.0, cleared_at: float = 0.0) -> Supervised:
    return supervise(instance, settings, "clicks", time.time() + later_s, cleared_at)


def attempt(found: Supervised) -> int | None:
    return None if found.request is None else int(found.request.tags[ATTEMPT])


def test_a_stream_that_nobody_started_or_that_was_stopped_is_left_alone(
    instance: dg.DagsterInstance, settings: Settings
) -> None:
    assert look(instance, settings).request is None
    lease.wish(settings.lake_env, "clicks", False)
    found = look(instance, settings)
    assert (found.request, found.cleared) == (None, True)


def test_a_wanted_stream_is_started_once(instance: dg.DagsterInstance, settings: Settings) -> None:
    lease.wish(settings.lake_env, "clicks", True)
    found = look(instance, settings)
    assert found.request is not None
    assert found.request.job_name == JOB.name
    assert found.request.tags == {STREAM: "clicks", ATTEMPT: "1"}
    assert look(instance, settings).request == found.request, "asked twice before it is there, it is one run by its key"
    ran(instance, Status.NOT_STARTED)
    assert look(instance, settings).request is None


def test_a_stream_that_lives_by_its_lease_is_left_alone_whoever_runs_it(
    instance: dg.DagsterInstance, settings: Settings
) -> None:
    lease.wish(settings.lake_env, "clicks", True)
    beat(settings)
    found = look(instance, settings)
    assert (found.request, found.cleared) == (None, True)
    assert HOST in found.said
    beat(settings, ago_s=lease.LIVES.total_seconds() + 1)
    assert attempt(look(instance, settings)) == 1


def test_the_pause_doubles_with_each_failure_and_attempts_are_counted(
    instance: dg.DagsterInstance, settings: Settings
) -> None:
    lease.wish(settings.lake_env, "clicks", True)
    keys = set()
    for failures in range(1, GIVES_UP_AFTER):
        ran(instance, Status.FAILURE)
        pause_s = FIRST_PAUSE_S * 2 ** (failures - 1)
        assert attempt(look(instance, settings, pause_s - 5)) is None
        found = look(instance, settings, pause_s + 1)
        assert attempt(found) == failures + 1
        assert found.request is not None
        keys.add(found.request.run_key)
    assert len(keys) == GIVES_UP_AFTER - 1


def test_after_too_many_failures_in_a_row_it_gives_up_with_what_the_last_one_died_of(
    instance: dg.DagsterInstance, settings: Settings
) -> None:
    lease.wish(settings.lake_env, "clicks", True)
    for _ in range(GIVES_UP_AFTER):
        last = ran(instance, Status.FAILURE)
    found = look(instance, settings, 1e6)
    assert found.request is None
    assert found.gave_up is not None
    assert f"failed {GIVES_UP_AFTER} times in a row" in found.gave_up.message
    assert "the registry is away" in found.gave_up.message
    assert last.run_id in found.gave_up.remedy
    assert "lineage stream run clicks" in found.gave_up.remedy
    assert attempt(look(instance, settings, 1e6, cleared_at=time.time() + 1)) == 1, "somebody started it by hand"


@pytest.mark.parametrize("ending", [Status.SUCCESS, Status.CANCELED])
def test_a_success_or_a_stop_begins_a_new_count(
    instance: dg.DagsterInstance, settings: Settings, ending: Status
) -> None:
    lease.wish(settings.lake_env, "clicks", True)
    for _ in range(GIVES_UP_AFTER):
        ran(instance, Status.FAILURE)
    ran(instance, ending)
    assert attempt(look(instance, settings)) == 1
    ran(instance, Status.FAILURE)
    assert attempt(look(instance, settings, FIRST_PAUSE_S + 1)) == 2


def test_a_launch_by_hand_begins_a_new_count(instance: dg.DagsterInstance, settings: Settings) -> None:
    lease.wish(settings.lake_env, "clicks", True)
    for _ in range(GIVES_UP_AFTER):
        ran(instance, Status.FAILURE)
    ran(instance, Status.FAILURE, attempt=None)
    assert attempt(look(instance, settings, FIRST_PAUSE_S + 1)) == 2


def test_a_stream_that_worked_for_long_and_failed_has_failed_once(
    instance: dg.DagsterInstance, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease.wish(settings.lake_env, "clicks", True)
    for _ in range(GIVES_UP_AFTER):
        ran(instance, Status.FAILURE)
    monkeypatch.setattr(streams, "WORKED_S", 0)
    assert WORKED_S > 0
    assert attempt(look(instance, settings, FIRST_PAUSE_S + 1)) == 2


def test_a_run_without_a_heartbeat_is_reported_failed_and_started_again(
    instance: dg.DagsterInstance, settings: Settings
) -> None:
    lease.wish(settings.lake_env, "clicks", True)
    beat(settings, ago_s=3600)
    run = ran(instance, Status.STARTED)
    assert look(instance, settings, DEAD_AFTER_S - 5).request is None
    assert status(instance, run) is Status.STARTED, "it may still be on its way to its first heartbeat"
    look(instance, settings, DEAD_AFTER_S + 5)
    assert status(instance, run) is Status.FAILURE
    assert attempt(look(instance, settings, FIRST_PAUSE_S - 5)) is None
    assert attempt(look(instance, settings, FIRST_PAUSE_S + 5)) == 2


def test_a_run_that_was_heard_of_or_waits_in_the_queue_is_not_reported(
    instance: dg.DagsterInstance, settings: Settings
) -> None:
    lease.wish(settings.lake_env, "clicks", False)
    waiting, running = ran(instance, Status.NOT_STARTED), ran(instance, Status.STARTED)
    beat(settings)
    look(instance, settings, 1e6)
    assert status(instance, running) is Status.STARTED
    assert status(instance, waiting) is Status.NOT_STARTED
    beat(settings, ago_s=3600)
    look(instance, settings, 1e6)
    assert status(instance, running) is Status.FAILURE, "also one that nobody wants any more"
    assert status(instance, waiting) is Status.NOT_STARTED


def status(instance: dg.DagsterInstance, run: dg.DagsterRun) -> Status:
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    return found.status


def test_the_sensor_starts_one_stream_though_another_is_given_up_and_then_fails_loudly(
    instance: dg.DagsterInstance, settings: Settings
) -> None:
    sensor = streams.supervisor(["clicks", "orders"], [JOB, stream_job("orders")])
    for topic in ("clicks", "orders"):
        lease.wish(settings.lake_env, topic, True)
    for _ in range(GIVES_UP_AFTER):
        ran(instance, Status.FAILURE)
    (request,) = tick(sensor, instance).run_requests or ()
    assert request.job_name == "stream__orders"
    instance.create_run_for_job(stream_job("orders"))
    with pytest.raises(FatalError, match=f"stream of clicks failed {GIVES_UP_AFTER} times in a row"):
        tick(sensor, instance)
    lease.wish(settings.lake_env, "clicks", False)
    stopped = tick(sensor, instance)
    assert "nobody wants it" in str(stopped.skip_reason)
    lease.wish(settings.lake_env, "clicks", True)
    (request,) = tick(sensor, instance, stopped.cursor).run_requests or ()
    assert request.tags[ATTEMPT] == "1", "a stop clears the count"


def tick(sensor: dg.SensorDefinition, instance: dg.DagsterInstance, cursor: str | None = None) -> dg.SensorResult:
    result = sensor(dg.build_sensor_context(instance=instance, cursor=cursor))
    assert isinstance(result, dg.SensorResult)
    return result


def test_the_job_has_no_limit_on_its_time_no_retries_and_the_tag_that_keeps_it_single() -> None:
    assert JOB.tags == {STREAM: "clicks", "dagster/max_retries": "0", "dagster/max_runtime": "0"}
    assert len({streams.stream_tag(name) for name in ("a" * 100, "a" * 101, "a.b", "a_b", "a-b", ".")}) == 6


STAND_IN = """
import signal, sys, threading, time
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
print("streaming from 0 of 7", flush=True)
open(sys.argv[1], "w").write("started")
{}
open(sys.argv[1], "w").write("ended")
print("after the batch", flush=True)
"""


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """Where the stand-in leaves word of how far it has come."""
    return tmp_path / "mark"


def stand_in(monkeypatch: pytest.MonkeyPatch, mark: Path, body: str) -> None:
    script = STAND_IN.format(body)
    monkeypatch.setattr(streams, "command", lambda topic: [sys.executable, "-c", script, str(mark)])


def messages(instance: dg.DagsterInstance, run_id: str) -> list[str]:
    return [entry.user_message for entry in instance.all_logs(run_id)]


def test_the_streams_words_and_figures_are_in_the_runs_log(
    instance: dg.DagsterInstance, settings: Settings, monkeypatch: pytest.MonkeyPatch, mark: Path
) -> None:
    beat(settings, state="stopped", facts={"rows_a_second": 1400})
    stand_in(monkeypatch, mark, "")
    result = JOB.execute_in_process(instance=instance)
    assert result.success
    said = messages(instance, result.run_id)
    assert {"streaming from 0 of 7", "after the batch", 'stopped: {"rows_a_second": 1400}'} <= set(said)
    assert lease.wanted(settings.lake_env, "clicks") is True, "whoever starts it wants it"


def test_a_stream_that_fails_fails_its_run_with_its_last_words(
    instance: dg.DagsterInstance, settings: Settings, monkeypatch: pytest.MonkeyPatch, mark: Path
) -> None:
    stand_in(monkeypatch, mark, "print('the topic was made again'); sys.exit(3)")
    result = JOB.execute_in_process(instance=instance, raise_on_error=False)
    assert not result.success
    lease.wish(settings.lake_env, "clicks", True)
    for _ in range(GIVES_UP_AFTER - 1):
        ran(instance, Status.FAILURE)
    result = JOB.execute_in_process(instance=instance, raise_on_error=False, tags={ATTEMPT: "5"})
    found = look(instance, settings, 1e6)
    assert found.gave_up is not None
    assert found.gave_up.message.endswith(
        "the last died of: the stream of clicks ended with exit code 3: streaming from 0 of 7 the topic was made again"
    )


@pytest.mark.parametrize("terminated", [True, False])
def test_terminating_the_run_ends_the_stream_after_its_batch_and_is_the_wish_to_stop(
    instance: dg.DagsterInstance,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    mark: Path,
    terminated: bool,
) -> None:
    """A worker whose machine goes down is interrupted as well, and that is nobody's wish."""
    stand_in(monkeypatch, mark, "stop.wait(60); time.sleep(0.3)")

    def interrupted(child: subprocess.Popen[str], for_s: float) -> bool:
        awaited(mark, "started")
        if terminated:
            (run,) = instance.get_runs()
            instance.report_run_canceling(run)
        raise dg.DagsterExecutionInterruptedError

    monkeypatch.setattr(streams, "_runs", interrupted)
    with pytest.raises(dg.DagsterExecutionInterruptedError):
        JOB.execute_in_process(instance=instance)
    assert mark.read_text() == "ended"
    assert lease.wanted(settings.lake_env, "clicks") is not terminated


def test_a_killed_worker_takes_its_stream_along(settings: Settings, mark: Path) -> None:
    """The worker is a process of its own here, killed while the stream runs."""
    script = STAND_IN.format("stop.wait(60)")
    worker = f"""
import sys, dagster as dg
from lineage_assets.components import streams
streams.command = lambda topic: [sys.executable, "-c", {script!r}, {str(mark)!r}]
streams.stream_job("clicks").execute_in_process(instance=dg.DagsterInstance.ephemeral())
"""
    process = subprocess.Popen([sys.executable, "-c", worker], stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        awaited(mark, "started")
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    awaited(mark, "ended")


def awaited(mark: Path, word: str) -> None:
    until = time.monotonic() + 60
    while not mark.exists() or mark.read_text() != word:
        assert time.monotonic() < until, f"the stand-in has not {word}"
        time.sleep(0.02)
