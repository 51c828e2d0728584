"""One target of the objective judged on the requests that count."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from autotune.spec.slo import SloTarget
from autotune.stats._arrays import BoolArray, FloatArray
from autotune.stats._distributions import share_interval
from autotune.stats.correlation import exceedance_inflation, inflation
from autotune.stats.percentile import PercentileEstimate, estimate_percentile, percentile
from autotune.stats.slo_test import SloTest, Verdict
from autotune.stats.tail import Tail

_PASS_CAUTION = 13.0
"""A pass needs 1 + 13 / sqrt(independent states) times the evidence: bursts that did not happen yet are not seen, and
the fewer states were seen the larger the unseen ones may be. Chosen on half of the systems, see docs/measurement.md."""
_FAIL_TRUST = 0.8
"""A fail may take the inflation at this share: it has seen its bursts, and the largest of several estimates is high."""
_STATES_TO_SETTLE, _UNSETTLED = 8.0, 2.5
"""With fewer independent states than the first a system may still be filling: a fail then needs the second times the
evidence, since the first requests meet an engine in step, and a handful of bursts is all there is."""


@dataclass(frozen=True, slots=True)
class TargetVerdict:
    """One target of the objective on the requests that count."""

    target: SloTarget
    decision: Verdict
    misses: int
    requests: int
    share: float
    share_low: float
    share_high: float
    inflation: float
    """Variance of the share relative to independent requests."""
    percentile: PercentileEstimate
    log_margin: float
    """log(percentile / limit): below zero the target holds. Requests still out count with their age."""
    log_margin_error: float
    """Standard error of ``log_margin``."""


def judge_target(
    test: SloTest, target: SloTarget, values: FloatArray, ages: FloatArray, *, independent: float = math.inf
) -> TargetVerdict:
    """Judge the values of one target.

    Args:
        test: of the share of misses.
        target: the limit.
        values: in order of arrival; inf for failed and overdue requests, NaN where the metric does not apply.
        ages: for overdue requests the time they have been out, else inf.
        independent: independent looks at the state of the system that the values amount to.
    """
    applies = ~np.isnan(values)
    values, ages = values[applies], ages[applies]
    n = len(values)
    missed: BoolArray = values > target.limit_s
    misses = int(missed.sum())
    factor = max(exceedance_inflation(values), inflation(missed))
    effective = n / factor if n else 0.0
    low, high = share_interval(misses / factor, effective)
    known = np.minimum(values, ages)
    tail = Tail.of(known, min(0.3, 10 * target.allowed_miss_share))
    margin, error = _log_margin(known, target, tail, factor)
    return TargetVerdict(
        target=target,
        decision=_decide(test, _evidence(test, target, n, misses, tail), test.evidence(misses, n), factor, independent),
        misses=misses,
        requests=n,
        share=misses / n if n else math.nan,
        share_low=low,
        share_high=high,
        inflation=factor,
        percentile=estimate_percentile(values, target.percentile, effective_requests=effective),
        log_margin=margin,
        log_margin_error=error,
    )


def _evidence(test: SloTest, target: SloTarget, n: int, misses: int, tail: Tail | None) -> float:
    """Log-likelihood ratio of the bad share to the good one: the mean of what the misses and what the tail say.

    A mean, because both rest on the same requests: their sum would count a burst twice.
    """
    counted = test.evidence(misses, n)
    if tail is None or tail.share <= test.bad_share:
        return counted
    return (counted + tail.evidence(target.limit_s, test.good_share, test.bad_share)) / 2


def _decide(test: SloTest, evidence: float, counted: float, factor: float, independent: float) -> Verdict:
    """Wald's test of the evidence, discounted by the inflation ``factor`` as far as that is known.

    The tail extrapolates, so the misses alone must give the same verdict, taken as independent.
    """
    caution = 1 + _PASS_CAUTION / math.sqrt(max(1.0, independent))
    if test.decide(evidence / (factor * caution)) is test.decide(counted) is Verdict.PASS:
        return Verdict.PASS
    needed = 1.0 if independent >= _STATES_TO_SETTLE else _UNSETTLED
    discount = max(1.0, _FAIL_TRUST * factor) * needed
    if test.decide(evidence / discount) is test.decide(counted / needed) is Verdict.FAIL:
        return Verdict.FAIL
    return Verdict.UNDECIDED


def _log_margin(values: FloatArray, target: SloTarget, tail: Tail | None, factor: float) -> tuple[float, float]:
    top = percentile(values, target.percentile)
    if math.isnan(top):
        return math.nan, math.inf
    if math.isinf(top):
        return math.inf, math.inf
    if top <= 0:
        return -math.inf, math.inf
    margin = math.log(top / target.limit_s)
    return margin, math.inf if tail is None else tail.log_quantile_error(target.allowed_miss_share, factor)
