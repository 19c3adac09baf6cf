"""Names: reversible, distinct, and legal where they go."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lineage_assets.errors import ContractError
from lineage_assets.lineage.names import (
    NODE_NAME_LIMIT,
    column_name,
    column_names,
    field_name,
    node_name,
    topic_asset,
    topic_of,
)
from tests.cases import case

TOPICS = st.text("abAB01._-", min_size=1, max_size=8)
PATHS = st.lists(st.text("aA1_.-/ é", min_size=1, max_size=5), min_size=1, max_size=3)
FIELDS = st.text("aAxX2e5f_. é0", max_size=9) | st.text(max_size=6)


def c33_topics() -> list[str]:
    topics: list[str] = case("C33")["input"]["topics"]
    return ["a" * 249 if topic == "249 times a" else topic for topic in topics]


def test_c33_topics_that_differ_by_dots_hyphens_or_case_are_different_assets_and_nodes() -> None:
    paths = [topic_asset("local", topic) for topic in c33_topics()]
    assert len(set(paths)) == case("C33")["expected"]["distinct_asset_keys"]
    assert len({node_name(path) for path in paths}) == len(paths)
    assert [topic_of(path) for path in paths] == [("local", topic) for topic in c33_topics()]
    assert paths[0] == ("kafka", "local", "orders.v1")


def test_c33_a_subject_with_a_slash_gets_a_key_without_one() -> None:
    path = topic_asset("local", case("C33")["input"]["registry_subject"])
    assert not any("/" in part for part in path)
    assert topic_of(path) == ("local", "shop/orders-value")


@given(TOPICS | st.text(min_size=1), TOPICS)
def test_a_topic_comes_back_from_its_asset(topic: str, alias: str) -> None:
    try:
        path = topic_asset(alias, topic)
    except UnicodeEncodeError:
        return  # half a surrogate pair is no text that a broker or a registry could send
    assert topic_of(path) == (alias, topic)


def test_what_is_no_topic_is_refused() -> None:
    with pytest.raises(ContractError):
        topic_asset("local", "")
    with pytest.raises(ValueError, match="raw/clicks"):
        topic_of(("raw", "clicks"))


@given(st.lists(PATHS, min_size=2, max_size=6, unique_by=tuple))
@example([["a_", "b"], ["a", "_b"], ["a__b"], ["a", "b"]])
@example([["raw", "orders.v1"], ["raw", "orders-v1"], ["raw", "orders_v1"], ["raw", "Orders_v1"]])
def test_node_names_are_legal_short_and_distinct(paths: list[list[str]]) -> None:
    names = [node_name(path) for path in paths]
    assert len(set(names)) == len(paths)
    for name in names:
        assert re.fullmatch("[A-Za-z0-9_]+", name) and len(name) <= NODE_NAME_LIMIT


def test_plain_paths_keep_their_words_and_one_path_always_has_one_name() -> None:
    assert node_name(("gold", "user_activity_5m")) == "gold__user_activity_5m"
    assert node_name(("kafka", "local", "orders.v1")) == node_name(("kafka", "local", "orders.v1"))
    assert node_name(("kafka", "local", "orders.v1")).startswith("kafka__local__orders_v1___")
    assert node_name(("config",)) != "config", "a word that Dagster reserves"


def test_a_plain_path_never_equals_the_hashed_name_of_another() -> None:
    hashed = node_name(("raw", "orders.v1"))
    assert node_name(tuple(hashed.split("__"))) != hashed
    assert node_name((hashed, "x")) != hashed


@given(FIELDS)
@example("")
@example("_x_")
@example("_x5f_")
@example("a_xe.")
@example("a_X75_")
@example("_slice")
def test_a_field_comes_back_from_its_column(field: str) -> None:
    column = column_name(field)
    assert re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", column)
    assert field_name(column) == field


@given(st.lists(FIELDS, max_size=8))
@example(["userid", "userId", "UserID", "user_id"])
@example(["a_X75_", "au", "AU", "a_x75_"])
@example(["", "_x_", "_X_"])
def test_columns_are_distinct_ignoring_case_and_each_field_comes_back(fields: list[str]) -> None:
    columns = column_names(fields)
    assert list(columns) == list(dict.fromkeys(fields))
    assert len({column.lower() for column in columns.values()}) == len(columns)
    assert all(field_name(column) == field for field, column in columns.items())
    assert all(re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", column) for column in columns.values())


@given(st.lists(FIELDS, max_size=6), FIELDS)
def test_a_field_that_is_added_renames_no_column(fields: list[str], added: str) -> None:
    before = column_names(fields)
    after = column_names([*fields, added])
    assert {field: after[field] for field in before} == before


def test_no_field_takes_the_name_of_a_managed_column() -> None:
    assert column_name("_slice").lower() != "_slice"
    assert column_names(["_slice"])["_slice"] == "_x5f_slice"


def test_c25_every_value_has_a_column_of_its_own() -> None:
    records = [json.loads(text) for text in case("C25")["input"]["records"]]
    fields = list(records[0])
    columns = column_names(fields)
    assert columns["userId"] == "userId"
    assert columns["price.eur"] == "price_x2e_eur" and columns["price"] == "price"
    assert len({column.lower() for column in columns.values()}) == len(fields) == 5
    row = {columns[field]: value for field, value in records[0].items()}
    values = [value["eur"] if isinstance(value, dict) else value for value in row.values()]
    assert values == case("C25")["expected"]["values_recoverable_record_0"]
    assert {field_name(column): value for column, value in row.items()} == records[0]
