"""Smoke of the composed judge and of the search; error rates are in the benchmarks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.spec.slo import Slo
from autotune.stats import CapacitySearch, ProbeJudge, ProbeResult, ProbeView, Reason, Verdict, probe_size

SLO = Slo.from_mapping({"p99_latency": "10s"})


def view(rate: float, service: float, servers: int, now: float, seed: int = 1) -> ProbeView:
    """M/M/k seen at ``now``, all latencies targets."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, int(now * rate * 1.2) + 50))
    arrivals = arrivals[arrivals < now]
    free = np.zeros(servers)
    ends = np.empty_like(arrivals)
    for i, (a, s) in enumerate(zip(arrivals, rng.gamma(4, service / 4, len(arrivals)), strict=True)):
        j = int(free.argmin())
        ends[i] = free[j] = max(a, free[j]) + s
    done = ends <= now
    return ProbeView(0.0, now, arrivals[done], ends[done], (ends - arrivals)[done].reshape(-1, 1), arrivals[~done])


@pytest.mark.parametrize("unit", [1.0, 200.0])
def test_clear_pass_and_clear_fail_at_any_scale(unit: float) -> None:
    slo = Slo.from_mapping({"p99_latency": f"{10 / unit}s"})
    judge = ProbeJudge(slo)
    good = judge.judge(view(1.0 * unit, 3.0 / unit, 8, 800 / unit))
    assert (good.decision, good.reason) == (Verdict.PASS, Reason.FEW_MISSES)
    assert good.log_margin < 0
    bad = judge.judge(view(4.0 * unit, 3.0 / unit, 8, 60 / unit))
    assert bad.decision is Verdict.FAIL
    assert bad.decided


def test_too_short_to_pass() -> None:
    verdict = ProbeJudge(SLO).judge(view(40.0, 3.0, 200, 16.0))
    assert (verdict.decision, verdict.reason) == (Verdict.UNDECIDED, Reason.TOO_SHORT)


def test_in_flight_beyond_the_limit_misses_and_quick_ones_are_not_heard_first() -> None:
    scheduled = np.arange(0.0, 20.0)
    stuck = np.array([2.0, 9.0])
    done = np.setdiff1d(scheduled, stuck)
    seen = ProbeView(0.0, 21.0, done, done + 0.5, np.full((len(done), 1), 0.5), stuck)
    verdict = ProbeJudge(SLO).judge(seen)
    # 2.0 and 9.0 are overdue by 21.0, so all twenty count; at 13.0 only 0..8 did.
    assert verdict.requests + verdict.cut == 20
    early = done[done < 12.4]
    seen = ProbeView(0.0, 13.0, early, early + 0.5, np.full((len(early), 1), 0.5), stuck)
    verdict = ProbeJudge(SLO).judge(seen)
    assert verdict.requests + verdict.cut == 9


def test_nothing_seen_yet() -> None:
    empty = np.zeros(0)
    verdict = ProbeJudge(SLO).judge(ProbeView(0.0, 1.0, empty, empty, np.zeros((0, 1)), np.array([0.5])))
    assert verdict.decision is Verdict.UNDECIDED
    assert verdict.requests == 0
    assert math.isnan(verdict.log_margin)


def test_probe_lasts_many_times_the_latency() -> None:
    size = probe_size(40.0, SLO, latency_scale=5.0)
    assert size.duration == 50.0
    assert size.requests == 2000


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
