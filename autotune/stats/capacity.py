"""Search for the capacity: the highest rate at which the objective holds, in few probes.

Each probe gives more than yes or no: how far the percentile was from its limit, with a standard error, and
when the engine saturated, what it completed. A small family of curves joins them,

    percentile(rate) = limit * ((1 - k) / (1 - k * rate / capacity)) ** g,

which covers a queue in front of servers (k near 1) as well as an engine whose steps grow with the batch (k
small). The posterior over (capacity, k, g) on a grid gives the estimate, its interval and the next rate.
Every probe may be an outlier (a stall, a drifting machine), so none decides alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from autotune.spec.slo import Slo
from autotune.stats._arrays import FloatArray
from autotune.stats.probe import ProbeVerdict, probe_size
from autotune.stats.slo_test import Verdict

_UTILISATIONS = (0.1, 0.3, 0.45, 0.6, 0.7, 0.8, 0.87, 0.92, 0.95, 0.97, 0.98, 0.99)
_EXPONENTS = (0.25, 0.4, 0.6, 1.0, 1.6)
_GRID_STEP = 0.01
_OUTLIER = 0.08
"""Probability that a probe tells nothing about the engine (a stall, a noisy neighbour)."""
_MODEL_ERROR = 0.05
"""How far real curves stray from the family, in log latency."""


class Purpose(StrEnum):
    """Why a probe is made."""

    INCUMBENT = "can it beat the best known"
    EXPLORE = "find the edge"
    REFINE = "narrow the edge"
    RETRY = "try a failed edge again"


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """A probe to make: at most ``max_requests`` and ``max_duration`` seconds of sending."""

    rate: float
    max_requests: int
    max_duration: float
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a probe showed. An invalid one (client slipped, GPU throttled) is repeated and tells nothing."""

    rate: float
    realised_rate: float
    verdict: Verdict
    requests: int
    misses: int
    log_margin: float
    log_margin_error: float
    saturated: bool
    throughput: float
    latency_scale: float = math.nan
    valid: bool = True

    @classmethod
    def of(cls, plan: ProbePlan, verdict: ProbeVerdict, *, valid: bool = True) -> ProbeResult:
        """The result of a judged probe."""
        realised = verdict.realised_rate
        return cls(
            rate=plan.rate,
            realised_rate=plan.rate if math.isnan(realised) else realised,
            verdict=verdict.decision,
            requests=verdict.requests,
            misses=verdict.misses,
            log_margin=verdict.log_margin,
            log_margin_error=verdict.log_margin_error,
            saturated=verdict.saturated,
            throughput=verdict.throughput,
            latency_scale=verdict.latency_scale,
            valid=valid,
        )


@dataclass(frozen=True, slots=True)
class CapacityEstimate:
    """Capacity in req/s with a 90 % credible interval."""

    rate: float
    low: float
    high: float
    resolved: bool
    """The interval is as narrow as asked for."""
    dominated: bool
    """It cannot beat the incumbent, with 95 % probability; the estimate is then rough."""
    probes: int


