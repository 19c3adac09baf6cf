"""The dbt-duckdb plugin: sources at pinned Delta versions in, marts as Delta tables with commit records out.

Belongs here: what dbt calls, and its translation. Does not belong here: how a table is read (sources.py) or written
(publish.py), which marts are fit (audit.py).

A mart is published when the run ends and only if none of its tests of severity error failed (write, audit, publish): a
reader never sees rows that a test refused, the mart that stood before stays, and the record can name the checks. dbt
skips what is downstream of a failed test, so no mart is made of refused rows either. DuckDB holds the rows meanwhile; it
is scratch. A mart that a run refers to without building it is read from its published table, never from a scratch file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dbt.adapters.duckdb.plugins import BasePlugin
from dbt.adapters.duckdb.utils import SourceConfig, TargetConfig
from dbt.adapters.events.logging import AdapterLogger
from dbt_common.exceptions import DbtRuntimeError

from lineage_assets.errors import LineageError
from lineage_assets.marts.audit import Outcome, Publisher
from lineage_assets.marts.merge import Merge
from lineage_assets.marts.nodes import Project
from lineage_assets.marts.pins import PINS, Pin, missing, pin, read_pins
from lineage_assets.marts.sources import read
from lineage_assets.settings import Settings

LOGGER = AdapterLogger("lineage")

SHAPES = "LINEAGE_MARTS_SHAPES"
"""Environment variable: set while only SQL is compiled; sources are then empty and no table is opened."""
RUN = "LINEAGE_MARTS_RUN"
"""Environment variable: id of the run that commit records name; by default dbt's invocation id."""
DATABASE = "LINEAGE_MARTS_DB"
"""Environment variable: DuckDB's file, by default $LINEAGE_HOME/dbt/marts.duckdb. Its name is the database's name."""
REPORT = "LINEAGE_MARTS_REPORT"
"""Environment variable: path of a JSON file in which the plugin states what it published."""


class Plugin(BasePlugin):  # type: ignore[misc]
    """One a process; see the module's docstring."""

    def initialize(self, plugin_config: dict[str, Any]) -> None:
        """No configuration: LINEAGE_HOME says where, by default `.lineage` beside the dbt project (dbt works inside it)."""
        os.environ.setdefault("LINEAGE_HOME", str(Path("../.lineage").absolute()))
        self._settings = Settings()
        self._lake = self._settings.lake_env
        stated = os.environ.get(PINS)
        self._pins: dict[str, Pin] = read_pins(Path(stated)) if stated else {}

    def update_connection_config(self, creds: Any, config: dict[str, Any]) -> None:
        """Choose DuckDB's file. Here and not in profiles.yml: a profile that changes makes dbt parse everything again."""
        path = Path(os.environ.get(DATABASE) or self._settings.home / "dbt" / creds.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        creds.path = str(path)

    def configure_connection(self, conn: Any) -> None:
        """Keep the connection: publishing reads the marts through it. UTC for every cursor: Delta knows no other zone."""
        conn.execute("SET GLOBAL TimeZone = 'UTC'")
        self._connection = conn

    def load(self, source_config: SourceConfig) -> Any:
        """The rows of a source at its pin; a table that is not there fails the model that reads it."""
        import pyarrow as pa

        if os.environ.get(SHAPES):
            return pa.table({"compiled": pa.array([], pa.string())})
        asset = f"{source_config.schema}/{source_config.identifier}"
        declared = source_config.get("merge")
        try:
            return read(self._lake, asset, self._pin(asset), Merge.of(asset, declared) if declared else None)
        except LineageError as error:
            raise DbtRuntimeError(str(error)) from error

    def default_materialization(self) -> str:
        """A view over Arrow: DuckDB reads only the columns and files that a query needs."""
        return "view"

    def store(self, target_config: TargetConfig) -> None:
        """The door for the project's hooks: `begin` before the first model, `publish` after the last test."""
        assert target_config.location is not None
        config: Mapping[str, Any] = target_config.config
        project = _project(config)
        try:
            match target_config.location.format:
                case "begin":
                    self._begin(project, config["selected"])
                case "publish":
                    self._publish(project, config["results"])
                case other:
                    raise DbtRuntimeError(f"this plugin is asked to {other!r}; it can `begin` and `publish`")
        except LineageError as error:
            raise DbtRuntimeError(str(error)) from error

    def _pin(self, asset: str) -> Pin:
        """The pin of an asset: stated by the run, or made at first use and kept."""
        if asset not in self._pins:
            found = pin(self._lake, asset)
            if found is None:
                raise missing(self._lake, asset)
            self._pins[asset] = found
        return self._pins[asset]

    def _begin(self, project: Project, selected: Iterable[str]) -> None:
        """Put the published rows of marts that this run reads but does not build where their models would be."""
        chosen = {uid for uid in selected if uid in project.nodes}
        needed = {parent for uid in chosen for parent in project.parents(uid)} & project.marts.keys() - chosen
        for uid in sorted(needed):
            asset, relation = project.asset(uid), project.nodes[uid]["relation_name"]
            with self._connection.cursor() as cursor:
                cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {relation.rsplit('.', 1)[0]}")
                cursor.execute(f"DROP TABLE IF EXISTS {relation}")
                try:
                    cursor.register("published_df", read(self._lake, asset, self._pin(asset)))
                except LineageError as error:
                    # Only the models that read it fail, for want of this table; here is why.
                    LOGGER.error(str(error))
                else:
                    cursor.execute(f"CREATE TABLE {relation} AS SELECT * FROM published_df")

    def _publish(self, project: Project, results: Iterable[Any]) -> None:
        outcomes = {
            result.node.unique_id: Outcome(
                str(result.status),
                result.failures or 0,
                result.node.config.severity if result.node.resource_type == "test" else "ERROR",
            )
            for result in results
        }
        run = os.environ.get(RUN) or f"dbt {_invocation()}"
        publisher = Publisher(self._settings, self._connection, project, self._pins, run)
        try:
            publisher.publish_all(outcomes)
        finally:
            if report := os.environ.get(REPORT):
                Path(report).write_text(json.dumps(publisher.report))
        if publisher.failed:
            raise DbtRuntimeError("not published: " + "; ".join(f"{k}: {v}" for k, v in publisher.failed.items()))


def _project(config: Mapping[str, Any]) -> Project:
    """The manifest as it lives in dbt's process: nodes and sources come from the hook, macros from the adapter."""
    from dbt.adapters.factory import get_adapter_by_type

    name = config["project_name"]
    resolver: Any = get_adapter_by_type("duckdb").get_macro_resolver()
    macros = {uid: macro.to_dict() for uid, macro in resolver.macros.items() if macro.package_name == name}
    return Project(config["graph"]["nodes"], config["graph"]["sources"], macros, name)


def _invocation() -> str:
    from dbt_common.invocation import get_invocation_id

    return str(get_invocation_id())
