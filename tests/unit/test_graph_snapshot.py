"""The whole asset graph as one snapshot: a change of the graph is seen in the change that makes it.

Belongs here: keys, dependencies, kinds, groups, owners, partitions, columns, column lineage, checks, sensors, as the code
location declares them. Does not belong here: what running it does. `pytest --snapshot-update` takes a new snapshot.
"""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest
from syrupy.assertion import SnapshotAssertion

from lineage_assets import settings as settings_module
from lineage_assets.definitions import build_defs


@pytest.fixture(scope="module")
def definitions(tmp_path_factory: pytest.TempPathFactory) -> dg.Definitions:
    """The code location by the default settings: nobody's own variables and home are in the snapshot."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LINEAGE_HOME", str(tmp_path_factory.mktemp("home")))
        for name in ("LINEAGE_SLICES_SINCE", "LINEAGE_KAFKA_ALIAS"):
            patch.delenv(name, raising=False)
        settings_module.settings.cache_clear()
        loaded = build_defs()
        settings_module.settings.cache_clear()
    return loaded


def asset(node: Any, spec: dg.AssetSpec) -> dict[str, Any]:
    """What an asset's page shows before anything ran."""
    schema: dg.TableSchema = spec.metadata["dagster/column_schema"]
    found = spec.metadata.get("dagster/column_lineage")
    deps = found.deps_by_column if isinstance(found, dg.TableColumnLineage) else {}
    return {
        "deps": sorted(key.to_user_string() for key in node.parent_keys),
        "kinds": sorted(spec.kinds),
        "group": spec.group_name,
        "owners": list(spec.owners),
        "description": (spec.description or "").split("\n")[0],
        "partitions": partitions(spec.partitions_def),
        "columns": {
            one.name: " ".join([one.type, *(f"[{tag}]" for tag in one.tags)]) + f": {one.description}"
            for one in schema.columns
        },
        "column lineage": {
            name: ", ".join(f"{dep.asset_key.to_user_string()}.{dep.column_name}" for dep in sources) or "no column"
            for name, sources in deps.items()
        },
    }


def partitions(definition: dg.PartitionsDefinition[str] | None) -> str:
    """A partitions definition in a few words."""
    if not isinstance(definition, dg.TimeWindowPartitionsDefinition):
        return str(definition)
    start = f"{definition.start:%Y-%m-%d %H:%M %Z}"
    return f"{definition.fmt} by '{definition.cron_schedule}' from {start}, end_offset={definition.end_offset}"


def test_the_asset_graph_is_the_one_of_the_snapshot(definitions: dg.Definitions, snapshot: SnapshotAssertion) -> None:
    graph = definitions.resolve_asset_graph()
    specs = {spec.key: spec for spec in definitions.resolve_all_asset_specs()}

    assert {
        key.to_user_string(): asset(graph.get(key), specs[key]) for key in sorted(graph.get_all_asset_keys())
    } == snapshot


def test_the_checks_are_those_of_the_snapshot(definitions: dg.Definitions, snapshot: SnapshotAssertion) -> None:
    graph = definitions.resolve_asset_graph()
    found: dict[str, dict[str, str]] = {}
    for key in sorted(graph.asset_check_keys):
        node = graph.get(key)
        words = ["blocking" if node.blocking else "warning", "of a slice" if node.partitions_def else "of the table"]
        found.setdefault(key.asset_key.to_user_string(), {})[key.name] = (
            f"{', '.join(words)}: {' '.join((node.description or '').split())}"
        )

    assert found == snapshot


def test_the_sensors_run_by_default_and_are_those_of_the_snapshot(
    definitions: dg.Definitions, snapshot: SnapshotAssertion
) -> None:
    sensors = [*(definitions.sensors or [])]

    assert all(one.default_status == dg.DefaultSensorStatus.RUNNING for one in sensors)
    assert {one.name: f"every {one.minimum_interval_seconds} s: {one.description}" for one in sensors} == snapshot


def test_every_asset_has_what_its_page_needs(definitions: dg.Definitions) -> None:
    roots = {"kafka/local/clicks"}
    for spec in definitions.resolve_all_asset_specs():
        name = spec.key.to_user_string()
        schema = spec.metadata["dagster/column_schema"]
        assert spec.kinds and spec.owners and spec.description and spec.group_name not in (None, "default"), name
        assert all(column.type for column in schema.columns), name
        if name not in roots:
            lineage = spec.metadata["dagster/column_lineage"]
            assert set(lineage.deps_by_column) <= {column.name for column in schema.columns}, name


def test_column_lineage_names_columns_that_its_sources_have(definitions: dg.Definitions) -> None:
    specs = list(definitions.resolve_all_asset_specs())
    columns = {spec.key: {one.name for one in spec.metadata["dagster/column_schema"].columns} for spec in specs}
    unknown = [
        f"{spec.key.to_user_string()}.{column} <- {dep.asset_key.to_user_string()}.{dep.column_name}"
        for spec in specs
        if "dagster/column_lineage" in spec.metadata
        for column, deps in spec.metadata["dagster/column_lineage"].deps_by_column.items()
        for dep in deps
        if dep.column_name not in columns[dep.asset_key]
    ]

    assert unknown == []
