"""What is believed of a few unknowns: a normal distribution that figures and outcomes narrow."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
#: Outcomes further from the belief than this many standard deviations move it no more than one at this distance:
#: they are more likely an accident (another process on the GPU) than news.
_FURTHEST = 3.0


class Belief:
    """A normal distribution over a vector of unknowns."""

    def __init__(self, mean: Vector, deviations: Vector) -> None:
        self.mean: Vector = mean
        self.covariance: Vector = np.diag(deviations**2)

    def linear(self, coefficients: Vector, constant: float = 0.0) -> tuple[float, float]:
        """Mean and variance of ``coefficients . unknowns + constant``."""
        variance = float(coefficients @ self.covariance @ coefficients)
        return float(coefficients @ self.mean) + constant, max(0.0, variance)

    def observe(self, coefficients: Vector, figure: float, deviation: float) -> None:
        """Learn that the linear form has the value ``figure``, known to ``deviation`` (a Kalman update)."""
        expected, variance = self.linear(coefficients)
        total = variance + deviation**2
        self._move(coefficients, (figure - expected) / total, 1.0 / total)

    def observe_sign(self, coefficients: Vector, constant: float, positive: bool, deviation: float) -> None:
        """Learn that the linear form, seen with an error of ``deviation``, is positive (or negative).

        The normal distribution with the moments of the truncated one replaces it (assumed density filtering).
        """
        mean, variance = self.linear(coefficients, constant)
        spread = math.sqrt(variance + deviation**2)
        side = 1.0 if positive else -1.0
        distance = max(side * mean / spread, -_FURTHEST)
        hazard = math.exp(-distance * distance / 2) / math.sqrt(2 * math.pi) / normal_cdf(distance)
        self._move(coefficients, side * hazard / spread, hazard * (distance + hazard) / spread**2)

    def _move(self, coefficients: Vector, step: float, shrink: float) -> None:
        spread = self.covariance @ coefficients
        self.mean = self.mean + spread * step
        covariance = self.covariance - np.outer(spread, spread) * shrink
        self.covariance = (covariance + covariance.T) / 2


def normal_cdf(x: float) -> float:
    """Share of a standard normal distribution below ``x``."""
    return 0.5 * math.erfc(-x / math.sqrt(2))
