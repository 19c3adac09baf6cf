"""Measures of window tables: what can be merged over slices and how, and the SQL that they become."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlglot import exp, parse_one

from lineage_assets.errors import ContractError
from lineage_assets.spark.window_table import Measure, Merge, WindowTable, measures

TABLE = WindowTable(
    "activity", "silver/clicks", "occurred_at", 300, ("user_id",), measures({"events": "count(*)"}, "activity")
)


@pytest.mark.parametrize(
    ("sql", "merge"),
    [
        ("count(*)", Merge.sum),
        ("count(page)", Merge.sum),
        ("COUNT_IF(amount > 0)", Merge.sum),
        ("sum(amount)", Merge.sum),
        ("sum(CASE WHEN kind = 'paid' THEN amount END)", Merge.sum),
        ("min(amount)", Merge.min),
        ("max(occurred_at)", Merge.max),
    ],
)
def test_what_can_be_merged_says_how_and_keeps_its_sql(sql: str, merge: Merge) -> None:
    assert measures({"m": sql}, "activity") == (Measure("m", sql, merge),)


def test_approximate_distinct_counts_are_merged_as_sketches_of_their_argument() -> None:
    assert measures({"sessions": "approx_count_distinct(session_id)"}, "activity") == (
        Measure("sessions", "session_id", Merge.theta),
    )


@pytest.mark.parametrize(
    ("sql", "remedy"),
    [
        ("count(DISTINCT user_id)", "approx_count_distinct"),
        ("avg(amount)", "sum and a count"),
        ("approx_count_distinct(user_id, 0.01)", "leave it out"),
    ],
)
def test_what_has_a_mergeable_likeness_is_refused_with_it(sql: str, remedy: str) -> None:
    with pytest.raises(ContractError) as refused:
        measures({"m": sql}, "activity")
    assert refused.value.message.startswith(f"activity: measure m: {sql}: ")
    assert remedy in refused.value.remedy


@pytest.mark.parametrize(
    "sql",
    [
        "sum(DISTINCT amount)",
        "sum(amount) / count(*)",
        "sum(amount) OVER (PARTITION BY user_id)",
        "percentile(amount, 0.5)",
        "stddev(amount)",
        "first(page)",
        "collect_set(page)",
        "amount",
        "1",
        "",
        "sum(",
    ],
)
def test_what_cannot_be_merged_over_slices_is_refused_with_table_and_measure(sql: str) -> None:
    with pytest.raises(ContractError, match=r"^activity: measure m: "):
        measures({"m": sql}, "activity")


def test_the_sql_groups_by_key_and_window_and_names_every_column() -> None:
    table = replace(TABLE, measures=measures({"n": "count(*)", "s": "approx_count_distinct(session_id)"}, "activity"))
    tree = parse_one(table.sql, dialect="spark")
    assert isinstance(tree, exp.Select)
    assert [one.alias_or_name for one in tree.expressions] == [
        "user_id", "window_start", "window_end", "n", "s", "s_sketch"
    ]  # fmt: skip
    assert [one.name for one in tree.find_all(exp.Table)] == ["slice_rows"]
    assert {one.name for one in tree.args["group"].expressions} == {"user_id", "window_start", "window_end"}
    assert table.known_types == {
        "window_start": "timestamp", "window_end": "timestamp", "s": "bigint", "s_sketch": "binary"
    }  # fmt: skip


def test_the_code_version_changes_with_what_is_measured_and_over_what() -> None:
    for other in (
        replace(TABLE, window_s=600),
        replace(TABLE, by=("page",)),
        replace(TABLE, time="seen_at"),
        replace(TABLE, measures=measures({"events": "count(page)"}, "activity")),
    ):
        assert other.code != TABLE.code
    assert replace(TABLE).code == TABLE.code


def test_every_column_is_described_and_others_are_not() -> None:
    table = replace(TABLE, measures=measures({"n": "count(*)", "s": "approx_count_distinct(session_id)"}, "activity"))
    described = ("user_id", "window_start", "window_end", "n", "s", "s_sketch")
    assert all(table.describe(name) for name in described)
    assert table.describe("page") is None
