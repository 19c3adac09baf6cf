"""A user's mistake in a domain folder is told with file, line, field, what was expected and the nearest right name.

Belongs here: mistakes in defs.yaml and in the files beside it. Does not belong here: what a contract's rules mean.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import dagster as dg
import pytest

import lineage_assets.defs
from lineage_assets.components.declared import DeclarationError
from lineage_assets.definitions import build_defs

CLICKS = Path(lineage_assets.defs.__path__[0]) / "clicks"

Load = Callable[[], dg.Definitions]


@pytest.fixture
def domain(tmp_path: Path) -> Path:
    """A user's own folder of a domain: the demo's clicks, free of mistakes."""
    package = tmp_path / f"defs_{uuid4().hex[:12]}"
    shutil.copytree(CLICKS, package / "clicks", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "__init__.py").touch()
    return package / "clicks"


@pytest.fixture
def load(domain: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Load:
    """Load the code location that the folder is in. Contracts are compiled anew: no cache hides anything."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("LINEAGE_CACHE", str(tmp_path / "cache"))
    return lambda: build_defs(importlib.import_module(domain.parent.name))


def change(file: Path, old: str, new: str) -> int:
    """Replace a text that stands in a file; the line of it."""
    text = file.read_text()
    assert old in text, f"{old!r} is not in {file.name}"
    file.write_text(text.replace(old, new, 1))
    return text[: text.index(old)].count("\n") + 1


def told(load: Load) -> str:
    """The message that the user sees."""
    with pytest.raises(DeclarationError) as caught:
        load()
    return str(caught.value)


def test_a_folder_without_mistakes_loads(load: Load) -> None:
    keys = {key.to_user_string() for key in load().resolve_all_asset_keys()}

    tables = {f"{layer}/clicks" for layer in ("raw", "silver", "dead_letters", "late")}
    assert keys == {"kafka/local/clicks", "gold/user_activity_5m"} | tables


