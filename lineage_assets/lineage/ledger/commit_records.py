"""Records of all commits of all managed tables: what a Delta log forgets when it is shortened.

Belongs here: the table `ledger/commits`, reading a Delta log for it, its rule that a version stands once.
Does not belong here: telling Dagster (reporting/collector.py), what records mean together (lineage/content.py).

A table is known by its own id: one that was dropped and made again is another table with versions of its own.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from lineage_assets.lineage import record as records
from lineage_assets.lineage.commits import Commit, Lake, commit_infos, open_table
from lineage_assets.lineage.ledger.tables import LedgerTable
from lineage_assets.lineage.record import CommitRecord

COMMITS = "ledger/commits"
AT_ONCE = 10_000
"""More commits than these are read from a log in pieces, for a tick is short and memory is not free."""

Span = tuple[int, int]
"""Versions from one up to another, half open."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One version of a managed table as the ledger has it. `text` is the record's JSON: None on a foreign commit."""

    table_id: str
    version: int
    timestamp_ms: int
    operation: str
    restored_to: int | None
    kind: str | None
    slice: str | None
    run: str | None
    text: str | None

    @property
    def foreign(self) -> bool:
        """Somebody else wrote this commit."""
        return self.kind is None

    def commit(self) -> Commit:
        """The commit with its record; None as record also if the text was not read."""
        return Commit(self.version, self.timestamp_ms, self.operation, records.read(self.text), self.restored_to)


@dataclass(frozen=True, slots=True)
class Log:
    """What a Delta log holds from some version on: its table's id, its newest version, and entries, oldest first."""

    table_id: str
    newest: int
    entries: Sequence[Entry]


def read_log(lake: Lake, asset: str, first: int = 0, at_most: int = AT_ONCE) -> Log | None:
    """The oldest `at_most` commits from version `first` on that the log still holds; None where no table is.

    Raises UnknownRecordVersion where a later version of this package wrote.
    """
    table = open_table(lake, asset)
    return None if table is None else log_of(table, lake, asset, first, at_most)


def log_of(table: Any, lake: Lake, asset: str, first: int = 0, at_most: int = AT_ONCE) -> Log:
    """The same of a table that is open already."""
    table_id, newest = str(table.metadata().id), int(table.version())
    wanted = newest + 1 - first
    if wanted <= 0:
        return Log(table_id, newest, ())
    # deltalake gives the history of the newest version only, from its end, however much of it is wanted.
    if wanted <= at_most:
        infos = {one["version"]: one for one in commit_infos(table, wanted) if one["version"] >= first}
        newest = int(table.version())
    else:
        infos = _commit_files(lake, asset, first, at_most)
    return Log(table_id, newest, [_entry(table_id, version, infos[version]) for version in sorted(infos)])


@dataclass(frozen=True, slots=True)
class Found:
    """One version as it was asked for: `entry` is None when its record is in neither log nor ledger.

    `newest` is the newest version that is known of the table, None when nothing is.
    """

    newest: int | None
    entry: Entry | None
    source: str = ""


def find(lake: Lake, asset: str, version: int | None = None) -> Found:
    """A version of a table, the newest if none is given, from its log or else from the ledger.

    Of a table that is no more, the ledger has what was written last.
    """
    table = open_table(lake, asset)
    table_id = newest_table(lake, asset) if table is None else str(table.metadata().id)
    if table_id is None:
        return Found(None, None)
    held = spans(lake, asset).get(table_id, [])
    newest = max(int(table.version()) if table is not None else -1, held[-1][1] - 1 if held else -1)
    wanted = newest if version is None else version
    if table is not None and wanted <= newest:
        try:
            return Found(newest, _entry(table_id, wanted, _commit_info(_files(lake, asset), wanted)), "log")
        except FileNotFoundError:
            pass  # retention has removed it: that is what the ledger is for
    kept = entries(lake, asset, table_id, first=wanted, last=wanted)
    return Found(newest, kept[0], "ledger") if kept else Found(newest, None)


def table_id_of(lake: Lake, asset: str) -> str | None:
    """The id of the table that is there now."""
    table = open_table(lake, asset)
    return None if table is None else str(table.metadata().id)


