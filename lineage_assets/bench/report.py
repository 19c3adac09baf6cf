"""The results of the bench: one JSON document, a table for people, plots.

Belongs here: how results look. Does not belong here: measuring, drawing marks (svg.py).
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lineage_assets
from lineage_assets.bench import svg
from lineage_assets.bench.batch import Batch
from lineage_assets.bench.catch_up import CatchUp
from lineage_assets.bench.latency import Latency
from lineage_assets.bench.meter import Stored
from lineage_assets.bench.overhead import Overhead

P99_LIMITS_MS = {1_400: 3_000, 14_000: 5_000}
CATCH_UP_EVENTS_S, CATCH_UP_SHARE = 60_000, 0.5
RECORD_COST_PERCENT = 1.0


@dataclass(slots=True)
class Results:
    """What was measured so far; a part that was not asked for is missing."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    latency: list[Latency] = field(default_factory=list)
    catch_up: CatchUp | None = None
    overhead: Overhead | None = None
    batch: dict[float, Batch] = field(default_factory=dict)
    """By the rate of the stream that went through the same topic."""

    @property
    def incomplete(self) -> list[str]:
        """Measurements that do not count, as rows are missing or too many."""
        return [
            f"{one.rate:,.0f} events/s: the reader saw {one.latency['count']:,.0f} of {one.expected:,} rows"
            for one in self.latency
            if not one.complete
        ]


def to_json(results: Results) -> dict[str, Any]:
    """All results; `arrived` and histograms only in what the plots are made from."""
    return {
        "version": lineage_assets.__version__,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "settings": dict(results.settings),
        "latency": [_latency(one) for one in results.latency],
        "catch_up": results.catch_up.summary() if results.catch_up else None,
        "overhead": results.overhead.summary() if results.overhead else None,
        "batch": [{"rate": rate, **_batch(one)} for rate, one in results.batch.items()],
        "figures": [asdict(one) for one in figures(results)],
    }


def _latency(one: Latency) -> dict[str, Any]:
    told = {name: value for name, value in asdict(one).items() if name not in ("arrived", "histogram_ms")}
    return {**told, "cpu_s_per_million": one.cpu_s_per_million, "bytes_per_million": _bytes(one.bytes, one.events)}


def _batch(one: Batch) -> dict[str, Any]:
    return {
        **asdict(one),
        "cpu_s_per_million": one.cpu_s_per_million,
        "bytes_per_million": _bytes(one.bytes, one.events),
    }


def _bytes(tables: Mapping[str, Stored], events: int) -> dict[str, float]:
    """Bytes per million events, of both tables: data, log, and files that are data no more."""
    total = sum(tables.values(), Stored(0, 0, 0))
    return {name: value / events * 1e6 for name, value in asdict(total).items()}


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure to reach, and what was measured. `reached` is None where the limit is no promise."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    reached: bool | None = None


def figures(results: Results) -> list[Figure]:
    """What is published, beside what was to be reached."""
    found: list[Figure] = []
    for one in results.latency:
        limit_ms, p99_ms = P99_LIMITS_MS.get(round(one.rate)), one.latency["p99_ms"]
        limit_s = None if limit_ms is None else limit_ms / 1000
        reached = None if limit_ms is None else p99_ms < limit_ms and one.complete
        found.append(Figure(f"p99 at {one.rate:,.0f} events/s", p99_ms / 1000, "s", limit_s, reached))
    if results.catch_up is not None:
        told = results.catch_up.summary()
        speed, share = told["pipeline"]["steady_events_s"], told["share_of_copy"]
        found.append(Figure("catch-up", speed, "events/s", CATCH_UP_EVENTS_S, speed >= CATCH_UP_EVENTS_S))
        found.append(Figure("catch-up, share of a plain copy", share, "", CATCH_UP_SHARE, share >= CATCH_UP_SHARE))
    if results.overhead is not None:
        for name, cost in results.overhead.summary()["costs"].items():
            percent = cost["cpu_percent"]["mean"]
            limit = RECORD_COST_PERCENT if name == "record" else None
            found.append(
                Figure(f"CPU cost of {name}", percent, "%", limit, None if limit is None else percent <= limit)
            )
    return found


