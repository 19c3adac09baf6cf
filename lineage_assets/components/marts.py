"""`lineage_assets.components.DbtMarts`: a dbt project's models as assets `marts/<model>`, its tests as their checks.

Belongs here: the declaration, its assets, and the step that builds them. Does not belong here: running dbt
(marts/invoke.py), publishing (marts/audit.py), column lineage (marts/manifest.py).

dagster-dbt makes the specs, the checks, the selection and the events; dbt itself runs in the step's own process.
"""

# No postponed annotations here: Dagster reads the type of `context` and does not resolve text.

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from lineage_assets.components.declared import told_with_line
from lineage_assets.lineage import record as records
from lineage_assets.lineage.commits import Commit
from lineage_assets.lineage.names import node_name
from lineage_assets.lineage.record import CommitRecord
from lineage_assets.marts import manifest as manifests
from lineage_assets.marts.manifest import Compiled
from lineage_assets.marts.pins import Pin, pin_all
from lineage_assets.reporting import metadata
from lineage_assets.settings import settings

if TYPE_CHECKING:
    from dagster_dbt import DagsterDbtTranslator

    from lineage_assets.marts.invoke import Built


EVERYTHING = "fqn:*"
"""dbt's selection of every node, which needs no dbt to evaluate."""


class DbtMarts(dg.Component, dg.Model, dg.Resolvable):
    """The marts of a dbt project. Its sources are tables of the lake, its models become tables `marts/<model>`."""

    project: str = Field("dbt_project", description="Folder of the dbt project, from the root of this one.")
    select: str = Field(EVERYTHING, description="Which models, in dbt's selection syntax.")

    def compiled(self, context: dg.ComponentLoadContext) -> Compiled:
        """The project as dbt compiled it; compiled now if its files have changed."""
        with told_with_line(context, "project", self.project):
            return manifests.load(Path(context.project_root) / self.project)

    def inputs(self, context: dg.ComponentLoadContext) -> dict[str, list[str]]:
        """Per mart of the project the assets that it is made of, as `marts.state.behind` takes them."""
        project = self.compiled(context).project
        return {project.asset(uid): project.inputs(uid) for uid in project.in_order()}

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        compiled = self.compiled(context)
        import_dagster_dbt(without_dbt=self.select == EVERYTHING)
        from dagster_dbt import dbt_assets

        translator = _translator(compiled)

        @dbt_assets(  # type: ignore[untyped-decorator]
            manifest=compiled.manifest,
            select=self.select,
            name=node_name(["marts", Path(self.project).name]),
            dagster_dbt_translator=translator,
        )
        def marts(context: dg.AssetExecutionContext) -> Iterator[Any]:
            yield from build_marts(context, compiled, translator)

        return dg.Definitions(assets=[marts])


def build_marts(
    context: dg.AssetExecutionContext, compiled: Compiled, translator: "DagsterDbtTranslator"
) -> Iterator[dg.Output[Any] | dg.AssetCheckResult | dg.AssetObservation]:
    """Pin every input, build, and report what was published: marts first, then checks.

    Raises dg.Failure at the end when a model, a test of severity error or a publication failed; what was published stays
    reported. A mart that a test refused has no materialization: its table is what it was.
    """
    from lineage_assets.marts.invoke import build

    pins = _pins(context, compiled)
    held = {asset: list(pin.held) for asset, pin in pins.items() if pin.held}
    if held:
        context.log.warning(f"held slices are left out: {held}")
    arguments, variables = _selection(context, translator)
    built = build(settings(), compiled, pins, context.run_id, arguments, variables)
    yield from _events(context, compiled, translator, built)
    if not built.success:
        raise dg.Failure(_explained(built), metadata={"dbt log": dg.MetadataValue.path(str(built.log))})


def _events(
    context: dg.AssetExecutionContext, compiled: Compiled, translator: "DagsterDbtTranslator", built: "Built"
) -> Iterator[dg.Output[Any] | dg.AssetCheckResult | dg.AssetObservation]:
    from dagster_dbt.core.dbt_cli_event import DbtCoreCliEventMessage

    assets = {key.to_python_identifier(): key.to_user_string() for key in context.selected_asset_keys}
    later = []
    for raw in built.events:
        message = DbtCoreCliEventMessage(raw_event=raw, event_history_metadata={})
        for event in message.to_default_asset_events(compiled.manifest, translator, context):
            if not isinstance(event, dg.Output):
                later.append(event)
            elif "version" in (stated := built.report.get(assets[event.output_name], {})):
                yield event.with_metadata({**event.metadata, **_of_mart(stated)})
    yield from later


