"""Runs in this process, recorded in this home's Dagster instance as the UI shows them.

Belongs here: what the command line needs to materialize without a daemon. Does not belong here: what an asset does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.execution.plan.objects import StepFailureData

from lineage_assets.components.declared import nearest
from lineage_assets.definitions import build_defs
from lineage_assets.errors import ContractError, LineageError
from lineage_assets.settings import Settings
from lineage_assets.stack import dagster as dagster_processes


@contextmanager
def instance(settings: Settings) -> Iterator[dg.DagsterInstance]:
    """The Dagster instance of this home; made at the first use."""
    dagster_processes.ensure_instance(settings)
    os.environ.update(dagster_processes.environment(settings))
    # dbt logs to stdout, which is for a command's own words; its log file has everything.
    os.environ.setdefault("DBT_LOG_LEVEL", "none")
    with dg.DagsterInstance.get() as found:
        yield found


def report_topics(definitions: dg.Definitions, into: dg.DagsterInstance) -> int:
    """One tick of the topics' sensor, for when no daemon runs. Returns how many slices it reported."""
    sensor = definitions.resolve_sensor_def("kafka_topics")
    result = sensor(dg.build_sensor_context(instance=into, definitions=definitions))
    assert isinstance(result, dg.SensorResult)
    for event in result.asset_events:
        into.report_runless_asset_event(event)
    return len(result.asset_events)


def run(definitions: dg.Definitions, into: dg.DagsterInstance, assets: Sequence[str], partition: str | None) -> str:
    """Materialize assets, for one slice if they have any, with their checks. Returns why it failed, or nothing."""
    keys = {dg.AssetKey(asset.split("/")) for asset in assets}
    job = definitions.resolve_implicit_global_asset_job_def().get_subset(asset_selection=keys)
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    result = job.execute_in_process(run_config=quiet, instance=into, partition_key=partition, raise_on_error=False)
    if result.success:
        return ""
    failures = [event.event_specific_data for event in result.all_events if event.is_step_failure]
    said = [_cause(data) for data in failures if isinstance(data, StepFailureData)]
    return "\n".join(said) or "no step says why"


@dataclass(frozen=True, slots=True)
class Made:
    """One run: which assets, for which slice, and why it failed, if it did."""

    assets: tuple[str, ...]
    slice: str | None
    failure: str

    @property
    def name(self) -> str:
        """What was made, in words."""
        return ", ".join(self.assets) + (f" {self.slice}" if self.slice else "")


def materialize(settings: Settings, assets: Sequence[str], slices: Sequence[str] | None) -> Iterator[Made]:
    """Materialize assets in the order of the graph: the sliced ones for each slice, then the others.

    Assets that are made by one step come along. Without `slices`, every slice in which their topics have records.
    Raises ContractError for an unknown asset, before anything runs.
    """
    definitions = build_defs()
    graph = definitions.resolve_asset_graph()
    known = {key.to_user_string(): key for key in graph.materializable_asset_keys}
    wanted: set[dg.AssetKey] = set()
    for asset in assets:
        if asset not in known:
            raise ContractError(f"no asset {asset!r} can be materialized", remedy=nearest(asset, list(known)))
        wanted |= graph.get(known[asset]).execution_set_asset_keys
    sliced = tuple(sorted(key.to_user_string() for key in wanted if graph.get(key).is_partitioned))
    whole = tuple(sorted(key.to_user_string() for key in wanted if not graph.get(key).is_partitioned))
    by_topics: dict[frozenset[dg.AssetKey], list[str]] = {}
    for asset in sliced:
        by_topics.setdefault(frozenset(_topics_above(graph, known[asset])), []).append(asset)
    with instance(settings) as into:
        problem = _reported(definitions, into)
        for topics, group in by_topics.items():
            keys = slices or sorted({one for topic in topics for one in into.get_materialized_partitions(topic)})
            if not keys:
                named = ", ".join(topic.to_user_string() for topic in topics)
                raise problem or ContractError(
                    f"no slice of {named} has records", remedy="send some, or name a --slice"
                )
            for key in keys:
                yield Made(tuple(group), key, run(definitions, into, group, key))
        if whole:
            yield Made(whole, None, run(definitions, into, whole, None))


def _reported(definitions: dg.Definitions, into: dg.DagsterInstance) -> LineageError | None:
    """Report the topics; a fault of one of them is returned: it matters only to those that have no slice without it."""
    try:
        report_topics(definitions, into)
    except LineageError as error:
        return error
    return None


def _topics_above(graph: AssetGraph, key: dg.AssetKey) -> set[dg.AssetKey]:
    parents = graph.get(key).parent_keys
    found = {parent for parent in parents if parent.path[0] == "kafka"}
    return found.union(*(_topics_above(graph, parent) for parent in parents))


def _cause(failure: StepFailureData) -> str:
    """The message of the error that a step failed by, without Dagster's wrapping of it."""
    error = failure.error
    while error is not None and error.cause is not None:
        error = error.cause
    return failure.error_display_string if error is None else error.message.strip()
