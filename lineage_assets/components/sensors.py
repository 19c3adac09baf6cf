"""The sensors that keep the graph moving: topics are reported, tables that are behind are asked for.

Belongs here: thin shells over reporting/: ask, compare, answer Dagster. Does not belong here: deciding what is news
(reporting/topics.py) or behind (reporting/behind.py).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any

import dagster as dg

from lineage_assets.components.event_table import EventTable
from lineage_assets.components.marts import DbtMarts
from lineage_assets.components.topic import Topic
from lineage_assets.components.window_table import WindowTable
from lineage_assets.errors import LineageError
from lineage_assets.lineage.commits import Lake, commits, newest_by_slice
from lineage_assets.lineage.slices import Slice
from lineage_assets.marts.state import behind as marts_behind
from lineage_assets.reporting import topics as reporting
from lineage_assets.reporting.behind import events_behind, slices_behind
from lineage_assets.reporting.instance import without_known
from lineage_assets.settings import Settings, settings

CATCH_UP = "lineage/catch_up"
WANT = "lineage/want"
MARTS = "marts"
PAUSE_S, LONGEST_PAUSE_S = 30, 3600
"""After a failure the same state is asked for again in 30 s, then after twice as long each time, up to an hour."""
MAX_RUNTIME, RUN_ENDS_AFTER_S = "dagster/max_runtime", 2 * 3600
"""A run whose process was killed stays STARTED; run monitoring ends it then, and its table goes on."""
RUNS_A_TICK = 8
BUDGET_S = 45.0
"""Dagster ends a tick after 60 s: stop in time, the next tick goes on."""
ALIVE = [dg.DagsterRunStatus[name] for name in ("QUEUED", "NOT_STARTED", "STARTING", "STARTED", "CANCELING")]


@dataclass(frozen=True, slots=True)
class Flow:
    """One topic's way through its tables, as the sensors see it."""

    topic: Topic
    table: EventTable
    windows: tuple[WindowTable, ...]

    @property
    def events(self) -> list[dg.AssetKey]:
        return [dg.AssetKey([layer, self.table.name]) for layer in ("raw", "silver", "dead_letters", "late")]


def build_sensors(tree: dg.ComponentTree) -> list[dg.SensorDefinition]:
    """Two sensors for the whole code location, whatever the number of topics."""
    topics = tree.get_all_components(of_type=Topic)
    windows = tree.get_all_components(of_type=WindowTable)
    by_name = {topic.name: topic for topic in topics}
    flows = [
        Flow(by_name[one.topic], one, tuple(w for w in windows if w.source == f"silver/{one.name}"))
        for one in tree.get_all_components(of_type=EventTable)
    ]
    marts = {
        mart: inputs
        for one in tree.get_all_components(of_type=DbtMarts)
        for mart, inputs in one.inputs(tree.load_context).items()
    }
    return [_topics_sensor(topics, flows), _catch_up_sensor(flows, marts)] if topics else []


