"""Column lineage: from which columns of which tables each output column of a query comes.

Belongs here: one function over Spark SQL and DuckDB SQL, given the real schemas. Does not belong here: reading
schemas, Dagster metadata.

A query is qualified by sqlglot with the schemas that it may read, then followed from each output column down to
tables. Only columns whose values flow into the output count: those of filters, join conditions and GROUP BY alone do
not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from lineage_assets.errors import ContractError
from lineage_assets.lineage.query_tables import QueryTables

if TYPE_CHECKING:
    from sqlglot import exp
    from sqlglot.optimizer.scope import Scope


@dataclass(frozen=True, slots=True, order=True)
class ColumnRef:
    """A column of a table, both named as in the schemas that were given. A field of a struct counts as its column."""

    table: str
    column: str


@dataclass(frozen=True, slots=True)
class Lineage:
    """Output column -> its sources, and its type as far as sqlglot infers it (in the query's dialect; a hint only).

    An output column made of no column (a literal, count(*)) has no sources. `unresolved` has what no given schema
    explains, as the query names it: no source in `columns` stands for it. What PIVOT makes is unresolved too.
    """

    columns: dict[str, tuple[ColumnRef, ...]]
    types: dict[str, str]
    unresolved: tuple[str, ...]


def column_lineage(sql: str, dialect: str, schemas: Mapping[str, Mapping[str, str]]) -> Lineage:
    """The column lineage of one query (or the query of a CREATE or INSERT).

    `dialect` is "spark" or "duckdb"; `schemas` maps tables, named as in the query (`silver.clicks`, quoted or not),
    to their columns and types. Names compare without case, as both engines do. An output without a name gets
    `_col_<position>`. ContractError when the text is no query.
    """
    from sqlglot import MappingSchema
    from sqlglot.errors import OptimizeError, SchemaError
    from sqlglot.optimizer.annotate_types import annotate_types
    from sqlglot.optimizer.qualify import qualify
    from sqlglot.optimizer.scope import build_scope

    query = _parse(sql, dialect)
    written = [name for name in query.named_selects if name]
    tables = QueryTables(query, schemas)
    folded = f"{dialect}, normalization_strategy=case_insensitive"
    known: dict[str, object] = {flat: _types(columns, dialect) for flat, (_, columns) in tables.known.items()}
    schema = MappingSchema(known, dialect=folded, normalize=False)
    try:
        qualified = qualify(
            query,
            dialect=folded,
            schema=schema,
            validate_qualify_columns=False,
            allow_partial_qualification=True,
            quote_identifiers=False,
        )
        scope = build_scope(annotate_types(qualified, schema=schema, dialect=folded))
    except (OptimizeError, SchemaError):
        scope = None
    if scope is None:
        return Lineage({}, {}, tuple(dict.fromkeys(written)))
    return _Walk(tables, dialect, scope).lineage()


def _parse(sql: str, dialect: str) -> exp.Query:
    from sqlglot import exp, parse
    from sqlglot.errors import SqlglotError

    try:
        statements = [one for one in parse(sql, dialect=dialect) if one is not None]
    except SqlglotError as error:
        raise ContractError(f"this {dialect} SQL cannot be read: {error}", remedy="correct it") from error
    if len(statements) != 1:
        raise ContractError(f"this SQL holds {len(statements)} statements", remedy="give one query")
    query = statements[0]
    if isinstance(query, exp.Create | exp.Insert):
        query = query.expression
    while isinstance(query, exp.Subquery):
        query = query.this
    if not isinstance(query, exp.Query):
        raise ContractError(f"this SQL is no query: {sql.strip()[:80]}", remedy="give a SELECT")
    for identifier in query.find_all(exp.Identifier):
        # sqlglot folds case; what an output is called is as it was written.
        identifier.meta["written"] = identifier.name
    return query


def _types(columns: Mapping[str, str], dialect: str) -> dict[str, object]:
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    types: dict[str, object] = {}
    for column, text in columns.items():
        try:
            types[column.lower()] = exp.DataType.build(text, dialect=dialect)
        except (SqlglotError, ValueError):
            types[column.lower()] = exp.DataType.build("unknown")
    return types


class _Place(NamedTuple):
    """An output column of a query within the query, by position."""

    scope: Scope
    position: int


class _Walk:
    """Follows output columns through scopes down to tables."""

    def __init__(self, tables: QueryTables, dialect: str, outermost: Scope) -> None:
        self.tables = tables
        self.dialect = dialect
        self.outermost = outermost
        self.scopes = {id(scope.expression): scope for scope in outermost.traverse()}
        self.steps: dict[tuple[int, int], list[_Place | ColumnRef | str]] = {}

    def lineage(self) -> Lineage:
        """The lineage of the outermost query."""
        from sqlglot import exp

        columns: dict[str, tuple[ColumnRef, ...]] = {}
        types: dict[str, str] = {}
        unresolved: dict[str, None] = {}
        for position, select in enumerate(_selects(self.outermost)):
            place = _Place(self.outermost, position)
            found = self._reach(place)
            unresolved |= dict.fromkeys(one for one in found if isinstance(one, str))
            if select.is_star:
                continue
            name = self._name(place)
            columns[name] = tuple(sorted({one for one in found if isinstance(one, ColumnRef)}))
            # sqlglot gives what a LATERAL VIEW explodes the type of the whole array.
            exploded = any(isinstance(one, _Place) and isinstance(one.scope.expression, exp.Lateral) for one in found)
            if select.type and not select.is_type("unknown") and not exploded:
                types[name] = select.type.sql(self.dialect)
        return Lineage(columns, types, tuple(unresolved))

    def _reach(self, start: _Place) -> list[_Place | ColumnRef | str]:
        # Recursive CTEs lead back to themselves, so this is a search of a graph, not of a tree.
        found: dict[_Place | ColumnRef | str, None] = {start: None}
        queue = [start]
        while queue:
            place = queue.pop()
            key = (id(place.scope), place.position)
            if key not in self.steps:
                self.steps[key] = list(self._step(place))
            for step in self.steps[key]:
                if isinstance(step, _Place) and step not in found:
                    queue.append(step)
                found[step] = None
        return list(found)

    def _step(self, place: _Place) -> Iterator[_Place | ColumnRef | str]:
        from sqlglot import exp
        from sqlglot.optimizer.scope import find_all_in_scope

        scope, expression = place.scope, place.scope.expression
        if isinstance(expression, exp.SetOperation):
            name = _selects(scope)[place.position].alias_or_name
            for branch in scope.set_operation_scopes:
                position = _position(branch, name) if expression.args.get("by_name") else place.position
                if position is not None:
                    yield _Place(branch, position)
            return
        if isinstance(expression, exp.Subquery):
            yield from (_Place(inner, place.position) for inner in scope.subquery_scopes[:1])
            return
        # A generator (UNNEST, LATERAL VIEW, VALUES) makes all its columns from all that it reads.
        part = expression if isinstance(expression, exp.UDTF) else _selects(scope)[place.position]
        if part.is_star:
            yield part.sql(self.dialect)
            return
        nested = {id(inner.expression): inner for inner in scope.subquery_scopes}
        for query in find_all_in_scope(part, *exp.UNWRAPPED_QUERIES):
            if inner := nested.get(id(query)):
                yield from (_Place(inner, position) for position in range(len(_selects(inner))))
        for column in find_all_in_scope(part, exp.Column):
            yield from self._sources(scope, column)

    def _sources(self, scope: Scope, column: exp.Column) -> Iterator[_Place | ColumnRef | str]:
        from sqlglot import exp

        source: Any = None
        around: Scope | None = scope
        while around is not None and source is None and column.table:
            source, around = around.sources.get(column.table), around.parent
        if isinstance(source, exp.Table):
            spelled = self.tables.spelled.get(source.name, {}).get(column.name)
            if spelled is not None and not source.args.get("pivots"):
                yield ColumnRef(self.tables.known[source.name][0], spelled)
                return
        elif source is not None:
            source = self._whole(source)
            if isinstance(source.expression, exp.UDTF):
                yield _Place(source, 0)
                return
            position = _position(source, column.name)
            if position is not None:
                yield _Place(source, position)
                return
        yield _text(column)

    def _whole(self, scope: Scope) -> Scope:
        # Within a recursive CTE sqlglot lets its name mean the first branch only, in a scope without sources.
        from sqlglot import exp

        union = scope.expression.parent
        if scope.is_cte and isinstance(union, exp.SetOperation):
            return self.scopes.get(id(union), scope)
        return scope

    def _name(self, place: _Place) -> str:
        """What the engine calls an output: the alias as it was written.

        For a bare column Spark takes the spelling of the query, DuckDB that of the table.
        """
        from sqlglot import exp

        select = _selects(place.scope)[place.position]
        column = select.this if isinstance(select, exp.Alias) else select
        identifier = select.args.get("alias") if isinstance(select, exp.Alias) else None
        written = _written(identifier)
        if written is None and isinstance(column, exp.Column):
            written = _written(column.this)
            if written is None or self.dialect == "duckdb":
                for source in self._sources(place.scope, column):
                    if isinstance(source, ColumnRef):
                        return source.column
                    if isinstance(source, _Place) and not isinstance(source.scope.expression, exp.UDTF):
                        return self._name(source)
        return select.alias_or_name if written is None else written


def _selects(scope: Scope) -> list[Any]:
    return _outputs(scope.expression)


def _outputs(expression: Any) -> list[Any]:
    if expression.args.get("by_name"):
        left = _outputs(expression.left)
        names = {select.alias_or_name for select in left}
        return left + [select for select in _outputs(expression.right) if select.alias_or_name not in names]
    return list(getattr(expression, "selects", []))


def _position(scope: Scope, name: str) -> int | None:
    return next((index for index, select in enumerate(_selects(scope)) if select.alias_or_name == name), None)


def _written(identifier: Any) -> str | None:
    written = identifier.meta.get("written") if identifier is not None else None
    return str(written) if written is not None else None


def _text(column: exp.Column) -> str:
    return ".".join(_written(part) or part.name for part in column.parts)
