"""Beta, binomial and Student distributions, so that the package does without scipy.

All rest on the regularised incomplete beta function, by the continued fraction of DLMF 8.17.22.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_TINY = 1e-300


def beta_cdf(x: float, a: float, b: float) -> float:
    """P(X <= x) of Beta(a, b); a and b may be fractional and must be positive."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _lower_tail(1 - x, b, a)
    return _lower_tail(x, a, b)


def _lower_tail(x: float, a: float, b: float) -> float:
    """The series where it converges fast: x up to about the mean."""
    log_front = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(log_front) * _continued_fraction(x, a, b) / a


def _continued_fraction(x: float, a: float, b: float) -> float:
    """1/(1 + d1/(1 + d2/(1 + ...))) by Lentz's method."""
    c = 1.0
    d = 1.0 - (a + b) * x / (a + 1)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    result = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for coefficient in (even, odd):
            d = 1.0 + coefficient * d
            c = 1.0 + coefficient / c
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            c = c if abs(c) > _TINY else _TINY
            result *= c * d
        if abs(c * d - 1.0) < 1e-12:
            break
    return result


@lru_cache(maxsize=4096)
def beta_quantile(q: float, a: float, b: float) -> float:
    """The x with P(X <= x) = q for Beta(a, b), by bisection to about 1e-12."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if beta_cdf(middle, a, b) < q:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def binomial_cdf(k: float, n: float, p: float) -> float:
    """P(X <= k) of Binomial(n, p); n may be fractional (an effective number of requests)."""
    if k < 0:
        return 0.0
    if k >= n:
        return 1.0
    return beta_cdf(1 - p, n - k, k + 1)


def share_interval(hits: float, n: float, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper-Pearson interval of a share; ``hits`` and ``n`` may be effective numbers."""
    if n <= 0:
        return 0.0, 1.0
    tail = (1 - confidence) / 2
    low = 0.0 if hits <= 0 else beta_quantile(tail, hits, max(n - hits, 0.0) + 1)
    high = 1.0 if hits >= n else beta_quantile(1 - tail, hits + 1, n - hits)
    return low, high


@lru_cache(maxsize=1024)
def t_quantile(q: float, degrees: float) -> float:
    """Quantile of Student's t distribution; the normal one above 1e6 degrees of freedom."""
    if q == 0.5:
        return 0.0
    if q < 0.5:
        return -t_quantile(1 - q, degrees)
    if degrees > 1e6:
        return NormalDist().inv_cdf(q)
    x = beta_quantile(2 * (1 - q), degrees / 2, 0.5)
    return math.sqrt(degrees * (1 - x) / x) if x > 0 else math.inf


def normal_quantile(q: float) -> float:
    """Quantile of the standard normal distribution."""
    return NormalDist().inv_cdf(q)
