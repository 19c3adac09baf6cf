"""The sensors that keep the graph moving: topics are reported, tables that are behind are asked for.

Belongs here: thin shells over reporting/: ask, compare, answer Dagster. Does not belong here: deciding what is news
(reporting/topics.py) or behind (reporting/behind.py).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any

import dagster as dg

from lineage_assets.components.collector import collector_sensor, foreign_checks
from lineage_assets.components.event_table import EventTable
from lineage_assets.components.maintenance import build_maintenance
from lineage_assets.components.marts import DbtMarts
from lineage_assets.components.topic import Topic
from lineage_assets.components.window_table import WindowTable
from lineage_assets.errors import LineageError
from lineage_assets.kafka.cuts import SlicedTopic
from lineage_assets.lineage import lease
from lineage_assets.lineage.commits import Lake, commits
from lineage_assets.lineage.content import Slices
from lineage_assets.lineage.logs import Logs
from lineage_assets.lineage.slices import Slice
from lineage_assets.marts.state import behind as marts_behind
from lineage_assets.reporting import topics as reporting
from lineage_assets.reporting.behind import events_behind, slices_behind
from lineage_assets.reporting.collector import Managed
from lineage_assets.reporting.instance import ALIVE, without_known
from lineage_assets.settings import Settings, settings

CATCH_UP = "lineage/catch_up"
WANT = "lineage/want"
MARTS = "marts"
PAUSE_S, LONGEST_PAUSE_S = 30, 3600
"""After a failure the same state is asked for again in 30 s, then after twice as long each time, up to an hour."""
MAX_RUNTIME, RUN_ENDS_AFTER_S = "dagster/max_runtime", 2 * 3600
"""A run whose process was killed stays STARTED; run monitoring ends it then, and its table goes on."""
RUNS_AT_ONCE = 8
FOLLOWED_AT_ONCE = 4
"""Runs of one flow that wait or run: for slices that are behind, and beside those for what a stream has appended to."""
FOLLOW_EVERY_S, LONGEST_FOLLOW_PAUSE_S, FOLLOW_ENDS_AFTER_S = 15.0, 300, 600
"""A slice that grows all the time, and the marts over it, are made again at most so often."""
STARTED_AGAIN_WITHIN = timedelta(seconds=90)
"""A stream that is wanted and was heard of so lately is left its slices: a bounded run would only be in its way."""
PARTITION, PRIORITY = "dagster/partition", "dagster/priority"
BUDGET_S = 45.0
"""Dagster ends a tick after 60 s: stop in time, the next tick goes on."""


@dataclass(frozen=True, slots=True)
class Flow:
    """One topic's way through its tables, as the sensors see it."""

    topic: Topic
    table: EventTable
    windows: tuple[WindowTable, ...]

    @property
    def events(self) -> list[dg.AssetKey]:
        return [dg.AssetKey([layer, self.table.name]) for layer in ("raw", "silver", "dead_letters", "late")]


def build_sensors(tree: dg.ComponentTree) -> dg.Definitions:
    """Three sensors, the maintenance, and the check of all commits, whatever the number of topics."""
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
    if not topics:
        return dg.Definitions()
    managed = [*(one for flow in flows for one in _managed(flow)), *(Managed(mart) for mart in marts)]
    sensors = [_topics_sensor(topics, flows), _catch_up_sensor(flows, marts), collector_sensor(managed)]
    own = dg.Definitions(sensors=sensors, asset_checks=[foreign_checks(managed)])
    return dg.Definitions.merge(own, build_maintenance(managed))


def _managed(flow: Flow) -> list[Managed]:
    assets = [f"raw/{flow.table.name}", f"silver/{flow.table.name}", *(f"gold/{one.name}" for one in flow.windows)]
    return [Managed(asset, flow.topic.grain) for asset in assets]


