"""From Delta logs to the ledger, and from there to Dagster: what the sensor of components/collector.py does in a tick.

Belongs here: when commits are told, and in which events. Does not belong here: what is pending (covered.py), the words
of metadata (metadata.py), Dagster's storage (instance.py, store.py).

The order is what makes it safe to be killed anywhere: records go to the ledger first, then all events of a table to
Dagster in one transaction, then the cursor. What was told is read from Dagster's own newest materializations, so a
cursor that is old, or lost, costs time and nothing else.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import dagster as dg

from lineage_assets.errors import LineageError
from lineage_assets.lineage.commits import Commit, Lake, open_table
from lineage_assets.lineage.ledger import commit_records as ledger
from lineage_assets.lineage.ledger.commit_records import Entry, Span, of_versions, spans_text
from lineage_assets.lineage.record import CheckOutcome, CommitRecord
from lineage_assets.lineage.slices import Grain, Slice
from lineage_assets.reporting import covered, metadata, store
from lineage_assets.reporting.covered import Key, Whole
from lineage_assets.reporting.instance import (
    Materialized,
    alive_runs,
    materializations,
    newest_checks,
    newest_materializations,
)
from lineage_assets.reporting.store import Place, Timed
from lineage_assets.reporting.verdicts import describe

NO_FOREIGN_COMMITS = "no_foreign_commits"
PAUSE_MS = 60_000
"""Between two materializations of one asset and slice."""
CLOSED_AFTER_MS = 60_000
"""A slice's checks are told once more this long after its time is over: its last commits are a moment behind it."""
VIEWS = {"raw": "dead_letters", "silver": "late"}


@dataclass(frozen=True, slots=True)
class Managed:
    """A table that declared components write. `grain` is the length of its slices; None: it has none."""

    asset: str
    grain: Grain | None = None

    @property
    def key(self) -> dg.AssetKey:
        return dg.AssetKey(self.asset.split("/"))

    @property
    def keys(self) -> list[dg.AssetKey]:
        """The assets that its commits make: the table, and the view over it if there is one."""
        layer, *name = self.asset.split("/")
        return [self.key, *([dg.AssetKey([VIEWS[layer], *name])] if layer in VIEWS else [])]

    @property
    def has_checks(self) -> bool:
        """Raw's record says the same of the checks as silver's, where they are declared."""
        return not self.asset.startswith("raw/")

    @property
    def foreign_check(self) -> dg.AssetCheckKey:
        return dg.AssetCheckKey(self.key, NO_FOREIGN_COMMITS)


def foreign_check(asset: dg.AssetKey) -> dg.AssetCheckSpec:
    """The check of every managed table that each of its commits carries a record."""
    return dg.AssetCheckSpec(
        NO_FOREIGN_COMMITS,
        asset=asset,
        description="Every commit of the table carries its lineage: nobody else has written to it.",
        # Of the table, not of a slice: nobody knows which slices a foreign commit changed.
        partitions_def=None,
    )


@dataclass(frozen=True, slots=True)
class Position:
    """How far a table is told; a line of the cursor. Versions below `next` are settled, those below `kept` in the ledger.

    `told` has per slice the moment of its newest materialization, `open` the slices whose checks are told once more
    when they close.
    """

    table_id: str = ""
    next: int = 0
    kept: int = 0
    told: Mapping[str, int] = field(default_factory=dict)
    open: Sequence[str] = ()


@dataclass(slots=True)
class Collected:
    """What a tick did: the new cursor, events stored, and the faults of single tables, which keep no other waiting."""

    cursor: dict[str, Any]
    events: int = 0
    gaps: list[str] = field(default_factory=list)
    problems: list[LineageError] = field(default_factory=list)


@dataclass(slots=True)
class _Look:
    """One table in a tick: entries from `position.next` on, and which of its slices are told now."""

    table: Managed
    position: Position
    entries: Sequence[Entry]
    fresh: Sequence[Entry]
    at_end: bool
    begins: bool
    gap: Span | None
    due: dict[Key, list[Entry]] = field(default_factory=dict)
    unsettled: set[int] = field(default_factory=set)
    closing: list[Key] = field(default_factory=list)

    @property
    def odd(self) -> bool:
        """Foreign commits and RESTOREs cannot wait, and are judged by what the ledger has."""
        return any(one.foreign or one.restored_to is not None for one in self.fresh)


