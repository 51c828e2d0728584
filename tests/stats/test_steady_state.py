from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autotune.stats import inflation, judge_flow, warm_up_cut
from autotune.stats.correlation import autocorrelation, effective_size, exceedance_inflation


def test_warm_up_cut_finds_the_transient() -> None:
    rng = np.random.default_rng(1)
    steady = rng.normal(10.0, 1.0, 1000)
    steady[:150] -= np.linspace(8.0, 0.0, 150)
    assert 90 <= warm_up_cut(steady) <= 200


def test_nothing_to_cut() -> None:
    rng = np.random.default_rng(2)
    assert warm_up_cut(rng.normal(10, 1, 1000)) < 150
    assert warm_up_cut([1.0] * 12) == 0
    assert warm_up_cut([np.inf] * 40) == 0


def flow(run: Any, now: float) -> Any:
    view = run.view(now)
    return judge_flow(view.scheduled, view.finished, view.in_flight, started=0.0, now=now)


@pytest.mark.parametrize(("rate", "service", "servers"), [(0.4, 10.0, 3), (80.0, 3.0, 200)])
def test_overload_is_found_early_at_any_scale(
    queue: Callable[..., Any], rate: float, service: float, servers: int
) -> None:
    overload = rate * service / servers
    runs = [queue(rate, service, servers, 6000, seed, 2.0) for seed in range(12)]
    found = []
    for run in runs:
        times = (run.arrivals[n] for n in range(40, 6000, 40))
        found.append(next(n for n, t in enumerate(times) if flow(run, float(t)).saturated) * 40 + 40)
    # An overload by a share d shows against the counting noise after about (3.5 / d)^2 * 1.5 requests.
    share = 1 - 1 / overload
    assert np.median(found) < 1.5 * (3.5 / share) ** 2 + 12 * servers


@pytest.mark.parametrize("utilisation", [0.5, 0.8, 0.9])
def test_a_stable_queue_is_rarely_called_saturated(queue: Callable[..., Any], utilisation: float) -> None:
    wrong = 0
    for seed in range(40):
        run = queue(utilisation * 4, 1.0, 4, 1500, 100 + seed)
        wrong += any(flow(run, float(run.arrivals[n])).saturated for n in range(40, 1500, 60))
    assert wrong <= 2


def test_a_filling_batch_is_not_saturated() -> None:
    # Infinite servers fill for one service time, then hold: a fluid of 40 req/s with answers of 5 s.
    arrivals = np.arange(0.0, 60.0, 0.025)
    for now in (6.0, 9.0, 12.0, 20.0, 50.0):
        came = arrivals[arrivals < now]
        done = came[came + 5.0 <= now]
        if len(done) > 10:
            assert not judge_flow(done, done + 5.0, came[len(done) :], started=0.0, now=now).saturated


def test_the_drain_says_nothing() -> None:
    arrivals = np.arange(0.0, 100.0, 0.1)
    ends = arrivals + 3.0
    before = judge_flow(arrivals[ends <= 99.9], ends[ends <= 99.9], arrivals[ends > 99.9], started=0.0, now=99.9)
    after = judge_flow(arrivals, ends, [], started=0.0, now=103.0)
    assert after.throughput == pytest.approx(before.throughput, rel=0.02)
    assert abs(after.growth) < 0.02


def test_too_little_to_say() -> None:
    few = judge_flow([0.0, 1.0], [0.5, 1.5], [2.0], started=0.0, now=2.0)
    assert not few.known
    assert not few.saturated


def test_inflation_of_an_autoregression() -> None:
    # AR(1) with coefficient r has integrated autocorrelation (1 + r) / (1 - r).
    rng = np.random.default_rng(3)
    for r in (0.0, 0.5, 0.9):
        x = np.zeros(6000)
        noise = rng.normal(size=6000)
        for i in range(1, 6000):
            x[i] = r * x[i - 1] + noise[i]
        assert inflation(x[:3000]) == pytest.approx((1 + r) / (1 - r), rel=0.35)
        # The same from batches, as long series are handled.
        assert inflation(x) == pytest.approx((1 + r) / (1 - r), rel=0.35)
        assert effective_size(x) == pytest.approx(6000 / inflation(x))


def test_inflation_of_a_constant_and_of_little() -> None:
    assert inflation(np.ones(500)) == 1.0
    assert inflation(np.ones(5000)) == 1.0
    assert inflation([1.0, 2.0]) == 1.0
    assert effective_size([]) == 0.0
    assert exceedance_inflation([1.0, 2.0]) == 1.0
    assert len(autocorrelation([])) == 0


def test_clusters_of_exceedances() -> None:
    rng = np.random.default_rng(4)
    # Every value ten times in a row: clusters of ten.
    x = np.repeat(rng.exponential(size=300), 10)
    assert exceedance_inflation(x) == pytest.approx(10, rel=0.4)
    assert exceedance_inflation(rng.exponential(size=3000)) < 2
    assert exceedance_inflation(np.where(np.arange(3000) % 50 < 5, np.inf, 1.0)) > 3
