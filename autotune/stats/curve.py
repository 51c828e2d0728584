"""What a set of probes says about the capacity.

A small family of curves of the percentile against the rate,

    percentile(rate) = limit * ((1 - k) / (1 - k * rate / capacity)) ** g,

covers a queue in front of servers (k near 1: p99 grows as 1/(1 - utilisation)) as well as an engine whose steps
grow with the batch (k small). The posterior over capacity, k and g is computed on a grid; k and g are nuisances.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autotune.stats._arrays import FloatArray
from autotune.stats.capacity_probe import ProbeResult
from autotune.stats.slo_test import Verdict

_SHAPES = tuple(
    (k, slope * (1 - k) / k)
    for k in (0.2, 0.4, 0.6, 0.75, 0.85, 0.92, 0.96, 0.985)
    for slope in (0.4, 0.7, 1.2, 2.0, 3.5, 6.0, 12.0, 24.0)
    if 0.2 <= slope * (1 - k) / k <= 3.0
)
"""k and g such that the log percentile rises by ``slope`` per unit of log rate at the capacity."""
_FLATTEST, _STEEPEST = 0.4, 24.0
_STEEPNESS_SPREAD = 0.5
"""Standard deviation of the log of a predicted steepness; the table's are half as far again apart."""
_GRID_STEP = 0.01
_OUTLIER, _OUTLIER_DENSITY = 0.03, 0.03
"""Probability that a probe tells nothing about the engine (a stall, a noisy neighbour), and the density of what it
then shows relative to the peak of an informative one."""
_MODEL_ERROR = 0.05
"""How far real curves stray from the family, in log latency."""
_COLD_FACTOR, _COLD_FLOOR = 2.5, 0.05
"""A run starts with an empty system and sees less than the steady state, by about its standard error: so much more
room is left above an observed log margin than below it."""
_COLD_STATES = 30.0
"""A run of many more independent states than this has left its start behind, and the room above shrinks."""
_CUT_SHORT = 0.5
"""A failed probe stopped while its latencies still grew: the log margin is a lower bound, this loose above."""
_WRONG_PASS = 0.3
"""Weight left to loads that fail when the probe passed, beside what its margin says."""
_SIMILAR_LOAD = 0.3
"""Probes whose loads are within this (log) distance share their noise."""


class CapacityPosterior:
    """Distribution of the capacity, req/s, given the probes so far."""

    def __init__(
        self, guess: float, uncertainty: float, incumbent: float | None = None, steepness: float | None = None
    ) -> None:
        """Start from a guess.

        Args:
            guess: of the capacity, req/s.
            uncertainty: factor that is one standard deviation of the guess.
            incumbent: a rate that the grid must cover as well.
            steepness: what the log percentile is thought to rise by per unit of log rate at the capacity.
        """
        spread, centre = math.log(uncertainty), math.log(guess)
        reach = max(6 * spread, math.log(1000))
        if incumbent is not None:
            reach = max(reach, abs(math.log(incumbent) - centre) + math.log(8))
        self._log_capacity: FloatArray = np.linspace(centre - reach, centre + reach, int(2 * reach / _GRID_STEP) + 1)
        self._k, self._g = np.asarray(_SHAPES, dtype=np.float64).T.reshape(2, 1, -1)
        # A heavy tail (Student's t with 3 degrees of freedom): guesses of models are sometimes far off.
        prior = -2.0 * np.log1p(((self._log_capacity - centre) / spread) ** 2 / 3)
        self._log_prior: FloatArray = prior.reshape(-1, 1) + _shape_prior(steepness)
        self._cumulative = _cumulative(self._log_prior)

    def update(self, results: Sequence[ProbeResult]) -> None:
        """Condition on all results; they replace those of the last call."""
        logs = self._log_prior
        for result, error in zip(results, pooled_errors(results), strict=True):
            logs = logs + self._log_likelihood(result, error)
        self._cumulative = _cumulative(logs)

    def quantiles(self, *shares: float) -> tuple[float, ...]:
        """Capacities, req/s, below which the given shares of the distribution lie."""
        return tuple(math.exp(float(np.interp(q, self._cumulative, self._log_capacity))) for q in shares)

    def probability_below(self, rate: float) -> float:
        """Probability that the capacity is below ``rate``."""
        return float(np.interp(math.log(rate), self._log_capacity, self._cumulative))

    def _log_likelihood(self, result: ProbeResult, error: float) -> FloatArray:
        load = self._k * (result.load / np.exp(self._log_capacity).reshape(-1, 1))
        stable = load < 0.995
        room = np.log1p(-np.minimum(load, 0.995))
        predicted = np.where(stable, self._g * (np.log1p(-self._k) - room), np.inf)
        density = _margin_density(result, predicted, error) * _growth_density(result, load)
        return np.asarray(np.log((1 - _OUTLIER) * density + _OUTLIER * _OUTLIER_DENSITY), dtype=np.float64)


