"""A bench from its beginning to its end: the stack, the parts in their order, what is removed afterwards.

Belongs here: which parts run on what. Does not belong here: the parts, the command line (commands/bench.py).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lineage_assets.bench import batch, catch_up, latency, location, overhead, upkeep
from lineage_assets.bench.declaration import declare
from lineage_assets.bench.report import Results
from lineage_assets.bench.rig import Rig, Say
from lineage_assets.bench.streams import StreamOptions
from lineage_assets.errors import ContractError
from lineage_assets.settings import Settings
from lineage_assets.stack import control

PARTS = {
    "a": "latency: from the producer's clock to a reader seeing the row in silver",
    "b": "catch-up, beside a plain Spark copy",
    "c": "overhead of lineage, in pairs",
    "d": "peak memory of each process (with a)",
    "e": "commit to visible in Dagster (with a)",
    "f": "CPU and bytes per million events, beside the same as a batch (with a)",
}
RATES = (1_400.0, 14_000.0)
"""Events/s: 5 and 50 million an hour."""
OWN_PORTS = dict.fromkeys(("kafka_port", "kafka_controller_port", "registry_port", "spark_port"), 0)
"""Those of the settings may be taken by the stack that runs."""
MEASURED_WITH_A = frozenset("def")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to measure. `rates` are events/s; `events` go through (b), `overhead_events` through each turn of (c)."""

    parts: frozenset[str] = frozenset(PARTS)
    rates: tuple[float, ...] = RATES
    seconds: float = 300.0
    warm_up_s: float = 60.0
    events: int = 3_000_000
    rounds: int = 4
    overhead_events: int = 280_000
    overhead_rate: float = 14_000.0
    pairs: int = 5
    each: bool = True
    window: bool = True
    profile: str = "embedded"
    bite: int | None = None
    partitions: int = 3

    @property
    def latency(self) -> bool:
        """Whether a load is sent and followed: (d), (e) and (f) are measured on the same run."""
        return bool(self.parts & {"a", *MEASURED_WITH_A})


def require_possible(parts: frozenset[str], *, here: bool) -> None:
    """Raises ContractError for parts that there are not, or not on the stack that runs."""
    if unknown := parts - PARTS.keys():
        raise ContractError(
            f"the bench has no part {', '.join(sorted(unknown))}",
            remedy="; ".join(f"{name}: {what}" for name, what in PARTS.items()),
        )
    if here and "e" in parts:
        raise ContractError(
            "part e needs Dagster over the bench's own table, which the running stack does not have",
            remedy="leave --here out, or name the other parts",
        )


Put = Callable[[Results], None]
"""Puts away what was measured so far: hours of measuring may end with a signal."""


def run(settings: Settings, wanted: Wanted, say: Say, put: Put, *, here: bool = False, keep: bool = False) -> Results:
    """Measure what is wanted, one part after the other, on a stack of its own (`here`: on the one that runs)."""
    require_possible(wanted.parts, here=here)
    with rig(settings, wanted, say, here=here, keep=keep) as ready:
        results = Results(_told(wanted, ready))
        if wanted.latency:
            _latency(ready, wanted, results, put)
        if "b" in wanted.parts:
            results.catch_up = catch_up.measure(ready, wanted.events, wanted.rounds, wanted.bite)
            put(results)
        if "c" in wanted.parts:
            bite = round(wanted.overhead_rate)
            for results.overhead in overhead.measure(
                ready, wanted.overhead_events, bite, wanted.pairs, each=wanted.each
            ):
                put(results)
        return results


def _latency(rig: Rig, wanted: Wanted, results: Results, put: Put) -> None:
    watch = location.watched if "e" in wanted.parts else latency.unwatched
    for rate in wanted.rates:
        plan = latency.Plan(
            rate, wanted.seconds, wanted.warm_up_s, wanted.window, StreamOptions(wanted.profile, wanted.bite)
        )
        table, found = latency.measure(rig, plan, upkeep.maintain if wanted.window else None, watch)
        results.latency.append(found)
        put(results)
        if "f" in wanted.parts:
            results.batch[rate] = batch.measure(rig, table)
            put(results)


@contextmanager
def rig(settings: Settings, wanted: Wanted, say: Say, *, here: bool, keep: bool) -> Iterator[Rig]:
    """A stack and a lake for the bench, and their end. `keep` leaves both."""
    name = f"bench-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    folder = settings.home / "bench" / name
    config = settings.model_copy(update={"env": "bench", "lake": _lake(settings, folder, name)})
    if not here:
        config = config.model_copy(update={"home": folder / "home", **OWN_PORTS})
    config.home.mkdir(parents=True, exist_ok=True)
    if not here and (given := settings.home / "lineage.toml").exists():
        shutil.copy(given, config.home)
    control.up(config, say)
    ready = Rig(config, folder / "logs", say, wanted.partitions)
    try:
        yield ready
        ready.delete_topics()
    finally:
        if not keep:
            if not here:
                control.down(config, say)
                shutil.rmtree(config.home, ignore_errors=True)
            if "://" not in config.lake:
                shutil.rmtree(config.lake, ignore_errors=True)


def _lake(settings: Settings, folder: Path, name: str) -> str:
    """Beside the user's own in an object store, else in the bench's folder."""
    return f"{settings.lake}/{name}" if "://" in settings.lake else str(folder / "lake")


def _told(wanted: Wanted, rig: Rig) -> dict[str, Any]:
    return {
        "parts": "".join(sorted(wanted.parts)),
        "seconds": wanted.seconds,
        "warm_up_s": wanted.warm_up_s,
        "profile": wanted.profile,
        "bite": wanted.bite,
        "partitions": wanted.partitions,
        "spark_memory": rig.settings.spark_memory,
        "contract_rules": len(declare("clicks").contract.rules),
        "window": wanted.window,
    }
