"""Part (a): from the producer's clock to a polling reader seeing the row in silver, at a constant rate; with it (d) and (e).

Belongs here: the order of one measurement. Does not belong here: the load, the reader, the meter themselves.

The look-back window is full from the start: so many events as it holds are put into the topic first, stamped over its
length, and the load runs while the stream catches up with them. An older hour is put there too, so that there is a
closed slice to compact.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lineage_assets.bench.load import Load
from lineage_assets.bench.meter import Stored, Usage, metered, stored
from lineage_assets.bench.reader import Follow
from lineage_assets.bench.rig import Child, Rig
from lineage_assets.bench.streams import Running, StreamOptions
from lineage_assets.bench.visible import Visible
from lineage_assets.errors import FatalError
from lineage_assets.lineage.commits import open_table
from lineage_assets.spark.event_table import EventTable
from lineage_assets.stack import process

LONGEST_S = 24 * 3600
CLOSED_S = 2 * 3600
CLOSED_EVENTS, CLOSED_FILES = 200_000, 8
CAUGHT_UP_S = 3.0
"""A stream that is so many seconds of load behind has caught up."""
LEAD_S = 3.0

Maintain = Callable[[Rig, EventTable], Mapping[str, Any]]
"""Does maintenance beside the running stream, and says what it did."""
Watch = Callable[[Rig, EventTable], AbstractContextManager[Visible | None]]
"""Has Dagster's webserver, daemon and collector run over the table, and watches what they show."""


def unwatched(rig: Rig, table: EventTable) -> AbstractContextManager[None]:
    """Without Dagster."""
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Plan:
    """`seconds` are measured after `warm_up_s`, which begin when the stream has caught up."""

    rate: float
    seconds: float = 300.0
    warm_up_s: float = 60.0
    window: bool = True
    """Whether the look-back window is filled first."""
    options: StreamOptions = field(default_factory=StreamOptions)


@dataclass(frozen=True, slots=True)
class Latency:
    """What was measured at one rate. `expected` is how many rows of the measured time silver must have."""

    rate: float
    seconds: float
    latency: Mapping[str, float]
    histogram_ms: Mapping[str, int]
    arrived: list[Mapping[str, int]]
    from_ms: int
    expected: int
    complete: bool
    """Every row that silver must have was seen once, no other was, and raw holds every record."""
    load: Mapping[str, Any]
    reader_cpu_s: float
    usage: Usage
    events: int
    """In the topic at the end, those before the measured time included."""
    bytes: Mapping[str, Stored]
    commits: Mapping[str, int]
    maintenance: Mapping[str, Any]
    visible: Mapping[str, Any] | None

    @property
    def cpu_s_per_million(self) -> float:
        """Of the Spark server and the stream's client, while it was measured."""
        return self.usage.cpu("spark", "stream") / (self.rate * self.seconds) * 1e6


