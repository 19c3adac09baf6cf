"""A Dagster code location that declares the bench's table as a user would, with UI and daemon over it.

Belongs here: writing that folder, starting Dagster on it. Does not belong here: what the sensors in it do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

from lineage_assets.bench.rig import Rig
from lineage_assets.bench.visible import Visible, watching
from lineage_assets.lineage.commits import commits
from lineage_assets.spark.event_table import EventTable
from lineage_assets.stack import dagster as dagster_processes
from lineage_assets.stack import ports, process

PACKAGE = "bench_location"
DEFINITIONS = '''\
"""The bench's table, as a code location."""

from importlib import import_module

import dagster as dg

from lineage_assets.definitions import build_defs


@dg.definitions
def defs() -> dg.Definitions:
    return build_defs(import_module("{package}.defs"))
'''
WORKSPACE = """\
load_from:
  - python_module:
      module_name: {package}.definitions
      location_name: bench
      working_directory: {folder}
"""
DECLARATION = """\
type: lineage_assets.components.Topic
attributes:
  name: {name}
  format: avro
  slices: hour
  start: {since}
  owners: [team:bench]
---
type: lineage_assets.components.EventTable
attributes:
  name: {name}
  topic: {name}
  contract: contract.Click
  select: clean.sql
  event_time: occurred_at
  unique_by: [event_id]
  owners: [team:bench]
"""


def write(folder: Path, table: EventTable) -> Path:
    """Write the code location; returns its workspace.yaml."""
    package = folder / PACKAGE
    domain = package / "defs" / "clicks"
    domain.mkdir(parents=True, exist_ok=True)
    for file in (package / "__init__.py", package / "defs" / "__init__.py"):
        file.write_text('"""Written by the bench."""\n')
    (package / "definitions.py").write_text(DEFINITIONS.format(package=PACKAGE))
    (domain / "defs.yaml").write_text(DECLARATION.format(name=table.name, since=f"{table.since:%Y-%m-%d}"))
    source = files("lineage_assets").joinpath("defs/clicks")
    for name in ("contract.py", "clean.sql"):
        (domain / name).write_text(source.joinpath(name).read_text())
    workspace = folder / "workspace.yaml"
    workspace.write_text(WORKSPACE.format(package=PACKAGE, folder=folder))
    return workspace


@contextmanager
def watched(rig: Rig, table: EventTable) -> Iterator[Visible | None]:
    """Webserver, daemon and collector over the table, for as long as the block; what they show of silver is watched."""
    import dagster as dg

    config = rig.settings
    workspace = write(rig.folder / f"location-{table.name}", table)
    os.environ.update(rig.environment(), DAGSTER_HOME=str(config.dagster_home))
    dagster_processes.start(
        config, ports.choose(rig.folder / "ports.json", {"ui_port": 0})["ui_port"], rig.say, workspace
    )
    asset = f"silver/{table.name}"
    try:
        with dg.DagsterInstance.get() as instance, watching(instance, asset, lambda: _times(rig, asset)) as visible:
            yield visible
    finally:
        record = process.read(config.stack_dir, dagster_processes.NAME)
        if record is not None:
            process.stop(record, 20.0)
            process.forget(config.stack_dir, dagster_processes.NAME)


def _times(rig: Rig, asset: str) -> dict[int, int]:
    """Version -> time of its commit in ms, of those that brought rows: the others make no materialization."""
    log = commits(rig.settings.lake_env, asset)
    return {one.version: one.timestamp_ms for one in log if one.record is not None and one.record.kind == "append"}
