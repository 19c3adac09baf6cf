"""Column lineage over Spark SQL and DuckDB."""

from __future__ import annotations

import time

import duckdb as engine
import pytest

from lineage_assets.errors import ContractError
from lineage_assets.lineage.columns import ColumnRef, Lineage, column_lineage

CLICKS, CUSTOMERS = "silver.clicks", "silver.customers"
SPARK = {
    CLICKS: {
        "event_id": "string",
        "UserID": "bigint",
        "session_id": "string",
        "amount_cents": "int",
        "occurred_at": "timestamp",
        "order_x20_id": "string",
        "Odd Name": "string",
        "device": "struct<os:string,screen:struct<width:int>>",
        "pages": "array<string>",
    },
    CUSTOMERS: {"user_id": "bigint", "name": "string"},
}
STAGED = '"lineage"."main"."stg_clicks"'
DUCKDB = {
    STAGED: {"UserID": "BIGINT", "amount_cents": "INTEGER", "device": "STRUCT(os VARCHAR)", "pages": "VARCHAR[]"},
    "silver/orders": {"order id": "VARCHAR", "user_id": "BIGINT"},
}


def spark(sql: str) -> dict[str, list[str]]:
    return shown(column_lineage(sql, "spark", SPARK))


def duckdb(sql: str) -> dict[str, list[str]]:
    return shown(column_lineage(sql, "duckdb", DUCKDB))


def quoted(name: str) -> str:
    return f'"{name}"'


