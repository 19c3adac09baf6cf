"""`lineage demo` as a person runs it: it ends well, its counts are the producer's, and a second run changes nothing.

Belongs here: the command from outside, and what it leaves in the lake. Does not belong here: the UI (test_ui.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from lineage_assets.lineage.commits import commits, open_table
from lineage_assets.lineage.content import newest_by_slice
from lineage_assets.settings import Settings

EVENTS = 6_000
TIMEOUT_S = 420
SLICED = {
    "raw/clicks": ("_slice", "partition", "offset"),
    "silver/clicks": ("_slice", "_partition", "_offset"),
    "gold/user_activity_5m": ("_slice", "user_id", "window_start"),
}
MARTS = {
    "marts/activity_5m_summary": ("window_start",),
    "marts/traffic_daily": ("day",),
    "marts/traffic_hourly": ("hour", "event_type"),
    "marts/user_value": ("user_id",),
}
"""Every table that the demo makes, and the columns that tell its rows apart."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the command said, and what the tables held when it had ended."""

    report: dict[str, Any]
    progress: str
    tables: Mapping[str, pa.Table]


@pytest.fixture(scope="module")
def home(lent_stack: Settings) -> Settings:
    """The running stack with an environment of its own: its tables are empty before the first run."""
    return lent_stack.model_copy(update={"env": f"demo-{uuid4().hex[:8]}"})


@pytest.fixture(scope="module")
def first(home: Settings) -> Told:
    """`lineage demo --no-ui --json`, from an empty lake."""
    return demo(home)


@pytest.fixture(scope="module")
def second(home: Settings, first: Told) -> Told:
    """The same command again."""
    return demo(home)


def demo(home: Settings) -> Told:
    """Run the command, which must end with exit code 0, and read what it left."""
    program = str(Path(sys.executable).with_name("lineage"))
    done = subprocess.run(
        [program, "demo", "--no-ui", "--json", "--events", str(EVENTS)],
        env={**os.environ, "LINEAGE_HOME": str(home.home), "LINEAGE_ENV": home.env},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return Told(json.loads(done.stdout), done.stderr, {asset: table(home, asset) for asset in (SLICED | MARTS)})


def table(home: Settings, asset: str) -> pa.Table:
    """The rows of a table in a fixed order, read without Spark."""
    found = open_table(home.lake_env, asset)
    assert found is not None, f"{asset} was never written"
    whole = found.to_pyarrow_table()
    keys = (SLICED | MARTS)[asset]
    return whole.select(sorted(whole.column_names)).sort_by([(name, "ascending") for name in keys]).combine_chunks()


def test_the_demo_counts_what_its_producer_made(first: Told) -> None:
    hours = first.report["hours"]

    assert first.report["equal"] is True
    assert len(hours) == 6
    assert all(hour["counted"] == hour["truth"] for hour in hours)
    assert sum(hour["truth"]["records"] for hour in hours) >= EVENTS
    for name in ("ok", "dead", "duplicate", "late", "tombstone"):
        assert sum(hour["counted"][name] for hour in hours) > 0, name
    for hour in hours:
        fates = hour["counted"]
        assert fates["records"] == fates["ok"] + fates["dead"] + fates["duplicate"] + fates["tombstone"]


def test_the_tables_hold_what_the_report_counts(first: Told) -> None:
    for layer, count in (("raw/clicks", "records"), ("silver/clicks", "ok")):
        found: dict[str, int] = {}
        for key in first.tables[layer].column("_slice").to_pylist():
            found[key] = found.get(key, 0) + 1
        assert found == {hour["slice"]: hour["counted"][count] for hour in first.report["hours"]}


def test_one_hour_is_blocked_and_named_with_its_check(first: Told) -> None:
    held = {hour["slice"]: hour["held_by"] for hour in first.report["hours"] if hour["held_by"]}

    assert list(held.values()) == [["amount_cents__ge"]]
    (blocked,) = held
    slices = set(first.tables["gold/user_activity_5m"].column("_slice").to_pylist())
    assert slices == {hour["slice"] for hour in first.report["hours"]} - {blocked}


def test_the_marts_are_made_of_the_hours_that_are_not_blocked(first: Told, home: Settings) -> None:
    good = [hour["counted"]["ok"] for hour in first.report["hours"] if not hour["held_by"]]

    assert first.report["marts"] == {name.removeprefix("marts/"): first.tables[name].num_rows for name in MARTS}
    assert sum(first.tables["marts/traffic_hourly"].column("events").to_pylist()) == sum(good)
    assert sum(first.tables["marts/user_value"].column("clicks").to_pylist()) == sum(good)
    for mart in MARTS:
        assert newest_by_slice(commits(home.lake_env, mart))[None][1].asset == mart


def test_without_a_ui_no_address_is_told_and_none_is_started(first: Told) -> None:
    assert first.report["ui"] is None
    assert "dagster: starting" not in first.progress


def test_stdout_is_one_json_document_and_progress_goes_to_stderr(first: Told) -> None:
    assert {"equal", "hours", "marts", "lake"} <= set(first.report)
    assert first.progress.strip()


def test_a_second_run_of_the_demo_changes_no_row_and_no_count(first: Told, second: Told) -> None:
    assert second.report == first.report
    for asset, before in first.tables.items():
        after = second.tables[asset]
        changed = [name for name in before.column_names if not before.column(name).equals(after.column(name))]
        assert (after.num_rows, changed) == (before.num_rows, []), asset


def test_a_second_run_commits_again_with_the_same_record_but_for_the_run(second: Told, home: Settings) -> None:
    for asset in SLICED:
        by_slice: dict[str | None, list[Any]] = {}
        for commit in commits(home.lake_env, asset):
            if commit.record is not None and commit.record.kind == "replace":
                by_slice.setdefault(commit.record.slice, []).append(commit.record)
        for key, (newest, before) in by_slice.items():
            assert newest.run != before.run, (asset, key)
            assert (newest.counts, newest.reasons, newest.checks) == (before.counts, before.reasons, before.checks)
            assert [(one.topic_id, one.ranges) for one in newest.topics] == [
                (one.topic_id, one.ranges) for one in before.topics
            ]
