from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.stats import estimate_percentile, label_percentile, least_requests, percentile

values = st.lists(st.floats(0, 1e6), min_size=1, max_size=300)


@settings(deadline=None)
@given(values, st.floats(0.1, 99.9))
def test_is_an_observed_value_with_enough_values_at_or_below(x: list[float], p: float) -> None:
    result = percentile(x, p)
    assert result in x
    below = sum(v <= result for v in x)
    assert below >= len(x) * p / 100 - 1e-6
    assert sum(v < result for v in x) < len(x) * p / 100 + 1e-6


def test_matches_numpy_inverted_cdf() -> None:
    x = np.random.default_rng(1).exponential(size=777)
    for p in (1, 50, 90, 99, 99.9):
        assert percentile(x, p) == np.percentile(x, p, method="inverted_cdf")


def test_a_failed_request_is_infinitely_late() -> None:
    x = [1.0] * 98 + [math.inf] * 2
    assert percentile(x, 98) == 1.0
    assert percentile(x, 99) == math.inf


def test_what_does_not_apply_does_not_count() -> None:
    assert percentile([1.0, math.nan, 3.0], 99) == 3.0
    assert math.isnan(percentile([], 99))
    assert math.isnan(percentile([math.nan], 99))
    assert estimate_percentile([], 99).requests == 0


@pytest.mark.parametrize(
    ("n", "p", "label"),
    [(99, 99, "max of 99"), (100, 99, "p99 of 100"), (19, 95, "max of 19"), (640, 99.9, "max of 640")],
)
def test_label(n: int, p: float, label: str) -> None:
    assert label_percentile(n, p) == label
    assert estimate_percentile(np.arange(n), p).label == label


def test_least_requests() -> None:
    assert [least_requests(p) for p in (50, 95, 99, 99.9)] == [2, 20, 100, 1000]


def test_no_upper_bound_below_299_requests_for_p99() -> None:
    # ln 0.05 / ln 0.99 = 298.07: the textbook number for a one-sided 95 % bound, i.e. 90 % two-sided.
    x = np.arange(1000.0)
    assert estimate_percentile(x[:298], 99, confidence=0.9, effective_requests=298).high == math.inf
    assert estimate_percentile(x[:299], 99, confidence=0.9, effective_requests=299).high == 298.0


def test_interval_covers_the_true_percentile_of_independent_values() -> None:
    rng = np.random.default_rng(2)
    truth = -math.log(0.05)
    covered = 0
    for _ in range(400):
        e = estimate_percentile(rng.exponential(size=600), 95)
        covered += e.low <= truth <= e.high
    assert covered / 400 > 0.92


def test_interval_widens_with_correlation() -> None:
    rng = np.random.default_rng(3)
    x = rng.exponential(size=2000)
    for _ in range(3):
        x = np.convolve(x, np.ones(20) / 20, mode="same")
    correlated = estimate_percentile(x, 95)
    shuffled = estimate_percentile(rng.permutation(x), 95)
    assert correlated.effective_requests < 0.2 * shuffled.effective_requests
    assert correlated.high - correlated.low > 2 * (shuffled.high - shuffled.low)
