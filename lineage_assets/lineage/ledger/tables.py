"""Tables of the ledger: made by whoever comes first, appended to by compare-and-swap.

Belongs here: what every ledger table shares. Does not belong here: the columns of one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lineage_assets.errors import TransientError
from lineage_assets.lineage.commits import Lake, open_table

ATTEMPTS = 50
"""Writers of the ledger are few and a commit takes milliseconds: 50 lost races in a row mean a fault."""


@dataclass(frozen=True, slots=True)
class LedgerTable:
    """Where a table of the ledger is and how it is laid out; `schema` makes its pyarrow schema.

    Rows with an equal `key` came in one insert, and nobody adds to them. Without a key, a row is known by all of it.
    """

    asset: str
    schema: Callable[[], Any]
    partition_by: Sequence[str]
    key: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def known_by(self) -> Sequence[str]:
        """The columns by which rows are told apart."""
        return self.key or [str(name) for name in self.schema().names]

    def opened(self, lake: Lake) -> Any:
        """The table, made now if it does not exist."""
        return open_table(lake, self.asset) or self._create(lake)

    def append(self, lake: Lake, what: str, rows: Callable[[Any], Sequence[Mapping[str, Any]]]) -> int:
        """Append what `rows` says is missing from the table that it is given; returns how many rows that were.

        The append is a compare-and-swap on the table's version: deltalake refuses it, when told not to retry, if
        another writer was there since `rows` looked. Then `rows` is asked again. `what` names it in an error.
        """
        import pyarrow as pa
        from deltalake import CommitProperties, write_deltalake
        from deltalake.exceptions import CommitFailedError

        for _ in range(ATTEMPTS):
            table = self.opened(lake)
            missing = rows(table)
            if not missing:
                return 0
            try:
                write_deltalake(
                    table,
                    pa.Table.from_pylist(list(missing), schema=self.schema()),
                    mode="append",
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
            except CommitFailedError:
                continue
            return len(missing)
        raise TransientError(
            f"{ATTEMPTS} attempts to add {what} to {lake.path(self.asset)} lost to other writers", remedy="try again"
        )

    def _create(self, lake: Lake) -> Any:
        """Make the table; of several writers that do so at once the first makes it, and the others find it there."""
        from deltalake import DeltaTable
        from deltalake.exceptions import CommitFailedError

        try:
            DeltaTable.create(
                lake.path(self.asset),
                self.schema(),
                mode="ignore",
                partition_by=list(self.partition_by),
                configuration=dict(self.properties),
                storage_options=dict(lake.storage_options) or None,
            )
        except CommitFailedError:
            if open_table(lake, self.asset) is None:
                raise
        return open_table(lake, self.asset)
