"""`lineage show`: the record of a commit from log or ledger, and plain words when there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lineage_assets import settings as settings_module
from lineage_assets.commands.show import app
from lineage_assets.lineage.commits import Lake
from lineage_assets.lineage.ledger import commit_records as ledger
from tests.unit.written import TEN, Written, check


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setenv("LINEAGE_HOME", str(tmp_path))
    settings_module.settings.cache_clear()
    return settings_module.settings().lake_env


@pytest.fixture(autouse=True)
def forget() -> Any:
    yield
    settings_module.settings.cache_clear()


def show(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, done.stdout, done.stderr


def shown(*arguments: str) -> dict[str, Any]:
    code, out, _ = show(*arguments, "--json")
    return {"exit": code, **json.loads(out)}


@pytest.fixture
def raw(lake: Lake) -> Written:
    table = Written(lake)
    table.append(0, 10, seconds=1, checks=[check(failed=2, examples=("clicks/0@3",))])
    table.append(10, 25, seconds=2)
    table.commit(None, seconds=3, operation="DELETE")
    table.append(25, 26, seconds=4)
    return table


def test_a_version_is_shown_as_it_was_written(raw: Written) -> None:
    found = shown("raw/clicks@2")
    assert (found["exit"], found["version"], found["newest"], found["from"]) == (0, 2, 4, "log")
    assert found["record"]["inputs"][0]["ranges"] == {"0": [10, 25]} and found["table_id"] == raw.id


def test_without_a_version_the_newest_and_a_view_as_its_table(raw: Written) -> None:
    assert shown("raw/clicks")["version"] == 4
    found = shown("dead_letters/clicks@1")
    assert (found["asset"], found["version"]) == ("raw/clicks", 1)


def test_the_text_says_offsets_counts_and_checks(raw: Written) -> None:
    code, out, _ = show("raw/clicks@1")
    assert code == 0
    for said in ("raw/clicks@1", TEN, "partition 0: offsets [0, 10)", "ok 10", "amount: ERROR: 2 of 10", "clicks/0@3"):
        assert said in out, said


def test_what_the_log_forgot_comes_from_the_ledger(lake: Lake, raw: Written) -> None:
    log = ledger.read_log(lake, "raw/clicks")
    assert log is not None
    ledger.add_entries(lake, {"raw/clicks": [one for one in log.entries if one.version != 2]})
    raw.clean(below=4)
    assert (shown("raw/clicks@1")["from"], shown("raw/clicks@4")["from"]) == ("ledger", "log")
    code, _, said = show("raw/clicks@2")
    assert code == 1 and "gone" in said and "neither" in said


def test_unknown_and_foreign_versions_and_tables_are_named(raw: Written) -> None:
    assert show("raw/clicks@99")[0] == 1 and "newest version is 4" in show("raw/clicks@99")[2]
    assert show("raw/clicks@3")[0] == 1 and "foreign" in show("raw/clicks@3")[2] and "DELETE" in show("raw/clicks@3")[2]
    assert shown("raw/clicks@3")["record"] is None
    assert show("raw/clocks")[0] == 1 and "no table" in show("raw/clocks")[2]


@pytest.mark.parametrize("wrong", ["raw/clicks@", "raw/clicks@x", "@3", "raw/clicks@-1"])
def test_a_wrong_call_is_exit_code_2(raw: Written, wrong: str) -> None:
    assert show(wrong)[0] == 2
