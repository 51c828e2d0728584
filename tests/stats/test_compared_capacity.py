"""The capacity from whole probes, against engines whose percentile is a power of the rate."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.spec import Slo
from autotune.stats.capacity_probe import ProbePlan, ProbeResult, Purpose
from autotune.stats.compared import NARROW_FAIL, ComparedCapacity, Pace
from autotune.stats.percentile import smooth_percentile
from autotune.stats.slo_test import Verdict

SLO = Slo.from_mapping({"p99_latency": "10s"})


def answer(plan: ProbePlan, capacity: float, steepness: float) -> ProbeResult:
    margin = steepness * math.log(plan.rate / capacity)
    failed = margin > NARROW_FAIL
    return ProbeResult(
        rate=plan.rate,
        realised_rate=plan.rate,
        verdict=Verdict.FAIL if failed else Verdict.UNDECIDED,
        requests=plan.max_requests,
        misses=0,
        log_margin=margin,
        log_margin_error=0.02,
        saturated=False,
        throughput=plan.rate,
        latency_scale=5.0,
    )


def probed(search: ComparedCapacity, capacity: float, steepness: float) -> list[ProbePlan]:
    plans = []
    while (plan := search.next()) is not None:
        plans.append(plan)
        search.tell(answer(plan, capacity, steepness))
    return plans


@pytest.mark.parametrize("steepness", [0.4, 1.5, 8.0])
@pytest.mark.parametrize("guess", [0.8, 1.0, 1.3])
def test_a_known_edge_is_quoted_from_few_probes(steepness: float, guess: float) -> None:
    search = ComparedCapacity(SLO, 2.0 * guess, uncertainty=1.5, pace=Pace(near=0.04), steepness=steepness)
    plans = probed(search, 2.0, steepness)
    assert search.estimate().rate == pytest.approx(2.0, rel=0.05)
    assert len(plans) <= 5
    assert len({plan.max_requests for plan in plans}) == 1


def test_what_is_as_good_as_the_best_costs_one_probe_at_its_rate() -> None:
    pace = Pace(requests=250)
    search = ComparedCapacity(SLO, 2.0, uncertainty=2.0, pace=pace, common_rate=2.0, incumbent=2.0)
    (plan,) = probed(search, 2.05, 1.5)
    assert (plan.rate, plan.max_requests, plan.purpose) == (2.0, 250, Purpose.COMPARE)
    assert search.estimate().rate == pytest.approx(2.05, rel=0.01)


def test_a_loser_is_dropped_after_it_failed_twice_where_the_best_holds() -> None:
    search = ComparedCapacity(SLO, 2.0, uncertainty=2.0, pace=Pace(), common_rate=2.0, incumbent=2.0)
    plans = probed(search, 1.0, 2.0)
    assert [plan.rate for plan in plans] == [2.0, 2.0]
    assert search.estimate().dominated


def test_an_expectation_that_was_too_high_ends_at_the_rate_of_the_best() -> None:
    search = ComparedCapacity(SLO, 3.0, uncertainty=2.0, pace=Pace(), common_rate=2.0, incumbent=2.0)
    plans = probed(search, 2.1, 3.0)
    assert plans[0].rate == 3.0
    assert search.estimate().rate == pytest.approx(2.1, rel=0.06)


def test_an_unknown_edge_is_looked_for_before_it_is_measured() -> None:
    search = ComparedCapacity(SLO, 20.0, uncertainty=3.0, pace=Pace(near=0.15), steepness=1.5)
    plans = probed(search, 2.0, 1.5)
    assert not plans[0].whole
    assert search.estimate().rate == pytest.approx(2.0, rel=0.2)


def test_a_smooth_percentile_is_that_of_the_distribution() -> None:
    values = np.random.default_rng(1).exponential(size=200_000)
    assert smooth_percentile(values, 99) == pytest.approx(math.log(100), rel=0.02)
    assert smooth_percentile([1.0, 2.0], 50) == pytest.approx(1.5)
    assert math.isinf(smooth_percentile([1.0] * 50 + [math.inf], 99))
    assert math.isnan(smooth_percentile([], 99))