def collect(
    instance: dg.DagsterInstance,
    lake: Lake,
    tables: Sequence[Managed],
    cursor: Mapping[str, Any],
    *,
    now_ms: int | None = None,
    budget_s: float = 45.0,
    at_once: int = ledger.AT_ONCE,
) -> Collected:
    """Take in what was committed since the cursor and tell Dagster, for so long as the budget lasts."""
    until = time.monotonic() + budget_s
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    done = Collected(dict(cursor))
    left = list(tables)
    while left:
        tick = _Tick(instance, lake, now_ms, done, at_once)
        left = tick.run(left)
        if time.monotonic() > until:
            break
    return done


class _Tick:
    """One round over some tables."""

    def __init__(self, instance: dg.DagsterInstance, lake: Lake, now_ms: int, done: Collected, at_once: int) -> None:
        self.instance, self.lake, self.now_ms, self.done, self.at_once = instance, lake, now_ms, done, at_once

    def run(self, tables: Sequence[Managed]) -> list[Managed]:
        """Returns the tables that have more to tell at once."""
        looks = []
        for table in tables:
            try:
                if (look := self._look(table)) is not None:
                    looks.append(look)
            except LineageError as error:
                self.done.problems.append(error)
        # After the logs were read: a run that committed is alive here, or has stored all that it reports.
        alive = alive_runs(self.instance) if any(look.entries for look in looks) else set()
        for look in looks:
            self._decide(look, alive)
        self._keep([look for look in looks if look.due or look.closing or look.odd or look.begins or not look.at_end])
        more = []
        for look in looks:
            try:
                position = self._tell(look)
            except LineageError as error:
                self.done.problems.append(error)
                continue
            self.done.cursor[look.table.asset] = asdict(position)
            if not look.at_end:
                more.append(look.table)
        return more

    def _look(self, table: Managed) -> _Look | None:
        position = Position(**self.done.cursor.get(table.asset, {}))
        delta = open_table(self.lake, table.asset)
        if delta is None:
            return None
        table_id = str(delta.metadata().id)
        begins = table_id != position.table_id
        if begins:
            # Nothing is known of this table, or the cursor was lost: the ledger says what it has, holes included.
            have = ledger.spans(self.lake, table.asset).get(table_id, [])
            missing = ledger.holes(have)
            position = Position(table_id, 0, missing[0][0] if missing else (have[-1][1] if have else 0))
        log = ledger.log_of(delta, self.lake, table.asset, position.kept, self.at_once)
        older: list[Entry] = []
        if position.next < position.kept:
            older = ledger.entries(
                self.lake, table.asset, position.table_id, first=position.next, last=position.kept - 1
            )
        fresh = list(log.entries)
        at_end = not fresh or fresh[-1].version >= log.newest
        gap = None
        if (fresh and fresh[0].version > position.kept) or (not fresh and log.newest >= position.kept):
            gap = (position.kept, fresh[0].version if fresh else log.newest + 1)
        return _Look(table, position, [*older, *fresh], fresh, at_end, begins, gap)

    def _decide(self, look: _Look, alive: set[str]) -> None:
        """Which slices are told now. Those of a run in progress wait, and those that were told less than a minute ago."""
        position = look.position
        waiting: set[Key] = set()
        for key, entries in covered.changes(look.entries, self._restores(look)).items():
            if any(one.run in alive for one in entries):
                waiting.add(key)
                look.unsettled |= {one.version for one in entries}
            elif self._moment(look, entries) - position.told.get(key or "", -PAUSE_MS) < PAUSE_MS:
                look.unsettled |= {one.version for one in entries}
            else:
                look.due[key] = entries
        look.closing = [
            key for key in position.open if self._closed(look.table, key) and key not in look.due and key not in waiting
        ]

    def _restores(self, look: _Look) -> dict[int, Sequence[Entry]]:
        """Per RESTORE among the entries what it has undone, as far as the ledger or the log knows it."""
        found: dict[int, Sequence[Entry]] = {}
        for one in look.entries:
            if one.restored_to is not None:
                first, last = one.restored_to + 1, one.version - 1
                kept = ledger.entries(self.lake, look.table.asset, one.table_id, first=first, last=last, texts=False)
                known = {entry.version: entry for entry in kept}
                known.update({entry.version: entry for entry in look.entries if first <= entry.version <= last})
                found[one.version] = [known[version] for version in sorted(known)]
        return found

    def _moment(self, look: _Look, entries: Sequence[Entry]) -> int:
        """Now; in a backlog, the time of the commits: it is told as it would have been told then."""
        return self.now_ms if look.at_end or not entries else entries[-1].timestamp_ms

    def _closed(self, table: Managed, key: Key) -> bool:
        if table.grain is None or key is None:
            return True
        return Slice.of(key, table.grain).end.timestamp() * 1000 + CLOSED_AFTER_MS <= self.now_ms

    def _keep(self, looks: Sequence[_Look]) -> None:
        """New records go to the ledger, those of all tables in one commit. The ledger first, whatever is told."""
        added = {look.table.asset: look.fresh for look in looks if look.fresh}
        ledger.add_entries(self.lake, added)
        for look in looks:
            kept = look.fresh[-1].version + 1 if look.fresh else look.position.kept
            look.position = replace(look.position, kept=max(look.position.kept, kept))

    def _tell(self, look: _Look) -> Position:
        """Tell Dagster of one table and return where it stands then."""
        position = look.position
        events: list[Timed] = []
        seen: dict[Place, int | None] = {}
        for key, entries in look.due.items():
            events += self._of_slice(look, key, entries, seen)
        for key in look.closing:
            events += self._of_closed(look, key)
        events += self._of_foreign(look)
        events += self._of_gaps(look)
        # Stable: a materialization stays before its checks. Across slices the times rise, for "newest" is stored last.
        events.sort(key=lambda one: one.at)
        store.store(self.instance, events, seen)
        self.done.events += len(events)
        moment = self._moment(look, look.entries)
        told = {key: at for key, at in position.told.items() if moment - at < PAUSE_MS}
        told |= {key or "": self._moment(look, entries) for key, entries in look.due.items()}
        opened = {key for key in look.due if key is not None and not self._closed(look.table, key)}
        still = [key for key in position.open if key not in look.closing]
        last = look.entries[-1].version + 1 if look.entries else position.next
        return replace(
            position,
            next=min(look.unsettled) if look.unsettled else max(last, position.next),
            told=told,
            open=sorted({*still, *opened}),
        )

    def _of_slice(
        self, look: _Look, key: Key, entries: Sequence[Entry], seen: dict[Place, int | None]
    ) -> Iterator[Timed]:
        """A slice's materializations, of the table and the view over it, and the checks that have something new to say."""
        table_id = look.position.table_id
        whole: Whole | None = None
        newest: Materialized | None = None
        at = entries[-1].timestamp_ms / 1000
        made = False
        for asset in look.table.keys:
            own = newest_materializations(self.instance, asset, [key]).get(key)
            left = covered.pending(table_id, entries, self._stored(asset, key, own))
            newest = own if asset == look.table.key else newest
            if not left:
                continue
            seen[asset, key] = None if own is None else own.storage_id
            whole = whole or self._whole(look, key, entries, newest)
            told = materialization(asset, key, table_id, entries[-1], whole, left)
            yield Timed(told, left[-1].timestamp_ms / 1000)
            made = made or asset == look.table.key
        if look.table.has_checks:
            record = whole.record if whole is not None else None if newest is None else covered.base_of(newest)
            yield from self._checks(look, key, record, at, None if made else newest)

    def _stored(self, asset: dg.AssetKey, key: Key, newest: Materialized | None) -> Iterator[Materialized]:
        if newest is None:
            return iter(())
        return itertools.chain([newest], materializations(self.instance, asset, key, newest.storage_id))

    def _whole(self, look: _Look, key: Key, entries: Sequence[Entry], newest: Materialized | None) -> Whole:
        """The record of all that the slice holds: what was told last and what came since, or all of it from the ledger."""
        table_id = look.position.table_id
        version = None if newest is None else covered.whole_at(newest, table_id)
        restored = any(one.restored_to is not None for one in entries)
        base = None if newest is None or version is None else covered.base_of(newest)
        if base is not None and version is not None and not restored and "lineage/gap" not in newest.metadata:  # type: ignore[union-attr]
            return covered.grown(key, entries, base, version)
        if not restored and entries[-1].kind == "replace":
            return covered.grown(key, entries, None, -1)
        return self._from_ledger(look, key)

    def _from_ledger(self, look: _Look, key: Key) -> Whole:
        found = ledger.entries(self.lake, look.table.asset, look.position.table_id, of_slice=key)
        return covered.whole(key, [one.commit() for one in reversed(found)])

    def _checks(
        self, look: _Look, key: Key, record: CommitRecord | None, at: float, newest: Materialized | None
    ) -> Iterator[Timed]:
        """Check results on a change of verdict; of a closed slice, also when they are not about its newest data.

        `newest` is None when a materialization comes before them in the same batch.
        """
        outcomes = () if record is None else record.checks
        keys = [dg.AssetCheckKey(look.table.key, one.name) for one in outcomes]
        known = newest_checks(self.instance, keys, key) if keys else {}
        closed = self._closed(look.table, key)
        for check, outcome in zip(keys, outcomes, strict=True):
            before = known.get(check)
            if before is None or differs(before, outcome, closed) or (closed and _about_older(before, newest)):
                yield Timed(evaluation(look.table.key, key, outcome), at)

    def _of_closed(self, look: _Look, key: Key) -> Iterator[Timed]:
        """The checks of a slice that closed, from all of its records."""
        newest = newest_materializations(self.instance, look.table.key, [key]).get(key)
        if look.table.has_checks and newest is not None:
            yield from self._checks(look, key, self._from_ledger(look, key).record, newest.at, newest)

    def _of_foreign(self, look: _Look) -> Iterator[Timed]:
        if not (look.odd or look.begins):
            return
        table = look.table
        found = covered.foreign(
            ledger.entries(self.lake, table.asset, look.position.table_id, texts=False, foreign_only=True)
        )
        before = newest_checks(self.instance, [table.foreign_check], None).get(table.foreign_check)
        told = foreign_metadata(look.position.table_id, found)
        if before is not None and all(before.metadata.get(name) == value for name, value in told.items()):
            return
        # Of the table and no slice: the newest materialization of any is what Dagster shows it beside.
        at = max((one.timestamp_ms for one in found.entries), default=self.now_ms) / 1000
        yield Timed(
            dg.AssetCheckEvaluation(
                asset_key=table.key,
                check_name=NO_FOREIGN_COMMITS,
                passed=not found.entries,
                severity=dg.AssetCheckSeverity.WARN,
                metadata=told,
            ),
            at,
        )
        if found.entries:
            yield Timed(
                dg.AssetObservation(
                    table.key, description="Foreign commits: they carry no lineage record.", metadata=told
                ),
                at,
            )

    def _of_gaps(self, look: _Look) -> Iterator[Timed]:
        """Records that are in neither log nor ledger: named once. The table has its rows; only their origin is lost."""
        if look.gap is None:
            return
        asset, table_id = look.table.asset, look.position.table_id
        gaps = [gap for gap in ledger.holes(ledger.spans(self.lake, asset).get(table_id, [])) if _touch(gap, look.gap)]
        known = {
            (
                one.asset_observation.metadata["lineage/gap"].value,
                one.asset_observation.metadata["delta/table_id"].value,
            )
            for one in self.instance.fetch_observations(look.table.key, limit=100).records
            if one.asset_observation is not None and "lineage/gap" in one.asset_observation.metadata
        }
        for gap in gaps:
            if (spans_text([gap]), table_id) in known:
                continue
            offsets = gap_offsets(self.lake, asset, table_id, gap)
            self.done.gaps.append(
                f"{asset}: lineage gap: the records of versions {spans_text([gap])} are in neither log nor ledger; "
                f"the rows are in the table (offsets {offsets or 'unknown'})"
            )
            yield Timed(
                dg.AssetObservation(
                    look.table.key,
                    description="A lineage gap: the Delta log was shortened before these records were kept. No row is lost.",
                    metadata={
                        "lineage/gap": spans_text([gap]),
                        "delta/table_id": table_id,
                        "kafka/ranges": dg.MetadataValue.json(offsets),
                    },
                ),
                self.now_ms / 1000,
            )


