"""Queues whose behaviour is known in closed form."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.stats import ProbeView

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Queue:
    """A run of M/G/k from empty; times in seconds."""

    arrivals: Floats
    ends: Floats

    @property
    def latencies(self) -> Floats:
        """Time in the system, in order of arrival."""
        return self.ends - self.arrivals

    def view(self, now: float) -> ProbeView:
        """What is known at ``now``, with the latency as the only target."""
        came = self.arrivals <= now
        arrivals, ends = self.arrivals[came], self.ends[came]
        done = ends <= now
        return ProbeView(
            started=0.0,
            now=now,
            scheduled=arrivals[done],
            finished=ends[done],
            values=(ends - arrivals)[done].reshape(-1, 1),
            in_flight=arrivals[~done],
        )


def _run(rate: float, service: float, servers: int, n: int, seed: int, shape: float = 1.0) -> Queue:
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, n))
    free = [0.0] * servers
    ends = np.empty(n)
    for i, (arrival, work) in enumerate(zip(arrivals, rng.gamma(shape, service / shape, n), strict=True)):
        ends[i] = max(arrival, free[0]) + work
        heapq.heapreplace(free, float(ends[i]))
    return Queue(arrivals, ends)


@pytest.fixture
def queue() -> Callable[..., Queue]:
    """Runs M/G/k: ``queue(rate, service, servers, n, seed, shape)`` with gamma service of that shape."""
    return _run
