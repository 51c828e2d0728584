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

from autotune.stats._arrays import FloatArray, floats
from autotune.stats.correlation import inflation

_BLOCKS = 12
_GROWTH_SCORE = 3.5
_LATE_SCORE = 1.7
_FULL_LOAD = 0.93


def warm_up_cut(values: ArrayLike, *, batch: int = 5) -> int:
    """How many first values to leave out, by MSER-5 (White 1997, "An effective truncation heuristic for bias
    reduction in simulation output", Simulation 69).

    It is the cut that minimises the standard error of the mean of what is left, over batches of ``batch``
    values, and at most half of them. Infinite values count as twice the largest finite one.
    """
    x = floats(values)
    finite = np.isfinite(x)
    if not finite.all():
        top = float(x[finite].max()) * 2 if finite.any() else 1.0
        x = np.where(finite, x, top)
    count = len(x) // batch
    if count < 4:
        return 0
    means = x[: count * batch].reshape(count, batch).mean(axis=1)
    left = np.arange(count, 0, -1, dtype=np.float64)
    sums = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum((means**2)[::-1])[::-1]
    error = np.maximum(squares - sums**2 / left, 0.0) / left**2
    return int(np.argmin(error[: count // 2 + 1])) * batch


@dataclass(frozen=True, slots=True)
class Flow:
    """Requests in and out of the system after it filled."""

    saturated: bool
    """The number in the system grows without bound."""
    growth: float
    """Share of the arrivals by which the number in the system grew; at most 1."""
    growth_error: float
    """Its standard error; infinite while too little has been seen."""
    score: float
    """Growth over its standard error."""
    load: float
    """Arrival rate times the latency that each request in the system adds; one or more cannot last."""
    throughput: float
    """Completions per second: the engine's maximal rate if it is saturated."""
    independent: float
    """Number of independent looks at the system's state that the run amounts to."""

    @property
    def known(self) -> bool:
        """Enough was seen after the fill to say anything."""
        return math.isfinite(self.growth_error)


_UNKNOWN = Flow(False, 0.0, math.inf, 0.0, 0.0, 0.0, 0.0)


def judge_flow(scheduled: ArrayLike, finished: ArrayLike, in_flight: ArrayLike, *, started: float, now: float) -> Flow:
    """Does the number of requests in the system settle, grow without bound, or is that still open?

    Growth alone is also what a filling system shows, and what a busy queue does by chance. Saturated is a
    growth that (1) is significant against its own block-to-block noise and that of the arrivals, (2) goes on
    in the last half, and (3) is met by a latency that rises with the number in the system so steeply that by
    Little's law (1961) no number in the system balances the arrivals.

    Args:
        scheduled: arrivals of the finished requests, in the order of ``finished``.
        finished: their completions.
        in_flight: arrivals of the requests still out.
        started: begin of the run.
        now: the present. All times in seconds on one clock.
    """
    begin, end = floats(scheduled), floats(finished)
    if len(begin) < 10:
        return _UNKNOWN
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], end[order]
    arrivals = np.sort(np.concatenate((begin, floats(in_flight))))
    latency = end - begin
    # While the last answers drain nothing arrives: that says nothing about the load.
    now = min(now, float(arrivals[-1]))
    # The first answers met an empty system; after two of their latencies the system has had time to fill.
    opening = started + 2 * float(np.median(latency[: max(5, len(begin) // 5)]))
    leaving = np.sort(end)
    came = np.diff(np.searchsorted(arrivals, np.linspace(opening, now, _BLOCKS + 1)))
    left = np.diff(np.searchsorted(leaving, np.linspace(opening, now, _BLOCKS + 1)))
    if not now > opening or came.sum() < 2 * _BLOCKS:
        return _UNKNOWN
    growth = (came - left).astype(np.float64)
    deviation = max(float(growth.std(ddof=1)), math.sqrt(float(came.mean())))
    half = _BLOCKS // 2
    score = float(growth.sum()) / (deviation * math.sqrt(_BLOCKS))
    late_score = float(growth[half:].sum()) / (deviation * math.sqrt(half))
    span = now - opening
    rate = float(came.sum()) / span
    seen = begin >= opening
    ahead = _in_system(begin[seen], arrivals, leaving)
    load = rate * _slope(ahead, latency[seen])
    state = _in_system(arrivals[arrivals >= opening], arrivals, leaving)
    return Flow(
        saturated=score > _GROWTH_SCORE and late_score > _LATE_SCORE and load > _FULL_LOAD,
        growth=float(growth.sum() / came.sum()),
        growth_error=deviation * math.sqrt(_BLOCKS) / float(came.sum()),
        score=score,
        load=load,
        throughput=float(left.sum()) / span,
        independent=len(state) / inflation(state) if len(state) > 3 else 0.0,
    )


def _in_system(times: FloatArray, arrivals: FloatArray, leaving: FloatArray) -> FloatArray:
    """Number in the system just before each time."""
    return (np.searchsorted(arrivals, times) - np.searchsorted(leaving, times)).astype(np.float64)


def _slope(ahead: FloatArray, latency: FloatArray) -> float:
    """Seconds of latency that each request in the system at arrival adds, by least squares."""
    if len(ahead) < 5:
        return 0.0
    centred = ahead - ahead.mean()
    spread = float((centred * centred).sum())
    return float((centred * latency).sum()) / spread if spread > 0 else 0.0
