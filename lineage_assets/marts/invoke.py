"""One `dbt build` inside this process, with its pins and its own scratch folder.

Belongs here: dbt's programmatic entry, its environment, what it reports back. Does not belong here: Dagster.

dbt runs in the process of the step that asks for it: a process of its own costs as long as the whole build, because it
imports dbt, pandas and pyarrow anew, and `dbt --version`, which dagster-dbt runs first, asks the network.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lineage_assets.marts.manifest import Compiled
from lineage_assets.marts.pins import PINS, Pin, write_pins
from lineage_assets.settings import Settings

RUNS_KEPT = 20
"""Folders of runs under $LINEAGE_HOME/dbt/runs, each with its pins, report and dbt.log."""


@dataclass(slots=True)
class Built:
    """How a build ended. `events` are dbt's structured log events, as its JSON log has them."""

    events: list[dict[str, Any]] = field(default_factory=list)
    report: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    log: Path = Path()
    success: bool = False
    refusal: str = ""

    @property
    def errors(self) -> list[str]:
        """What dbt logged as errors, and why it stopped if it did, without repetition."""
        logged = (event["info"]["msg"].strip() for event in self.events if event["info"]["level"] == "error")
        return [text for text in dict.fromkeys([*logged, self.refusal]) if text]


def build(
    settings: Settings,
    compiled: Compiled,
    pins: Mapping[str, Pin],
    run: str,
    selection: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Built:
    """`dbt build` with dbt's selection arguments. `run` is the id that commit records carry.

    Raises what interrupts it. What fails is no exception: it stands in `events` and `success`, beside what was published.
    """
    directory = _folder(settings, f"{run}-{compiled.directory.name}")
    report = directory / "report.json"
    write_pins(directory / "pins.json", pins)
    environment = {
        **(variables or {}),
        "LINEAGE_HOME": str(settings.home),
        "LINEAGE_LAKE": settings.lake,
        "LINEAGE_ENV": settings.env,
        PINS: str(directory / "pins.json"),
        "LINEAGE_MARTS_RUN": run,
        "LINEAGE_MARTS_REPORT": str(report),
        "LINEAGE_MARTS_DB": str(directory / "marts.duckdb"),
        "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
    }
    arguments = [
        "build",
        *selection,
        "--project-dir",
        str(compiled.directory),
        "--profiles-dir",
        str(compiled.directory),
    ]
    arguments += ["--target-path", str(directory), "--log-path", str(directory), "--no-write-json"]
    if compiled.partial_parse.exists():
        arguments += ["--partial-parse-file-path", str(compiled.partial_parse)]
    built = Built(log=directory / "dbt.log")
    try:
        with _environment(environment), _working_directory():
            _invoke(arguments, built)
    finally:
        (directory / "marts.duckdb").unlink(missing_ok=True)
    if report.exists():
        built.report = json.loads(report.read_text())
    return built


def _invoke(arguments: list[str], built: Built) -> None:
    """dbtRunner catches everything, interrupts included: what is not dbt's own failure is raised again."""
    # Importing dbt puts a handler on the root logger, which would print Dagster's log a second time.
    handlers = [*logging.getLogger().handlers]
    from dbt.adapters.duckdb.connections import DuckDBConnectionManager
    from dbt.cli.main import dbtRunner
    from dbt_common.events.base_types import EventMsg
    from dbt_common.events.functions import msg_to_dict
    from dbt_common.exceptions import DbtBaseException

    def keep(message: EventMsg) -> None:
        if message.info.level != "debug":
            built.events.append(msg_to_dict(message))

    try:
        result = dbtRunner(callbacks=[keep]).invoke(arguments)
    finally:
        DuckDBConnectionManager.close_all_connections()
        logging.getLogger().handlers = handlers
    if isinstance(result.exception, DbtBaseException):
        built.refusal = str(result.exception)
    elif result.exception is not None:
        raise result.exception
    built.success = bool(result.success)


def _folder(settings: Settings, name: str) -> Path:
    runs = settings.home / "dbt" / "runs"
    directory = runs / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for old in sorted(runs.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)[RUNS_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
    return directory


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _working_directory() -> Iterator[None]:
    """dbt changes into the project's folder and stays there."""
    before = Path.cwd()
    try:
        yield
    finally:
        os.chdir(before)