def add_entries(lake: Lake, found: Mapping[str, Sequence[Entry]]) -> int:
    """Add entries per asset in one commit; what the ledger has already it does not get again. Returns how many are new."""

    def missing(table: Any) -> list[dict[str, Any]]:
        known = {asset: _spans(table, asset) for asset, entries in found.items() if entries}
        now = datetime.now(UTC)
        return [
            _row(asset, entry, now)
            for asset, entries in found.items()
            for entry in entries
            if not _inside(known[asset].get(entry.table_id, ()), entry.version)
        ]

    return TABLE.append(lake, f"commits of {', '.join(sorted(found))}", missing) if any(found.values()) else 0


def spans(lake: Lake, asset: str) -> dict[str, list[Span]]:
    """Per table id of an asset the versions that the ledger has, oldest first; read from file statistics alone."""
    table = open_table(lake, COMMITS)
    return {} if table is None else _spans(table, asset)


def entries(
    lake: Lake,
    asset: str,
    table_id: str | None = None,
    *,
    first: int | None = None,
    last: int | None = None,
    of_slice: str | None = None,
    texts: bool = True,
    foreign_only: bool = False,
) -> list[Entry]:
    """Entries of an asset, table after table and oldest first, from version `first` to `last`, both included.

    With `of_slice`, those of that slice and the RESTOREs, which may have undone some. Without `texts` the records are
    not read: many entries are then few bytes.
    """
    import pyarrow.compute as pc

    table = open_table(lake, COMMITS)
    if table is None:
        return []
    wanted = pc.field("asset") == asset
    if table_id is not None:
        wanted &= pc.field("table_id") == table_id
    if first is not None:
        wanted &= pc.field("version") >= first
    if last is not None:
        wanted &= pc.field("version") <= last
    if of_slice is not None:
        wanted &= (pc.field("slice") == of_slice) | pc.field("restored_to").is_valid()
    if foreign_only:
        wanted &= pc.field("kind").is_null() | pc.field("restored_to").is_valid()
    columns = [name for name in COLUMNS if texts or name != "record"]
    rows = table.to_pyarrow_dataset().to_table(columns=columns, filter=wanted).to_pylist()
    found = [_of_row(row) for row in rows]
    newest: dict[str, int] = defaultdict(int)
    for one in found:
        newest[one.table_id] = max(newest[one.table_id], one.timestamp_ms)
    return sorted(found, key=lambda one: (newest[one.table_id], one.table_id, one.version))


def assets(lake: Lake) -> list[str]:
    """Every asset that the ledger has commits of."""
    table = open_table(lake, COMMITS)
    return [] if table is None else sorted({str(one["asset"]) for one in table.partitions()})


def newest_table(lake: Lake, asset: str) -> str | None:
    """The id of the table of an asset that was written last, as the ledger knows it: for when the table is gone."""
    found = entries(lake, asset, texts=False)
    return found[-1].table_id if found else None


def merged(held: Iterable[Span]) -> list[Span]:
    """Spans in order, those that touch made one.

    >>> merged([(4, 6), (0, 2), (2, 3)])
    [(0, 3), (4, 6)]
    """
    whole: list[Span] = []
    for start, end in sorted(held):
        if whole and start <= whole[-1][1]:
            whole[-1] = (whole[-1][0], max(end, whole[-1][1]))
        else:
            whole.append((start, end))
    return whole


def of_versions(versions: Iterable[int]) -> list[Span]:
    """Single versions as spans.

    >>> of_versions([3, 1, 2, 7])
    [(1, 4), (7, 8)]
    """
    return merged((version, version + 1) for version in versions)


def holes(held: Iterable[Span]) -> list[Span]:
    """The versions from 0 on that are missing below the newest.

    >>> holes([(2, 6), (10, 15)])
    [(0, 2), (6, 10)]
    """
    found, at = [], 0
    for start, end in merged(held):
        if start > at:
            found.append((at, start))
        at = end
    return found


def spans_text(held: Iterable[Span]) -> str:
    """Spans as people read them.

    >>> spans_text([(10, 14), (15, 21)])
    '[10, 14), [15, 21)'
    """
    return ", ".join(f"[{start}, {end})" for start, end in held)


def parse_spans(text: str) -> list[Span]:
    """The inverse of `spans_text`.

    >>> parse_spans("[10, 14), [15, 21)")
    [(10, 14), (15, 21)]
    """
    pieces = [piece.strip(" [") for piece in text.split(")") if piece.strip(" ,")]
    numbers = [piece.lstrip(", [").split(",") for piece in pieces]
    return [(int(start), int(end)) for start, end in numbers]


def _inside(held: Iterable[Span], version: int) -> bool:
    return any(start <= version < end for start, end in held)


