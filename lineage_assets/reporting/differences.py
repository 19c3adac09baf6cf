"""Where logs, ledger, Dagster and topics do not say the same: the library behind `lineage verify`.

Belongs here: logs against the ledger, and the ledger against Dagster's events. Does not belong here: rows and offsets
(conservation.py), repairing anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import dagster as dg

from lineage_assets.lineage.commits import Lake
from lineage_assets.lineage.ledger import commit_records as ledger
from lineage_assets.lineage.ledger.commit_records import Entry, Span, merged, of_versions, parse_spans, spans_text
from lineage_assets.lineage.record import CommitRecord
from lineage_assets.lineage.slices import Slice
from lineage_assets.reporting import covered
from lineage_assets.reporting.collector import CLOSED_AFTER_MS, Managed, differs, foreign_metadata
from lineage_assets.reporting.covered import Key, Slices, State
from lineage_assets.reporting.instance import (
    Materialized,
    alive_runs,
    materializations,
    newest_checks,
    newest_materializations,
)

AT_ONCE = 20_000

COLLECT = "let the collector's sensor run, or run `lineage verify` again in a minute"
REBUILD = "fill an empty Dagster instance with `lineage rebuild`"


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that does not fit, and what to do. One that is `known` was recorded when it happened: no fault of now."""

    where: str
    asset: str
    slice: Key
    what: str
    remedy: str
    known: bool = False

    def __str__(self) -> str:
        place = self.asset + (f" {self.slice}" if self.slice else "")
        return f"{self.where}: {place}: {self.what}" + (f"; {self.remedy}" if self.remedy else "")


@dataclass(frozen=True, slots=True)
class _Young(Difference):
    """A difference that is none while the commit at `at_ms` is young."""

    at_ms: int = 0


@dataclass(slots=True)
class Changed:
    """Which versions changed a slice, and by which runs."""

    spans: list[Span] = field(default_factory=list)
    runs: set[str | None] = field(default_factory=set)

    def add(self, entries: Sequence[Entry]) -> None:
        self.spans = merged([*self.spans, *of_versions(one.version for one in entries)])
        self.runs |= {one.run for one in entries}

    @property
    def versions(self) -> set[int]:
        return {version for start, end in self.spans for version in range(start, end)}


@dataclass(slots=True)
class Table:
    """A managed table as log and ledger have it: what each slice holds at version `newest`."""

    managed: Managed
    table_id: str
    newest: int
    slices: Slices
    changed: dict[Key, Changed]
    foreign: covered.Foreign


def read_table(lake: Lake, managed: Managed, found: list[Difference]) -> Table | None:
    """Read a table's records once, from log and ledger; differences of the two are added to `found`.

    None for a table that was never written, or that is gone.
    """
    asset = managed.asset
    log = ledger.read_log(lake, asset, 0, at_most=1)
    have = ledger.spans(lake, asset)
    if log is None:
        if have:
            found.append(
                Difference("log", asset, None, "the ledger has its commits, and the table is gone", "restore the table")
            )
        return None
    held = have.get(log.table_id, [])
    if held and held[-1][1] - 1 > log.newest:
        above = spans_text([(log.newest + 1, held[-1][1])])
        found.append(
            Difference(
                "log", asset, None, f"the ledger has versions {above}, which the log does not have",
                "the table was put back to an older state by hand: find out by whom",
            )
        )  # fmt: skip

    def kept(first: int, last: int, key: Key) -> list[Entry]:
        both = {one.version: one for one in ledger.entries(lake, asset, log.table_id, first=first, last=last)}
        both |= {one.version: one for one in _logged(lake, asset, first, last)}
        of_slice = [both[version] for version in sorted(both)]
        return of_slice if key is None else [one for one in of_slice if one.slice == key or one.restored_to is not None]

    slices = Slices(kept)
    table = Table(managed, log.table_id, log.newest, slices, {}, covered.Foreign(()))
    odd: list[Entry] = []
    gone: list[int] = []
    for first in range(0, log.newest + 1, AT_ONCE):
        last = min(first + AT_ONCE, log.newest + 1) - 1
        entries = _both(lake, table, first, last, found, gone)
        for key, new in slices.take(entries).items():
            table.changed.setdefault(key, Changed()).add(new)
        odd += [one for one in entries if one.foreign or one.restored_to is not None]
    table.foreign = covered.foreign(odd)
    if gone:
        found.append(
            Difference(
                "ledger", asset, None, f"the records of versions {spans_text(of_versions(gone))} are in neither log nor ledger",
                "`lineage backup --restore` brings back what a backup has; the rows are in the table", known=True,
            )
        )  # fmt: skip
    return table