def materialization(
    asset: dg.AssetKey, key: Key, table_id: str, newest: Entry, whole: Whole, told: Sequence[Entry]
) -> dg.AssetMaterialization:
    """The materialization of a slice at its newest version, which covers the versions told by it."""
    if whole.record is None:
        found: dict[str, Any] = {"delta/version": metadata.number(newest.version)}
    else:
        commit = Commit(newest.version, newest.timestamp_ms, newest.operation, whole.record)
        found = metadata.of_slice(asset.path, commit)
    found["delta/versions"] = spans_text(of_versions(one.version for one in told))
    found["delta/table_id"] = table_id
    if whole.gap:
        found["lineage/gap"] = whole.gap
    return dg.AssetMaterialization(asset, partition=key, metadata=found)


def evaluation(asset: dg.AssetKey, key: Key, outcome: CheckOutcome) -> dg.AssetCheckEvaluation:
    """An outcome as Dagster's check result; its target is added when it is stored."""
    return dg.AssetCheckEvaluation(
        asset_key=asset,
        check_name=outcome.name,
        passed=outcome.passed,
        severity=dg.AssetCheckSeverity[outcome.severity],
        metadata=describe(outcome),
        blocking=outcome.blocking,
        partition=key,
    )


def differs(before: dg.AssetCheckEvaluation, outcome: CheckOutcome, numbers: bool) -> bool:
    """Whether a stored result says another verdict than an outcome; with `numbers`, also other counts."""
    if before.passed != outcome.passed or (not outcome.passed and before.severity.value != outcome.severity):
        return True
    stored = [getattr(before.metadata.get(name), "value", None) for name in ("failing", "of")]
    return numbers and stored != [outcome.failed, outcome.total]


