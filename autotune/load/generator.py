"""The load generator: worker processes that send, a parent that stays free to watch."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator

from autotune.base.clock import WallClock
from autotune.load._jobs import plan_jobs
from autotune.load._process import WorkerProcess
from autotune.load._wire import Job, Message, Row
from autotune.load.api import ClientHealth, LoadObserver, LoadPlan, LoadProgress, LoadRun, Target
from autotune.load.records import ErrorKind, RequestRecord, TokenSource

_OBSERVE_INTERVAL = 0.15
_PAGE = 2000
_HEAD_START = 0.02
_STOP_TIMEOUT = 5.0


class HttpLoadGenerator:
    """Sends load over HTTP from processes of its own. Implements :class:`autotune.load.api.LoadGenerator`.

    Args:
        target: the server.
        clock: the engine's clock; all times of plans and records are on it.
        processes: number of worker processes. One carries some 25,000 chunks a second.
    """

    def __init__(self, target: Target, clock: WallClock, *, processes: int = 1) -> None:
        if processes < 1:
            raise ValueError(f"processes must be at least 1, not {processes}")
        self._target = target
        self._clock = clock
        self._workers = [WorkerProcess() for _ in range(processes)]
        self._opened = False
        self._runs = 0

    @property
    def target(self) -> Target:
        """The server that is sent to."""
        return self._target

    async def open(self) -> None:
        """Start the worker processes and wait until they are ready to send.

        Raises:
            EnvironmentProblemError: a worker did not come up.
        """
        if self._opened:
            return
        setup = {
            "type": "setup",
            "url": self._target.base_url,
            "model": self._target.model,
            "vocabulary": self._target.vocabulary,
            "api_key": self._target.api_key,
        }
        try:
            await asyncio.gather(*(worker.start(setup) for worker in self._workers))
        except BaseException:
            await self.close()
            raise
        self._opened = True

    async def close(self) -> None:
        """End the worker processes. Safe to call twice."""
        self._opened = False
        await asyncio.gather(*(worker.close() for worker in self._workers))

    async def __aenter__(self) -> HttpLoadGenerator:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(self, plan: LoadPlan, observer: LoadObserver | None = None) -> LoadRun:
        """Run one load level to its end; see :class:`autotune.load.api.LoadGenerator`.

        Raises:
            EnvironmentProblemError: a worker was lost.
        """
        await self.open()
        self._runs += 1
        jobs = plan_jobs(plan, self._clock.scale, as_text=not self._target.takes_token_ids)
        run = _Run(self._runs, plan, self._clock, self._workers, jobs)
        return await run.execute(observer)


class _Run:
    """One run as the parent sees it."""

    def __init__(
        self, number: int, plan: LoadPlan, clock: WallClock, workers: list[WorkerProcess], jobs: Iterator[Job]
    ) -> None:
        self._number = number
        self._plan = plan
        self._clock = clock
        self._workers = workers
        self._jobs = jobs
        self._dealt: list[deque[Job]] = [deque() for _ in workers]
        self._next_job = 0
        self._exhausted = False
        self._finished: list[RequestRecord] = []
        self._in_flight: dict[int, float] = {}
        self._sent = 0
        self._gaps = array("f")
        self._ready = 0
        self._ends: list[Message] = []
        self._changed = asyncio.Event()
        self._started = 0.0
        self._stopped_by_observer = False

    async def execute(self, observer: LoadObserver | None) -> LoadRun:
        """Order, start, watch, collect."""
        readers = [asyncio.create_task(self._read(i)) for i in range(len(self._workers))]
        try:
            self._order()
            await self._until(lambda: self._ready == len(self._workers), readers)
            self._go()
            await self._watch(observer, readers)
        except BaseException:
            # Cancelled, a worker lost, or an observer that failed: whatever it was, nothing is sent any more.
            self._post({"type": "stop"})
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self._until(self._all_ended, readers), _STOP_TIMEOUT)
            raise
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
        return self._result()

    def _order(self) -> None:
        plan, count = self._plan, len(self._workers)
        for position, worker in enumerate(self._workers):
            users = None
            if plan.level.concurrency is not None:
                users = len(range(position, plan.level.concurrency, count))
            worker.post(
                {
                    "type": "run",
                    "run": self._number,
                    "endpoint": plan.workload.endpoint,
                    "users": users,
                    "timeout": plan.request_timeout / self._clock.scale,
                    "ignore_eos": plan.workload.ignore_eos,
                }
            )
            self._page(position, first=True)

    def _go(self) -> None:
        start = time.monotonic() + _HEAD_START
        self._started = start * self._clock.scale
        until = start + self._plan.max_duration / self._clock.scale
        self._post({"type": "go", "start": start, "until": min(until, start + 1e9)})

    def _post(self, message: dict[str, object]) -> None:
        for worker in self._workers:
            worker.post({**message, "run": self._number})

    def _page(self, position: int, *, first: bool = False) -> None:
        """Send a worker its next jobs."""
        queue = self._dealt[position]
        while len(queue) < _PAGE and not self._exhausted:
            job = next(self._jobs, None)
            if job is None:
                self._exhausted = True
                break
            self._dealt[self._worker_of(self._next_job)].append(job)
            self._next_job += 1
        jobs = [queue.popleft() for _ in range(min(_PAGE, len(queue)))]
        last = self._exhausted and not queue
        self._workers[position].post({"type": "jobs", "run": self._number, "jobs": jobs, "first": first, "last": last})

    def _worker_of(self, job: int) -> int:
        """Deal jobs in turn; in a closed loop in proportion to the users that each worker has."""
        users = self._plan.level.concurrency
        return (job if users is None else job % users) % len(self._workers)

    async def _read(self, position: int) -> None:
        worker = self._workers[position]
        while True:
            message = await worker.receive()
            if message is None:
                raise worker.lost()
            if isinstance(message, array):
                self._gaps.extend(message)
            elif message.get("run") == self._number:
                self._take(position, message)

    def _take(self, position: int, message: Message) -> None:
        match message["type"]:
            case "batch":
                self._batch(message["sent"], message["done"])
            case "more":
                self._page(position)
            case "ready":
                self._ready += 1
                self._changed.set()
            case "end":
                self._ends.append(message)
                self._changed.set()

    def _batch(self, sent: list[tuple[int, float]], done: list[Row]) -> None:
        scale = self._clock.scale
        self._sent += len(sent)
        for index, scheduled in sent:
            self._in_flight[index] = scheduled * scale
        for row in done:
            record = _record(row, scale)
            del self._in_flight[record.index]
            self._finished.append(record)

    async def _watch(self, observer: LoadObserver | None, readers: list[asyncio.Task[None]]) -> None:
        cost = 0.0
        while not self._all_ended():
            # An observer that takes long (many requests) is asked less often, so that it leaves CPU to others.
            await self._until(self._all_ended, readers, timeout=max(_OBSERVE_INTERVAL, 5 * cost))
            if observer is None or self._stopped_by_observer or self._all_ended():
                continue
            in_flight: list[float] = sorted(self._in_flight.values())
            progress = LoadProgress(self._clock.now(), self._started, self._sent, self._finished, in_flight)
            asked = time.monotonic()
            ended = observer.observe(progress)
            cost = time.monotonic() - asked
            if ended:
                self._stopped_by_observer = True
                self._post({"type": "stop"})

    def _all_ended(self) -> bool:
        return len(self._ends) == len(self._workers)

    async def _until(
        self, condition: Callable[[], bool], readers: list[asyncio.Task[None]], timeout: float = math.inf
    ) -> None:
        """Wait for a condition that a worker's message may bring about, or for the time to pass.

        Raises:
            EnvironmentProblemError: a worker was lost meanwhile.
        """
        deadline = time.monotonic() + timeout
        while not condition() and (left := deadline - time.monotonic()) > 0:
            self._changed.clear()
            waiting = asyncio.create_task(self._changed.wait())
            try:
                done, _ = await asyncio.wait(
                    {waiting, *readers},
                    timeout=None if math.isinf(left) else left,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                waiting.cancel()
            for task in done - {waiting}:
                task.result()

    def _result(self) -> LoadRun:
        scale = self._clock.scale
        records = sorted(self._finished, key=lambda record: (record.scheduled, record.index))
        slips = sorted(record.sent - record.scheduled for record in records)
        health = ClientHealth(
            slip_p99=slips[math.ceil(0.99 * len(slips)) - 1] if slips else 0.0,
            loop_lag_max=max(end["lag"] for end in self._ends),
            loop_lag_p99=max(end["lag_p99"] for end in self._ends),
            cpu_seconds=sum(end["cpu"] for end in self._ends),
            processes=len(self._workers),
        )
        return LoadRun(
            plan=self._plan,
            started=self._started,
            ended=max(end["ended"] for end in self._ends) * scale,
            records=records,
            client=health,
            ended_by_observer=self._stopped_by_observer,
            gaps=array("f", (gap * scale for gap in self._gaps)),
        )


def _record(row: Row, scale: float) -> RequestRecord:
    (
        index,
        scheduled,
        sent,
        first,
        last,
        finished,
        inputs,
        outputs,
        source,
        chunks,
        error,
        detail,
        status,
        why,
        gap,
    ) = row
    return RequestRecord(
        index=index,
        scheduled=scheduled * scale,
        sent=sent * scale,
        first_token=None if first is None else first * scale,
        last_token=None if last is None else last * scale,
        finished=finished * scale,
        input_tokens=inputs,
        output_tokens=outputs,
        token_source=TokenSource(source),
        chunks=chunks,
        error=None if error is None else ErrorKind(error),
        detail=detail,
        http_status=status,
        finish_reason=why,
        max_gap=None if gap is None else gap * scale,
    )