def _of_mart(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata of a published mart, in the graph's keys."""
    record: CommitRecord = records.from_json(stated["commit"])
    held = {one.table: list(one.held) for one in record.tables if one.held}
    return {
        **metadata.of_commit(Commit(stated["version"], 0, "WRITE", record)),
        "dagster/row_count": dg.MetadataValue.int(record.counts["rows"]),
        "lineage/inputs": dg.MetadataValue.json({one.table: str(one.read_at) for one in record.tables}),
        "lineage/held": dg.MetadataValue.json(held),
    }


def _pins(context: dg.AssetExecutionContext, compiled: Compiled) -> dict[str, Pin]:
    """The newest version of every source, and of every mart that this run reads without building it."""
    project = compiled.project
    made_here = {key.to_user_string() for key in context.selected_asset_keys}
    read = {asset for uid in project.marts for asset in [project.asset(uid), *project.inputs(uid)]}
    return pin_all(settings().lake_env, read - made_here)


def _selection(
    context: dg.AssetExecutionContext, translator: "DagsterDbtTranslator"
) -> tuple[list[str], dict[str, str]]:
    """dbt's arguments and variables for what Dagster selected. Not a public function of dagster-dbt: only used here."""
    from dagster_dbt.asset_utils import DBT_INDIRECT_SELECTION_ENV, get_updated_cli_invocation_params_for_context

    found = get_updated_cli_invocation_params_for_context(
        context=context, manifest={}, dagster_dbt_translator=translator
    )
    variables = {DBT_INDIRECT_SELECTION_ENV: found.indirect_selection} if found.indirect_selection else {}
    return list(found.selection_args), variables


def _explained(built: "Built") -> str:
    lines = [
        f"{asset}: its table stays as it was, because a test failed: {', '.join(one['refused'])}"
        for asset, one in built.report.items()
        if "refused" in one
    ]
    lines += [f"{asset}: not published: {one['failed']}" for asset, one in built.report.items() if "failed" in one]
    return "\n".join([*lines, *built.errors]) or "dbt build failed"


def import_dagster_dbt(*, without_dbt: bool) -> None:
    """Import dagster-dbt, by default in the mode that it has for machines without dbt-core.

    That mode spares a code location two seconds, more than Dagster itself takes: dagster-dbt imports dbt to evaluate
    selections and to talk to adapters, and we select everything and talk to dbt ourselves. dbt stays importable.
    """
    hidden = "dbt.version"
    if not without_dbt or "dagster_dbt" in sys.modules or hidden in sys.modules:
        import dagster_dbt

        return
    sys.modules[hidden] = None  # type: ignore[assignment]
    try:
        import dagster_dbt  # noqa: F401
    finally:
        del sys.modules[hidden]


def _translator(compiled: Compiled) -> "DagsterDbtTranslator":
    from dagster_dbt import DagsterDbtTranslator, DagsterDbtTranslatorSettings

    project = compiled.project

    class Translator(DagsterDbtTranslator):  # type: ignore[misc]
        """Keys by layer, code versions and column lineage of ours; everything else as dagster-dbt has it."""

        def get_asset_key(self, dbt_resource_props: Mapping[str, Any]) -> dg.AssetKey:
            return dg.AssetKey(project.asset(dbt_resource_props["unique_id"]).split("/"))

        def get_code_version(self, dbt_resource_props: Mapping[str, Any]) -> str | None:
            uid = dbt_resource_props["unique_id"]
            return project.code_version(uid) if uid in project.marts else None

        def get_metadata(self, dbt_resource_props: Mapping[str, Any]) -> Mapping[str, Any]:
            found = dict(super().get_metadata(dbt_resource_props))
            # Names the scratch table, which nobody else can read.
            found.pop("dagster/table_name", None)
            if columns := compiled.columns.get(dbt_resource_props["unique_id"]):
                found["dagster/column_lineage"] = dg.TableColumnLineage(
                    {
                        name: [dg.TableColumnDep(dg.AssetKey(asset.split("/")), column) for asset, column in sources]
                        for name, sources in columns.items()
                    }
                )
            return found

        def get_asset_spec(self, manifest: Mapping[str, Any], unique_id: str, project: Any) -> dg.AssetSpec:
            spec: dg.AssetSpec = super().get_asset_spec(manifest, unique_id, project)
            return spec.replace_attributes(kinds={"dbt", "delta", "duckdb"}).merge_attributes(
                metadata={"dagster/storage_kind": "delta"}
            )

    return Translator(DagsterDbtTranslatorSettings(enable_source_tests_as_checks=False, enable_source_metadata=False))
