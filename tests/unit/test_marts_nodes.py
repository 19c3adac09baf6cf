"""What a manifest says of marts."""

from __future__ import annotations

from typing import Any

from lineage_assets.marts.audit import Outcome, refused
from lineage_assets.marts.nodes import Project


def model(
    name: str, reads: list[str], sql: str = "", macros: list[str] | None = None, kind: str = "table"
) -> dict[str, Any]:
    return {
        "resource_type": "model",
        "name": name,
        "description": "",
        "raw_code": sql or f"select {name}",
        "config": {"materialized": kind},
        "depends_on": {"nodes": reads, "macros": macros or []},
    }


def check(name: str, reads: list[str], **more: Any) -> dict[str, Any]:
    return {"resource_type": "test", "name": name, "depends_on": {"nodes": reads, "macros": []}, "meta": {}, **more}


def macro(sql: str, calls: list[str] | None = None, package: str = "shop") -> dict[str, Any]:
    return {"macro_sql": sql, "package_name": package, "depends_on": {"macros": calls or []}}


def project(**changes: Any) -> Project:
    nodes: dict[str, Any] = {
        "m.staging": model("staging", ["s.clicks"], kind="ephemeral"),
        "m.hourly": model("hourly", ["m.staging"], macros=["m.cents"]),
        "m.daily": model("daily", ["m.hourly", "s.users"]),
        "t.unique": check("unique", ["m.hourly"], attached_node="m.hourly"),
        "t.both": check("both", ["m.hourly", "m.daily"]),
        "t.named": check("named", ["m.hourly", "m.daily"], meta={"dagster": {"ref": {"name": "daily"}}}),
    }
    macros = {
        "m.cents": macro("{{ round() }}", ["m.round", "dbt.type"]),
        "m.round": macro("round"),
        "dbt.type": macro("x", package="dbt"),
    }
    sources = {
        "s.clicks": {"schema": "silver", "identifier": "clicks"},
        "s.users": {"schema": "silver", "identifier": "users"},
    }
    return Project({**nodes, **changes.get("nodes", {})}, sources, {**macros, **changes.get("macros", {})}, "shop")


def test_a_mart_reads_through_its_ephemeral_models() -> None:
    assert project().inputs("m.hourly") == ["silver/clicks"]
    assert project().inputs("m.daily") == ["marts/hourly", "silver/users"]


def test_an_ephemeral_model_is_no_mart() -> None:
    assert sorted(project().marts) == ["m.daily", "m.hourly"]


def test_marts_come_after_the_marts_that_they_read() -> None:
    assert project().in_order() == ["m.hourly", "m.daily"]


def test_a_code_version_changes_with_sql_ephemeral_sql_and_own_macros_and_nothing_else() -> None:
    was = project().code_version("m.hourly")
    changes: list[dict[str, Any]] = [
        {"nodes": {"m.hourly": model("hourly", ["m.staging"], "select 2", ["m.cents"])}},
        {"nodes": {"m.staging": model("staging", ["s.clicks"], "select 2", kind="ephemeral")}},
        {"macros": {"m.round": macro("floor")}},
    ]
    assert all(project(**change).code_version("m.hourly") != was for change in changes)
    described = {**model("hourly", ["m.staging"], macros=["m.cents"]), "description": "new words"}
    assert project(nodes={"m.hourly": described}).code_version("m.hourly") == was
    assert project(macros={"dbt.type": macro("y", package="dbt")}).code_version("m.hourly") == was
    assert project(nodes={"m.daily": model("daily", ["m.hourly"], "select 3")}).code_version("m.hourly") == was


def test_a_test_guards_what_it_is_attached_to_or_named_for_or_else_all_it_reads() -> None:
    guarded = project()
    assert guarded.tested("t.unique") == ["m.hourly"]
    assert guarded.tested("t.named") == ["m.daily"]
    assert sorted(guarded.tested("t.both")) == ["m.daily", "m.hourly"]


def test_a_failed_or_broken_test_refuses_and_a_warning_does_not() -> None:
    built = {"m.hourly": Outcome("success", 0, "ERROR")}
    assert refused(project(), {**built, "t.unique": Outcome("fail", 3, "ERROR")}) == {"m.hourly": ["unique"]}
    assert refused(project(), {**built, "t.unique": Outcome("error", 0, "ERROR")}) == {"m.hourly": ["unique"]}
    assert refused(project(), {**built, "t.unique": Outcome("warn", 3, "WARN")}) == {}
    assert refused(project(), {**built, "t.unique": Outcome("pass", 0, "ERROR")}) == {}