def _topics_sensor(topics: Sequence[Topic], flows: Sequence[Flow]) -> dg.SensorDefinition:
    readers = {flow.topic.name: flow.table.name for flow in flows}

    @dg.sensor(
        name="kafka_topics",
        minimum_interval_seconds=10,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Takes every topic's cuts and materializes its slices: closed ones once, the open one as it grows.",
    )
    def kafka_topics(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        cursor: dict[str, Any] = json.loads(context.cursor or "{}")
        events: list[dg.AssetMaterialization] = []
        problems = Problems()
        for topic in topics:
            with problems.kept():
                if problems.out_of_time:
                    break
                before = reporting.Reported(**cursor.get(topic.name, {}))
                found, after = reporting.report(settings(), _declared(topic), readers.get(topic.name), before)
                events += without_known(context.instance, found)
                cursor[topic.name] = after.to_json()
        problems.told(context, bool(events))
        said = f"reported {len(events)} slices" if events else "no news"
        return dg.SensorResult(asset_events=events, cursor=json.dumps(cursor), skip_reason=said)

    return kafka_topics


def _declared(topic: Topic) -> reporting.TopicAsset:
    return reporting.TopicAsset(
        dg.AssetKey(topic.path), topic.name, topic.format, topic.grain, topic.since, topic.transactional
    )


def _catch_up_sensor(flows: Sequence[Flow], marts: Mapping[str, Sequence[str]]) -> dg.SensorDefinition:
    @dg.sensor(
        name="catch_up",
        minimum_interval_seconds=15,
        default_status=dg.DefaultSensorStatus.RUNNING,
        asset_selection=[*(key for flow in flows for key in _all_keys(flow)), *map(_key, marts)],
        description="Asks for slices and marts that are older than what they are made from. Held slices wait.",
    )
    def catch_up(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        requests: list[dg.RunRequest] = []
        problems = Problems()
        for flow in flows:
            with problems.kept():
                if problems.out_of_time:
                    break
                if not _busy(context.instance, flow.table.name):
                    requests += islice(_requests(context.instance, settings(), flow), RUNS_A_TICK)
        # Marts read all slices: made while some are on their way, they would be made again for each.
        busy = any(_busy(context.instance, name) for name in (MARTS, *(flow.table.name for flow in flows)))
        if not requests and not busy:
            requests += _mart_requests(context.instance, settings().lake_env, marts)
        problems.told(context, bool(requests))
        said = None if requests else "nothing is behind, or it is being made"
        return dg.SensorResult(run_requests=requests, skip_reason=said)

    return catch_up


def _all_keys(flow: Flow) -> list[dg.AssetKey]:
    return [*flow.events, *(dg.AssetKey(["gold", window.name]) for window in flow.windows)]


def _requests(instance: dg.DagsterInstance, config: Settings, flow: Flow) -> Iterator[dg.RunRequest]:
    """One run for each slice that is behind: all of its tables, or only the windows that lag."""
    lake, name = config.lake_env, flow.table.name
    sliced = reporting.sliced(config, _declared(flow.topic))
    raw, silver = commits(lake, f"raw/{name}"), commits(lake, f"silver/{name}")
    behind, made = events_behind(sliced, raw, silver), newest_by_slice(silver)
    wanted: dict[str, list[dg.AssetKey]] = {key: _all_keys(flow) for key in behind}
    for window in flow.windows:
        for key in slices_behind(silver, commits(lake, f"gold/{window.name}")):
            wanted.setdefault(key, []).append(dg.AssetKey(["gold", window.name]))
    for key, selection in sorted(wanted.items()):
        if Slice.of(key, flow.topic.grain).start < flow.topic.since:
            continue
        # What this slice's run would read, and nothing that a try of it writes: else every try is a new wanted state.
        source = None if key in behind else made[key][0].version
        ranges = sliced.ranges(Slice.of(key, flow.topic.grain))
        want = _digest([name, key, sorted(ranges.items()), [one.path for one in selection], source])
        tries = instance.get_runs_count(dg.RunsFilter(tags={WANT: want}))
        if _may_try(instance, want):
            yield dg.RunRequest(
                run_key=f"{name}:{key}:{want}:{tries}",
                partition_key=key,
                asset_selection=list(dict.fromkeys(selection)),
                tags={CATCH_UP: _digest(name), WANT: want, MAX_RUNTIME: str(RUN_ENDS_AFTER_S)},
            )


def _mart_requests(
    instance: dg.DagsterInstance, lake: Lake, marts: Mapping[str, Sequence[str]]
) -> Iterator[dg.RunRequest]:
    """One run for all marts that are behind, once the slices that they read have been asked for."""
    wanted = marts_behind(lake, marts)
    inputs = sorted({one for mart in wanted for one in marts[mart] if one not in wanted})
    want = _digest([wanted, [(one, [commit.version for commit in commits(lake, one, 1)]) for one in inputs]])
    tries = instance.get_runs_count(dg.RunsFilter(tags={WANT: want}))
    if wanted and _may_try(instance, want):
        yield dg.RunRequest(
            run_key=f"{MARTS}:{want}:{tries}",
            asset_selection=[_key(mart) for mart in wanted],
            tags={CATCH_UP: _digest(MARTS), WANT: want, MAX_RUNTIME: str(RUN_ENDS_AFTER_S)},
        )


def _key(asset: str) -> dg.AssetKey:
    return dg.AssetKey(asset.split("/"))


def _may_try(instance: dg.DagsterInstance, want: str) -> bool:
    """Whether a wanted state may be asked for now: at once after a success, after a pause that grows with failures."""
    tried = instance.get_run_records(dg.RunsFilter(tags={WANT: want}), limit=10)
    failed = list(takewhile(lambda one: one.dagster_run.status == dg.DagsterRunStatus.FAILURE, tried))
    if not failed:
        return True
    pause_s = min(PAUSE_S * 2 ** (len(failed) - 1), LONGEST_PAUSE_S)
    ended = float(failed[0].end_time or failed[0].create_timestamp.timestamp())
    return bool(time.time() - ended >= pause_s)


def _busy(instance: dg.DagsterInstance, name: str) -> bool:
    """Whether an earlier request of this table still runs: its slices would be asked for twice."""
    return instance.get_runs_count(dg.RunsFilter(tags={CATCH_UP: _digest(name)}, statuses=ALIVE)) > 0


def _digest(what: object) -> str:
    """A tag's value: tags hold 63 characters of a narrow alphabet, names hold more."""
    return hashlib.sha256(repr(what).encode()).hexdigest()[:32]


class Problems:
    """Faults of single topics in a tick: one that fails does not keep the others waiting."""

    def __init__(self) -> None:
        self.found: list[LineageError] = []
        self.until = time.monotonic() + BUDGET_S

    @property
    def out_of_time(self) -> bool:
        return time.monotonic() > self.until

    @contextmanager
    def kept(self) -> Iterator[None]:
        try:
            yield
        except LineageError as error:
            self.found.append(error)

    def told(self, context: dg.SensorEvaluationContext, found_anything: bool) -> None:
        """Fail the tick with the first problem when there is nothing else to say; log them beside what was found."""
        for error in self.found:
            context.log.error(str(error))
        if self.found and not found_anything:
            raise self.found[0]
