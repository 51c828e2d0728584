"""Percentiles as observed values, with intervals that respect correlation.

A percentile is an order statistic (nearest rank): a latency that a request really had, never an
interpolation. A failed request counts as infinitely late. The interval is the distribution-free one of
order statistics (David and Nagaraja, "Order Statistics", 7.1), at the effective number of requests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from autotune.stats._arrays import FloatArray, floats
from autotune.stats._distributions import beta_cdf, binomial_cdf
from autotune.stats.correlation import exceedance_inflation

_REACH = 6.0
"""Standard deviations around a percentile beyond which an order statistic has no weight in a smooth one."""


@dataclass(frozen=True, slots=True)
class PercentileEstimate:
    """A percentile (in the unit of the values) with its interval and what it rests on."""

    value: float
    low: float
    high: float
    """Infinite when the requests are too few for an upper bound."""
    requests: int
    effective_requests: float
    label: str
    """How to name the value: ``p99 of 640``, or ``max of 80`` where the percentile is beyond the data."""


def _sorted(values: ArrayLike) -> FloatArray:
    x = floats(values)
    return np.sort(x[~np.isnan(x)])


def _rank(n: int, p: float) -> int:
    """Nearest rank, 1-based; the small term keeps 99 % of 100 at rank 99 in floating point."""
    return min(n, max(1, math.ceil(n * p / 100 - 1e-9)))


def percentile(values: ArrayLike, p: float) -> float:
    """The ``p``-th percentile (0 < p < 100) by nearest rank; NaN values do not count; NaN of none."""
    x = _sorted(values)
    return float(x[_rank(len(x), p) - 1]) if len(x) else math.nan


def least_requests(p: float) -> int:
    """Fewest requests with which the ``p``-th percentile is not simply the maximum, e.g. 100 for P99."""
    return math.ceil(1 / (1 - p / 100) - 1e-6)


def label_percentile(n: int, p: float) -> str:
    """``p99 of 640`` or, with too few requests, ``max of 80``."""
    return f"p{p:g} of {n}" if n >= least_requests(p) else f"max of {n}"


def estimate_percentile(
    values: ArrayLike, p: float, *, confidence: float = 0.95, effective_requests: float | None = None
) -> PercentileEstimate:
    """The ``p``-th percentile with its interval.

    Args:
        values: in order of scheduled arrival (the correlation is read from the order); failed = inf;
            NaN where the metric does not apply.
        p: percentile, 0 < p < 100.
        confidence: of the two-sided interval.
        effective_requests: number of independent requests that say as much; estimated if not given.
    """
    x = floats(values)
    x = x[~np.isnan(x)]
    n = len(x)
    if n == 0:
        return PercentileEstimate(math.nan, 0.0, math.inf, 0, 0.0, label_percentile(0, p))
    effective = n / exceedance_inflation(x) if effective_requests is None else min(effective_requests, float(n))
    ordered = np.sort(x)
    low_rank, high_rank = _interval_ranks(max(1.0, effective), p / 100, (1 - confidence) / 2)
    scale = n / max(1.0, effective)
    low_index = math.ceil(low_rank * scale) - 1
    high_index = math.ceil(high_rank * scale) - 1
    return PercentileEstimate(
        value=float(ordered[_rank(n, p) - 1]),
        low=float(ordered[low_index]) if low_index >= 0 else 0.0,
        high=float(ordered[high_index]) if high_index < n else math.inf,
        requests=n,
        effective_requests=float(effective),
        label=label_percentile(n, p),
    )


def _interval_ranks(n: float, p: float, tail: float) -> tuple[int, int]:
    """Ranks (1-based) whose order statistics enclose the quantile; 0 and n + 1 stand for no bound."""
    whole = math.floor(n)
    reach = 8 * math.sqrt(whole * p * (1 - p)) + 8
    bottom, top = max(0, math.floor(whole * p - reach)), min(whole + 1, math.ceil(whole * p + reach))
    # The largest l with P(at most l - 1 values below the quantile) <= tail.
    left, right = bottom, min(whole, top)
    while left < right:
        middle = (left + right + 1) // 2
        if binomial_cdf(middle - 1, whole, p) <= tail:
            left = middle
        else:
            right = middle - 1
    low = left
    # The smallest u with P(at least u values below the quantile) <= tail.
    left, right = max(1, bottom), top
    while left < right:
        middle = (left + right) // 2
        if 1 - binomial_cdf(middle - 1, whole, p) <= tail:
            right = middle
        else:
            left = middle + 1
    return low, left


def smooth_percentile(values: ArrayLike, p: float) -> float:
    """The percentile as a mean of the order statistics around it (F. Harrell, C. Davis, Biometrika 69, 1982).

    For comparing configurations that met the same requests: which single request is the P99 differs from run to run,
    what the few around it show hardly does. On simulated engines the difference of two such percentiles of 262 requests
    has half of the spread that the difference of two observed ones has.

    Returns:
        Infinite if a failed request is among those that count; NaN of no values.
    """
    x = _sorted(values)
    n = len(x)
    if n < 2:
        return float(x[0]) if n else math.nan
    share = p / 100
    reach = _REACH * math.sqrt(share * (1 - share) / n) + 2 / n
    first = max(0, math.floor(n * (share - reach)))
    last = min(n, math.ceil(n * (share + reach)))
    a, b = (n + 1) * share, (n + 1) * (1 - share)
    below = np.array([beta_cdf(i / n, a, b) for i in range(first, last + 1)])
    weights = np.diff(below)
    return float((weights * x[first:last]).sum() / weights.sum())
