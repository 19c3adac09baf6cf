"""The declaration that process(slice) works from: a topic's event table, free of any service.

Belongs here: the value type, what its SQL may be, its code version. Does not belong here: running it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import lineage_assets
from lineage_assets.errors import ContractError
from lineage_assets.lineage.columns import Lineage, column_lineage
from lineage_assets.lineage.slices import Grain
from lineage_assets.quality.contract import Contract

if TYPE_CHECKING:
    from sqlglot.errors import ParseError

RECORDS = "records"
"""The name by which a table's `select` sees the decoded records."""

GENERATORS = frozenset({"inline_outer", "variant_explode", "variant_explode_outer"})
"""Spark's functions of many rows that sqlglot does not know as such."""

LINEAGE_COLUMNS = {"_partition": "int", "_offset": "bigint", "_timestamp": "timestamp", "_late_by_s": "bigint"}
"""What every row of silver carries beside its own columns, and `_slice`."""


@dataclass(frozen=True, slots=True)
class EventTable:
    """Declares `raw/<name>` and `silver/<name>` over one topic.

    `select` is Spark SQL over `records`, one row in and one row out. `unique_by` names the columns of the dedupe key,
    looked for `window_ms` back by Kafka timestamp. A record whose Kafka timestamp exceeds its `event_time` by more
    than `grace_ms` is late.
    """

    name: str
    topic: str
    format: str
    grain: Grain
    since: datetime
    contract: Contract
    select: str | None = None
    event_time: str | None = None
    grace_ms: int = 3_600_000
    unique_by: tuple[str, ...] = ()
    window_ms: int = 600_000
    transactional: bool = False
    private_key: bool = True
    """Whether the records' keys are, or may be, personal: then the heaviest of them are named by hashes."""

    @property
    def subject(self) -> str:
        """The topic's value subject in the registry (the default naming strategy)."""
        return f"{self.topic}-value"

    @property
    def code(self) -> str:
        """Version of all that decides what the tables hold: package, contract, SQL and settings of the declaration."""
        text = json.dumps(
            [lineage_assets.__version__, self.contract.hash, self.select, self.event_time, self.grace_ms,
             self.unique_by, self.window_ms, self.format, self.transactional]
        )  # fmt: skip
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def lineage(self) -> Lineage:
        """Columns of silver's SQL with their types, and the contract's columns that each comes from."""
        return column_lineage(
            self.select_sql, "spark", {RECORDS: {one.column: one.type for one in self.contract.columns}}
        )

    @property
    def private_columns(self) -> tuple[str, ...]:
        """Columns that get no file statistics in silver: those made of a field tagged `pii`, whatever their name."""
        private = {one.column for one in self.contract.columns if "pii" in one.tags}
        return tuple(
            name for name, sources in self.lineage.columns.items() if any(one.column in private for one in sources)
        )

    @property
    def select_sql(self) -> str:
        """The table's SQL: the declared one, or every column of the contract."""
        if self.select is not None:
            return self.select
        return f"SELECT {', '.join(f'`{column.column}`' for column in self.contract.columns)} FROM {RECORDS}"


def row_wise(sql: str, where: str) -> str:
    """The SQL with the lineage columns added, after making sure that it keeps one row a record.

    `where` names the file for messages. Raises ContractError for SQL that does not parse, reads anything but
    `records`, or can drop or multiply rows: which rows silver holds is the contract's word, and counted.
    """
    import sqlglot
    from sqlglot import exp

    try:
        tree = sqlglot.parse_one(sql, dialect="spark")
    except sqlglot.errors.ParseError as error:
        raise ContractError(f"{where}: not valid Spark SQL: {syntax_error(error)}") from error
    if not isinstance(tree, exp.Select):
        raise ContractError(f"{where}: expected one SELECT over {RECORDS}, got {tree.key.upper()}")
    tables = [table.sql(dialect="spark") for table in tree.find_all(exp.Table)]
    if tables != [RECORDS]:
        raise ContractError(
            f"{where}: reads {', '.join(tables) or 'nothing'}; expected FROM {RECORDS} and nothing else"
        )
    drop = (exp.Where, exp.Group, exp.Having, exp.Distinct, exp.Limit, exp.Fetch, exp.Offset, exp.Qualify, exp.AggFunc)
    unknown = [one for one in tree.find_all(exp.Anonymous) if one.name.lower() in GENERATORS]
    if found := tree.find(*drop, exp.Join, exp.UDTF, exp.Lateral) or next(iter(unknown), None):
        raise ContractError(
            f"{where}: {found.sql(dialect='spark')} can drop or multiply rows; silver keeps one row for each ok record",
            remedy="put a rule into the contract, or an own table after silver",
        )
    return tree.select(*(f"`{name}`" for name in LINEAGE_COLUMNS), dialect="spark").sql(dialect="spark")


def syntax_error(error: ParseError) -> str:
    """What sqlglot says of the first fault, in one line without terminal colours."""
    if not error.errors:
        return str(error)
    first = error.errors[0]
    said = str(first["description"]).split(" but got ")[0]
    return f"{said} at {first['highlight']!r}, line {first['line']}, column {first['col']}"
