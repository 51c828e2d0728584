"""Queues with known truth for the benchmarks of the statistics.

Two families: k servers first come first served (M/G/k and bursty arrivals), and a batching engine in the
manner of an LLM server: all running requests advance together, a step takes longer the more of them there
are, new prompts stall everybody, and a limit on the batch makes the rest wait. Both start empty.
"""

from __future__ import annotations

import heapq
import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class Law(StrEnum):
    """Distribution of a positive quantity with mean 1."""

    FIXED = "fixed"
    UNIFORM = "uniform"
    EXPONENTIAL = "exponential"
    LOGNORMAL = "lognormal"
    HYPER = "hyper"


def draw(law: Law, n: int, rng: np.random.Generator) -> FloatArray:
    """``n`` values with mean 1; squared coefficients of variation 0, 1/12, 1, 1.7 and 4."""
    match law:
        case Law.FIXED:
            return np.ones(n)
        case Law.UNIFORM:
            return rng.uniform(0.5, 1.5, n)
        case Law.EXPONENTIAL:
            return rng.exponential(size=n)
        case Law.LOGNORMAL:
            return rng.lognormal(-0.5, 1.0, n)
        case Law.HYPER:
            # Balanced two-phase hyperexponential with squared coefficient of variation 4.
            share = 0.5 * (1 + (3 / 5) ** 0.5)
            quick = rng.random(n) < share
            return rng.exponential(size=n) * np.where(quick, 0.5 / share, 0.5 / (1 - share))


@dataclass(frozen=True, slots=True)
class Run:
    """Requests in order of arrival; times in seconds."""

    arrivals: FloatArray
    ends: FloatArray
    first_tokens: FloatArray


@dataclass(frozen=True, slots=True)
class System:
    """An engine and its traffic. Times are in units of ``unit`` seconds."""

    name: str
    kind: str
    """``servers`` or ``batch``."""
    slots: int
    """Servers, or the largest batch."""
    work: Law
    burst: float = 1.0
    """Squared coefficient of variation of the gaps between arrivals (gamma)."""
    batch_cost: float = 0.0
    """Step time at the full batch relative to a batch of one, minus one."""
    prompt_cost: float = 0.0
    """Stall that a prompt causes, relative to the time of one request alone."""
    unit: float = 1.0
    limit: float = 1.0
    """Limit on the latency, in units."""

    @property
    def bound(self) -> float:
        """A rate (req/s) that cannot be exceeded for long."""
        if self.kind == "servers":
            return self.slots / self.unit
        return 1 / (self.unit * ((1 + self.batch_cost) / self.slots + self.prompt_cost))

    def run(self, rate: float, n: int, rng: np.random.Generator) -> Run:
        """``n`` requests at ``rate`` req/s into the empty system."""
        gaps = rng.gamma(1 / self.burst, self.burst, n) if self.burst != 1 else rng.exponential(size=n)
        arrivals = np.cumsum(gaps) / rate
        work = draw(self.work, n, rng)
        if self.kind == "servers":
            ends, starts = _servers(arrivals.tolist(), (work * self.unit).tolist(), self.slots)
        else:
            ends, starts = _batch(
                arrivals.tolist(),
                work.tolist(),
                self.slots,
                self.unit,
                self.unit * self.batch_cost / max(1, self.slots - 1),
                self.unit * self.prompt_cost,
            )
        return Run(arrivals, np.asarray(ends), np.asarray(starts))


def _servers(arrivals: list[float], work: list[float], servers: int) -> tuple[list[float], list[float]]:
    free = [0.0] * servers
    ends: list[float] = []
    starts: list[float] = []
    replace = heapq.heapreplace
    for arrival, size in zip(arrivals, work, strict=True):
        start = max(arrival, free[0])
        end = start + size
        replace(free, end)
        starts.append(start)
        ends.append(end)
    return ends, starts


def _batch(
    arrivals: list[float], work: list[float], slots: int, alone: float, each: float, stall: float
) -> tuple[list[float], list[float]]:
    """Running requests share progress: one unit of work takes ``alone + each * (running - 1)`` seconds."""
    n = len(arrivals)
    ends = [0.0] * n
    starts = [0.0] * n
    running: list[tuple[float, int]] = []
    now = progress = blocked = 0.0
    arrived = admitted = 0
    while admitted < n or running:
        # ``blocked``: until when prompts are being read and nobody advances.
        if arrived == admitted and not running:
            now = max(now, arrivals[arrived])
        while arrived < n and arrivals[arrived] <= now:
            arrived += 1
        while admitted < arrived and len(running) < slots:
            blocked = max(blocked, now) + stall
            starts[admitted] = blocked
            heapq.heappush(running, (progress + work[admitted], admitted))
            admitted += 1
        pace = alone + each * (len(running) - 1)
        begin = max(now, blocked)
        finish = begin + (running[0][0] - progress) * pace
        if arrived < n and arrivals[arrived] < finish:
            upcoming = arrivals[arrived]
            if upcoming > begin:
                progress += (upcoming - begin) / pace
            now = upcoming
        else:
            progress, index = heapq.heappop(running)
            ends[index] = now = finish
    return ends, starts


class AnySystem(Protocol):
    """What can be loaded: a queue of this module or a simulated engine."""

    @property
    def name(self) -> str:
        """A short name."""
        ...

    @property
    def unit(self) -> float:
        """Unit of time, s."""
        ...

    @property
    def limit(self) -> float:
        """Limit on the latency, in units."""
        ...

    @property
    def bound(self) -> float:
        """A rate (req/s) that cannot be exceeded for long."""
        ...

    def run(self, rate: float, n: int, rng: np.random.Generator) -> Run:
        """``n`` requests at ``rate`` req/s into the empty system."""
        ...


def miss_share(system: AnySystem, rate: float, n: int, seed: int) -> tuple[float, float]:
    """Long-run share of misses at ``rate`` and its variance relative to independent requests."""
    run = system.run(rate, n, np.random.default_rng(seed))
    missed = (run.ends - run.arrivals > system.limit * system.unit)[n // 20 :].astype(np.float64)
    share = float(missed.mean())
    blocks = missed[: len(missed) // 40 * 40].reshape(40, -1)
    inflation = float(blocks.mean(axis=1).var(ddof=1)) * blocks.shape[1] / max(share * (1 - share), 1e-12)
    return share, max(1.0, inflation)


@dataclass(frozen=True, slots=True)
class Truth:
    """What long simulation says of a system; see ``queue_truth.py``."""

    system: AnySystem
    capacity: float
    """Rate (req/s) at which one percent of the requests miss."""
    uncertainty: float
    """Relative error of the capacity."""
    good: float
    """Rate at which half a percent misses."""
    bad: float
    """Rate at which two percent miss."""
    inflation: float
    """Variance of the share of misses at capacity relative to independent requests."""
    in_flight: float
    """Mean number in the system at capacity."""
    median_latency: float
    """Seconds, at capacity."""


QUEUE_FILE = Path(__file__).with_name("queue_truth.json")
ENGINE_FILE = Path(__file__).with_name("engine_truth.json")


def load_truths() -> list[Truth]:
    """The queues of ``queue_truth.json``."""
    rows: list[dict[str, Any]] = json.loads(QUEUE_FILE.read_text())
    return [Truth(**{**row, "system": System(**{**row["system"], "work": Law(row["system"]["work"])})}) for row in rows]