def shown(lineage: Lineage) -> dict[str, list[str]]:
    assert lineage.unresolved == ()
    short = {CLICKS: "clicks", CUSTOMERS: "customers", STAGED: "stg", "silver/orders": "orders"}
    return {name: sorted(f"{short[ref.table]}.{ref.column}" for ref in refs) for name, refs in lineage.columns.items()}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        pytest.param("SELECT * FROM silver.clicks", {name: [f"clicks.{name}"] for name in SPARK[CLICKS]}, id="star"),
        pytest.param(
            "SELECT * EXCEPT (event_id, `odd name`, device, pages, order_x20_id, occurred_at) FROM silver.clicks",
            {name: [f"clicks.{name}"] for name in ("UserID", "session_id", "amount_cents")},
            id="star with exceptions",
        ),
        pytest.param(
            "WITH per_user AS"
            " (SELECT userid AS U, sum(amount_cents) AS total, count(*) AS n FROM silver.clicks GROUP BY 1)"
            " SELECT p.*, name FROM per_user p JOIN silver.customers ON p.u = user_id",
            {"U": ["clicks.UserID"], "total": ["clicks.amount_cents"], "n": [], "name": ["customers.name"]},
            id="CTE, join, aggregate",
        ),
        pytest.param(
            "WITH clicks AS (SELECT userid FROM silver.clicks) SELECT * FROM clicks",
            {"userid": ["clicks.UserID"]},
            id="CTE named like the table that it reads",
        ),
        pytest.param(
            "SELECT row_number() OVER (PARTITION BY session_id ORDER BY occurred_at) AS r,"
            " lag(event_id) OVER w AS before FROM silver.clicks WINDOW w AS (PARTITION BY userid)",
            {"r": ["clicks.occurred_at", "clicks.session_id"], "before": ["clicks.event_id"]},
            id="window functions",
        ),
        pytest.param(
            "SELECT userid AS id, event_id AS text FROM silver.clicks"
            " UNION ALL SELECT user_id, name FROM silver.customers",
            {"id": ["clicks.UserID", "customers.user_id"], "text": ["clicks.event_id", "customers.name"]},
            id="union by position",
        ),
        pytest.param(
            "SELECT device.os, device.screen.width AS w, struct(userid, session_id) AS pair FROM silver.clicks",
            {"os": ["clicks.device"], "w": ["clicks.device"], "pair": ["clicks.UserID", "clicks.session_id"]},
            id="struct access",
        ),
        pytest.param(
            "SELECT `Odd Name` AS `out name`, order_x20_id FROM `silver`.`clicks`",
            {"out name": ["clicks.Odd Name"], "order_x20_id": ["clicks.order_x20_id"]},
            id="quoted odd names",
        ),
        pytest.param(
            "SELECT USERID, Clicks.Session_Id FROM SILVER.Clicks",
            {"USERID": ["clicks.UserID"], "Session_Id": ["clicks.session_id"]},
            id="case of table and columns; Spark keeps the query's spelling",
        ),
        pytest.param(
            "SELECT page FROM silver.clicks LATERAL VIEW explode(pages) p AS page",
            {"page": ["clicks.pages"]},
            id="explode",
        ),
        pytest.param(
            "SELECT transform(pages, p -> concat(p, event_id)) AS t,"
            " amount_cents * 2 AS x, x + 1 AS y FROM silver.clicks",
            {"t": ["clicks.event_id", "clicks.pages"], "x": ["clicks.amount_cents"], "y": ["clicks.amount_cents"]},
            id="lambda, alias of the same SELECT",
        ),
        pytest.param(
            "SELECT silver.clicks.userid AS u,"
            " (SELECT max(name) FROM silver.customers c WHERE c.user_id = clicks.userid) AS m"
            " FROM silver.clicks WHERE session_id IS NOT NULL",
            {"u": ["clicks.UserID"], "m": ["customers.name"]},
            id="subquery; filters are no source",
        ),
        pytest.param(
            "WITH RECURSIVE r AS (SELECT event_id a, session_id b, `Odd Name` c FROM silver.clicks"
            " UNION ALL SELECT b, c, a FROM r) SELECT a FROM r",
            {"a": ["clicks.Odd Name", "clicks.event_id", "clicks.session_id"]},
            id="recursive CTE",
        ),
        pytest.param("INSERT INTO x.y SELECT userid AS u FROM silver.clicks", {"u": ["clicks.UserID"]}, id="insert"),
    ],
)
def test_spark_sql(sql: str, expected: dict[str, list[str]]) -> None:
    assert spark(sql) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        pytest.param(
            "SELECT userid, * EXCLUDE (userid, device, pages), device.os FROM lineage.main.stg_clicks",
            {"UserID": ["stg.UserID"], "amount_cents": ["stg.amount_cents"], "os": ["stg.device"]},
            id="star; DuckDB keeps the table's spelling",
        ),
        pytest.param(
            'WITH final AS (SELECT o."ORDER ID", sum(c.amount_cents) AS cents FROM "lineage"."main"."stg_clicks" c'
            ' JOIN "silver/orders" o ON o.user_id = c.userid GROUP BY ALL) SELECT * FROM final',
            {"order id": ["orders.order id"], "cents": ["stg.amount_cents"]},
            id="dbt's CTEs, odd table and column names",
        ),
        pytest.param(
            'SELECT user_id AS userid, 1 AS amount_cents FROM "silver/orders"'
            " UNION ALL BY NAME SELECT amount_cents, pages, userid FROM lineage.main.stg_clicks",
            {"userid": ["orders.user_id", "stg.UserID"], "amount_cents": ["stg.amount_cents"], "pages": ["stg.pages"]},
            id="union by name",
        ),
        pytest.param(
            "SELECT u.page FROM lineage.main.stg_clicks, unnest(pages) AS u(page)", {"page": ["stg.pages"]}, id="unnest"
        ),
        pytest.param(
            "FROM lineage.main.stg_clicks SELECT sum(amount_cents) FILTER (userid > 0) OVER () AS s"
            " QUALIFY row_number() OVER () = 1",
            {"s": ["stg.UserID", "stg.amount_cents"]},
            id="DuckDB's own syntax",
        ),
    ],
)
def test_duckdb_sql(sql: str, expected: dict[str, list[str]]) -> None:
    assert duckdb(sql) == expected
    with engine.connect() as connection:
        connection.execute("ATTACH ':memory:' AS lineage")
        for table, types in DUCKDB.items():
            columns = ", ".join(f"{quoted(column)} {kind}" for column, kind in types.items())
            connection.execute(f"CREATE TABLE {table if '.' in table else quoted(table)} ({columns})")
        # The engine itself calls the outputs so.
        assert [column[0] for column in connection.execute(sql).description or []] == list(expected)


def test_a_cte_may_read_a_table_of_its_own_name() -> None:
    lineage = column_lineage("WITH t AS (SELECT a AS b FROM t) SELECT b FROM t", "spark", {"t": {"a": "int"}})
    assert lineage == Lineage({"b": (ColumnRef("t", "a"),)}, {"b": "INT"}, ())


