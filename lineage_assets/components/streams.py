"""A Dagster job for each stream, and the sensor that keeps exactly one of each alive.

Belongs here: starting `lineage stream run` under a run, its log and figures there, when to start it again. Does not belong
here: what a stream does (spark/stream.py), the command (commands/stream.py).
"""

# No postponed annotations here: Dagster reads the type of `context` and does not resolve text.

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import dagster as dg

from lineage_assets.components.event_table import EventTable
from lineage_assets.errors import FatalError
from lineage_assets.lineage import lease
from lineage_assets.lineage.lease import Lease
from lineage_assets.lineage.names import node_name
from lineage_assets.reporting.instance import ALIVE
from lineage_assets.settings import Settings, settings
from lineage_assets.spark import event_table as engine

STREAM, ATTEMPT = "lineage/stream", "lineage/attempt"
"""Tags of a stream's runs: which stream, and which start in a row; a run that somebody launched has none."""
GIVES_UP_AFTER = 5
"""Runs of a stream that failed in a row. Each of them has itself tried for minutes."""
FIRST_PAUSE_S = 30
WORKED_S = 1800
"""A run that lived so long had a working stream: what failed before it does not count."""
DEAD_AFTER_S = 90
"""A run without a heartbeat for so long is reported failed: a crash of the machine leaves it STARTED for ever."""
FIGURES_EVERY_S = 60.0
ENDS_WITHIN_S = 180
"""How long a stream that was asked to end gets for its batch: a minute more than it gives itself."""
LINES_KEPT = 20
LAUNCHED = [dg.DagsterRunStatus[name] for name in ("STARTING", "STARTED", "CANCELING")]


def event_tables(tree: dg.ComponentTree) -> dict[str, engine.EventTable]:
    """The event tables of a built code location, by the name of their topic."""
    return {one.topic: one.built for one in tree.get_all_components(of_type=EventTable)}


def build_streams(tree: dg.ComponentTree) -> dg.Definitions:
    """A job for each event table, and one sensor for all."""
    topics = sorted(event_tables(tree))
    if not topics:
        return dg.Definitions()
    jobs = [stream_job(topic) for topic in topics]
    return dg.Definitions(jobs=jobs, sensors=[supervisor(topics, jobs)])


def job_name(topic: str) -> str:
    """
    >>> job_name("clicks")
    'stream__clicks'
    """
    return node_name(["stream", topic])


def stream_tag(topic: str) -> str:
    """The value of the STREAM tag: the topic, where that is one; tags hold 63 characters of a narrow alphabet.

    >>> stream_tag("clicks"), len(stream_tag("x" * 249))
    ('clicks', 32)
    """
    plain = len(topic) <= 63 and topic[0].isalnum() and topic[-1].isalnum()
    return topic if plain else hashlib.sha256(topic.encode()).hexdigest()[:32]


# The job.


def stream_job(topic: str) -> dg.JobDefinition:
    """A job whose runs are a stream of this topic."""

    @dg.op(name=f"run_{job_name(topic)}", description=f"Streams {topic} until it is asked to stop.")
    def keep(context: dg.OpExecutionContext) -> None:
        keep_alive(context, topic)

    @dg.job(
        name=job_name(topic),
        executor_def=dg.in_process_executor,
        # A stream lives for months: no limit on its time, and the supervisor alone starts it again.
        tags={STREAM: stream_tag(topic), "dagster/max_retries": "0", "dagster/max_runtime": "0"},
        description=f"The stream of {topic} into raw and silver. Terminating a run ends it after its batch, and counts as the "
        "wish to stop; launch one to start it again.",
    )
    def stream() -> None:
        keep()

    return stream


def command(topic: str) -> list[str]:
    """What a run of the job runs: it ends when its stdin closes, so it does not outlive the run's process."""
    return [sys.executable, "-m", "lineage_assets.cli", "stream", "run", topic, "--with-parent"]


