"""Several load levels one after the other on one server, and the capacity under an objective."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from autotune.load.api import LoadGenerator, LoadObserver, LoadPlan, LoadProgress, LoadRun
from autotune.load.judging import SloWatch, judge_run
from autotune.load.summary import LoadSummary, summarise
from autotune.spec import LoadLevel, Metric, Slo, Workload
from autotune.stats import CapacityEstimate, CapacitySearch, ProbeResult, ProbeVerdict

_ANSWERS_PER_USER = 5


@dataclass(frozen=True, slots=True)
class LevelResult:
    """One level that was run."""

    run: LoadRun
    summary: LoadSummary
    verdict: ProbeVerdict | None
    """On the objective; None without one."""
    client_problem: str | None
    """Why the client spoiled the level; None when it did not."""


@dataclass(frozen=True, slots=True)
class Sending:
    """What all levels have in common. Durations are engine seconds."""

    workload: Workload
    seed: int
    requests: int | None
    duration: float | None
    request_timeout: float
    slo: Slo | None
    default_requests: int = 300
    scale: float = 1.0
    """Engine seconds per wall second."""

    def plan(self, level: LoadLevel, stream: str) -> LoadPlan:
        """The plan of one level. Without a duration or a number of requests it ends at a default number."""
        requests = self.requests
        if requests is None:
            users = level.concurrency or 0
            requests = 10**9 if self.duration else max(self.default_requests, _ANSWERS_PER_USER * users)
        return LoadPlan(
            level=level,
            workload=self.workload,
            seed=self.seed,
            stream=stream,
            max_requests=requests,
            max_duration=self.duration or math.inf,
            request_timeout=self.request_timeout,
        )


class SweepObserver(Protocol):
    """Is told what goes on, and may end it."""

    def begin(self, plan: LoadPlan, position: int, total: int | None) -> None:
        """A level begins; ``total`` is None when it is not known."""
        ...

    def moved(self, progress: LoadProgress) -> bool:
        """A few times a second; True ends everything."""
        ...

    def done(self, result: LevelResult) -> None:
        """A level ended."""
        ...


async def run_levels(
    generator: LoadGenerator, levels: Sequence[LoadLevel], sending: Sending, observer: SweepObserver
) -> AsyncIterator[LevelResult]:
    """Run the levels in order. The prompts of each are its own, and the same for any server."""
    for position, level in enumerate(levels):
        plan = sending.plan(level, f"bench-{position}")
        observer.begin(plan, position, len(levels))
        watch = _Watch(observer, None)
        run = await generator.run(plan, watch)
        verdict = None if sending.slo is None or not run.records else judge_run(run, sending.slo)
        result = _result(run, sending, verdict)
        observer.done(result)
        yield result
        if watch.stopped:
            return


async def find_capacity(
    generator: LoadGenerator, start_rate: float, sending: Sending, slo: Slo, observer: SweepObserver
) -> tuple[CapacityEstimate | None, list[LevelResult]]:
    """Search the highest rate at which the objective holds, and give all probes.

    The estimate is None when the search was ended before its first verdict.
    """
    search = CapacitySearch(slo, start_rate)
    results: list[LevelResult] = []
    told = 0
    while (step := search.next()) is not None:
        level = LoadLevel.open(step.rate)
        plan = LoadPlan(
            level=level,
            workload=sending.workload,
            seed=sending.seed,
            stream=f"bench-{len(results)}",
            max_requests=sending.requests or step.max_requests,
            max_duration=sending.duration or step.max_duration,
            request_timeout=sending.request_timeout,
        )
        observer.begin(plan, len(results), None)
        judge = SloWatch(slo, error=step.error)
        watch = _Watch(observer, judge)
        run = await generator.run(plan, watch)
        if watch.stopped and not run.records:
            break
        result = _result(run, sending, judge.conclude(run))
        results.append(result)
        observer.done(result)
        if watch.stopped:
            break
        if result.verdict is not None:
            search.tell(ProbeResult.of(step, result.verdict, valid=result.client_problem is None))
            told += 1
    return (search.estimate() if told else None), results


class _Watch(LoadObserver):
    """Passes the progress on; ends the run for the judge or for the user."""

    def __init__(self, observer: SweepObserver, judge: SloWatch | None) -> None:
        self._observer = observer
        self._judge = judge
        self.stopped = False

    def observe(self, progress: LoadProgress) -> bool:
        """See :class:`autotune.load.api.LoadObserver`."""
        self.stopped = self._observer.moved(progress)
        return self.stopped or (self._judge is not None and self._judge.observe(progress))


def _result(run: LoadRun, sending: Sending, verdict: ProbeVerdict | None) -> LevelResult:
    summary = summarise(run, sending.slo)
    problem = run.client.problem(_shortest_span(summary, sending.slo), sending.scale)
    return LevelResult(run, summary, verdict, problem)


def _shortest_span(summary: LoadSummary, slo: Slo | None) -> float:
    """What the client's lateness is held against: the shortest objective, else the median latency."""
    limits = [t.limit_s for t in slo.targets if t.metric is not Metric.TPOT] if slo is not None else []
    if limits:
        return min(limits)
    median = summary.percentile(Metric.LATENCY, 50)
    return median if math.isfinite(median) else math.inf
