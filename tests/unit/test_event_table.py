"""A table's declaration: SQL that keeps one row a record, and a code version that changes when its rows could."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlglot import exp, parse_one

import lineage_assets
from lineage_assets.errors import ContractError
from lineage_assets.lineage.slices import Grain
from lineage_assets.quality.contract import Column, Contract, Rule
from lineage_assets.spark.event_table import LINEAGE_COLUMNS, EventTable, row_wise

CONTRACT = Contract("Click", (Column("id", "id", "string"), Column("e-mail", "e_x2d_mail", "string", tags=("pii",))))
TABLE = EventTable("clicks", "shop.clicks", "json", Grain.hour, datetime(2026, 1, 1, tzinfo=UTC), CONTRACT)


def columns_of(sql: str) -> list[str]:
    tree = parse_one(sql, dialect="spark")
    assert isinstance(tree, exp.Select)
    return [one.alias_or_name for one in tree.expressions]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, lower(email) AS email FROM records",
        "select\n  id -- the key\nfrom records",
        "SELECT id, CASE WHEN amount > 0 THEN 'paid' END AS kind FROM records",
        "SELECT id, transform(parts, x -> x + 1) AS parts FROM records",
        "SELECT id, exists(parts, x -> x > 1) AS any_part FROM records",
    ],
)
def test_sql_that_keeps_one_row_a_record_gets_the_lineage_columns(sql: str) -> None:
    added = columns_of(row_wise(sql, "clean.sql"))
    assert added[-len(LINEAGE_COLUMNS) :] == list(LINEAGE_COLUMNS)
    assert added[0] == "id"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM records WHERE amount > 0",
        "SELECT DISTINCT id FROM records",
        "SELECT id FROM records LIMIT 5",
        "SELECT id FROM records OFFSET 5",
        "SELECT id FROM records FETCH FIRST 5 ROWS ONLY",
        "SELECT id FROM records GROUP BY id",
        "SELECT max(id) AS id FROM records",
        "SELECT max(id) AS id FROM records HAVING max(id) > 'a'",
        "SELECT id FROM records QUALIFY row_number() OVER (PARTITION BY id ORDER BY amount) = 1",
        "SELECT id, explode(parts) AS part FROM records",
        "SELECT id, explode_outer(parts) AS part FROM records",
        "SELECT id, posexplode(parts) AS (at, part) FROM records",
        "SELECT id, posexplode_outer(parts) AS (at, part) FROM records",
        "SELECT id, inline(parts) FROM records",
        "SELECT id, inline_outer(parts) FROM records",
        "SELECT id, stack(2, a, b) AS part FROM records",
        "SELECT id, variant_explode(parts) FROM records",
        "SELECT id, part FROM records LATERAL VIEW explode(parts) AS part",
        "SELECT id FROM (SELECT id FROM records LIMIT 3)",
        "SELECT id FROM records TABLESAMPLE (10 PERCENT)",
        "SELECT r.id FROM records AS r JOIN records AS s ON r.id = s.id",
        "SELECT id FROM records, records",
    ],
)
def test_sql_that_can_drop_or_multiply_rows_is_refused(sql: str) -> None:
    with pytest.raises(ContractError, match=r"^clean\.sql: "):
        row_wise(sql, "clean.sql")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM silver.customers",
        "SELECT id FROM recrods",
        "SELECT id, (SELECT max(name) FROM customers) AS name FROM records",
        "SELECT id FROM records WHERE id IN (SELECT id FROM customers)",
        "WITH other AS (SELECT id FROM customers) SELECT id FROM other",
        "SELECT 1 AS id",
    ],
)
def test_sql_over_anything_but_records_is_refused_with_what_it_reads(sql: str) -> None:
    with pytest.raises(ContractError, match=r"^clean\.sql: reads .*expected FROM records"):
        row_wise(sql, "clean.sql")


@pytest.mark.parametrize("sql", ["DELETE FROM records", "SELECT id FROM records UNION ALL SELECT id FROM records"])
def test_a_statement_that_is_no_select_is_refused(sql: str) -> None:
    with pytest.raises(ContractError, match="expected one SELECT over records"):
        row_wise(sql, "clean.sql")


def test_sql_that_does_not_parse_is_refused_with_its_file() -> None:
    with pytest.raises(ContractError, match=r"^defs/clicks/clean\.sql: not valid Spark SQL"):
        row_wise("SELECT (id FROM records", "defs/clicks/clean.sql")


def test_a_refusal_names_the_part_and_what_to_do() -> None:
    with pytest.raises(ContractError) as refused:
        row_wise("SELECT id FROM records WHERE amount > 0", "clean.sql")
    assert "WHERE amount > 0" in refused.value.message
    assert "contract" in refused.value.remedy


def test_without_sql_every_column_of_the_contract_is_selected_under_its_own_name() -> None:
    assert columns_of(TABLE.select_sql) == ["id", "e_x2d_mail"]
    assert TABLE.select_sql.endswith("FROM records")
    assert columns_of(row_wise(TABLE.select_sql, "select"))[:2] == ["id", "e_x2d_mail"]


def test_private_columns_are_those_tagged_pii_and_the_subject_is_the_topics() -> None:
    assert TABLE.private_columns == ("e_x2d_mail",)
    assert TABLE.subject == "shop.clicks-value"


RULED = Contract("Click", (Column("id", "id", "string", rules=(Rule("id__eq", "id", "eq", "id: eq", sql="id = 1"),)),))


@pytest.mark.parametrize(
    "change",
    [
        {"select": "SELECT id FROM records"},
        {"event_time": "at"},
        {"grace_ms": 1},
        {"unique_by": ("id",)},
        {"window_ms": 1},
        {"format": "avro"},
        {"transactional": True},
        {"contract": RULED},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_code_version_changes_with_all_that_decides_rows(change: dict[str, Any]) -> None:
    assert replace(TABLE, **change).code != TABLE.code


def test_the_code_version_stays_when_only_words_change_and_changes_with_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    described = replace(CONTRACT, doc="Clicks.", columns=tuple(replace(c, description="x") for c in CONTRACT.columns))
    assert replace(TABLE, contract=described).code == replace(TABLE).code

    before = TABLE.code
    monkeypatch.setattr(lineage_assets, "__version__", "99")
    assert TABLE.code != before