def _topics_sensor(topics: Sequence[Topic], flows: Sequence[Flow]) -> dg.SensorDefinition:
    readers, logs = {flow.topic.name: flow.table.name for flow in flows}, Logs()

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
                found, after = reporting.report(settings(), _declared(topic), readers.get(topic.name), before, logs)
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
    logs = Logs()

    @dg.sensor(
        name="catch_up",
        minimum_interval_seconds=10,
        default_status=dg.DefaultSensorStatus.RUNNING,
        asset_selection=[*(key for flow in flows for key in _all_keys(flow)), *map(_key, marts)],
        description="Asks for slices and marts that are older than what they are made from. Held slices wait, and what a "
        "running stream writes is left to it.",
    )
    def catch_up(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        requests: list[dg.RunRequest] = []
        problems = Problems()
        config = settings()
        streamed = {one.topic.name for one in flows if _left_to_stream(config.lake_env, one.topic.name)}
        for flow in flows:
            with problems.kept():
                if problems.out_of_time:
                    break
                requests += _requests(context.instance, config, flow, logs, flow.topic.name in streamed)
        with problems.kept():
            if _marts_turn(context.instance, flows, bool(streamed), bool(requests)):
                requests += _mart_requests(context.instance, config.lake_env, marts, logs, bool(streamed))
        problems.told(context, bool(requests))
        said = None if requests else "nothing is behind, or it is being made"
        return dg.SensorResult(run_requests=requests, skip_reason=said)

    return catch_up


def _all_keys(flow: Flow) -> list[dg.AssetKey]:
    return [*flow.events, *(dg.AssetKey(["gold", window.name]) for window in flow.windows)]


def _requests(
    instance: dg.DagsterInstance, config: Settings, flow: Flow, logs: Logs, streamed: bool
) -> Iterator[dg.RunRequest]:
    """One run for each slice that is behind: all of its tables, or only the windows that lag; one at a time for a slice."""
    lake, name = config.lake_env, flow.table.name
    sliced = reporting.sliced(config, _declared(flow.topic))
    raw, silver = logs.slices(lake, f"raw/{name}"), logs.slices(lake, f"silver/{name}")
    behind = events_behind(sliced, raw, silver, streamed)
    wanted = {key: _all_keys(flow) for key in behind}
    lagging: dict[str, list[dg.AssetKey]] = {}
    for window in flow.windows:
        for key in slices_behind(silver, logs.slices(lake, f"gold/{window.name}")):
            if key not in wanted:
                lagging.setdefault(key, []).append(dg.AssetKey(["gold", window.name]))
    alive = _alive(instance, name)

    def free(asked: Mapping[str, list[dg.AssetKey]], newest_first: bool = False) -> dict[str, list[dg.AssetKey]]:
        keys = [one for one in asked if one not in alive]
        known = [one for one in keys if Slice.of(one, flow.topic.grain).start >= flow.topic.since]
        return {key: asked[key] for key in sorted(known, reverse=newest_first)}

    if streamed:
        # Newest first: that is where the stream is.
        following = _following(instance, name, free(lagging, newest_first=True))
        yield from islice(following, max(FOLLOWED_AT_ONCE - sum(one in lagging for one in alive), 0))
    else:
        wanted |= lagging
    catching_up = _catching_up(instance, flow, sliced, free(wanted), silver, set(lagging))
    yield from islice(catching_up, max(RUNS_AT_ONCE - len(alive), 0))


def _catching_up(
    instance: dg.DagsterInstance,
    flow: Flow,
    sliced: SlicedTopic,
    wanted: Mapping[str, Sequence[dg.AssetKey]],
    silver: Slices,
    lagging: Set[str],
) -> Iterator[dg.RunRequest]:
    """Runs for slices that are to be decided (again), and for windows that lag behind slices which are as they should be."""
    name = flow.table.name
    for key, selection in wanted.items():
        # What this slice's run would read, and nothing that a try of it writes: else every try is a new wanted state.
        source = silver[key][0].version if key in lagging else None
        ranges = sliced.ranges(Slice.of(key, flow.topic.grain))
        want = _digest([name, key, sorted(ranges.items()), [one.path for one in selection], source])
        if (run_key := _next_try(instance, want)) is not None:
            tags = {CATCH_UP: _digest(name), WANT: want, MAX_RUNTIME: str(RUN_ENDS_AFTER_S)}
            yield dg.RunRequest(run_key=run_key, partition_key=key, asset_selection=list(selection), tags=tags)


def _following(
    instance: dg.DagsterInstance, name: str, wanted: Mapping[str, Sequence[dg.AssetKey]]
) -> Iterator[dg.RunRequest]:
    """Runs for windows of slices that a stream appends to. The wanted state is always a new one, so it is left out of `want`."""
    for key, selection in wanted.items():
        want = _digest([name, key, [one.path for one in selection], "following"])
        if (run_key := _next_try(instance, want, FOLLOW_EVERY_S, LONGEST_FOLLOW_PAUSE_S)) is not None:
            tags = {CATCH_UP: _digest(name), WANT: want, MAX_RUNTIME: str(FOLLOW_ENDS_AFTER_S), PRIORITY: "1"}
            yield dg.RunRequest(run_key=run_key, partition_key=key, asset_selection=list(selection), tags=tags)


def _left_to_stream(lake: Lake, topic: str) -> bool:
    """Whether a stream of the topic runs, or did a moment ago and is wanted: then it is being started again."""
    held = lease.read(lake, topic)
    if held is None or held.live():
        return held is not None
    return bool(lease.wanted(lake, topic)) and datetime.now(UTC) - held.beat_at < STARTED_AGAIN_WITHIN


def _marts_turn(instance: dg.DagsterInstance, flows: Sequence[Flow], streamed: bool, asked: bool) -> bool:
    """Whether marts may be made now. They read all slices: made while some are on their way, they would be made again.

    While a stream runs, slices are always on their way, and marts follow at their own pace.
    """
    if _alive(instance, MARTS):
        return False
    return streamed or not (asked or any(_alive(instance, flow.table.name) for flow in flows))


def _mart_requests(
    instance: dg.DagsterInstance, lake: Lake, marts: Mapping[str, Sequence[str]], logs: Logs, streamed: bool
) -> Iterator[dg.RunRequest]:
    """One run for all marts that are behind."""
    wanted = marts_behind(lake, marts, logs)
    if not wanted:
        return
    tags = {CATCH_UP: _digest(MARTS), MAX_RUNTIME: str(RUN_ENDS_AFTER_S)}
    if streamed:
        want = _digest([MARTS, "following"])
        run_key = _next_try(instance, want, FOLLOW_EVERY_S, LONGEST_FOLLOW_PAUSE_S)
        tags[PRIORITY] = "1"
    else:
        inputs = sorted({one for mart in wanted for one in marts[mart] if one not in wanted})
        want = _digest([wanted, [(one, [commit.version for commit in commits(lake, one, 1)]) for one in inputs]])
        run_key = _next_try(instance, want)
    if run_key is not None:
        yield dg.RunRequest(run_key=run_key, asset_selection=[_key(mart) for mart in wanted], tags={**tags, WANT: want})


def _key(asset: str) -> dg.AssetKey:
    return dg.AssetKey(asset.split("/"))


def _next_try(
    instance: dg.DagsterInstance, want: str, every_s: float = 0.0, longest_pause_s: float = LONGEST_PAUSE_S
) -> str | None:
    """The run key under which a wanted state is asked for now; None: not yet.

    At once after a success, or `every_s` after the try before began; after a pause that grows with failures. The key
    names the run before, so that a tick that is evaluated twice asks once.
    """
    tried = instance.get_run_records(dg.RunsFilter(tags={WANT: want}), limit=20)
    if not tried:
        return f"{want}:first"
    failed = list(takewhile(lambda one: one.dagster_run.status == dg.DagsterRunStatus.FAILURE, tried))
    now = time.time()
    if failed:
        pause_s = min(PAUSE_S * 2 ** (len(failed) - 1), longest_pause_s)
        if now - float(failed[0].end_time or failed[0].create_timestamp.timestamp()) < pause_s:
            return None
    if now - tried[0].create_timestamp.timestamp() < every_s:
        return None
    return f"{want}:{tried[0].dagster_run.run_id}"


def _alive(instance: dg.DagsterInstance, name: str) -> list[str]:
    """The slices (empty text: none) of a table's earlier requests that still run: they would be asked for twice."""
    runs = instance.get_runs(dg.RunsFilter(tags={CATCH_UP: _digest(name)}, statuses=ALIVE))
    return [run.tags.get(PARTITION, "") for run in runs]


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