def _about_older(before: dg.AssetCheckEvaluation, newest: Materialized | None) -> bool:
    target = before.target_materialization_data
    return newest is None or target is None or target.storage_id != newest.storage_id


def foreign_metadata(table_id: str, found: covered.Foreign) -> dict[str, dg.MetadataValue[Any]]:
    """Which commits are foreign, by version and operation."""
    return {
        "delta/versions": dg.MetadataValue.text(spans_text(of_versions(found.versions)) or "none"),
        "delta/table_id": dg.MetadataValue.text(table_id),
        "delta/operations": dg.MetadataValue.text(
            ", ".join(sorted({one.operation for one in found.entries})) or "none"
        ),
    }


def gap_offsets(lake: Lake, asset: str, table_id: str, gap: Span) -> dict[str, list[str]]:
    """Per partition the offsets between what is known before a gap in the records and what is known after it."""
    found: dict[str, list[str]] = {}
    around = [ledger.entries(lake, asset, table_id, first=version, last=version) for version in (gap[0] - 1, gap[1])]
    if not all(around):
        return found
    before, after = (entries[0].commit().record for entries in around)
    if before is None or after is None:
        return found
    for topic in before.topics:
        for later in (one for one in after.topics if one.topic_id == topic.topic_id):
            for partition, held in topic.ranges.items():
                if partition in later.ranges and held.end < later.ranges[partition].start:
                    found[str(partition)] = [str(held.end), str(later.ranges[partition].start)]
    return found


def _touch(a: Span, b: Span) -> bool:
    return a[0] < b[1] and b[0] < a[1]
