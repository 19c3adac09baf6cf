"""Part (c): what lineage costs, as CPU of the same two appends with it and without, in turns.

Belongs here: the variants, their order, the differences with their intervals. Does not belong here: how a stream leaves a
part out (lineage_assets/spark).

Each turn goes through the same full topic in batches of what one second brings, so each batch does the work of the steady
state without the waiting. What is counted begins with the first batch's commit: starting a session and a query costs as
much as hundreds of batches and is the same for all.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from lineage_assets.bench.histogram import Interval, interval
from lineage_assets.bench.meter import metered
from lineage_assets.bench.reader import Log
from lineage_assets.bench.rig import Child, Rig, fresh_lake, rows
from lineage_assets.bench.streams import LINEAGE_PARTS, StreamOptions
from lineage_assets.errors import ContractError, FatalError
from lineage_assets.lineage import lease
from lineage_assets.lineage.commits import commits, open_table
from lineage_assets.spark.event_table import EventTable

FULL, BARE = "full", "bare"
WITHOUT = "without "
COLLECTOR = "collector"
STATEFUL = ("turn", "row_tracking")


@dataclass(frozen=True, slots=True)
class Turn:
    """One way through the topic under one variant; `round` 0 is the warm-up."""

    variant: str
    round: int
    cpu_s_per_million: float
    wall_s_per_million: float


@dataclass(frozen=True, slots=True)
class Overhead:
    """All turns, in their order."""

    events: int
    bite: int
    turns: Sequence[Turn]

    def summary(self) -> dict[str, Any]:
        """Per variant its mean; per part what it costs: full less the variant without it, pair by pair of one round."""
        if not any(turn.round for turn in self.turns):
            return {"events": self.events, "bite": self.bite, "variants": {}, "costs": {}}
        return {
            "events": self.events,
            "bite": self.bite,
            "variants": {name: self._figures(name) for name in self._names()},
            "costs": {
                name.removeprefix(WITHOUT) if name != BARE else "all": self._cost(name)
                for name in self._names()
                if name != FULL
            },
        }

    def _names(self) -> list[str]:
        return list(dict.fromkeys(turn.variant for turn in self.turns))

    def _of(self, variant: str) -> dict[int, Turn]:
        return {turn.round: turn for turn in self.turns if turn.variant == variant and turn.round}

    def _figures(self, variant: str) -> dict[str, Any]:
        turns = self._of(variant).values()
        return {
            "cpu_s_per_million": _told(interval([turn.cpu_s_per_million for turn in turns])),
            "wall_s_per_million": _told(interval([turn.wall_s_per_million for turn in turns])),
        }

    def _cost(self, without: str) -> dict[str, Any]:
        full, less = self._of(FULL), self._of(without)
        pairs = [(full[number], less[number]) for number in sorted(full.keys() & less.keys())]
        shares = [(a.cpu_s_per_million - b.cpu_s_per_million) / b.cpu_s_per_million * 100 for a, b in pairs]
        return {
            "cpu_s_per_million": _told(interval([a.cpu_s_per_million - b.cpu_s_per_million for a, b in pairs])),
            "cpu_percent": _told(interval(shares)),
            "wall_percent": _told(
                interval([(a.wall_s_per_million / b.wall_s_per_million - 1) * 100 for a, b in pairs])
            ),
        }


def variants(each: bool) -> dict[str, frozenset[str]]:
    """Full and bare; with `each`, also full without one part at a time, and without both of those that need the table's state:
    leaving out one of them alone saves nothing."""
    parts = {f"{WITHOUT}{part}": frozenset({part}) for part in LINEAGE_PARTS} if each else {}
    if each:
        parts[f"{WITHOUT}{' and '.join(STATEFUL)}"] = frozenset(STATEFUL)
    return {FULL: frozenset(), BARE: frozenset(LINEAGE_PARTS), **parts}


def measure(rig: Rig, events: int, bite: int, rounds: int, *, each: bool = True) -> Iterator[Overhead]:
    """`rounds` of all variants after one that warms up: after each the turns so far, of rounds that are whole.

    Each round begins with another variant, so that drift cancels.
    """
    if "spark" not in rig.trees():
        raise ContractError(
            "what lineage costs is told by the CPU of the Spark server, and yours runs where the bench cannot see it",
            remedy="leave part c out here, and measure it with the embedded Spark (unset SPARK_REMOTE)",
        )
    table = rig.table("overhead")
    rig.say("overhead", f"filling the topic with {events:,} events")
    sent = rig.fill(table, events, over_s=events / bite)
    every = variants(each)
    turns: list[Turn] = []
    for number in range(rounds + 1):
        for name in rotated(list(every), number):
            with fresh_lake(rig, "overhead") as there:
                turns.append(
                    _turn(there, table, StreamOptions(bite=bite, off=every[name]), name, number, sent.records, sent.ok)
                )
            rig.say(
                "overhead",
                f"round {number}/{rounds}, {name}: {turns[-1].cpu_s_per_million:.1f} s of CPU per million events",
            )
        yield Overhead(sent.records, bite, tuple(turns))


def rotated(names: Sequence[str], number: int) -> list[str]:
    """The names from another one on in each round, and backwards in every second one.

    >>> rotated("abc", 0), rotated("abc", 1), rotated("abc", 2)
    (['a', 'b', 'c'], ['a', 'c', 'b'], ['c', 'a', 'b'])
    """
    shift = number % len(names)
    turned = [*names[shift:], *names[:shift]]
    return turned[::-1] if number % 2 else turned


def _turn(rig: Rig, table: EventTable, options: StreamOptions, name: str, number: int, records: int, ok: int) -> Turn:
    raw, silver = f"raw/{table.name}", f"silver/{table.name}"
    with ExitStack() as stack:
        collector = None if COLLECTOR in options.off else stack.enter_context(_collecting(rig, table))
        running = stack.enter_context(rig.streaming(table, options))
        first = rig.await_rows(silver, lambda: 1, running)
        first, owner = max(first, rows(rig.settings, raw)), _owner(rig, table)
        began = time.monotonic()
        with metered(rig.trees(stream=running.pid)) as usage:
            rig.await_rows(raw, lambda: records, running)
            rig.await_rows(silver, lambda: ok, running)
            wall_s = time.monotonic() - began
        _require_one_start(rig, table, owner)
        _require_left_out(rig, silver, options)
        cpu_s = usage.cpu("spark", "stream") + (collector.end()["cpu_s"] if collector is not None else 0.0)
    counted = records - first
    return Turn(name, number, cpu_s / counted * 1e6, wall_s / counted * 1e6)


def _owner(rig: Rig, table: EventTable) -> str:
    """The start of the stream that runs now: each has its own."""
    held = lease.read(rig.settings.lake_env, table.topic)
    return "" if held is None else held.owner


def _require_one_start(rig: Rig, table: EventTable, owner: str) -> None:
    """Raises FatalError when the stream started again: what that costs is not lineage's, and without records it takes the same
    offsets twice while its rows add up all the same."""
    if owner != (now := _owner(rig, table)):
        raise FatalError(
            f"the stream of {table.topic} started again while it was measured ({owner}, then {now})",
            remedy="read the log of the stream, which says why",
        )


def _require_left_out(rig: Rig, asset: str, options: StreamOptions) -> None:
    """Raises FatalError when the stream did not run as it was told: a difference would then be noise, and look like a cost."""
    lake = rig.settings.lake_env
    table = open_table(lake, asset)
    assert table is not None
    newest = Log(lake, asset).commit(int(table.version())) or []
    there = {
        "record": any(one.record is not None for one in commits(lake, asset, 1)),
        "turn": any("txn" in action for action in newest),
        "row_tracking": table.metadata().configuration.get("delta.enableRowTracking") == "true",
    }
    for part, found in there.items():
        if found == (part in options.off):
            raise FatalError(
                f"{asset} {'has' if found else 'lacks'} {part}, and the stream was told to "
                f"{'leave it out' if found else 'have it'}",
                remedy="look how lineage_assets/spark/ uses the option `off`",
            )


@contextmanager
def _collecting(rig: Rig, table: EventTable) -> Iterator[Child]:
    """The collector over the turn's tables, begun before anything is counted."""
    told = {
        "tables": [f"raw/{table.name}", f"silver/{table.name}"],
        "grain": table.grain.value,
        "home": f"{rig.settings.lake}/dagster",
    }
    command = [sys.executable, "-m", "lineage_assets.bench.collecting", json.dumps(told)]
    with rig.child("collector", command) as child:
        child.await_word("collecting")
        yield child


def _told(found: Interval) -> dict[str, Any]:
    return {"mean": found.mean, "low": found.low, "high": found.high, "of": found.of}
