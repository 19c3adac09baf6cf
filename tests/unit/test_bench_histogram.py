"""Quantiles and intervals.

Belongs here: bench/histogram.py.
"""

from __future__ import annotations

import doctest
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage_assets.bench import histogram as module
from lineage_assets.bench.histogram import Histogram, interval


def test_the_examples_hold() -> None:
    assert doctest.testmod(module).failed == 0


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=200), st.floats(0.01, 1))
def test_a_quantile_is_the_value_of_its_rank_however_the_values_came(values: list[int], share: float) -> None:
    histogram = Histogram()
    half = len(values) // 2
    histogram.add(Counter(values[:half]))
    histogram.add(Counter(values[half:]))

    assert histogram.quantile(share) == sorted(values)[math.ceil(share * len(values)) - 1]


def test_the_summary_of_nothing_is_zero() -> None:
    assert Histogram().summary() == {"count": 0, "mean_ms": 0, "p50_ms": 0, "p95_ms": 0, "p99_ms": 0, "max_ms": 0}


def test_the_interval_is_students() -> None:
    """Ten values with mean 5.5 and standard deviation 3.0277: the half width is 2.262 * 3.0277 / sqrt(10)."""
    found = interval([float(n) for n in range(1, 11)])
    assert found.mean == 5.5
    assert (found.low, found.high) == (pytest.approx(5.5 - 2.1657, abs=1e-3), pytest.approx(5.5 + 2.1657, abs=1e-3))


def test_many_values_use_the_normal_quantile() -> None:
    values = [0.0, 1.0] * 100
    found = interval(values)
    assert found.high == pytest.approx(0.5 + 1.96 * math.sqrt(0.25 * 200 / 199) / math.sqrt(200))
