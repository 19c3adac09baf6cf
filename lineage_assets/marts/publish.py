"""A mart becomes a Delta table: replaced whole, in one commit that carries its record.

Belongs here: that write, and its rule when another run was first. Does not belong here: when a mart is fit to publish.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lineage_assets.errors import FatalError, TransientError
from lineage_assets.lineage import record as records
from lineage_assets.lineage.commits import Lake, commits, open_table
from lineage_assets.lineage.content import newest_by_slice
from lineage_assets.lineage.record import CommitRecord

if TYPE_CHECKING:
    import pyarrow as pa

ATTEMPTS = 10
"""Writers of one mart are few: ten lost races in a row mean a fault."""


@dataclass(frozen=True, slots=True)
class Published:
    """The commit that now is the mart."""

    version: int
    table_id: str
    record: CommitRecord


def publish(lake: Lake, rows: Callable[[], pa.RecordBatchReader], record: CommitRecord) -> Published:
    """Replace the table of `record.asset` by `rows`, which is called once an attempt.

    Equal content is still a commit: its record names newer inputs. A run that was overtaken does not put older content
    over newer: TransientError. Types are those of the rows; an empty mart is a table without rows.
    """
    from deltalake import CommitProperties, write_deltalake
    from deltalake.exceptions import CommitFailedError, DeltaError

    properties = CommitProperties(custom_metadata={"userMetadata": records.to_json(record)}, max_commit_retries=0)
    for _ in range(ATTEMPTS):
        table = open_table(lake, record.asset)
        _refuse_older(lake, record)
        try:
            write_deltalake(
                table if table is not None else lake.path(record.asset),
                rows(),
                mode="overwrite",
                schema_mode="overwrite",
                storage_options=dict(lake.storage_options) or None,
                commit_properties=properties,
            )
        except CommitFailedError:
            continue
        except DeltaError as error:
            if table is None and open_table(lake, record.asset) is not None:
                continue  # another run made the table between our look and our write
            reason = str(error).partition("\n")[0]  # the rest is a stack trace
            raise FatalError(f"{record.asset} was not written to {lake.path(record.asset)}: {reason}") from error
        return _committed(lake, record)
    raise TransientError(
        f"{ATTEMPTS} attempts to publish {record.asset} to {lake.path(record.asset)} lost to other writers",
        remedy="run it again",
    )


def schema_hash(schema: pa.Schema) -> str:
    """Hash of a mart's columns, by their Delta types."""
    from deltalake import Schema

    return records.output_schema_hash(
        [(field.name, _type_name(field.type)) for field in Schema.from_arrow(schema).fields]
    )


def _type_name(kind: Any) -> str:
    """`long`, `decimal(10,2)`; a nested type as its JSON."""
    name = getattr(kind, "type", None)
    return str(name) if type(kind).__name__ == "PrimitiveType" else str(kind.to_json())


def _refuse_older(lake: Lake, record: CommitRecord) -> None:
    newest = newest_by_slice(commits(lake, record.asset)).get(None)
    if newest is None or newest[1].code != record.code:
        return
    standing = {(one.table, one.table_id): one.read_at for one in newest[1].tables}
    ours = {(one.table, one.table_id): one.read_at for one in record.tables}
    pairs = [(standing[key] or 0, ours[key] or 0) for key in ours if key in standing]
    if standing.keys() == ours.keys() and all(a >= b for a, b in pairs) and any(a > b for a, b in pairs):
        raise TransientError(
            f"{record.asset} stands at version {newest[0].version}, which run {newest[1].run} made of newer inputs",
            remedy="nothing to do",
        )


def _committed(lake: Lake, record: CommitRecord) -> Published:
    for limit in (10, 1000, None):
        for commit in commits(lake, record.asset, limit):
            if commit.record == record:
                table = open_table(lake, record.asset)
                assert table is not None
                return Published(commit.version, str(table.metadata().id), record)
    raise FatalError(f"the commit of {record.asset} by run {record.run} is not in the log of {lake.path(record.asset)}")