def test_tables_of_one_name_are_told_apart_by_their_schema() -> None:
    schemas = {"a.x": {"k": "int", "v": "int"}, "b.x": {"k": "int", "w": "int"}}
    sql = "SELECT a.x.v, b.x.w, (SELECT max(x.w) FROM b.x) AS m FROM a.x JOIN b.x ON a.x.k = b.x.k"
    assert column_lineage(sql, "spark", schemas).columns == {
        "v": (ColumnRef("a.x", "v"),),
        "w": (ColumnRef("b.x", "w"),),
        "m": (ColumnRef("b.x", "w"),),
    }


@pytest.mark.parametrize(
    ("sql", "unresolved"),
    [
        ("SELECT nope, c.gone, amount_cents FROM silver.clicks c", ("nope", "c.gone")),
        (
            "WITH c AS (SELECT userid FROM silver.clicks) SELECT missing, amount_cents FROM c, silver.clicks",
            ("missing",),
        ),
        ("SELECT u.x, amount_cents FROM silver.clicks c JOIN gold.unknown u ON u.id = c.userid", ("u.x",)),
        ("SELECT nope, amount_cents FROM silver.clicks c JOIN gold.unknown u ON u.id = c.userid", ("nope",)),
        ("SELECT u.*, amount_cents FROM gold.unknown u, silver.clicks", ("u.*",)),
    ],
)
def test_what_no_schema_explains_is_listed_and_the_rest_is_known(sql: str, unresolved: tuple[str, ...]) -> None:
    lineage = column_lineage(sql, "spark", SPARK)
    assert lineage.unresolved == unresolved
    assert lineage.columns["amount_cents"] == (ColumnRef(CLICKS, "amount_cents"),)
    assert not any(refs for name, refs in lineage.columns.items() if name != "amount_cents")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a FROM gold.unknown LATERAL VIEW explode(xs) AS a",
        "SELECT a FROM clicks",
        "SELECT a FROM silver.clicks PIVOT (sum(amount_cents) FOR session_id IN ('a'))",
    ],
)
def test_a_query_that_cannot_be_followed_names_its_columns_and_guesses_nothing(sql: str) -> None:
    lineage = column_lineage(sql, "spark", SPARK)
    assert [name.split(".")[-1] for name in lineage.unresolved] == ["a"]
    assert not any(lineage.columns.values())


def test_types_are_in_the_dialect_and_absent_where_unknown() -> None:
    sql = (
        "SELECT userid, sum(amount_cents) AS s, device, nope, page FROM silver.clicks"
        " LATERAL VIEW explode(pages) p AS page"
    )
    assert column_lineage(sql, "spark", SPARK).types == {
        "userid": "BIGINT",
        "s": "BIGINT",
        "device": "STRUCT<os: STRING, screen: STRUCT<width: INT>>",
    }
    odd = column_lineage("SELECT a, b FROM t", "spark", {"t": {"a": "no such <type", "b": "timestamp_ntz"}})
    assert odd.types == {"b": "TIMESTAMP_NTZ"}
    assert set(odd.columns) == {"a", "b"}


@pytest.mark.parametrize("sql", ["SELEC 1", "SELECT 1; SELECT 2", "DROP TABLE x", "", "SELECT (1"])
def test_what_is_no_query_is_refused(sql: str) -> None:
    with pytest.raises(ContractError):
        column_lineage(sql, "spark", SPARK)


def test_a_hundred_models_take_well_under_a_second_each() -> None:
    steps = ", ".join(
        f"c{i + 1} AS (SELECT *, amount_cents + {i} AS x{i}, row_number() OVER (PARTITION BY userid ORDER BY x) AS r{i}"
        f" FROM {f'c{i}' if i else '(SELECT *, occurred_at AS x FROM silver.clicks)'})"
        for i in range(5)
    )
    sql = f"WITH {steps} SELECT c5.*, name FROM c5 JOIN silver.customers ON userid = user_id"
    assert len(spark(sql)) == 21
    started = time.perf_counter()
    for _ in range(10):
        spark(sql)
    assert (time.perf_counter() - started) / 10 < 0.3
