from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from autotune.base.clock import WallClock
from autotune.engine.api import EngineFacts, LaunchRequest, StopReport
from autotune.engine.failure import Cause, Failure, FailureKind, Phase
from autotune.load.api import ClientHealth, LoadObserver, LoadPlan, LoadProgress, LoadRun, Target
from autotune.load.records import ErrorKind, RequestRecord, TokenSource

OUT, IN = 100, 50


@dataclass
class FakeRunning:
    """An engine of which only the bookkeeping exists."""

    folder: Path
    url: str = "http://127.0.0.1:9"
    served_model: str = "m"
    process_id: int = 0
    dead: bool = False
    stops: int = 0
    failure: Failure = field(
        default_factory=lambda: Failure(
            Cause.OOM_RUNTIME, FailureKind.INFEASIBLE, Phase.SERVING, "CUDA out of memory", "Lower it."
        )
    )

    @property
    def facts(self) -> EngineFacts:
        return EngineFacts(kv_cache_tokens=1000)

    @property
    def log_path(self) -> Path:
        return self.folder / "engine.log"

    def exited(self) -> bool:
        return self.dead

    async def reset_prefix_cache(self) -> bool:
        return True

    async def diagnose(self, *, hung: bool = False) -> Failure:
        return self.failure

    async def stop(self) -> StopReport:
        self.stops += 1
        return StopReport(0.1, False, None)


@dataclass
class FakeEngine:
    running: FakeRunning
    error: Exception | None = None
    kind = "simulated"
    version = "0"
    clock = WallClock()
    requests: list[LaunchRequest] = field(default_factory=list)

    def check(self, arguments: object) -> list[str]:
        return []

    async def start(self, request: LaunchRequest) -> FakeRunning:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        return self.running


@dataclass
class QueueGenerator:
    """Answers from an M/D/k queue in its own time: ``servers`` answer in ``service`` seconds each."""

    target: Target
    running: FakeRunning
    servers: int = 8
    service: float = 2.0
    fail_all: bool = False
    die_after: int | None = None
    plans: list[LoadPlan] = field(default_factory=list)
    closed: int = 0

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        self.closed += 1

    async def run(self, plan: LoadPlan, observer: LoadObserver | None = None) -> LoadRun:
        self.plans.append(plan)
        records = self._records(plan)
        started, ended, stopped = 0.0, max(r.finished for r in records), False
        for step in range(1, 400):
            now = step * max(ended / 399, 1e-9)
            done = [r for r in records if r.finished <= now]
            sent = [r for r in records if r.scheduled <= now]
            if self.die_after is not None and len(done) >= self.die_after:
                self.running.dead = True
            out = sorted(r.scheduled for r in sent if r.finished > now)
            if observer is not None and observer.observe(LoadProgress(now, started, len(sent), done, out)):
                ended, stopped = now, True
                records = [r if r.finished <= now else _cut(r, now) for r in sent]
                break
        return LoadRun(plan, started, ended, records, ClientHealth(0.0, 0.0, 0.1, 1), stopped)

    def _records(self, plan: LoadPlan) -> list[RequestRecord]:
        rng = random.Random(f"{plan.seed}-{plan.stream}")
        rate = plan.level.rate
        free = [0.0] * self.servers
        heapq.heapify(free)
        at, found = 0.0, []
        for index in range(plan.max_requests):
            if rate is not None:
                at += rng.expovariate(rate)
            elif index >= (plan.level.concurrency or 1):
                at = found[index - (plan.level.concurrency or 1)].finished
            begin = max(at, heapq.heappop(free))
            heapq.heappush(free, begin + self.service)
            found.append(_record(index, at, begin, begin + self.service, self.fail_all))
        return found


def _record(index: int, at: float, begin: float, end: float, failed: bool) -> RequestRecord:
    error = ErrorKind.HTTP_STATUS if failed else None
    return RequestRecord(
        index,
        at,
        at,
        begin + 0.1,
        end,
        end,
        IN,
        0 if failed else OUT,
        TokenSource.USAGE,
        OUT,
        error,
        "500: no" if failed else "",
    )


def _cut(record: RequestRecord, now: float) -> RequestRecord:
    return RequestRecord(
        record.index, record.scheduled, record.sent, None, None, now, IN, 0, TokenSource.NONE, 0, ErrorKind.CANCELLED
    )


class Events:
    def phase(self, text: str) -> None:
        pass

    def probe_moved(self, *args: object) -> None:
        pass


@pytest.fixture
def running(tmp_path: Path) -> FakeRunning:
    return FakeRunning(tmp_path)


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def engine_type() -> type[FakeEngine]:
    return FakeEngine


@pytest.fixture
def generator_type() -> type[QueueGenerator]:
    return QueueGenerator


def rows(path: Path) -> Sequence[str]:
    import gzip

    return gzip.decompress(path.read_bytes()).decode().splitlines()


@pytest.fixture
def read_rows():
    return rows