def _shape_prior(steepness: float | None) -> FloatArray:
    """Log weight of each shape: equal, or around a steepness."""
    k, g = np.asarray(_SHAPES, dtype=np.float64).T
    if steepness is None:
        return np.zeros_like(k)
    distance = np.log(g * k / (1 - k)) - math.log(min(max(steepness, _FLATTEST), _STEEPEST))
    weight = -0.5 * (distance / _STEEPNESS_SPREAD) ** 2
    # Shapes of one steepness share its weight, however many the table has.
    same = np.isclose(distance.reshape(-1, 1), distance).sum(axis=1)
    return np.asarray(weight - np.log(same), dtype=np.float64)


def pooled_errors(results: Sequence[ProbeResult]) -> list[float]:
    """Standard error of each log margin, from the noise of all probes at similar loads.

    A probe that happened to meet no burst has a low percentile and looks precise; one that met bursts has a high one
    and looks vague. Weighted by what they say of themselves, the lucky ones would win.
    """
    errors = []
    for result in results:
        scales = [
            r.log_margin_error**2 * r.requests
            for r in results
            if math.isfinite(r.log_margin_error) and abs(math.log(r.load / result.load)) < _SIMILAR_LOAD
        ]
        errors.append(math.sqrt(sum(scales) / len(scales) / max(1, result.requests)) if scales else math.inf)
    return errors


def _cumulative(logs: FloatArray) -> FloatArray:
    weight = np.exp(logs - logs.max()).sum(axis=1)
    return np.asarray(np.cumsum(weight) / weight.sum(), dtype=np.float64)


def _margin_density(result: ProbeResult, predicted: FloatArray, own_error: float) -> FloatArray:
    """Density of the observed log margin relative to its peak."""
    failed = result.verdict is Verdict.FAIL
    if not math.isfinite(result.log_margin) or not math.isfinite(own_error):
        return np.where(predicted > 0, 1.0, _OUTLIER_DENSITY) if failed else np.ones_like(predicted)
    error = math.hypot(own_error, _MODEL_ERROR)
    cold = min(1.0, _COLD_STATES / max(result.independent, 1.0))
    above = error + (_CUT_SHORT if failed else cold * (_COLD_FACTOR * error + _COLD_FLOOR))
    distance = predicted - result.log_margin
    scaled = np.where(distance > 0, distance / above, distance / error)
    density = np.exp(-0.5 * np.minimum(scaled, 40.0) ** 2)
    # An unstable system fails, but shows any margin for a while.
    density = np.where(np.isinf(predicted), 0.6 if failed else min(0.5, 0.8 * error), density)
    if result.verdict is Verdict.PASS:
        density = np.where(predicted > 0, density * _WRONG_PASS, density)
    return np.asarray(density, dtype=np.float64)


def _growth_density(result: ProbeResult, load: FloatArray) -> FloatArray:
    """Density of the observed growth of the number in the system relative to its peak."""
    if not math.isfinite(result.growth_error):
        return np.ones_like(load)
    expected = np.maximum(0.0, 1 - 1 / np.maximum(load, 1e-9))
    error = math.hypot(result.growth_error, 0.02)
    distance = result.growth - expected
    # A system that fills grows too, unless its latency rises as that of a full one does.
    slack = 1.0 if result.saturated else 2.0
    scaled = np.where(distance > 0, distance / slack, distance) / error
    return np.asarray(np.exp(-0.5 * scaled**2), dtype=np.float64)
