"""Where the warm-up of a run ends, and whether its queue grows without bound.

Nothing here has a threshold in seconds or in requests per second: times are measured in latencies of the
run itself and queues against the run's own arrivals, so that a T4 at 0.3 req/s and an H200 at 60 req/s
are judged alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from autotune.stats._arrays import floats
from autotune.stats._distributions import t_quantile

_BLOCKS = 12


@dataclass(frozen=True, slots=True)
class WarmUp:
    """How many first requests to leave out; ``steady`` is False when no steady part was found."""

    cut: int
    steady: bool


def warm_up(values: ArrayLike, *, batch: int = 5) -> WarmUp:
    """The cut of MSER-5 (White 1997, "An effective truncation heuristic for bias reduction", Simulation 69).

    It is the cut that minimises the standard error of the mean of what is left, over batches of ``batch``
    values. A minimum in the last half means that the run is all transient.
    """
    x = floats(values)
    finite = np.isfinite(x)
    if not finite.all():
        top = float(x[finite].max()) * 2 if finite.any() else 1.0
        x = np.where(finite, x, top)
    count = len(x) // batch
    if count < 4:
        return WarmUp(0, False)
    means = x[: count * batch].reshape(count, batch).mean(axis=1)
    left = np.arange(count, 0, -1, dtype=np.float64)
    sums = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum((means**2)[::-1])[::-1]
    error = np.maximum(squares - sums**2 / left, 0.0) / left**2
    usable = max(1, count - max(2, count // 10))
    best = int(np.argmin(error[:usable]))
    half = count // 2
    if best <= half:
        return WarmUp(best * batch, True)
    return WarmUp(int(np.argmin(error[: half + 1])) * batch, False)


@dataclass(frozen=True, slots=True)
class Saturation:
    """Does the number of requests in the system grow without bound?"""

    saturated: bool
    growth: float
    """Share of the arrivals in the window by which the number in the system grew; at most 1."""
    score: float
    """Growth over its standard error."""
    throughput: float
    """Completions per second in the window: the engine's maximal rate if it is saturated."""


def saturation(
    scheduled: ArrayLike, finished: ArrayLike, in_flight: ArrayLike, *, started: float, now: float
) -> Saturation:
    """Judge growth from the flow in and out of the system.

    After twice the latency of the first answers (the system started empty and must fill), the window is cut
    into blocks. Saturated is a growth that is significant over the whole window, still there in its last
    half, and not dying away as a fill does.

    Args:
        scheduled: arrivals of the finished requests, in the order of ``finished``.
        finished: their completions.
        in_flight: arrivals of the requests still out.
        started: begin of the run.
        now: the present. All times in seconds on one clock.
    """
    begin, end = floats(scheduled), floats(finished)
    arrivals = np.sort(np.concatenate((begin, floats(in_flight))))
    none = Saturation(False, 0.0, 0.0, 0.0)
    if len(begin) < 5:
        return none
    first = np.argsort(begin)[: max(5, len(begin) // 5)]
    scale = float(np.median(end[first] - begin[first]))
    opening = started + 2 * scale
    if not now - opening >= 2 * scale:
        return none
    edges = np.linspace(opening, now, _BLOCKS + 1)
    came = np.histogram(arrivals, edges)[0]
    left = np.histogram(end, edges)[0]
    growth = (came - left).astype(np.float64)
    throughput = float(left.sum()) / (now - opening)
    if came.sum() < 2 * _BLOCKS:
        return Saturation(False, 0.0, 0.0, throughput)
    # The counting noise of the arrivals keeps a very regular run from looking certain.
    deviation = max(float(growth.std(ddof=1)), math.sqrt(float(came.mean())) / 2)
    score = float(growth.sum()) / (deviation * math.sqrt(_BLOCKS))
    half = _BLOCKS // 2
    early, late = float(growth[:half].mean()), float(growth[half:].mean())
    late_score = late * half / (deviation * math.sqrt(half))
    saturated = (
        score > t_quantile(0.999, _BLOCKS - 1) and late_score > t_quantile(0.95, half - 1) and late >= 0.6 * early
    )
    return Saturation(saturated, float(growth.sum() / came.sum()), score, throughput)
