"""A lost Dagster database, made again from ledger and logs: the same events with their own times, in their order.

Belongs here: replaying commits and cuts into an empty instance. Does not belong here: telling what is new
(collector.py), whether the result is right (differences.py).

"Newest" in Dagster is what was stored last, so all events are stored in time order, those of all tables together.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import dagster as dg

from lineage_assets.errors import ContractError
from lineage_assets.kafka.client import Topic
from lineage_assets.kafka.cuts import SlicedTopic
from lineage_assets.lineage import ledger as cuts
from lineage_assets.lineage.commits import Lake
from lineage_assets.lineage.ledger import commit_records as ledger
from lineage_assets.lineage.ledger import topic_cuts
from lineage_assets.lineage.ledger.commit_records import Entry, spans_text
from lineage_assets.lineage.offsets import span
from lineage_assets.lineage.record import CheckOutcome
from lineage_assets.lineage.slices import Grain, Slice
from lineage_assets.reporting import covered, topics
from lineage_assets.reporting.collector import (
    CLOSED_AFTER_MS,
    NO_FOREIGN_COMMITS,
    PAUSE_MS,
    Managed,
    evaluation,
    foreign_metadata,
    materialization,
)
from lineage_assets.reporting.covered import Key, Slices, State
from lineage_assets.reporting.store import Timed, store

READ_AT_ONCE, STORE_AT_ONCE = 5_000, 500

Say = Callable[[str], None]


@dataclass(slots=True)
class Rebuilt:
    """What a rebuild did: events stored, records that the ledger got back, and what is in neither log nor ledger."""

    events: int = 0
    kept: int = 0
    gone: dict[str, str] = field(default_factory=dict)


def rebuild(
    instance: dg.DagsterInstance,
    lake: Lake,
    tables: Sequence[Managed],
    grains: dict[dg.AssetKey, Grain],
    say: Say = lambda text: None,
    now_ms: int | None = None,
) -> Rebuilt:
    """Fill an empty instance. `grains` has the topics that are assets, with the length of their slices.

    Raises ContractError for an instance that holds something.
    """
    refuse_used(instance)
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    done = Rebuilt()
    replays = []
    for table in tables:
        say(f"{table.asset}: reading log and ledger")
        done.kept += keep_again(lake, table.asset)
        table_id = ledger.table_id_of(lake, table.asset)
        if table_id is None:
            continue
        have = ledger.spans(lake, table.asset).get(table_id, [])
        if missing := ledger.holes(have):
            done.gone[table.asset] = spans_text(missing)
        replays.append(_replay(lake, table, table_id, have[-1][1] if have else 0, now_ms))
    replays += [_topic_events(lake, key, grain) for key, grain in grains.items()]
    events = heapq.merge(*replays, key=lambda one: one.at)
    while some := list(itertools.islice(events, STORE_AT_ONCE)):
        store(instance, some)
        done.events += len(some)
        say(f"{done.events:,} events, up to {time.strftime('%Y-%m-%d %H:%M', time.gmtime(some[-1].at))}")
    return done


def refuse_used(instance: dg.DagsterInstance) -> None:
    """Raise ContractError, naming what an instance holds, if it holds anything."""
    assets = sorted(key.to_user_string() for key in instance.all_asset_keys())
    runs = instance.get_runs_count()
    if not (assets or runs):
        return
    named = ", ".join(assets[:5]) + (", …" if len(assets) > 5 else "")
    held = [f"events of {len(assets)} assets ({named})"] if assets else []
    held += [f"{runs} runs"] if runs else []
    raise ContractError(
        f"this Dagster instance is not empty: it holds {' and '.join(held)}",
        remedy="stop the UI and move its database away (in the embedded instance, the folders history, runs and schedules "
        "below LINEAGE_HOME/dagster), then run this again",
    )


def keep_again(lake: Lake, asset: str) -> int:
    """Add to the ledger what the log of an asset still holds and the ledger does not; returns how much that was."""
    first, added = 0, 0
    while (log := ledger.read_log(lake, asset, first, READ_AT_ONCE)) is not None and log.entries:
        added += ledger.add_entries(lake, {asset: log.entries})
        first = log.entries[-1].version + 1
    return added


def _replay(lake: Lake, table: Managed, table_id: str, end: int, now_ms: int) -> Iterator[Timed]:
    """One table's events: what the collector would have told, had it always been there."""

    def kept(first: int, last: int, key: Key) -> list[Entry]:
        return ledger.entries(lake, table.asset, table_id, first=first, last=last, of_slice=key)

    slices = Slices(kept)
    results = _Results(table)
    odd: list[Entry] = []
    at = 0.0
    for minute, group in itertools.groupby(_entries(lake, table.asset, table_id, end), _minute):
        entries = list(group)
        for timed in results.closed(slices, minute * PAUSE_MS):
            at = max(at, timed.at)
            yield Timed(timed.event, at)
        found = slices.take(entries)
        for key, new in sorted(found.items(), key=lambda one: one[1][-1].timestamp_ms):
            # Clocks of writers may step back; what is stored later must not be older.
            at = max(at, new[-1].timestamp_ms / 1000)
            state = slices.states[key]
            for asset in table.keys:
                yield Timed(materialization(asset, key, table_id, state.newest, state.whole, new), at)
            for event in results.grown(key, state):
                yield Timed(event, at)
        odd += [one for one in entries if one.foreign or one.restored_to is not None]
    for timed in results.closed(slices, now_ms):
        at = max(at, timed.at)
        yield Timed(timed.event, at)
    stands = covered.foreign(odd)
    yield Timed(
        dg.AssetCheckEvaluation(
            asset_key=table.key,
            check_name=NO_FOREIGN_COMMITS,
            passed=not stands.entries,
            severity=dg.AssetCheckSeverity.WARN,
            metadata=foreign_metadata(table_id, stands),
        ),
        at,
    )