MISTAKES = {
    "an unknown attribute": ("grace: 1h", "grase: 1h", "grase: there is no such attribute; did you mean 'grace'?"),
    "an attribute far from any name": ("grace: 1h", "qqq: 1", "qqq: there is no such attribute; known: 'contract', "),
    "a missing attribute": ("topic: clicks\n", "grace: 1m\n", "topic is missing; add it: A topic declared in this"),
    "a value that is none of the allowed": (
        "format: avro",
        "format: arvo",
        "format: 'arvo' is not allowed; expected 'avro' or 'json'; did you mean 'avro'?",
    ),
    "a text where a list belongs": (
        "unique_by: [event_id]",
        "unique_by: event_id",
        "unique_by: Input should be a valid list, not 'event_id'",
    ),
    "an unknown component type": (
        "type: lineage_assets.components.EventTable",
        "type: lineage_assets.components.EventTabel",
        "type: there is no component type 'lineage_assets.components.EventTabel'; "
        "did you mean 'lineage_assets.components.EventTable'?",
    ),
    "a component type of an unknown package": (
        "type: lineage_assets.components.EventTable",
        "type: lineage_asset.components.EventTable",
        "type: there is no component type 'lineage_asset.components.EventTable'; "
        "did you mean 'lineage_assets.components.EventTable'?",
    ),
    "an unknown topic": (
        "topic: clicks",
        "topic: cliks",
        "topic: no Topic 'cliks' is declared; did you mean 'clicks'?",
    ),
    "an unknown source": (
        "source: silver/clicks",
        "source: silver/cliks",
        "source: no table 'silver/cliks' is declared; did you mean 'silver/clicks'?",
    ),
    "an unknown column in unique_by": (
        "unique_by: [event_id]",
        "unique_by: [event_idd]",
        "unique_by: the contract has no column 'event_idd'; did you mean 'event_id'?",
    ),
    "an unknown second column in unique_by": (
        "unique_by: [event_id]",
        "unique_by: [event_id, usr_id]",
        "unique_by: the contract has no column 'usr_id'; did you mean 'user_id'?",
    ),
    "an unknown column in event_time": (
        "event_time: occurred_at",
        "event_time: ocurred_at",
        "event_time: the contract has no column 'ocurred_at'; did you mean 'occurred_at'?",
    ),
    "an unknown column in by": (
        "by: [user_id]",
        "by: [usr_id]",
        "by: silver/clicks has no column 'usr_id'; did you mean 'user_id'?",
    ),
    "a grace that is no duration": ("grace: 1h", "grace: 1 hour", "grace: '1 hour' is no duration; expected a number"),
    "a window that is no duration": ("window: 5m", "window: 0m", "window: '0m' is no duration; expected a number and"),
    "a start that is no date": (
        "slices: hour",
        "start: 2026-13-01",
        "start: '2026-13-01' is no date: month must be in 1..12; write it as 2026-01-31",
    ),
    "broken YAML": ("topic: clicks", "topic: clicks: all", "no valid YAML: mapping values are not allowed here"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_defs_yaml_is_told_with_its_line_field_and_remedy(mistake: str, domain: Path, load: Load) -> None:
    old, new, expected = MISTAKES[mistake]
    file = domain / "defs.yaml"
    line = change(file, old, new)
    if mistake == "a missing attribute":
        # What is missing stands on no line: the one of the document's attributes is named.
        line -= 2
    message = told(load)

    place, _, rest = message.removeprefix(f"{file}:").partition(": ")
    assert message.startswith(f"{file}:")
    assert int(place) == line
    assert rest.startswith(expected)


def test_a_mistake_is_told_in_one_line_without_dagsters_tree(domain: Path, load: Load) -> None:
    change(domain / "defs.yaml", "grace: 1h", "grace: soon")
    message = told(load)

    assert "\n" not in message
    assert "Error while" not in message


def test_the_line_is_that_of_the_second_table_of_a_file_when_the_mistake_is_there(domain: Path, load: Load) -> None:
    file = domain / "defs.yaml"
    text = file.read_text()
    second = """\
---
type: lineage_assets.components.EventTable
attributes:
  name: clicks_again
  topic: clicks
  contract: contract.Click
  event_time: occured_at
"""
    file.write_text(text.rstrip("\n") + "\n" + second)
    line = len(file.read_text().splitlines())

    assert told(load).startswith(f"{file}:{line}: event_time: the contract has no column 'occured_at'")


def test_a_contract_file_that_is_not_there_is_told_with_the_nearest_one(domain: Path, load: Load) -> None:
    line = change(domain / "defs.yaml", "contract: contract.Click", "contract: contact.Click")
    missing = domain / "contact.py"

    assert told(load) == (
        f"{domain / 'defs.yaml'}:{line}: contract: {missing}: there is no such file; did you mean contract.py?"
    )


def test_a_class_that_the_contract_file_lacks_is_told_with_the_nearest_one(domain: Path, load: Load) -> None:
    line = change(domain / "defs.yaml", "contract: contract.Click", "contract: contract.Clik")
    file = domain / "contract.py"

    assert told(load) == (f"{domain / 'defs.yaml'}:{line}: contract: {file}: it has no class Clik; did you mean Click?")


def test_a_contract_without_a_file_name_is_told_how_to_write_it(domain: Path, load: Load) -> None:
    line = change(domain / "defs.yaml", "contract: contract.Click", "contract: Click")

    assert told(load) == (
        f"{domain / 'defs.yaml'}:{line}: contract: 'Click' names no class; write <file>.<class>, such as contract.Click"
    )


def test_a_fault_in_the_contract_is_told_with_its_own_file_and_line(domain: Path, load: Load) -> None:
    file = domain / "contract.py"
    line = change(file, "pa.Field(gt=0,", "pa.Field(gtt=0,")
    message = told(load)

    assert f"{file}:{line}: " in message
    assert "gtt" in message


def test_an_sql_file_that_is_not_there_is_told_with_the_nearest_one(domain: Path, load: Load) -> None:
    line = change(domain / "defs.yaml", "select: clean.sql", "select: claen.sql")
    missing = domain / "claen.sql"

    assert told(load) == (f"{domain / 'defs.yaml'}:{line}: select: {missing} does not exist; did you mean 'clean.sql'?")


BAD_SQL = {
    "WHERE": ("SELECT event_id FROM records WHERE user_id > 0", "WHERE user_id > 0 can drop or multiply rows"),
    "DISTINCT": ("SELECT DISTINCT event_id FROM records", "DISTINCT can drop or multiply rows"),
    "LIMIT": ("SELECT event_id FROM records LIMIT 5", "LIMIT 5 can drop or multiply rows"),
    "an aggregate": ("SELECT max(user_id) AS u FROM records", "can drop or multiply rows"),
    "a group": ("SELECT user_id FROM records GROUP BY user_id", "GROUP BY user_id can drop or multiply rows"),
    "explode": ("SELECT explode(split(page, '/')) AS part FROM records", "can drop or multiply rows"),
    "a join": ("SELECT a.page FROM records a JOIN records b", "expected FROM records and nothing else"),
    "another table": ("SELECT page FROM clicks", "reads clicks; expected FROM records and nothing else"),
    "two queries": ("SELECT page FROM records UNION ALL SELECT page FROM records", "expected one SELECT"),
    "no query": ("DELETE FROM records", "expected one SELECT over records, got DELETE"),
    "a syntax error": ("SELECT FROM WHERE", "not valid Spark SQL: Expected table name at 'WHERE', line 1, column 17"),
}


@pytest.mark.parametrize("kind", BAD_SQL)
def test_sql_that_can_drop_or_multiply_rows_is_refused_with_its_file(kind: str, domain: Path, load: Load) -> None:
    sql, expected = BAD_SQL[kind]
    file = domain / "clean.sql"
    file.write_text(sql)
    line = 1 + (domain / "defs.yaml").read_text().splitlines().index("  select: clean.sql")
    message = told(load)

    assert message.startswith(f"{domain / 'defs.yaml'}:{line}: select: ")
    assert expected in message


def test_sql_over_a_column_that_the_contract_lacks_is_told_with_the_nearest_one(domain: Path, load: Load) -> None:
    change(domain / "clean.sql", "session_id,", "sesion_id,")

    assert told(load).endswith("cannot tell where sesion_id of silver/clicks comes from; did you mean 'session_id'?")


BAD_MEASURES = {
    "avg(amount_cents)": "averages of two slices cannot be merged; declare a sum and a count",
    "count(distinct user_id)": "distinct values of two slices cannot be added; use approx_count_distinct(",
    "collect_list(page)": "cannot be merged over slices; expected count, count_if, sum, min, max or approx_count_distinct",
    "user_id": "cannot be merged over slices; expected count",
    "sum(amount_cent)": "cannot tell where amount_cent comes from; did you mean 'amount_cents'?",
    "sum((amount_cents": "not a Spark SQL expression: Expecting )",
}


@pytest.mark.parametrize("measure", BAD_MEASURES)
def test_a_measure_that_cannot_be_merged_over_slices_is_refused(measure: str, domain: Path, load: Load) -> None:
    file = domain / "defs.yaml"
    line = change(file, "event_count: count(*)", f"event_count: {measure}") - 1
    message = told(load)

    assert message.startswith(f"{file}:{line}: measures: ")
    assert BAD_MEASURES[measure] in message


def test_windows_over_a_table_without_event_time_are_told_what_to_add(domain: Path, load: Load) -> None:
    change(domain / "defs.yaml", "  event_time: occurred_at\n", "")
    message = told(load)

    assert "source: silver/clicks declares no event_time; windows need one: add it there" in message