def keep_alive(context: dg.OpExecutionContext, topic: str) -> None:
    """Run the stream's command in a session of its own, with its log in the run's; when we end it ends too.

    Raises dg.Failure when it ends by an error.
    """
    lake = settings().lake_env
    lease.wish(lake, topic, True)
    child = subprocess.Popen(
        command(topic), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert child.stdout is not None
    said: list[str] = []
    listener = threading.Thread(target=_listen, args=(child.stdout, context, said), daemon=True)
    listener.start()
    try:
        while _runs(child, FIGURES_EVERY_S):
            context.log.info(_figures(lease.read(lake, topic)))
    except dg.DagsterExecutionInterruptedError:
        run = context.instance.get_run_by_id(context.run_id)
        if run is not None and run.status is dg.DagsterRunStatus.CANCELING:
            # Somebody terminated the run: that is a wish, and the supervisor must not start another. Said before the end
            # and after it: a child that has only just begun says the opposite.
            lease.wish(lake, topic, False)
            _end(child)
            lease.wish(lake, topic, False)
        raise
    finally:
        _end(child)
        listener.join(5)
    context.log.info(_figures(lease.read(lake, topic)))
    if child.returncode:
        raise dg.Failure(f"the stream of {topic} ended with exit code {child.returncode}: {' '.join(said[-3:])}")


def _runs(child: subprocess.Popen[str], for_s: float) -> bool:
    """Wait until a child ends, but no longer than that; in small steps, between which a run can be interrupted."""
    until = time.monotonic() + for_s
    while time.monotonic() < until:
        try:
            child.wait(0.5)
        except subprocess.TimeoutExpired:
            continue
        return False
    return True


def _end(child: subprocess.Popen[str]) -> None:
    if child.poll() is not None:
        return
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _listen(stdout: Iterator[str], context: dg.OpExecutionContext, said: list[str]) -> None:
    for line in stdout:
        if line.strip():
            said.append(line.strip())
            del said[:-LINES_KEPT]
            context.log.info(line.rstrip())


def _figures(held: Lease | None) -> str:
    return "no figures yet" if held is None else f"{held.state}: {json.dumps(dict(held.facts))}"


# The supervisor.


@dataclass(frozen=True, slots=True)
class Supervised:
    """What is to be done about a stream. `cleared` says that somebody stopped it, or started it by hand."""

    said: str
    request: dg.RunRequest | None = None
    gave_up: FatalError | None = None
    cleared: bool = False


def supervise(
    instance: dg.DagsterInstance, settings: Settings, topic: str, now: float, cleared_at: float = 0.0
) -> Supervised:
    """Look at a stream: a run for it if it is wanted and nobody runs it, after a pause that doubles with each failure.

    Runs of which nothing was heard for DEAD_AFTER_S are reported failed. Failures before `cleared_at` do not count.
    """
    lake = settings.lake_env
    held = lease.read(lake, topic)
    lives = held is not None and held.live()
    runs = _with_the_dead_reported(instance, topic, held, lives, now)
    alive = [one for one in runs if one.dagster_run.status in ALIVE]
    if lease.wanted(lake, topic) is not True:
        return Supervised(f"{topic}: nobody wants it to run", cleared=True)
    if alive:
        return Supervised(f"{topic}: {'runs' if lives else 'starts'} as run {alive[0].dagster_run.run_id[:8]}")
    if lives and held is not None:
        # One that outlived its run ends by itself: only one that began later was started by hand.
        return Supervised(f"{topic}: runs as process {held.pid} on {held.host}", cleared=not _leftover(runs, now))
    failed = _failures(runs, cleared_at)
    if len(failed) >= GIVES_UP_AFTER:
        return Supervised(f"{topic}: given up", gave_up=_given_up(instance, topic, failed, held))
    if failed:
        pause_s = FIRST_PAUSE_S * 2 ** (len(failed) - 1)
        left_s = _ended(failed[0]) + pause_s - now
        if left_s > 0:
            return Supervised(f"{topic}: failed {len(failed)} times in a row, starts again in {left_s:.0f} s")
    # One start for each run that ended: a tick that is evaluated twice asks once.
    predecessor = runs[0].dagster_run.run_id if runs else f"first-{0 if held is None else held.owner}"
    request = dg.RunRequest(
        run_key=f"{topic}:{predecessor}",
        job_name=job_name(topic),
        tags={STREAM: stream_tag(topic), ATTEMPT: str(len(failed) + 1)},
    )
    return Supervised(f"{topic}: starts", request=request)


def _with_the_dead_reported(
    instance: dg.DagsterInstance, topic: str, held: Lease | None, lives: bool, now: float
) -> Sequence[dg.RunRecord]:
    """The stream's newest runs, newest first, after those that died without a word were reported failed."""
    wanted = dg.RunsFilter(job_name=job_name(topic))
    runs = instance.get_run_records(wanted, limit=4 * GIVES_UP_AFTER)
    dead = [one for one in runs if one.dagster_run.status in LAUNCHED and not lives and _silent(one, held, now)]
    for one in dead:
        instance.report_run_failed(one.dagster_run, f"no heartbeat of the stream of {topic} for {DEAD_AFTER_S} s")
    return instance.get_run_records(wanted, limit=4 * GIVES_UP_AFTER) if dead else runs


def _silent(run: dg.RunRecord, held: Lease | None, now: float) -> bool:
    began = float(run.start_time or run.create_timestamp.timestamp())
    heard = began if held is None else max(began, held.beat_at.timestamp())
    return now - heard > DEAD_AFTER_S


def _failures(runs: Sequence[dg.RunRecord], cleared_at: float) -> list[dg.RunRecord]:
    """The runs that failed in a row, newest first. A success, a stop or a start by hand ends the row, and so does a run
    that worked: it counts, what was before does not."""
    found: list[dg.RunRecord] = []
    for one in takewhile(lambda run: run.dagster_run.status == dg.DagsterRunStatus.FAILURE, runs):
        if _ended(one) <= cleared_at:
            break
        found.append(one)
        worked = one.start_time is not None and _ended(one) - float(one.start_time) >= WORKED_S
        if worked or ATTEMPT not in one.dagster_run.tags:
            break
    return found


def _ended(run: dg.RunRecord) -> float:
    return float(run.end_time or run.create_timestamp.timestamp())


def _leftover(runs: Sequence[dg.RunRecord], now: float) -> bool:
    """Whether a run has just ended: its process may still finish a batch."""
    return bool(runs) and now - _ended(runs[0]) <= ENDS_WITHIN_S


def _given_up(
    instance: dg.DagsterInstance, topic: str, failed: Sequence[dg.RunRecord], held: Lease | None
) -> FatalError:
    return FatalError(
        f"the stream of {topic} failed {len(failed)} times in a row and is not started again; the last died of: "
        f"{_died_of(instance, failed[0].dagster_run.run_id, held)}",
        remedy=f"look at run {failed[0].dagster_run.run_id}, mend it, and launch the job {job_name(topic)} "
        f"(or `lineage stream run {topic}`); `lineage stream stop {topic}` if it is not wanted",
    )


def _died_of(instance: dg.DagsterInstance, run_id: str, held: Lease | None) -> str:
    """What a failed run says of its end: its step's error, or why the run itself was failed."""
    for kind in (dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE):
        for record in instance.get_records_for_run(run_id, of_type=kind).records:
            event = record.event_log_entry.dagster_event
            error = None if event is None else getattr(event.event_specific_data, "error", None)
            while error is not None and error.cause is not None:
                error = error.cause
            if error is not None:
                return re.sub(r"^[\w.]+: ", "", error.message.strip())
            if event is not None and event.message:
                return str(event.message)
    return str((held.facts if held else {}).get("error", "nothing is known of it"))


def supervisor(topics: Sequence[str], jobs: Sequence[dg.JobDefinition]) -> dg.SensorDefinition:
    """The sensor of all streams. One that was given up fails its tick, unless another is to be started in it."""

    @dg.sensor(
        name="streams",
        jobs=jobs,
        minimum_interval_seconds=5,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Starts a stream again that somebody wants and that does not run; streams nobody started are left alone. "
        "Fails when one has failed too often in a row.",
    )
    def streams(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        cleared: dict[str, float] = json.loads(context.cursor or "{}")
        now = time.time()
        found = {
            topic: supervise(context.instance, settings(), topic, now, cleared.get(topic, 0.0)) for topic in topics
        }
        cleared |= {topic: now for topic, one in found.items() if one.cleared}
        requests = [one.request for one in found.values() if one.request is not None]
        lost = [one.gave_up for one in found.values() if one.gave_up is not None]
        for error in lost:
            context.log.error(str(error))
        if lost and not requests:
            raise lost[0]
        said = None if requests else "; ".join(one.said for one in found.values())
        return dg.SensorResult(run_requests=requests, cursor=json.dumps(cleared), skip_reason=said)

    return streams
