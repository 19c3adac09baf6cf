"""The demo from nothing to the report: produce, materialize every hour and the marts, compare with the truth.

Belongs here: the order of the story and its report's numbers. Does not belong here: printing (commands/demo.py).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from lineage_assets import runs
from lineage_assets.definitions import build_defs
from lineage_assets.demo.produce import produce_clicks, stored_truth
from lineage_assets.demo.shop import HourTruth, Truth
from lineage_assets.errors import ContractError, FatalError
from lineage_assets.kafka import client
from lineage_assets.lineage.commits import Lake, commits, open_table
from lineage_assets.lineage.content import blocking_failures, newest_by_slice
from lineage_assets.lineage.fates import Fate
from lineage_assets.settings import Settings

TOPIC = "clicks"
TABLES = ("raw", "silver", "dead_letters", "late")

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True, slots=True)
class HourReport:
    """One slice: what the tables count, what the producer says, and which checks hold it."""

    slice: str
    counted: dict[str, int]
    truth: dict[str, int]
    held_by: list[str]

    @property
    def equal(self) -> bool:
        return self.counted == self.truth


@dataclass(frozen=True, slots=True)
class Report:
    """The result of the demo."""

    hours: list[HourReport]
    marts: dict[str, int] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        return all(hour.equal for hour in self.hours)

    def to_json(self) -> dict[str, Any]:
        return {
            "equal": self.equal,
            "hours": [{**asdict(hour), "equal": hour.equal} for hour in self.hours],
            "marts": self.marts,
        }


def produce(settings: Settings, events: int, progress: Progress) -> Truth:
    """Fill the topic, or take the truth about it when an earlier run of the demo did."""
    try:
        found = stored_truth(settings, client.describe(settings, TOPIC))
    except ContractError:
        found = None
    if found is not None:
        progress(f"{found.records:,} events are in the topic already", found.records, found.records)
        return found
    return produce_clicks(
        settings, events=events, progress=lambda done, total: progress("producing events", done, total)
    ).truth


def materialize(settings: Settings, truth: Truth, progress: Progress) -> None:
    """Report the topic's slices, make every hour from raw to gold, then the marts. A held hour stops where it should."""
    definitions = build_defs()
    keys = {key.to_user_string() for key in definitions.resolve_all_asset_keys()}
    tables = [f"{layer}/{TOPIC}" for layer in TABLES] + sorted(key for key in keys if key.startswith("gold/"))
    marts = sorted(key for key in keys if key.startswith("marts/"))
    with runs.instance(settings) as instance:
        progress("reporting the topic", 0, 1)
        runs.report_topics(definitions, instance)
        for number, key in enumerate(truth.hours):
            progress(f"materializing {key}", number, len(truth.hours))
            if (failure := runs.run(definitions, instance, tables, key)) and not _held(settings, key):
                raise FatalError(f"materializing {key} failed: {failure}", remedy="see the run in the UI: lineage dev")
        progress("building the marts", 0, 1)
        if failure := runs.run(definitions, instance, marts, None):
            raise FatalError(f"building the marts failed: {failure}", remedy="see the run in the UI: lineage dev")
        progress("materialized", 1, 1)


def report(settings: Settings, truth: Truth) -> Report:
    """Count the rows of raw and silver, by another reader than the one that wrote them, against the producer's truth."""
    lake = settings.lake_env
    counted = _counted(lake)
    silver = newest_by_slice(commits(lake, f"silver/{TOPIC}"))
    hours = []
    for key, hour in truth.hours.items():
        held = blocking_failures(silver[key][1]) if key in silver else ["not materialized"]
        hours.append(HourReport(key, {name: counted[key][name] for name in _truth(hour)}, _truth(hour), held))
    marts = {
        name: newest_by_slice(commits(lake, f"marts/{name}"))[None][1].counts["rows"]
        for name in published_marts(settings)
    }
    return Report(hours, marts)


def _counted(lake: Lake) -> dict[str, Counter[str]]:
    """Per slice the rows of raw by fate, and of silver: `ok` counts silver's rows, so both must agree with the truth."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    raw, silver = open_table(lake, f"raw/{TOPIC}"), open_table(lake, f"silver/{TOPIC}")
    if raw is None or silver is None:
        return found
    fates = raw.to_pyarrow_table(columns=["_slice", "fate"]).to_pydict()
    for key, fate in zip(fates["_slice"], fates["fate"], strict=True):
        found[key]["records"] += 1
        if fate != Fate.ok:
            found[key][fate] += 1
    rows = silver.to_pyarrow_table(columns=["_slice", "_late_by_s"]).to_pydict()
    for key, late in zip(rows["_slice"], rows["_late_by_s"], strict=True):
        found[key]["ok"] += 1
        found[key]["late"] += late is not None
    return found


def published_marts(settings: Settings) -> list[str]:
    """Names of the marts of this code location that have been published."""
    names = [key.path[1] for key in build_defs().resolve_all_asset_keys() if key.path[0] == "marts"]
    return sorted(name for name in names if commits(settings.lake_env, f"marts/{name}", 1))


def _truth(hour: HourTruth) -> dict[str, int]:
    return {"records": hour.records, **hour.fates, "late": hour.late}


def _held(settings: Settings, key: str) -> bool:
    newest = newest_by_slice(commits(settings.lake_env, f"silver/{TOPIC}")).get(key)
    return newest is not None and bool(blocking_failures(newest[1]))
