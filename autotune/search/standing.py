"""The best configuration so far, and how the next one is compared with it."""

from __future__ import annotations

from collections.abc import Iterable

from autotune.search.objective import Figure
from autotune.store.result import Outcome, Role, TrialDocument
from autotune.trial.order import Comparison

LEAD = 0.02
"""What is ahead by less, as single trials see it, is not told from noise: then the earlier one stays the best."""

_MOST_AHEAD = 1.5
"""Beyond this a first probe would mostly be lost."""


def standing_best(trials: Iterable[TrialDocument], score: Figure) -> TrialDocument | None:
    """The best of the search; None while nothing held the objective.

    A later one takes the place of an earlier one only with a lead that is worth speaking of, so that the best of many
    noisy figures is not taken for the best. Baselines and what the models predict come first, and set fewer flags.
    """
    best: TrialDocument | None = None
    for trial in sorted(trials, key=lambda t: t.number):
        if trial.outcome is not Outcome.MEASURED or trial.role is Role.CONFIRMATION or not score.merit(trial) > 0:
            continue
        if best is None or score.merit(trial) > (1 + LEAD) * score.merit(best):
            best = trial
    return best


def comparison_with(best: TrialDocument | None) -> Comparison:
    """Rate and requests of the probes that a new configuration is compared by."""
    own = [] if best is None else [p for p in best.probes if p.valid and p.smooth_margin is not None]
    if not own:
        return Comparison()
    nearest = min(own, key=lambda p: abs(p.smooth_margin or 0.0))
    return Comparison(nearest.rate, nearest.planned_requests)


def confirming(trials: Iterable[TrialDocument]) -> Comparison:
    """How finalists are measured: no more briefly than engines take to start, which would save little.

    The first start counts for all, so that all are sent the same requests.
    """
    launched = sorted((t for t in trials if t.outcome is Outcome.MEASURED and t.launched), key=lambda t: t.number)
    return Comparison(least_seconds=launched[0].timings.start if launched else 0.0)


def start_factor(predicted: float | None, predicted_best: float | None) -> float:
    """By how much the rate of a first probe is above the best one's, from what the models say of the two.

    What they say of one configuration is off by some tenths; of two, mostly by the same tenths.
    """
    if not predicted or not predicted_best:
        return 1.0
    return min(max(predicted / predicted_best, 1.0), _MOST_AHEAD)