class CapacitySearch:
    """Chooses the rates of the probes of one configuration on a running engine."""

    def __init__(
        self,
        slo: Slo,
        start_rate: float,
        *,
        uncertainty: float = 4.0,
        incumbent: float | None = None,
        precision: float = 0.05,
        max_probes: int = 8,
        max_invalid: int = 4,
        latency_scale: float | None = None,
        drop_dominated: bool = True,
    ) -> None:
        """Set up the search.

        Args:
            slo: the objective.
            start_rate: guess of the capacity in req/s.
            uncertainty: factor by which the guess may well be wrong (one standard deviation in log).
            incumbent: capacity of the best configuration so far; the first probe is made at it.
            precision: the estimate is resolved when its interval is within this share of it.
            max_probes: valid probes at most.
            max_invalid: invalid probes at most.
            latency_scale: median latency in seconds, if known.
            drop_dominated: stop as soon as the incumbent clearly cannot be beaten.
        """
        if not start_rate > 0 or not uncertainty > 1:
            raise ValueError("a positive start rate and an uncertainty above 1 are needed")
        self.slo = slo
        self.incumbent = incumbent
        self.precision = precision
        self.results: list[ProbeResult] = []
        self._start = start_rate
        self._max_probes = max_probes
        self._invalid_left = max_invalid
        self._scale = latency_scale
        self._drop = drop_dominated
        spread = math.log(uncertainty)
        centre = math.log(start_rate)
        reach = max(4 * spread, math.log(50))
        if incumbent is not None:
            reach = max(reach, abs(math.log(incumbent) - centre) + math.log(8))
        points = int(2 * reach / _GRID_STEP) + 1
        self._log_capacity: FloatArray = np.linspace(centre - reach, centre + reach, points)
        self._k = np.asarray(_UTILISATIONS).reshape(1, -1, 1)
        self._g = np.asarray(_EXPONENTS).reshape(1, 1, -1)
        deviation = (self._log_capacity - centre) / spread
        # A heavy tail: guesses of models are sometimes far off.
        prior = -2.0 * np.log1p(deviation**2 / 3)
        self._log_weight: FloatArray = np.broadcast_to(
            prior.reshape(-1, 1, 1), (points, len(_UTILISATIONS), len(_EXPONENTS))
        ).copy()

    def next(self) -> ProbePlan | None:
        """The next probe, or None when the search is over."""
        if len(self.results) >= self._max_probes or self._invalid_left < 0:
            return None
        if not self.results:
            purpose = Purpose.EXPLORE if self.incumbent is None else Purpose.INCUMBENT
            return self._plan(self._start if self.incumbent is None else self.incumbent, purpose)
        estimate = self.estimate()
        if self._drop and estimate.dominated:
            return None
        if estimate.resolved:
            edge = self._lone_failure(estimate)
            return None if edge is None else self._plan(edge, Purpose.RETRY)
        wide = estimate.high > estimate.low * 1.5
        return self._plan(estimate.rate, Purpose.EXPLORE if wide else Purpose.REFINE)

    def tell(self, result: ProbeResult) -> None:
        """Take in a probe."""
        if not result.valid:
            self._invalid_left -= 1
            return
        self.results.append(result)
        if math.isfinite(result.latency_scale):
            self._scale = result.latency_scale
        self._log_weight += self._log_likelihood(result)
        self._log_weight -= self._log_weight.max()

    def estimate(self) -> CapacityEstimate:
        """What is known of the capacity so far."""
        weight = np.exp(self._log_weight).sum(axis=(1, 2))
        cumulative = np.cumsum(weight) / weight.sum()
        low, middle, high = (math.exp(float(np.interp(q, cumulative, self._log_capacity))) for q in (0.05, 0.5, 0.95))
        dominated = False
        if self.incumbent is not None and self.results:
            below = float(np.interp(math.log(self.incumbent), self._log_capacity, cumulative))
            dominated = below > 0.95
        # A curve through distant probes is an extrapolation, however sure it looks.
        near = any(abs(math.log(r.realised_rate / middle)) <= 2 * self.precision for r in self.results)
        resolved = near and high <= low * (1 + self.precision) ** 2
        return CapacityEstimate(middle, low, high, resolved, dominated, len(self.results))

    def _plan(self, rate: float, purpose: Purpose) -> ProbePlan:
        size = probe_size(rate, self.slo, latency_scale=self._scale)
        return ProbePlan(rate, size.requests, max(2 * size.duration, 1.2 * size.requests / rate), purpose)

    def _lone_failure(self, estimate: CapacityEstimate) -> float | None:
        """The rate of the failed probe that alone holds the estimate down, if there is one."""
        failed = [r for r in self.results if r.verdict is Verdict.FAIL]
        passed = [r for r in self.results if r.verdict is Verdict.PASS]
        if len(failed) != 1 or any(r.realised_rate > estimate.low for r in passed):
            return None
        return failed[0].rate

    def _log_likelihood(self, result: ProbeResult) -> FloatArray:
        capacity = np.exp(self._log_capacity).reshape(-1, 1, 1)
        load = self._k * (result.realised_rate / capacity)
        stable = load < 0.999
        room = np.log1p(-np.minimum(load, 0.999))
        predicted = np.where(stable, self._g * (np.log1p(-self._k) - room), 5.0)
        likelihood = _margin_density(result, predicted)
        if result.saturated:
            completed = (np.log(max(result.throughput, 1e-9)) - np.log(capacity / self._k)) / 0.12
            sound = np.where(load > 0.9, np.exp(-0.5 * completed**2), 0.0)
            likelihood = sound
        elif result.verdict is Verdict.PASS:
            likelihood = np.where(stable, likelihood, 0.0)
        return np.asarray(np.log((1 - _OUTLIER) * likelihood + _OUTLIER * 0.2), dtype=np.float64)


def _margin_density(result: ProbeResult, predicted: FloatArray) -> FloatArray:
    """Density of the observed log margin, up to a constant of about one."""
    if math.isinf(result.log_margin) or not math.isfinite(result.log_margin_error):
        return np.where(predicted > 0, 1.0, 0.05) if result.verdict is Verdict.FAIL else np.ones_like(predicted)
    error = math.hypot(result.log_margin_error, _MODEL_ERROR)
    distance = (predicted - result.log_margin) / error
    if result.verdict is Verdict.FAIL:
        # A failed probe was cut short while its latencies still grew: the margin is a lower bound.
        distance = np.where(distance > 0, distance * error, distance)
    return np.asarray(np.exp(-0.5 * distance**2), dtype=np.float64)