def _spans(table: Any, asset: str) -> dict[str, list[Span]]:
    """By file statistics: a file of one table id with as many rows as versions between its ends has all of these."""
    import pyarrow as pa
    import pyarrow.compute as pc

    files = pa.table(table.get_add_actions(flatten=True))
    if not files.num_rows:
        return {}
    files = files.filter(pc.field("partition.asset") == asset)
    found: dict[str, list[Span]] = defaultdict(list)
    loose = set()
    for file in files.to_pylist():
        low, high = file.get("min.version"), file.get("max.version")
        same = file.get("min.table_id") is not None and file["min.table_id"] == file["max.table_id"]
        if same and low is not None and file["num_records"] == high - low + 1:
            found[file["min.table_id"]].append((low, high + 1))
        else:
            loose.add(file["partition.date"])
    if loose:
        wanted = (pc.field("asset") == asset) & pc.field("date").isin(sorted(loose))
        rows = table.to_pyarrow_dataset().to_table(columns=["table_id", "version"], filter=wanted).to_pylist()
        for row in rows:
            found[row["table_id"]].append((row["version"], row["version"] + 1))
    return {table_id: merged(held) for table_id, held in found.items()}


def _files(lake: Lake, asset: str) -> Any:
    """The table's folder as a pyarrow file system, wherever it is."""
    from deltalake.fs import DeltaStorageHandler
    from pyarrow import fs

    return fs.PyFileSystem(DeltaStorageHandler(lake.path(asset), dict(lake.storage_options) or None))


def _commit_files(lake: Lake, asset: str, first: int, at_most: int) -> dict[int, dict[str, Any]]:
    """The `commitInfo` of the oldest log files from a version on, read one by one."""
    from pyarrow import fs

    files = _files(lake, asset)
    names = [one.base_name for one in files.get_file_info(fs.FileSelector("_delta_log"))]
    present = sorted(int(name[:20]) for name in names if len(name) == 25 and name.endswith(".json"))
    return {version: _commit_info(files, version) for version in [one for one in present if one >= first][:at_most]}


def _commit_info(files: Any, version: int) -> dict[str, Any]:
    with files.open_input_stream(f"_delta_log/{version:020}.json") as stream:
        actions = [json.loads(line) for line in stream.read().splitlines() if line.strip()]
    return next((one["commitInfo"] for one in actions if "commitInfo" in one), {})


def _entry(table_id: str, version: int, info: Mapping[str, Any]) -> Entry:
    text = info.get("userMetadata")
    record = records.read(text)
    operation = str(info.get("operation", ""))
    target = (info.get("operationParameters") or {}).get("version") if operation == "RESTORE" else None
    bare = Entry(
        table_id,
        version,
        int(info.get("timestamp", 0)),
        operation,
        None if target is None else int(target),
        None,
        None,
        None,
        None,
    )
    return bare if record is None else _with_record(bare, record, text)


def _with_record(bare: Entry, record: CommitRecord, text: str | None) -> Entry:
    return replace(bare, kind=record.kind, slice=record.slice, run=record.run, text=text)


COLUMNS = ("table_id", "version", "timestamp_ms", "operation", "restored_to", "kind", "slice", "run", "record")


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema(
        [
            ("date", pa.date32()),
            ("asset", pa.string()),
            ("table_id", pa.string()),
            ("version", pa.int64()),
            ("timestamp_ms", pa.int64()),
            ("operation", pa.string()),
            ("restored_to", pa.int64()),
            ("kind", pa.string()),
            ("slice", pa.string()),
            ("run", pa.string()),
            ("record", pa.string()),
            ("added_at", pa.timestamp("us", tz="UTC")),
        ]
    )


TABLE = LedgerTable(
    COMMITS,
    _schema,
    ["date", "asset"],
    ("table_id", "version"),
    {"delta.dataSkippingStatsColumns": "table_id,version,timestamp_ms,restored_to,kind,slice"},
)


def _row(asset: str, entry: Entry, now: datetime) -> dict[str, Any]:
    at = datetime.fromtimestamp(entry.timestamp_ms / 1000, UTC)
    told = {name: getattr(entry, name) for name in COLUMNS if name != "record"}
    return {"date": at.date(), "asset": asset, **told, "record": entry.text, "added_at": now}


def _of_row(row: Mapping[str, Any]) -> Entry:
    return Entry(**{name: row[name] for name in COLUMNS if name != "record"}, text=row.get("record"))
