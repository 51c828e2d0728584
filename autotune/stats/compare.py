"""Gain of one configuration over another from repeated measurements, and who wins within the noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from autotune.stats._arrays import FloatArray, floats
from autotune.stats._distributions import t_quantile


@dataclass(frozen=True, slots=True)
class Gain:
    """A over B in percent with a two-sided interval; infinite bounds when there is only one repeat."""

    percent: float
    low: float
    high: float
    repeats: int

    @property
    def significant(self) -> bool:
        """The interval lies on one side of zero."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True)
class Noise:
    """Standard deviation of one log figure, and the degrees of freedom that it is known with."""

    deviation: float
    degrees: int


def gain(
    a: ArrayLike, b: ArrayLike, *, paired: bool = True, confidence: float = 0.95, noise: Noise | None = None
) -> Gain:
    """Gain of A over B from repeats of a positive figure such as the capacity.

    The logarithms are compared, with Student's t: on the differences of the pairs (measured one after the other, so
    that a drift of the machine cancels), unpaired by Welch's approximation, or with the noise that all repeats
    of all configurations show together.

    Args:
        a: repeats of A.
        b: repeats of B; pair i of an interleaved confirmation is ``a[i], b[i]``.
        paired: whether the repeats belong together.
        confidence: of the interval.
        noise: of one log figure, from more repeats than these two have: two or three agree by chance, and their own
            few degrees of freedom would let only enormous gains count.
    """
    x, y = np.log(_positive(a)), np.log(_positive(b))
    if paired:
        if len(x) != len(y):
            raise ValueError("paired repeats must be equal in number")
        difference = x - y
        mean = float(difference.mean())
        n = len(difference)
        error = float(difference.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf
        degrees = float(n - 1)
    else:
        mean = float(x.mean() - y.mean())
        n = min(len(x), len(y))
        if n > 1:
            u, v = float(x.var(ddof=1)) / len(x), float(y.var(ddof=1)) / len(y)
            error = math.sqrt(u + v)
            bottom = u**2 / (len(x) - 1) + v**2 / (len(y) - 1)
            degrees = (u + v) ** 2 / bottom if bottom > 0 else float(n - 1)
        else:
            error, degrees = math.inf, 0.0
    if noise is not None:
        error, degrees = noise.deviation * math.sqrt(1 / len(x) + 1 / len(y)), float(noise.degrees)
    if math.isinf(error):
        return Gain(_percent(mean), -100.0, math.inf, n)
    half = t_quantile((1 + confidence) / 2, degrees) * error
    return Gain(_percent(mean), _percent(mean - half), _percent(mean + half), n)


def noise_of(repeats: Sequence[ArrayLike]) -> Noise | None:
    """Noise of one log figure, pooled over groups of repeats of equal things (A/A); None without two repeats of
    anything."""
    squares, degrees = 0.0, 0
    for group in repeats:
        x = np.log(_positive(group))
        if len(x) > 1:
            squares += float(((x - x.mean()) ** 2).sum())
            degrees += len(x) - 1
    return Noise(math.sqrt(squares / degrees), degrees) if degrees else None


def noise_within_rounds(measured: Mapping[str, ArrayLike]) -> Noise | None:
    """Noise of one log figure once what a round has in common is taken out.

    In an interleaved confirmation every configuration is measured once per round; a drift of the machine falls
    on all of a round alike and cancels in the pairs, so it is no noise. Residuals of the two-way additive model
    of the logs (configuration plus round).

    Args:
        measured: repeats of each configuration, repeat i of all made in the same round.

    Returns:
        None with fewer than two configurations or two rounds.
    """
    rows = [np.log(_positive(values)) for values in measured.values()]
    rounds = min((len(row) for row in rows), default=0)
    if len(rows) < 2 or rounds < 2:
        return None
    table = np.array([row[:rounds] for row in rows])
    residual = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0, keepdims=True) + table.mean()
    degrees = (len(rows) - 1) * (rounds - 1)
    return Noise(math.sqrt(float((residual**2).sum()) / degrees), degrees)


@dataclass(frozen=True, slots=True)
class Choice:
    """The winner among finalists and its gain over the baseline."""

    winner: str
    gain: Gain
    """Over the baseline, with the interval widened for the number of finalists."""
    is_gain: bool
    """False: the baseline is kept."""
    within_noise: tuple[str, ...]
    """Finalists that cannot be told from the best."""


def choose(
    measured: Mapping[str, ArrayLike],
    *,
    baseline: str,
    flags: Mapping[str, int],
    noise: Noise | None = None,
    confidence: float = 0.95,
) -> Choice:
    """Pick the finalist with the fewest flags among those within the noise of the best.

    A finalist counts as a gain when its interval over the baseline, at a confidence corrected for the number
    of finalists (Bonferroni), lies above zero. Otherwise the baseline is kept.

    Args:
        measured: repeats of each configuration, baseline included, repeat i of all made in the same round.
        baseline: its key.
        flags: number of engine arguments that each sets.
        noise: see `gain`.
        confidence: for the whole decision.
    """
    finalists = [name for name in measured if name != baseline]
    if not finalists:
        zero = gain(measured[baseline], measured[baseline], noise=noise)
        return Choice(baseline, zero, False, (baseline,))
    each = 1 - (1 - confidence) / len(finalists)
    gains = {name: gain(measured[name], measured[baseline], confidence=each, noise=noise) for name in finalists}
    real = [name for name in finalists if gains[name].low > 0]
    best = max(real or finalists, key=lambda name: gains[name].percent)
    if not real:
        return Choice(baseline, gains[best], False, (baseline,))
    tied = [n for n in real if gain(measured[n], measured[best], confidence=confidence, noise=noise).high >= 0]
    winner = min(tied, key=lambda name: (flags.get(name, 0), -gains[name].percent))
    return Choice(winner, gains[winner], True, tuple(sorted(tied)))


def winners_curse(found: float, confirmed: float) -> float:
    """Percent by which the search's best figure lay above the confirmed one (never below zero)."""
    return max(0.0, (found / confirmed - 1) * 100) if confirmed > 0 else math.inf


def _percent(log_ratio: float) -> float:
    return math.expm1(log_ratio) * 100


def _positive(values: ArrayLike) -> FloatArray:
    x = floats(values)
    if not len(x) or not bool((x > 0).all()):
        raise ValueError("figures to compare must be positive and at least one")
    return x
