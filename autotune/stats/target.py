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

_CAUTION, _CAUTION_BESIDE_TAIL = 3.5, 2.0
"""A pass allows for correlation up to this many times what the run shows, because clusters of misses that did not
happen are not seen; the second where the tail passes as well. Calibrated on queues, see docs/measurement.md."""
_UNSETTLED = 2.5
"""A fail needs this many times the evidence while the system was not yet seen to settle: the first requests meet an
engine in step, and a handful of bursts is all there is."""


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
    test: SloTest, target: SloTarget, values: FloatArray, ages: FloatArray, *, settled: bool = True
) -> TargetVerdict:
    """Judge the values of one target.

    Args:
        test: of the share of misses.
        target: the limit.
        values: in order of arrival; inf for failed and overdue requests, NaN where the metric does not apply.
        ages: for overdue requests the time they have been out, else inf.
        settled: the number in the system was seen to come and go.
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
        decision=_decide(test, target, n, misses, tail, factor, settled),
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


def _decide(
    test: SloTest, target: SloTarget, n: int, misses: int, tail: Tail | None, factor: float, settled: bool
) -> Verdict:
    """Counted misses decide alone when discounted for correlation; together with the tail they need less."""
    cautious = 1 + _CAUTION * (factor - 1)
    beside = 1 + _CAUTION_BESIDE_TAIL * (factor - 1)
    counted = test.evidence(misses, n)
    beyond = math.nan if tail is None else tail.evidence(target.limit_s, test.good_share, test.bad_share)
    passes = test.decide(counted / cautious) is Verdict.PASS or (
        test.decide(counted / beside) is Verdict.PASS and test.decide(beyond / cautious) is Verdict.PASS
    )
    if passes:
        return Verdict.PASS
    needed = 1.0 if settled else _UNSETTLED
    fails = test.decide(counted / factor / needed) is Verdict.FAIL or (
        test.decide(counted / needed) is Verdict.FAIL and test.decide(beyond / factor / needed) is Verdict.FAIL
    )
    return Verdict.FAIL if fails else Verdict.UNDECIDED


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
