"""The Dagster UI as a test sees it: the webserver's GraphQL, asked with the questions that the UI asks.

Belongs here: queries, mutations, waiting for what they show. Does not belong here: what is asserted.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

LOCATION = "lineage_assets"
REPOSITORY = {"repositoryLocationName": LOCATION, "repositoryName": "__repository__"}
FINISHED = ("SUCCESS", "FAILURE", "CANCELED")
POLL_S = 0.5

_METADATA = """
fragment Shown on MetadataEntry {
__typename label
... on IntMetadataEntry { intRepr }
... on FloatMetadataEntry { floatRepr }
... on TextMetadataEntry { text }
... on BoolMetadataEntry { boolValue }
... on JsonMetadataEntry { jsonString }
... on TableSchemaMetadataEntry { schema { columns { name type description tags { key value } } } }
... on TableColumnLineageMetadataEntry { lineage { columnName columnDeps { assetKey { path } columnName } } }
}
"""


def until(answer: Callable[[], T], timeout_s: float, what: str) -> T:
    """The first answer that is true. AssertionError says what was waited for, and the last answer."""
    deadline = time.monotonic() + timeout_s
    while not (found := answer()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:.0f} s; last: {found!r}"
        time.sleep(POLL_S)
    return found


@dataclass(frozen=True, slots=True)
class Run:
    """A finished or running run, with the times that Dagster keeps of it (seconds since 1970)."""

    id: str
    status: str
    queued_at: float | None
    started_at: float | None
    ended_at: float | None
    tags: Mapping[str, str]

    @property
    def partition(self) -> str | None:
        return self.tags.get("dagster/partition")


@dataclass(frozen=True, slots=True)
class Ui:
    """A webserver at an address such as `http://127.0.0.1:3000`."""

    address: str

    def ask(self, query: str, **variables: Any) -> Any:
        """The data of an answer. AssertionError with the server's reason for a query that it refuses."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.address}/graphql", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()[:2000]) from error
        assert not found.get("errors"), json.dumps(found["errors"])[:2000]
        return found["data"]

    def assets(self) -> dict[str, dict[str, Any]]:
        """Every asset of the graph by its key, as its page shows it before anything ran."""
        nodes = self.ask(
            """query Graph { assetNodes {
                 assetKey { path } kinds groupName description isPartitioned opVersion
                 owners { ... on TeamAssetOwner { team } ... on UserAssetOwner { email } }
                 dependencyKeys { path }
                 metadataEntries { ...Shown }
                 assetChecksOrError { ... on AssetChecks { checks { name blocking description } } }
               } }"""
            + _METADATA
        )["assetNodes"]
        return {_key(node["assetKey"]): node for node in nodes}

    def declared_metadata(self, node: Mapping[str, Any]) -> dict[str, Any]:
        """The metadata of an asset of `assets`, by its label."""
        return metadata(node["metadataEntries"])

    def uncovered(self, asset: str, partitions: Sequence[str], status: str) -> set[str]:
        """Those of some partitions that the partition bar does not show in a status such as `MATERIALIZED`.

        Keys of slices sort as their times, so a range of the bar covers what lies between its ends.
        """
        node = self.ask(
            """query Bar($k: AssetKeyInput!) { assetNodeOrError(assetKey: $k) { ... on AssetNode {
                 assetPartitionStatuses { ... on TimePartitionStatuses { ranges { status startKey endKey } } } } } }""",
            k=_input(asset),
        )["assetNodeOrError"]
        ranges = [one for one in node["assetPartitionStatuses"]["ranges"] if one["status"] == status]
        return {key for key in partitions if not any(one["startKey"] <= key <= one["endKey"] for one in ranges)}

    def materializations(self, asset: str, partition: str | None, limit: int = 1) -> list[dict[str, Any]]:
        """The newest materializations, newest first, each with its metadata by name."""
        found = self.ask(
            """query Events($k: AssetKeyInput!, $p: [String!], $n: Int) { assetOrError(assetKey: $k) { ... on Asset {
                 assetMaterializations(partitions: $p, limit: $n) { runId partition timestamp metadataEntries { ...Shown } }
               } } }"""
            + _METADATA,
            k=_input(asset),
            p=None if partition is None else [partition],
            n=limit,
        )["assetOrError"]
        events = found.get("assetMaterializations", [])
        return [{**one, "metadata": metadata(one["metadataEntries"])} for one in events]

    def check(self, asset: str, name: str, partition: str | None) -> dict[str, Any] | None:
        """The newest result of a check, its metadata by name; None when there is none."""
        found = self.ask(
            """query Check($k: AssetKeyInput!, $n: String!, $p: String) {
                 assetCheckExecutions(assetKey: $k, checkName: $n, limit: 1, partition: $p) { runId status partition
                   evaluation { success severity targetMaterialization { runId } metadataEntries { ...Shown } } } }"""
            + _METADATA,
            k=_input(asset),
            n=name,
            p=partition,
        )["assetCheckExecutions"]
        if not found:
            return None
        return {**found[0], "metadata": metadata((found[0]["evaluation"] or {}).get("metadataEntries", []))}

    def launch(self, assets: Sequence[str], partition: str | None) -> str:
        """Press "Materialize selected" for one partition; the id of the run."""
        selector = {**REPOSITORY, "pipelineName": "__ASSET_JOB", "assetSelection": [_input(one) for one in assets]}
        tags = [] if partition is None else self._partition_tags(selector, partition)
        found = self.ask(
            """mutation Launch($p: ExecutionParams!) { launchPipelineExecution(executionParams: $p) { __typename
                 ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
                 ... on InvalidSubsetError { message } } }""",
            p={
                "mode": "default",
                "runConfigData": {},
                "selector": selector,
                "executionMetadata": {"tags": tags},
            },
        )["launchPipelineExecution"]
        assert found["__typename"] == "LaunchRunSuccess", found
        return str(found["run"]["runId"])

    def _partition_tags(self, selector: Mapping[str, Any], partition: str) -> list[dict[str, str]]:
        """What the dialog asks for before it launches: the tags of a partition."""
        found = self.ask(
            """query Tags($s: PipelineSelector!, $p: String!, $k: [AssetKeyInput!]) { pipelineOrError(params: $s) {
                 __typename ... on Pipeline { partition(partitionName: $p, selectedAssetKeys: $k) {
                   tagsOrError { ... on PartitionTags { results { key value } } } } } } }""",
            s=selector,
            p=partition,
            k=selector["assetSelection"],
        )["pipelineOrError"]
        return [
            {"key": one["key"], "value": one["value"]}
            for one in found["partition"]["tagsOrError"]["results"]
            if one["key"] == "dagster/partition"
        ]

    def backfill(self, assets: Sequence[str], partitions: Sequence[str]) -> str:
        """Press "Launch backfill" over several partitions; the id of the backfill."""
        found = self.ask(
            """mutation Backfill($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) { __typename
                 ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }""",
            p={"assetSelection": [_input(one) for one in assets], "partitionNames": list(partitions), "tags": []},
        )["launchPartitionBackfill"]
        assert found["__typename"] == "LaunchBackfillSuccess", found
        return str(found["backfillId"])

    def backfill_done(self, backfill: str) -> bool:
        """Whether a backfill has no run left to start or to wait for."""
        found = self.ask(
            "query Done($b: String!) { partitionBackfillOrError(backfillId: $b) { ... on PartitionBackfill { status } } }",
            b=backfill,
        )["partitionBackfillOrError"]
        return found["status"] not in ("REQUESTED", "CANCELING")

    def run(self, run_id: str) -> Run:
        """A run as it stands now."""
        return self.runs(ids=[run_id])[0]

    def runs(self, ids: Sequence[str] | None = None, tags: Mapping[str, str] | None = None) -> list[Run]:
        """Runs of a filter, newest first."""
        wanted: dict[str, Any] = {}
        if ids is not None:
            wanted["runIds"] = list(ids)
        if tags is not None:
            wanted["tags"] = [{"key": key, "value": value} for key, value in tags.items()]
        found = self.ask(
            """query Runs($f: RunsFilter) { runsOrError(filter: $f, limit: 200) { ... on Runs { results {
                 runId status creationTime startTime endTime tags { key value } } } } }""",
            f=wanted,
        )["runsOrError"]["results"]
        return [
            Run(
                one["runId"],
                one["status"],
                one["creationTime"],
                one["startTime"],
                one["endTime"],
                {tag["key"]: tag["value"] for tag in one["tags"]},
            )
            for one in found
        ]

    def finished(self, run_id: str, timeout_s: float = 240.0) -> Run:
        """Wait for the end of a run."""
        until(lambda: self.run(run_id).status in FINISHED, timeout_s, f"the end of run {run_id}")
        return self.run(run_id)

    def messages(self, run_id: str) -> list[dict[str, Any]]:
        """The log of a run, as its page shows it: event type, step and message, with the time in seconds."""
        found = self.ask(
            """query Log($r: ID!) { logsForRun(runId: $r) { ... on EventConnection { events { __typename
                 ... on MessageEvent { message timestamp stepKey eventType }
                 ... on ExecutionStepFailureEvent { error { message errorChain { error { message } } } } } } } }""",
            r=run_id,
        )["logsForRun"]["events"]
        return [{**one, "timestamp": float(one["timestamp"]) / 1000} for one in found]

    def sensor(self, name: str) -> dict[str, Any]:
        """State of a sensor and its newest ticks."""
        found: dict[str, Any] = self.ask(
            """query Sensor($s: SensorSelector!) { sensorOrError(sensorSelector: $s) { __typename ... on Sensor {
                 id sensorState { status ticks(limit: 20) { timestamp status skipReason runIds error { message } } } } } }""",
            s={**REPOSITORY, "sensorName": name},
        )["sensorOrError"]
        assert found["__typename"] == "Sensor", found
        return {**found["sensorState"], "id": found["id"]}

    def stop_sensor(self, name: str) -> None:
        """Turn a sensor's switch off."""
        found = self.ask(
            """mutation Stop($i: String!) { stopSensor(id: $i) { __typename
                 ... on StopSensorMutationResult { instigationState { status } } ... on PythonError { message } } }""",
            i=self.sensor(name)["id"],
        )["stopSensor"]
        assert found["instigationState"]["status"] == "STOPPED", found


def metadata(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Metadata entries as values by their label; JSON is read strictly, as a browser reads it."""
    return {one["label"]: _value(one) for one in entries}


def _value(entry: Mapping[str, Any]) -> Any:
    match entry["__typename"]:
        case "IntMetadataEntry":
            return int(entry["intRepr"])
        case "FloatMetadataEntry":
            return float(entry["floatRepr"])
        case "BoolMetadataEntry":
            return entry["boolValue"]
        case "JsonMetadataEntry":
            return json.loads(entry["jsonString"], parse_constant=_refuse)
        case "TableSchemaMetadataEntry":
            return {column["name"]: column for column in entry["schema"]["columns"]}
        case "TableColumnLineageMetadataEntry":
            return {
                one["columnName"]: [(_key(dep["assetKey"]), dep["columnName"]) for dep in one["columnDeps"]]
                for one in entry["lineage"]
            }
    return entry.get("text")


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} in metadata is no JSON")


def _key(asset: Mapping[str, Any]) -> str:
    return "/".join(asset["path"])


def _input(asset: str) -> dict[str, list[str]]:
    return {"path": asset.split("/")}
