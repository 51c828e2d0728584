"""How much less correlated observations say than independent ones.

Latencies of one run come in bursts: requests that were in the engine together are late together. The
variance of their mean is ``inflation`` times that of independent ones, inflation being the integrated
autocorrelation 1 + 2 (r1 + r2 + ...). It is estimated by the initial monotone sequence of Geyer (1992),
"Practical Markov chain Monte Carlo", Statistical Science 7(4), which needs no bandwidth.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from autotune.stats._arrays import FloatArray, floats

_MOST_POINTS = 2048
"""Longer series are averaged in batches first: a live probe is judged several times a second."""


def autocorrelation(values: ArrayLike) -> FloatArray:
    """Autocorrelations at lags 0, 1, ... n-1 (biased estimator); all zero but the first if constant."""
    x = floats(values)
    n = len(x)
    if n == 0:
        return np.zeros(0)
    x = x - x.mean()
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(x, size)
    products = np.fft.irfft(spectrum * np.conj(spectrum), size)[:n]
    if products[0] <= 1e-12 * n:
        return np.concatenate(([1.0], np.zeros(n - 1)))
    return np.asarray(products / products[0], dtype=np.float64)


def inflation(values: ArrayLike) -> float:
    """Variance of the mean relative to independent values; at least 1. Values in order of arrival."""
    x = floats(values)
    n = len(x)
    if n < 4:
        return 1.0
    if n > 2 * _MOST_POINTS:
        return _batched_inflation(x)
    r = autocorrelation(x)
    # The lags beyond half the series carry more noise than signal.
    pairs = r[: 2 * (n // 4)].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs <= 0)
    pairs = pairs[: negative[0]] if len(negative) else pairs
    monotone = np.minimum.accumulate(pairs)
    return float(min(max(1.0, 2.0 * monotone.sum() - 1.0), n))


def _batched_inflation(x: FloatArray) -> float:
    """The same from the means of short batches: their own inflation times that within a batch."""
    size = len(x) // _MOST_POINTS
    means = x[: len(x) // size * size].reshape(-1, size).mean(axis=1)
    variance = float(x.var())
    if variance <= 0:
        return 1.0
    return min(max(1.0, inflation(means) * float(means.var()) * size / variance), float(len(x)))


def effective_size(values: ArrayLike) -> float:
    """Number of independent values that would say as much about the mean as these do; at least 1."""
    x = floats(values)
    return len(x) / inflation(x) if len(x) else 0.0


def exceedance_inflation(values: ArrayLike, *, shares: tuple[float, ...] = (0.3, 0.2, 0.1), least: int = 5) -> float:
    """Largest inflation of "is among the highest ``share``" over some shares; at least 1.

    Misses are rare, so their own clustering cannot be seen in a short run; that of more frequent
    exceedances can, and in queues clusters keep their size at higher levels (Aldous 1989, "Probability
    Approximations via the Poisson Clumping Heuristic", chapter B). Infinite values are the highest.
    """
    x = floats(values)
    x = np.where(np.isnan(x), -np.inf, x)
    n = len(x)
    worst = 1.0
    if n < 4:
        return worst
    order = np.sort(x)
    for share in shares:
        if n * share < least:
            continue
        worst = max(worst, inflation(x > order[min(n - 1, int(n * (1 - share)))]))
    return worst