def _logged(lake: Lake, asset: str, first: int, last: int) -> list[Entry]:
    log = ledger.read_log(lake, asset, first, at_most=last + 1 - first)
    return [] if log is None else [one for one in log.entries if one.version <= last]


def _both(lake: Lake, table: Table, first: int, last: int, found: list[Difference], gone: list[int]) -> list[Entry]:
    """Entries of some versions from ledger and log, and where the two differ."""
    asset = table.managed.asset
    rows = ledger.entries(lake, asset, table.table_id, first=first, last=last)
    kept = {one.version: one for one in rows}
    logged = {one.version: one for one in _logged(lake, asset, first, last)}
    missing = sorted(logged.keys() - kept.keys())
    if missing:
        newest = logged[missing[-1]].timestamp_ms
        what = f"versions {spans_text(of_versions(missing))} are not in the ledger"
        found.append(_Young("ledger", asset, None, what, COLLECT, at_ms=newest))
    other = sorted(version for version in logged.keys() & kept.keys() if logged[version] != kept[version])
    if other:
        found.append(
            Difference(
                "ledger", asset, None, f"versions {spans_text(of_versions(other))} have another record than in the log",
                "one of the two was changed by hand: compare with `lineage show`",
            )
        )  # fmt: skip
    if len(rows) > len(kept):
        what = f"{len(rows) - len(kept)} versions stand twice"
        found.append(Difference("ledger", asset, None, what, "the ledger has one writer: find the other"))
    both = {**kept, **logged}
    gone += [version for version in range(first, last + 1) if version not in both]
    return [both[version] for version in sorted(both)]


def of_dagster(
    instance: dg.DagsterInstance, table: Table, *, now_ms: int, pending_s: float = 0, every_event: bool = False
) -> Iterator[Difference]:
    """Where Dagster does not say of a table's slices, and of the view over it, what their records say.

    Commits of the last `pending_s` seconds, and of runs in progress, may be on their way. With `every_event`, each
    version must be covered exactly once: that reads all events and holds only where none were thinned out.
    """
    alive = alive_runs(instance)
    border = now_ms - pending_s * 1000

    def young(key: Key) -> bool:
        newest = table.slices.states[key].newest
        return newest.timestamp_ms > border or not alive.isdisjoint(one or "" for one in table.changed[key].runs)

    for asset in table.managed.keys:
        name = asset.to_user_string()
        stored = newest_materializations(instance, asset, list(table.changed))
        for key in table.changed:
            if not young(key):
                yield from _of_place(table, name, key, stored.get(key))
            if every_event:
                yield from _of_events(instance, table, asset, key, young(key))
        known = {one for one in instance.get_materialized_partitions(asset) if one}
        for key in sorted(known - {one for one in table.changed if one is not None}):
            yield Difference("dagster", name, key, "Dagster has a slice that no commit has made", REBUILD)
    if table.managed.has_checks:
        for key in table.changed:
            if not young(key):
                yield from _of_checks(instance, table, key, table.slices.states[key], now_ms)
    yield from _of_foreign(instance, table, border)


def _of_place(table: Table, name: str, key: Key, newest: Materialized | None) -> Iterator[Difference]:
    state = table.slices.states[key]
    if newest is None:
        yield Difference("dagster", name, key, f"version {state.newest.version} is not reported", COLLECT)
        return
    version = int(newest.metadata.get("delta/version", -1))
    told_id = newest.metadata.get("delta/table_id", table.table_id)
    if told_id != table.table_id:
        yield Difference("dagster", name, key, "the newest materialization is of another table of that name", COLLECT)
    elif version != state.newest.version:
        what = f"the newest materialization tells version {version}, and the newest is {state.newest.version}"
        yield Difference("dagster", name, key, what, COLLECT if version < state.newest.version else REBUILD)
    elif not state.whole.gap and (told := covered.base_of(newest)) is not None:
        for what in _record_differences(told, state.whole.record):
            yield Difference("dagster", name, key, f"version {version}: {what}", REBUILD)


def _record_differences(told: CommitRecord, stands: CommitRecord | None) -> Iterator[str]:
    """Where two records of a slice differ in what people rely on."""
    if stands is None:
        yield "Dagster tells a record, and nothing of the slice stands"
        return
    ours = {one.topic_id: dict(one.ranges) for one in stands.topics}
    theirs = {one.topic_id: dict(one.ranges) for one in told.topics}
    if ours != theirs:
        yield f"the offset ranges differ: told {theirs}, recorded {ours}"
    if {k: v for k, v in told.counts.items() if v} != {k: v for k, v in stands.counts.items() if v}:
        yield f"the counts differ: told {dict(told.counts)}, recorded {dict(stands.counts)}"