def _entries(lake: Lake, asset: str, table_id: str, end: int) -> Iterator[Entry]:
    for first in range(0, end, READ_AT_ONCE):
        yield from ledger.entries(lake, asset, table_id, first=first, last=min(first + READ_AT_ONCE, end) - 1)


def _minute(entry: Entry) -> int:
    return entry.timestamp_ms // PAUSE_MS


class _Results:
    """Check results of a table: told on a change of verdict, and once more when their slice is closed."""

    def __init__(self, table: Managed) -> None:
        self._table = table
        self._told: dict[Key, dict[str, tuple[bool, str]]] = {}
        self._open: dict[Key, float] = {}

    def grown(self, key: Key, state: State) -> Iterator[dg.AssetCheckEvaluation]:
        """Results that changed with a slice's newest commits."""
        if not self._table.has_checks or state.whole.record is None:
            return
        told = self._told.setdefault(key, {})
        closes = self._closes_ms(key)
        over = state.newest.timestamp_ms >= closes
        for outcome in state.whole.record.checks:
            verdict = _verdict(outcome)
            if over or told.get(outcome.name) != verdict:
                yield evaluation(self._table.key, key, outcome)
            told[outcome.name] = verdict
        if not over:
            self._open[key] = closes

    def closed(self, slices: Slices, now_ms: float) -> Iterator[Timed]:
        """Results of the slices that closed up to now."""
        for key, closes in sorted(self._open.items(), key=lambda one: one[1]):
            if closes > now_ms:
                return
            del self._open[key]
            record = slices.states[key].whole.record
            for outcome in () if record is None else record.checks:
                yield Timed(evaluation(self._table.key, key, outcome), closes / 1000)

    def _closes_ms(self, key: Key) -> float:
        if self._table.grain is None or key is None:
            return 0.0
        return Slice.of(key, self._table.grain).end.timestamp() * 1000 + CLOSED_AFTER_MS


def _verdict(outcome: CheckOutcome) -> tuple[bool, str]:
    return outcome.passed, "" if outcome.passed else outcome.severity


def _topic_events(lake: Lake, key: dg.AssetKey, grain: Grain) -> Iterator[Timed]:
    """The closed slices of a topic, by its cuts alone; the open one is told by the topics' sensor, which asks the broker."""
    _, cluster, *name = key.path
    wanted = [one for one in topic_cuts.topics(lake) if (one.cluster, one.name) == (cluster, "/".join(name))]
    found = []
    for ref in wanted:
        standing = cuts.cuts(lake, ref)
        partitions = tuple(sorted(standing[-1].offsets))
        sliced = SlicedTopic(Topic(ref.name, ref.topic_id, partitions, {}), grain, standing, {}, {})
        for piece, ranges in sliced.slices()[:-1]:
            if span(ranges):
                # As if transactional: how many of the offsets are records, only the broker knows.
                told = topics.materialization(key, sliced, piece, ranges, (), None, transactional=True)
                found.append(Timed(told, piece.end.timestamp()))
    yield from sorted(found, key=lambda one: one.at)