def lines(results: Results) -> list[str]:
    """The table: plain lines, as they are read in terminals, logs and chats."""
    found: list[str] = []
    if results.latency:
        found.append("(a) producer's clock -> row seen in silver, in seconds")
        found.append(
            f"{'events/s':>9}{'rows':>12}{'p50':>8}{'p95':>8}{'p99':>8}{'max':>8}  commits of silver, all rows seen"
        )
        for one in results.latency:
            seconds = "".join(f"{one.latency[name] / 1000:>8.2f}" for name in ("p50_ms", "p95_ms", "p99_ms", "max_ms"))
            commits = next((count for asset, count in one.commits.items() if asset.startswith("silver/")), 0)
            whole = "yes" if one.complete else f"NO: {one.expected:,} expected"
            found.append(f"{one.rate:>9,.0f}{one.latency['count']:>12,.0f}{seconds}  {commits}, {whole}")
    if results.catch_up is not None:
        told = results.catch_up.summary()
        found.append("(b) catch-up, in events/s")
        for name in ("pipeline", "copy"):
            figures_ = told[name]
            found.append(
                f"{name:>9}{figures_['steady_events_s']:>12,.0f}  with its start {figures_['events_s']:,.0f}; "
                f"{figures_['cpu_s_per_million']:.1f} s of CPU per million events"
            )
        found.append(f"{'share':>9}{told['share_of_copy']:>12.2f}")
    if results.overhead is not None:
        found += _overhead_lines(results.overhead.summary())
    for one in results.latency:
        peaks = [(name, mb) for name, mb in sorted(one.usage.peak_mb.items()) if "/" not in name and mb]
        found.append(
            f"(d) peak memory at {one.rate:,.0f} events/s: " + ", ".join(f"{name} {mb:,} MB" for name, mb in peaks)
        )
        if one.visible is not None:
            seen = one.visible
            found.append(
                f"(e) commit -> visible in Dagster at {one.rate:,.0f} events/s, in seconds: p50 {seen['p50_ms'] / 1000:.1f}, "
                f"p99 {seen['p99_ms'] / 1000:.1f}, max {seen['max_ms'] / 1000:.1f}, of {seen['count']:,} commits"
            )
    found += _batch_lines(results)
    return found


def _overhead_lines(told: Mapping[str, Any]) -> list[str]:
    found = ["(c) what lineage costs, as CPU per million events; 95 % interval over the pairs"]
    for name, figures_ in told["variants"].items():
        found.append(f"{name:>24}{_with_interval(figures_['cpu_s_per_million'], ' s')}")
    for name, cost in told["costs"].items():
        wall = cost["wall_percent"]["mean"]
        found.append(f"{'cost of ' + name:>24}{_with_interval(cost['cpu_percent'], ' %')}; wall clock {wall:+.1f} %")
    return found


def _with_interval(told: Mapping[str, Any], unit: str) -> str:
    if told["low"] is None:
        return f"{told['mean']:>9.2f}{unit} (one pair: no interval)"
    return f"{told['mean']:>9.2f}{unit} ({told['low']:.2f} to {told['high']:.2f}, {told['of']} pairs)"


def _batch_lines(results: Results) -> list[str]:
    found: list[str] = []
    for one in results.latency:
        batch = results.batch.get(one.rate)
        if not found:
            found.append("(f) per million events: CPU of Spark and client, data and log on disk")
        rows = [(f"stream at {one.rate:,.0f}/s", one.cpu_s_per_million, _bytes(one.bytes, one.events))]
        if batch is not None:
            rows.append(("the same as batch", batch.cpu_s_per_million, _bytes(batch.bytes, batch.events)))
        for name, cpu_s, size in rows:
            megabytes = "".join(f"{size[part] / 1e6:>9.1f} MB {part}" for part in ("live", "other", "log"))
            found.append(f"{name:>24}{cpu_s:>9.1f} s{megabytes}")
    return found


def plots(results: Results) -> dict[str, str]:
    """File name -> SVG."""
    found: dict[str, str] = {}
    for one in results.latency:
        over_time = {
            "oldest row": [((each["seen_ms"] - one.from_ms) / 1000, each["oldest_ms"] / 1000) for each in one.arrived],
            "youngest row": [
                ((each["seen_ms"] - one.from_ms) / 1000, each["youngest_ms"] / 1000) for each in one.arrived
            ],
        }
        title = f"Age of rows when they are seen in silver, {one.rate:,.0f} events/s"
        found[f"latency-{one.rate:.0f}.svg"] = svg.points(title, over_time, "seconds of the measured time", "seconds")
    if results.latency:
        curves = {f"{one.rate:,.0f} events/s": _curve(one.histogram_ms) for one in results.latency}
        title = "How many rows are seen within how many seconds"
        found["latency.svg"] = svg.points(title, curves, "seconds", "% of rows", line=True)
    if results.catch_up is not None:
        told = results.catch_up.summary()
        speeds = [svg.Bar(name, told[name]["steady_events_s"]) for name in ("copy", "pipeline")]
        found["catch-up.svg"] = svg.bars("Catching up, beside a plain Spark copy", speeds, "events/s", digits=0)
    if results.overhead is not None and (costs := results.overhead.summary()["costs"]):
        parts = [
            svg.Bar(name, *(cost["cpu_percent"][end] for end in ("mean", "low", "high")))
            for name, cost in costs.items()
        ]
        found["overhead.svg"] = svg.bars("What lineage costs, with 95 % intervals", parts, "% of CPU", digits=2)
    return found


def write_plots(results: Results, folder: Path) -> Sequence[Path]:
    """Write the plots; returns their files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in plots(results).items():
        (folder / name).write_text(text)
        written.append(folder / name)
    return written


def _curve(histogram_ms: Mapping[str, int], most: int = 300) -> list[tuple[float, float]]:
    """(seconds, percent of rows seen by then), thinned to what a plot can show."""
    ages = sorted((int(age), count) for age, count in histogram_ms.items())
    total, passed = sum(count for _, count in ages), 0
    found: list[tuple[float, float]] = []
    for age, count in ages:
        passed += count
        found.append((age / 1000, passed / total * 100))
    step = max(1, len(found) // most)
    return [*found[::step], *found[-1:]]
