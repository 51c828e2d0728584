"""Probes of simulated systems, judged while they run as the trial loop does."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from _queues import AnySystem, Run

from autotune.spec.slo import Metric, Slo, SloTarget
from autotune.stats import ProbeJudge, ProbeVerdict, ProbeView

FIRST_LOOK = 24


@dataclass(frozen=True, slots=True)
class Probe:
    """A finished probe and what it cost."""

    verdict: ProbeVerdict
    sent: int
    seconds: float


def objective(system: AnySystem, percentile: float = 99.0) -> Slo:
    """The limit of the system as an objective."""
    target = SloTarget(metric=Metric.LATENCY, percentile=percentile, limit_s=system.limit * system.unit)
    return Slo(targets=(target,))


def view_at(run: Run, now: float) -> ProbeView:
    """What the load generator would show at ``now``."""
    came = int(np.searchsorted(run.arrivals, now, side="right"))
    arrivals, ends = run.arrivals[:came], run.ends[:came]
    done = ends <= now
    return ProbeView(
        started=0.0,
        now=now,
        scheduled=arrivals[done],
        finished=ends[done],
        values=(ends - arrivals)[done].reshape(-1, 1),
        in_flight=arrivals[~done],
    )


def probe(
    system: AnySystem,
    rate: float,
    judge: ProbeJudge,
    rng: np.random.Generator,
    *,
    max_requests: int,
    max_duration: float = math.inf,
    look_growth: float = 1.06,
) -> Probe:
    """Run a probe until it is decided or over; looks are taken at every six percent more requests."""
    run = system.run(rate, max_requests, rng)
    planned = min(max_requests, int(np.searchsorted(run.arrivals, max_duration)))
    sent = FIRST_LOOK
    while sent < planned:
        now = float(run.arrivals[sent - 1])
        verdict = judge.judge(view_at(run, now))
        if verdict.decided:
            return Probe(verdict, sent, now)
        sent = math.ceil(sent * look_growth)
    last = Run(run.arrivals[:planned], run.ends[:planned], run.first_tokens[:planned])
    now = float(last.ends.max()) if planned else 0.0
    return Probe(judge.judge(view_at(last, now)), planned, now)
