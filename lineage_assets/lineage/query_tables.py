"""The tables that a query reads, matched with the names that a caller knows them by.

Belongs here: which names in a query are tables, and giving them flat names. Does not belong here: columns' sources
(columns.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlglot import exp


class QueryTables:
    """Gives every table of a query one flat name, whatever its depth and quotes, and remembers which one it stands for.

    `known` and `spelled` have, by flat name, the table and its columns as given, and the spelling of a column by its
    folded name.
    """

    def __init__(self, query: exp.Query, schemas: Mapping[str, Mapping[str, str]]) -> None:
        from sqlglot import exp

        self.known: dict[str, tuple[str, Mapping[str, str]]] = {}
        self.spelled: dict[str, dict[str, str]] = {}
        given = {_folded(name): name for name in schemas}
        flat: dict[str, str] = {}
        aliases: dict[tuple[int, tuple[str, ...]], str] = {}
        taken: set[tuple[int, str]] = set()
        for table in list(query.find_all(exp.Table)):
            if not isinstance(table.this, exp.Identifier) or _is_cte(table):
                continue
            parts, select = _path(table.parts), id(table.parent_select)
            name = flat.setdefault(".".join(parts), f"_lineage_table_{len(flat)}")
            if not table.alias:
                # a.x and b.x in one FROM: only their full paths tell them apart.
                alias = name if (select, parts[-1]) in taken else table.name
                taken.add((select, parts[-1]))
                aliases[select, parts] = alias
                table.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
            _name(table, "this", name)
            if table_given := given.get(".".join(parts)):
                self.known[name] = (table_given, schemas[table_given])
                self.spelled[name] = {column.lower(): column for column in schemas[table_given]}
        for column in [one for one in query.find_all(exp.Column) if one.args.get("db")]:
            path, around = _path(column.parts[:-1]), column.parent_select
            while around is not None and (id(around), path) not in aliases:
                around = around.parent_select
            if around is not None:
                _name(column, "table", aliases[id(around), path])


def _path(parts: Sequence[exp.Expr]) -> tuple[str, ...]:
    return tuple(part.name.lower() for part in parts)


def _name(expression: exp.Expr, part: str, name: str) -> None:
    from sqlglot import exp

    expression.set(part, exp.to_identifier(name, quoted=True))
    expression.set("db", None)
    expression.set("catalog", None)


def _folded(name: str) -> str:
    return name.replace("`", "").replace('"', "").lower()


def _is_cte(table: exp.Table) -> bool:
    """Whether a name means a CTE around it. A CTE that reads a table of its own name means the table."""
    from sqlglot import exp

    if table.db:
        return False
    inside: exp.Expr = table
    while (around := inside.parent) is not None:
        if isinstance(around, exp.With):
            position = next(index for index, cte in enumerate(around.expressions) if cte is inside)
            visible = around.expressions[: position + bool(around.recursive)]
        elif isinstance(around, exp.Query) and not isinstance(inside, exp.With):
            visible = around.ctes
        else:
            visible = []
        if any(cte.alias.lower() == table.name.lower() for cte in visible):
            return True
        inside = around
    return False
