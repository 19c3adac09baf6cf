"""Latencies in whole milliseconds, all of them, and their quantiles; statistics of paired measurements.

Belongs here: numbers about numbers. Does not belong here: measuring, drawing.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom; beyond, the normal one is close enough.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_Z95 = 1.96


@dataclass(slots=True)
class Histogram:
    """Counts per millisecond, so every quantile is exact to it.

    >>> seen = Histogram(); seen.add({10: 98, 500: 1, 9000: 1}); seen.quantile(0.5), seen.quantile(0.99), seen.max
    (10, 500, 9000)
    """

    counts: Counter[int] = field(default_factory=Counter)

    def add(self, counts: Mapping[int, int]) -> None:
        """Latency in ms -> how often."""
        self.counts.update(counts)

    @property
    def count(self) -> int:
        return self.counts.total()

    @property
    def max(self) -> int:
        return max(self.counts, default=0)

    def quantile(self, share: float) -> int:
        """The smallest latency that at least this share of all does not exceed (nearest rank); 0 of nothing."""
        rank, passed = math.ceil(share * self.count), 0
        for latency in sorted(self.counts):
            passed += self.counts[latency]
            if passed >= rank:
                return latency
        return 0

    def summary(self) -> dict[str, float]:
        """What is reported."""
        mean = sum(latency * count for latency, count in self.counts.items()) / self.count if self.count else 0.0
        quantiles = {f"p{round(share * 100)}_ms": self.quantile(share) for share in (0.5, 0.95, 0.99)}
        return {"count": self.count, "mean_ms": round(mean, 1), **quantiles, "max_ms": self.max}


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % confidence interval. Of fewer than two values the interval is unknown, and told as None."""

    mean: float
    low: float | None
    high: float | None
    of: int


def interval(values: Sequence[float]) -> Interval:
    """By Student's t: for differences of pairs measured one after the other.

    >>> interval([1.0, 3.0]).mean, interval([5.0]).low
    (2.0, None)
    """
    if not values:
        raise ValueError("no value has no mean")
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Interval(mean, None, None, 1)
    freedom = len(values) - 1
    quantile = _T95[freedom - 1] if freedom <= len(_T95) else _Z95
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half, len(values))


def median_of(values: Iterable[float]) -> float:
    """The median; 0 of nothing."""
    found = list(values)
    return statistics.median(found) if found else 0.0
