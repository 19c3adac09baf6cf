"""A backup of the ledger: a lost ledger comes back from it, and a worse copy never replaces a better one."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from lineage_assets import settings as settings_module
from lineage_assets.commands.backup import app
from lineage_assets.errors import ContractError, FatalError
from lineage_assets.lineage import ledger
from lineage_assets.lineage.commits import Lake
from lineage_assets.lineage.ledger import commit_records
from lineage_assets.lineage.ledger.backup import Copied, back_up, put_back
from lineage_assets.lineage.slices import Cut
from tests.unit.written import Written

CLICKS = ledger.TopicRef("local", "clicks", "id-1")
AT = datetime(2026, 3, 1, 10, tzinfo=UTC)
RAW = "raw/clicks"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A ledger of three commits and two cuts."""
    lake = Lake(str(tmp_path / "lake"))
    raw = Written(lake)
    raw.append(0, 10, seconds=1)
    raw.append(10, 20, seconds=2)
    kept(lake)
    ledger.add_cuts(lake, CLICKS, [Cut(AT, {0: 0, 1: 0}), Cut(AT.replace(hour=11), {0: 20, 1: 5})], "arrival")
    return lake


def kept(lake: Lake) -> None:
    log = commit_records.read_log(lake, RAW)
    assert log is not None
    commit_records.add_entries(lake, {RAW: log.entries})


def lose(lake: Lake) -> None:
    shutil.rmtree(lake.path("ledger"))


def test_a_lost_ledger_comes_back(lake: Lake, tmp_path: Path) -> None:
    to = str(tmp_path / "elsewhere")
    entries, cuts = commit_records.entries(lake, RAW), ledger.cuts(lake, CLICKS)
    assert back_up(lake, to) == [Copied("ledger/cuts", 4), Copied("ledger/commits", 3)]
    lose(lake)
    assert put_back(lake, to) == [Copied("ledger/cuts", 4), Copied("ledger/commits", 3)]
    assert commit_records.entries(lake, RAW) == entries and ledger.cuts(lake, CLICKS) == cuts
    assert put_back(lake, to) == [Copied("ledger/cuts", 0), Copied("ledger/commits", 0)]
    assert len(commit_records.entries(lake, RAW)) == 3


def test_only_what_is_missing_is_put_back(lake: Lake, tmp_path: Path) -> None:
    to = str(tmp_path / "elsewhere")
    back_up(lake, to)
    DeltaTable(lake.path("ledger/commits")).delete("version = 1")
    DeltaTable(lake.path("ledger/cuts")).delete("at = '2026-03-01T11:00:00Z'")
    assert put_back(lake, to) == [Copied("ledger/cuts", 2), Copied("ledger/commits", 1)]
    assert [one.version for one in commit_records.entries(lake, RAW)] == [0, 1, 2]
    assert len(ledger.cuts(lake, CLICKS)) == 2


def test_a_later_backup_replaces_an_earlier_one_and_leaves_no_files_of_it(lake: Lake, tmp_path: Path) -> None:
    to = tmp_path / "elsewhere"
    back_up(lake, str(to))
    before = len(list(to.rglob("*.parquet")))
    back_up(lake, str(to))
    assert len(list(to.rglob("*.parquet"))) == before


@pytest.mark.parametrize("lost", ["all", "some"])
def test_a_ledger_that_lost_rows_does_not_overwrite_its_backup(lake: Lake, tmp_path: Path, lost: str) -> None:
    to = str(tmp_path / "elsewhere")
    back_up(lake, to)
    if lost == "all":
        lose(lake)
    else:
        DeltaTable(lake.path("ledger/commits")).delete("version = 1")
    with pytest.raises(FatalError, match="the ledger lost some"):
        back_up(lake, to)
    put_back(lake, to)
    assert len(commit_records.entries(lake, RAW)) == 3


def test_no_backup_is_said(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="holds no backup"):
        put_back(lake, str(tmp_path / "nowhere"))


def test_the_command_says_what_it_copied_and_what_is_not_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINEAGE_HOME", str(tmp_path))
    settings_module.settings.cache_clear()
    try:
        lake = settings_module.settings().lake_env
        Written(lake)
        kept(lake)
        to = str(tmp_path / "elsewhere")
        told = json.loads(CliRunner().invoke(app, [to, "--json"]).stdout)
        assert told["tables"] == {"ledger/commits": 1} and lake.path("raw") in told["not_in_it"]["raw/*"]
        lose(lake)
        assert "ledger/commits: 1 rows put back" in CliRunner().invoke(app, [to, "--restore"]).stdout
    finally:
        settings_module.settings.cache_clear()