def _of_events(
    instance: dg.DagsterInstance, table: Table, asset: dg.AssetKey, key: Key, young: bool
) -> Iterator[Difference]:
    """Versions of a slice that no event covers, or several do."""
    covers: dict[int, int] = {}
    for one in materializations(instance, asset, key):
        if one.metadata.get("delta/table_id", table.table_id) == table.table_id:
            for start, end in parse_spans(str(one.metadata.get("delta/versions", ""))):
                for version in range(start, end):
                    covers[version] = covers.get(version, 0) + 1
    wanted = table.changed[key].versions
    name = asset.to_user_string()
    if twice := sorted(version for version, times in covers.items() if times > 1):
        yield Difference("dagster", name, key, f"versions {spans_text(of_versions(twice))} are covered twice", REBUILD)
    if not young and (none := sorted(wanted - covers.keys())):
        yield Difference("dagster", name, key, f"versions {spans_text(of_versions(none))} are not covered", COLLECT)
    if extra := sorted(covers.keys() - wanted):
        yield Difference("dagster", name, key, f"versions {spans_text(of_versions(extra))} did not change it", REBUILD)


def _of_checks(instance: dg.DagsterInstance, table: Table, key: Key, state: State, now_ms: int) -> Iterator[Difference]:
    """Verdicts always; the numbers of a slice that is closed."""
    record = state.whole.record
    if record is None or state.whole.gap:
        return
    grain = table.managed.grain
    ended_ms = Slice.of(key, grain).end.timestamp() * 1000 if grain is not None and key is not None else 0
    closed = max(ended_ms + 2 * CLOSED_AFTER_MS, state.newest.timestamp_ms + 2 * CLOSED_AFTER_MS) <= now_ms
    keys = [dg.AssetCheckKey(table.managed.key, one.name) for one in record.checks]
    known = newest_checks(instance, keys, key) if keys else {}
    for check, outcome in zip(keys, record.checks, strict=True):
        before = known.get(check)
        if before is None:
            yield Difference("dagster", table.managed.asset, key, f"check {check.name} has no result", COLLECT)
        elif differs(before, outcome, closed):
            told = "passed" if before.passed else f"failed as {before.severity.value}"
            stands = "passed" if outcome.passed else f"failed as {outcome.severity}"
            numbers = f", {outcome.failed} of {outcome.total}"
            what = f"check {check.name} {told} in Dagster and {stands}{numbers} by its record"
            yield Difference("dagster", table.managed.asset, key, what, COLLECT)


def _of_foreign(instance: dg.DagsterInstance, table: Table, border: float) -> Iterator[Difference]:
    """A foreign commit is a difference of its own, and must fail its check."""
    check, asset = table.managed.foreign_check, table.managed.asset
    before = newest_checks(instance, [check], None).get(check)
    told = foreign_metadata(table.table_id, table.foreign)
    if table.foreign.entries:
        versions = spans_text(of_versions(table.foreign.versions))
        yield Difference(
            "log", asset, None, f"versions {versions} are foreign commits: their rows have no recorded origin",
            "replace the slices that they changed, or restore the table to before them",
        )  # fmt: skip
    if table.foreign.entries and max(one.timestamp_ms for one in table.foreign.entries) > border:
        return
    if before is not None and before.metadata.get("delta/versions") != told["delta/versions"]:
        yield Difference("dagster", asset, None, f"check {check.name} tells another state of the log", COLLECT)


def verify(
    instance: dg.DagsterInstance,
    lake: Lake,
    tables: Sequence[Managed],
    *,
    pending_s: float = 0,
    every_event: bool = False,
    now_ms: int | None = None,
    rows: Callable[[dict[str, Table]], Iterator[Difference]] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Difference]:
    """All differences of logs, ledger and Dagster; with `rows` (see conservation.py), of tables and topics as well.

    `pending_s`: commits of the last so many seconds need not have arrived. A stream is told once a minute.
    """
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    found: list[Difference] = []
    read: dict[str, Table] = {}
    for managed in tables:
        say(f"{managed.asset}: log, ledger and Dagster")
        table = read_table(lake, managed, found)
        if table is not None:
            read[managed.asset] = table
            found += of_dagster(instance, table, now_ms=now_ms, pending_s=pending_s, every_event=every_event)
    border = now_ms - pending_s * 1000
    found = [one for one in found if not (isinstance(one, _Young) and one.at_ms > border)]
    if rows is not None:
        say("rows and offsets")
        found += rows(read)
    return found