def measure(
    rig: Rig, plan: Plan, maintain: Maintain | None = None, watch: Watch = unwatched
) -> tuple[EventTable, Latency]:
    """Measure one rate; returns the table, whose topic then holds all that was sent, and the figures."""
    table = rig.table(f"{plan.rate:.0f}")
    raw, silver = f"raw/{table.name}", f"silver/{table.name}"
    before = _history(rig, table, plan)
    with ExitStack() as stack:
        load = stack.enter_context(rig.loading(Load(table.topic, plan.rate, LONGEST_S)))
        running = stack.enter_context(rig.streaming(table, plan.options))
        rig.say("latency", f"{plan.rate:,.0f} events/s: the stream catches up")
        rig.await_rows(raw, lambda: int(rig.records(table) - plan.rate * CAUGHT_UP_S), running)
        # Only now: without a stream that runs, the sensors would ask for bounded runs of what it is about to make.
        visible = stack.enter_context(watch(rig, table))
        rig.say("latency", f"caught up; {plan.warm_up_s:.0f} s to warm up, then {plan.seconds:.0f} s are measured")
        _pass(plan.warm_up_s, load, running)
        from_ms = (int(time.time() + LEAD_S) + 1) * 1000
        to_ms = from_ms + round(plan.seconds * 1000)
        follow = Follow(silver, from_ms, to_ms, after=_version(rig, silver))
        reader = stack.enter_context(
            rig.child("reader", [sys.executable, "-m", "lineage_assets.bench.reader", json.dumps(asdict(follow))])
        )
        reader.await_word("following")
        _pass(from_ms / 1000 - time.time(), load, running, reader)
        first_version = {asset: _version(rig, asset) for asset in (raw, silver)}
        upkeep = Upkeep(lambda: maintain(rig, table) if maintain else {})
        with metered(rig.trees(stream=running.pid, load=load.pid, reader=reader.pid)) as usage:
            _pass(plan.seconds / 2, load, running, reader)
            upkeep.start()
            _pass(to_ms / 1000 - time.time(), load, running, reader)
        versions = {asset: _version(rig, asset) - first_version[asset] for asset in (raw, silver)}
        maintenance = upkeep.result()
        sent = load.account()
        rig.say("latency", "the load has ended; waiting for its last rows")
        held = rig.await_rows(raw, lambda: before.records + sent.records, running)
        kept = rig.await_rows(silver, lambda: before.ok + sent.ok, running)
        seen = reader.end()
        shown = visible.summary(from_ms, to_ms) if visible is not None else None
    expected = sum(ok for second, ok in sent.ok_by_second.items() if from_ms <= int(second) * 1000 < to_ms)
    whole = held == before.records + sent.records and kept == before.ok + sent.ok
    load_told = {name: value for name, value in asdict(sent).items() if name != "ok_by_second"}
    return table, Latency(
        rate=plan.rate,
        seconds=plan.seconds,
        latency=seen["latency"],
        histogram_ms=seen["histogram_ms"],
        arrived=seen["arrived"],
        from_ms=from_ms,
        expected=expected,
        complete=whole and seen["latency"]["count"] == expected,
        load=load_told,
        reader_cpu_s=seen["cpu_s"],
        usage=usage,
        events=before.records + sent.records,
        bytes={asset: stored(rig.settings, asset) for asset in (raw, silver)},
        commits=versions,
        maintenance=maintenance,
        visible=shown,
    )


@dataclass(frozen=True, slots=True)
class Before:
    """What was put into the topic before the load."""

    records: int = 0
    ok: int = 0


def _history(rig: Rig, table: EventTable, plan: Plan) -> Before:
    if not plan.window:
        return Before()
    window_s = table.window_ms / 1000
    rig.say(
        "latency", f"{plan.rate:,.0f} events/s: filling the look-back window of {window_s:.0f} s, and an older hour"
    )
    older = rig.fill(table, CLOSED_EVENTS, over_s=60.0, ago_s=CLOSED_S)
    # In small bites, so that the slice has files to compact.
    with rig.streaming(table, replace(plan.options, bite=CLOSED_EVENTS // CLOSED_FILES)) as running:
        rig.await_rows(f"silver/{table.name}", lambda: older.ok, running)
    recent = rig.fill(table, round(plan.rate * window_s), over_s=window_s)
    return Before(older.records + recent.records, older.ok + recent.ok)


def _pass(seconds: float, *needed: Child | Running) -> None:
    """Let time pass, as long as every process that is needed runs."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        for one in needed:
            if (code := one.ended()) is not None:
                raise FatalError(
                    f"{one.log.stem} ended with exit code {code} while it was measured: {process.tail(one.log)}",
                    remedy=f"read {one.log}",
                )
        time.sleep(min(1.0, left))


class Upkeep(threading.Thread):
    """Maintenance beside the stream; what went wrong in it is raised to the one who asks for its result."""

    def __init__(self, work: Callable[[], Mapping[str, Any]]) -> None:
        super().__init__(name="maintenance")
        self._work = work
        self._done: Mapping[str, Any] = {}
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._done = self._work()
        except Exception as error:
            self._error = error

    def result(self) -> Mapping[str, Any]:
        self.join()
        if self._error is not None:
            raise self._error
        return self._done


def _version(rig: Rig, asset: str) -> int:
    table = open_table(rig.settings.lake_env, asset)
    return -1 if table is None else int(table.version())
