"""The capacity search over a load generator, on a queue whose capacity is known in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from autotune.load import (
    ClientHealth,
    LoadObserver,
    LoadPlan,
    LoadProgress,
    LoadRun,
    RequestRecord,
    TokenSource,
)
from autotune.load.sweep import LevelResult, Sending, find_capacity, run_levels
from autotune.spec import LoadLevel, Slo, Workload

SLO = Slo.from_mapping({"p99_latency": "2s"})
SERVICE_RATE = 10.0
# Sojourn times of an M/M/1 queue are exponential with rate mu - lambda: P99 = ln(100) / (mu - lambda).
CAPACITY = SERVICE_RATE - math.log(100) / 2.0


@dataclass
class Queue:
    """An M/M/1 queue behind the interface of a load generator, without time passing."""

    slip: float = 0.0
    clock: float = 0.0
    runs: int = 0
    looks: list[int] = field(default_factory=list)

    async def open(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    async def run(self, plan: LoadPlan, observer: LoadObserver | None = None) -> LoadRun:
        self.runs += 1
        rng = np.random.default_rng(self.runs)
        count = min(plan.max_requests, 20_000)
        rate = plan.level.rate or 1.0
        arrivals = np.cumsum(rng.exponential(1 / rate, count))
        arrivals = arrivals[arrivals <= plan.max_duration]
        ends, free = [], 0.0
        for arrival, service in zip(arrivals, rng.exponential(1 / SERVICE_RATE, len(arrivals)), strict=True):
            free = max(free, float(arrival)) + float(service)
            ends.append(free)
        records = [self._record(i, float(a), e) for i, (a, e) in enumerate(zip(arrivals, ends, strict=True))]
        now, stopped = ends[-1], False
        for look in np.linspace(1.0, ends[-1], 60):
            done = [r for r in records if r.finished <= look]
            out = [r.scheduled for r in records if r.scheduled <= look < r.finished]
            if observer is not None and observer.observe(LoadProgress(float(look), 0.0, len(done), done, out)):
                now, stopped, records = float(look), True, done
                break
        health = ClientHealth(self.slip, 0.0, 0.0, 1)
        return LoadRun(plan, 0.0, now, records, health, stopped)

    @staticmethod
    def _record(index: int, arrival: float, end: float) -> RequestRecord:
        return RequestRecord(
            index, arrival, arrival, end, end, end, 10, 10, TokenSource.USAGE, 10, finish_reason="length"
        )


class Following:
    """Counts what it is told; ends everything after a number of levels."""

    def __init__(self, stop_after: int = 10**9) -> None:
        self.begun: list[str] = []
        self.results: list[LevelResult] = []
        self.stop_after = stop_after

    def begin(self, plan: LoadPlan, position: int, total: int | None) -> None:
        assert position == len(self.begun)
        self.begun.append(plan.stream)

    def moved(self, progress: LoadProgress) -> bool:
        return len(self.begun) > self.stop_after

    def done(self, result: LevelResult) -> None:
        self.results.append(result)


def sending(**changes: object) -> Sending:
    values: dict[str, object] = {
        "workload": Workload(input_tokens=10, output_tokens=10),
        "seed": 0,
        "requests": None,
        "duration": None,
        "request_timeout": 600.0,
        "slo": SLO,
    }
    return Sending(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("start", [1.0, 8.0, 30.0])
async def test_the_capacity_of_a_queue_is_found(start: float) -> None:
    following = Following()
    estimate, results = await find_capacity(Queue(), start, sending(), SLO, following)
    assert estimate is not None
    assert estimate.rate == pytest.approx(CAPACITY, rel=0.2)
    assert estimate.low <= CAPACITY * 1.1
    assert estimate.high >= CAPACITY * 0.9
    assert following.results == results
    assert len(set(following.begun)) == len(results)


async def test_levels_that_the_client_spoiled_are_named_and_not_believed() -> None:
    _, results = await find_capacity(Queue(slip=1.0), 5.0, sending(), SLO, Following())
    assert all(result.client_problem is not None for result in results)


async def test_an_interrupted_search_gives_what_it_has() -> None:
    estimate, results = await find_capacity(Queue(), 5.0, sending(), SLO, Following(stop_after=2))
    assert 2 <= len(results) <= 3
    assert estimate is not None


async def test_levels_run_in_order_with_prompts_of_their_own_and_a_default_length() -> None:
    following = Following()
    levels = [LoadLevel.open(1.0), LoadLevel.open(2.0)]
    results = [result async for result in run_levels(Queue(), levels, sending(), following)]
    assert [result.run.plan.level for result in results] == levels
    assert [result.summary.requests for result in results] == [300, 300]
    assert following.begun == ["bench-0", "bench-1"]
    assert all(result.verdict is not None for result in results)


def test_a_plan_ends_by_requests_or_duration() -> None:
    assert sending().plan(LoadLevel.closed(200), "s").max_requests == 1000
    assert sending(requests=5).plan(LoadLevel.closed(200), "s").max_requests == 5
    timed = sending(duration=60.0).plan(LoadLevel.open(1), "s")
    assert (timed.max_duration, timed.max_requests) == (60.0, 10**9)
