"""What decides one target, and how much evidence it takes. Error rates over many systems: benchmarks/slo_test.py."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from autotune.spec.slo import Metric, SloTarget
from autotune.stats import SloTest, Verdict
from autotune.stats.tail import Tail
from autotune.stats.target import TargetVerdict, judge_target

Floats = NDArray[np.float64]


def judge(values: Floats, limit: float, *, percentile: float = 99.0, independent: float = math.inf) -> TargetVerdict:
    target = SloTarget(metric=Metric.LATENCY, percentile=percentile, limit_s=limit)
    test = SloTest(target.allowed_miss_share)
    return judge_target(test, target, values, np.full(len(values), np.inf), independent=independent)


def requests_to_pass(values: Floats, limit: float, independent_of: float) -> int:
    """First size that passes, when each request is worth ``independent_of`` independent states."""
    sizes = range(50, len(values), 10)
    passing = (n for n in sizes if judge(values[:n], limit, independent=n * independent_of).decision is Verdict.PASS)
    return next(passing)


def test_a_pass_weighs_the_mean_of_both_evidences_against_the_independent_states() -> None:
    values = np.random.default_rng(1).exponential(size=600)
    limit = math.log(300)
    tail = Tail.of(values, 0.1)
    assert tail is not None
    test = SloTest(0.01)
    verdict = judge(values, limit)
    evidence = -(test.evidence(verdict.misses, 600) + tail.evidence(limit, 0.005, 0.02)) / 2
    # Wald's log 19, times the inflation, times 1 + 13 / sqrt(states).
    states = (13 / (evidence / (math.log(19) * verdict.inflation) - 1)) ** 2
    assert 1 < states < 600
    assert judge(values, limit, independent=states * 1.01).decision is Verdict.PASS
    assert judge(values, limit, independent=states / 1.01).decision is Verdict.UNDECIDED


def test_a_pass_asks_for_more_the_fewer_independent_states_were_seen() -> None:
    values = np.random.default_rng(2).exponential(size=6000)
    sizes = [requests_to_pass(values, math.log(300), worth) for worth in (1.0, 0.1, 0.01)]
    assert sizes[0] < sizes[1] < sizes[2]


def test_bursts_discount_the_evidence() -> None:
    rng = np.random.default_rng(3)
    alone, bursts = rng.exponential(size=800), np.repeat(rng.exponential(size=100), 8)
    # The same distribution, but a burst of eight is worth little more than one request.
    assert judge(alone, math.log(200)).decision is Verdict.PASS
    assert judge(bursts, math.log(200)).decision is Verdict.UNDECIDED


def test_no_pass_on_fewer_requests_than_counting_takes() -> None:
    # Equal latencies far below the limit: to the tail that is certainty.
    enough = SloTest(0.01).least_requests
    assert judge(np.ones(enough), 50.0).decision is Verdict.PASS
    assert judge(np.ones(enough - 1), 50.0).decision is Verdict.UNDECIDED


def test_no_fail_without_misses_that_decide_by_themselves() -> None:
    # A bounded latency: the exponential tail puts more than two percent beyond a limit that nothing exceeds.
    values = np.random.default_rng(4).uniform(0, 1, 3000)
    assert judge(values, 1.01).misses == 0
    assert judge(values, 1.01).decision is not Verdict.FAIL
    assert judge(values, 0.96).decision is Verdict.FAIL


def test_a_system_that_may_still_be_filling_fails_later() -> None:
    values = np.random.default_rng(5).exponential(size=1500)
    limit = -math.log(0.04)
    first = [
        next(n for n in range(30, 1500) if judge(values[:n], limit, independent=states).decision is Verdict.FAIL)
        for states in (20.0, 4.0)
    ]
    assert first[0] < first[1]


def test_a_median_objective_is_judged_by_its_misses() -> None:
    # The tail above the 70th percentile says nothing of a limit near the median.
    values = np.random.default_rng(6).exponential(size=400)
    assert judge(values, 3.0, percentile=50.0).decision is Verdict.PASS
    assert judge(values, 0.3, percentile=50.0).decision is Verdict.FAIL
