"""The search against curves in closed form. Its accuracy on queues is in benchmarks/capacity_search.py."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.spec.slo import Slo
from autotune.stats import CapacitySearch, ProbeResult, Purpose, Verdict

SLO = Slo.from_mapping({"p99_latency": "10s"})


def result(rate: float, capacity: float, rng: np.random.Generator) -> ProbeResult:
    """A probe of an engine whose P99 is limit * 0.2 / (1 - 0.8 rate / capacity), seen with 5 % noise."""
    load = 0.8 * rate / capacity
    margin = math.log(0.2 / (1 - load)) if load < 1 else math.inf
    saturated = load >= 1
    noisy = margin + rng.normal(0, 0.05)
    verdict = Verdict.FAIL if noisy > 0.1 else Verdict.PASS if noisy < -0.1 else Verdict.UNDECIDED
    return ProbeResult(rate, rate, verdict, 500, 0, noisy, 0.05, saturated, min(rate, capacity / 0.8))


@pytest.mark.parametrize("capacity", [0.05, 0.3, 4.0, 60.0, 900.0])
@pytest.mark.parametrize("guess", [0.3, 1.0, 3.0])
def test_finds_the_capacity_in_few_probes(capacity: float, guess: float) -> None:
    rng = np.random.default_rng(7)
    search = CapacitySearch(SLO, capacity * guess)
    probes = 0
    while (plan := search.next()) is not None:
        probes += 1
        search.tell(result(plan.rate, capacity, rng))
    assert probes <= 8
    assert search.estimate().rate == pytest.approx(capacity, rel=0.08)


def test_a_probe_outlasts_answers_where_only_tokens_are_limited() -> None:
    """Within half a second, the limit on first tokens, no answer of four seconds has come."""
    slo = Slo.from_mapping({"p99_ttft": "500ms", "p99_tpot": "25ms"})
    search = CapacitySearch(slo, 40.0, latency_scale=4.0)
    plan = search.next()
    assert plan is not None
    assert plan.max_requests / plan.rate >= 30.0


def test_a_loser_is_dropped() -> None:
    rng = np.random.default_rng(7)
    search = CapacitySearch(SLO, 2.0, incumbent=10.0)
    plan = search.next()
    assert plan is not None
    assert plan.rate == 10.0
    probes = 0
    while plan is not None:
        probes += 1
        search.tell(result(plan.rate, 5.0, rng))
        plan = search.next()
    assert search.estimate().dominated
    assert probes <= 3


def test_one_stalled_probe_does_not_halve_the_capacity() -> None:
    rng = np.random.default_rng(7)
    search = CapacitySearch(SLO, 5.0, max_probes=10)
    first = True
    while (plan := search.next()) is not None:
        if first:
            search.tell(ProbeResult(plan.rate, plan.rate, Verdict.FAIL, 200, 40, 0.8, 0.1, True, plan.rate / 2))
            first = False
            continue
        search.tell(result(plan.rate, 10.0, rng))
    assert search.estimate().rate == pytest.approx(10.0, rel=0.1)


def test_invalid_probes_are_repeated_and_bounded() -> None:
    rng = np.random.default_rng(7)
    search = CapacitySearch(SLO, 5.0)
    plan = search.next()
    assert plan is not None
    spoiled = ProbeResult(plan.rate, plan.rate, Verdict.FAIL, 0, 0, math.nan, math.inf, False, 0.0, valid=False)
    search.tell(spoiled)
    assert search.next() == plan
    for _ in range(5):
        search.tell(spoiled)
    assert search.next() is None
    assert search.estimate().probes == 0
    assert not search.estimate().resolved
    search.tell(result(5.0, 5.0, rng))


def test_a_failed_edge_is_tried_again() -> None:
    rng = np.random.default_rng(7)
    search = CapacitySearch(SLO, 9.0, uncertainty=1.5, max_probes=12)
    plans = []
    while (plan := search.next()) is not None:
        plans.append(plan)
        search.tell(result(plan.rate, 10.0, rng))
    failed = [r for r in search.results if r.verdict is Verdict.FAIL]
    assert search.estimate().resolved
    assert len(failed) != 1 or plans[-1].purpose is Purpose.RETRY


def test_a_contender_is_refined_not_dropped() -> None:
    rng = np.random.default_rng(8)
    search = CapacitySearch(SLO, 5.0, incumbent=8.5)
    while (plan := search.next()) is not None:
        search.tell(result(plan.rate, 10.0, rng))
    assert not search.estimate().dominated
    assert search.estimate().rate == pytest.approx(10.0, rel=0.08)


def test_one_failure_does_not_drop_a_configuration() -> None:
    search = CapacitySearch(SLO, 5.0, incumbent=10.0)
    plan = search.next()
    assert plan is not None
    search.tell(ProbeResult(plan.rate, plan.rate, Verdict.FAIL, 200, 60, 1.0, 0.05, True, 5.0))
    assert not search.estimate().dominated
    again = search.next()
    assert again is not None
    assert (again.purpose, again.rate) == (Purpose.RETRY, 10.0)
    search.tell(ProbeResult(again.rate, again.rate, Verdict.FAIL, 200, 60, 1.0, 0.05, True, 5.0))
    assert search.estimate().dominated
    assert search.next() is None


def test_an_objective_that_one_request_alone_misses_is_hopeless() -> None:
    search = CapacitySearch(SLO, 1.0)
    probes = 0
    while (plan := search.next()) is not None:
        probes += 1
        search.tell(
            ProbeResult(plan.rate, plan.rate, Verdict.FAIL, 100, 100, 1.0, 0.05, False, plan.rate, latency_scale=20.0)
        )
    assert search.estimate().hopeless
    assert probes <= 5


def test_a_guess_that_is_far_off() -> None:
    rng = np.random.default_rng(9)
    for capacity in (0.01, 100.0):
        search = CapacitySearch(SLO, 1.0, uncertainty=3.0, max_probes=10)
        while (plan := search.next()) is not None:
            search.tell(result(plan.rate, capacity, rng))
        assert search.estimate().rate == pytest.approx(capacity, rel=0.1)


def test_probes_are_long_in_requests_and_in_time() -> None:
    for rate in (0.1, 40.0):
        plan = CapacitySearch(SLO, rate).next()
        assert plan is not None
        assert plan.max_requests >= 523
        assert plan.max_requests >= rate * 4 * 10.0
        assert plan.max_duration >= plan.max_requests / rate


def test_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="needed"):
        CapacitySearch(SLO, 0.0)
