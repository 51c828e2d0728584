"""The composed judge. Its error rates over many systems are in benchmarks/slo_test.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autotune.spec.slo import Slo
from autotune.stats import ProbeJudge, ProbeView, Reason, Verdict, probe_size

SLO = Slo.from_mapping({"p99_latency": "10s"})


@pytest.mark.parametrize("unit", [1.0, 200.0])
def test_clear_pass_and_clear_fail_at_any_scale(queue: Callable[..., Any], unit: float) -> None:
    judge = ProbeJudge(Slo.from_mapping({"p99_latency": f"{10 / unit}s"}))
    good = judge.judge(queue(1.0 * unit, 3.0 / unit, 8, 2000, 1, 4.0).view(800 / unit))
    assert (good.decision, good.reason) == (Verdict.PASS, Reason.FEW_MISSES)
    assert good.log_margin < 0
    assert good.realised_rate == pytest.approx(unit, rel=0.1)
    bad = judge.judge(queue(4.0 * unit, 3.0 / unit, 8, 2000, 1, 4.0).view(60 / unit))
    assert bad.decision is Verdict.FAIL
    assert bad.decided
    assert bad.throughput == pytest.approx(8 / 3 * unit, rel=0.15)


def test_verdict_does_not_depend_on_the_unit_of_time(queue: Callable[..., Any]) -> None:
    a = ProbeJudge(SLO).judge(queue(2.2, 3.0, 8, 3000, 3, 2.0).view(400.0))
    b = ProbeJudge(Slo.from_mapping({"p99_latency": "50ms"})).judge(queue(440.0, 0.015, 8, 3000, 3, 2.0).view(2.0))
    assert (a.decision, a.reason, a.misses, a.requests, a.cut) == (b.decision, b.reason, b.misses, b.requests, b.cut)
    assert a.log_margin == pytest.approx(b.log_margin)


def test_too_short_to_pass(queue: Callable[..., Any]) -> None:
    verdict = ProbeJudge(SLO).judge(queue(40.0, 3.0, 200, 2000, 1, 4.0).view(16.0))
    assert verdict.requests > 300
    assert (verdict.decision, verdict.reason) == (Verdict.UNDECIDED, Reason.TOO_SHORT)


def test_in_flight_beyond_the_limit_misses_and_quick_ones_are_not_heard_first() -> None:
    scheduled = np.arange(0.0, 20.0)
    stuck = np.array([2.0, 9.0])
    done = np.setdiff1d(scheduled, stuck)
    # 2.0 and 9.0 are overdue by 21.0, so all twenty count; at 13.0 only those before 9.0 do.
    late = ProbeJudge(SLO).judge(ProbeView(0.0, 21.0, done, done + 0.5, np.full((len(done), 1), 0.5), stuck))
    assert late.requests + late.cut == 20
    early = done[done < 12.4]
    verdict = ProbeJudge(SLO).judge(ProbeView(0.0, 13.0, early, early + 0.5, np.full((len(early), 1), 0.5), stuck))
    assert verdict.requests + verdict.cut == 9
    assert verdict.targets[0].misses == 1


def test_an_engine_that_answers_nothing_fails() -> None:
    empty = np.zeros(0)
    stuck = np.arange(0.0, 45.0, 0.5)
    verdict = ProbeJudge(SLO).judge(ProbeView(0.0, 45.0, empty, empty, np.zeros((0, 1)), stuck))
    assert (verdict.decision, verdict.reason) == (Verdict.FAIL, Reason.MISSES)


def test_failed_requests_miss_every_target() -> None:
    slo = Slo.from_mapping({"p99_latency": "10s", "p99_tpot": "100ms"})
    scheduled = np.arange(0.0, 400.0)
    values = np.tile([1.0, np.nan], (400, 1))
    values[::10] = np.inf
    verdict = ProbeJudge(slo).judge(ProbeView(0.0, 401.0, scheduled, scheduled + 1.0, values, np.zeros(0)))
    assert verdict.decision is Verdict.FAIL
    assert [t.target.key for t in verdict.targets] == ["p99_latency", "p99_tpot"]
    assert verdict.targets[0].percentile.value == math.inf
    # Where the metric does not apply the request does not count, unless it failed.
    assert verdict.targets[1].requests == verdict.targets[1].misses > 0


def test_every_target_must_hold() -> None:
    slo = Slo.from_mapping({"p99_latency": "10s", "p50_ttft": "1s"})
    scheduled = np.arange(0.0, 600.0)
    rng = np.random.default_rng(1)
    values = np.column_stack((rng.uniform(1, 2, 600), rng.uniform(1.5, 2, 600)))
    view = ProbeView(0.0, 602.0, scheduled, scheduled + values[:, 0], values, np.zeros(0))
    verdict = ProbeJudge(slo).judge(view)
    assert verdict.decision is Verdict.FAIL
    assert [t.decision for t in verdict.targets] == [Verdict.PASS, Verdict.FAIL]
    # The counts are those of the target that is nearest to its limit.
    assert verdict.misses == verdict.requests


def test_nothing_seen_yet() -> None:
    empty = np.zeros(0)
    verdict = ProbeJudge(SLO).judge(ProbeView(0.0, 1.0, empty, empty, np.zeros((0, 1)), np.array([0.5])))
    assert verdict.decision is Verdict.UNDECIDED
    assert verdict.requests == 0
    assert math.isnan(verdict.log_margin)


def test_a_probe_lasts_many_times_the_latency() -> None:
    size = probe_size(40.0, SLO, latency_scale=5.0)
    assert size.duration == 50.0
    assert size.requests == 2000
    assert probe_size(0.3, SLO, latency_scale=5.0).requests == 523
    assert probe_size(0.3, Slo.from_mapping({"p50_ttft": "1s"})).duration == 10.0


def test_a_smaller_error_asks_for_more(queue: Callable[..., Any]) -> None:
    run = queue(1.0, 3.0, 8, 2000, 1, 4.0)
    decided = []
    for error in (0.2, 0.01):
        judge = ProbeJudge(SLO, error=error)
        decided.append(next(t for t in range(40, 2000, 20) if judge.judge(run.view(float(t))).decided))
    assert decided[0] < decided[1]
