"""A load worker: ``python -m autotune.load._worker FD``, started and fed by the load generator.

It sends what it is told at the moments it is told and reports what came of it. It ends when its socket
closes, so that it never outlives the program that started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import math
import os
import resource
import signal
import socket
import sys
import time
import traceback
from array import array
from collections import deque
from typing import Any, cast

import httpx

from autotune.load._body import request_body, user_messages
from autotune.load._sender import Answer, Sender
from autotune.load._timer import PreciseTimer
from autotune.load._wire import Job, Message, Row, RunOrder, Setup, Turn, encode, encode_gaps, receive
from autotune.load.transport import StreamTransport
from autotune.spec import Endpoint

_FLUSH_INTERVAL = 0.15
_LOW_WATER = 500
_PREPARED = 64
_PR_SET_PDEATHSIG = 1
_NICENESS = -10


class Run:
    """One run of one worker."""

    def __init__(
        self, order: RunOrder, setup: Setup, transport: httpx.AsyncBaseTransport, writer: asyncio.StreamWriter
    ) -> None:
        self.number = order["run"]
        self._order = order
        self._setup = setup
        self._endpoint = Endpoint(order["endpoint"])
        self._sender = Sender(transport, setup["url"], self._endpoint, setup["api_key"], order["timeout"])
        self._writer = writer
        self._jobs: deque[Job] = deque()
        self._prepared: deque[tuple[Job, bytes]] = deque()
        self._no_more = False
        self._asked = False
        self._more = asyncio.Event()
        self._timer = PreciseTimer()
        self._start = self._until = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._sent: list[tuple[int, float]] = []
        self._done: list[Row] = []
        self._gaps = array("d")
        self._lags = array("d")
        self._cpu = 0.0
        self._stopped = False
        self._ended = asyncio.Event()
        self._reporting: asyncio.Task[None] | None = None
        # Before the start is agreed on: a collection takes long enough to make the first requests late.
        gc.collect()
        gc.freeze()

    def add_jobs(self, jobs: list[Job], *, last: bool) -> None:
        """Take a page of jobs."""
        if self._stopped:
            return
        self._jobs.extend(jobs)
        self._no_more = last
        self._asked = False
        self._prepare(_PREPARED)
        self._more.set()
        if self._start and self._order["users"] is None:
            self._launch_due()

    def go(self, start: float, until: float) -> None:
        """Begin at ``start`` (monotonic); send nothing after ``until``."""
        self._start, self._until = start, until
        self._cpu = time.process_time()
        self._reporting = asyncio.create_task(self._flush_often())
        if self._order["users"] is None:
            self._launch_due()
        else:
            for _ in range(self._order["users"]):
                self._spawn(self._user())
        self._check_end()

    def stop(self) -> None:
        """Send nothing more and cancel what is out."""
        self._stopped = True
        self._jobs.clear()
        self._prepared.clear()
        self._no_more = True
        self._more.set()
        for task in self._tasks:
            task.cancel()
        self._check_end()

    async def finish(self) -> None:
        """Wait for the end and report it."""
        await self._ended.wait()
        ended = time.monotonic()
        if self._reporting is not None:
            self._reporting.cancel()
        self._timer.close()
        await self._flush()
        cpu = time.process_time() - self._cpu if self._start else 0.0
        gc.unfreeze()
        lags = sorted(self._lags) or [0.0]
        lag_p99 = lags[math.ceil(0.99 * len(lags)) - 1]
        self._post({"type": "end", "run": self.number, "ended": ended, "cpu": cpu, "lag": lags[-1], "lag_p99": lag_p99})
        await self._writer.drain()

    def _prepare(self, count: int) -> None:
        """Build bodies ahead of their time, so that sending costs little at the scheduled moment."""
        while self._jobs and len(self._prepared) < count:
            job = self._jobs.popleft()
            self._prepared.append((job, self._body(job["turns"][0], [])))
        if len(self._jobs) < _LOW_WATER and not self._no_more and not self._asked:
            self._asked = True
            self._post({"type": "more", "run": self.number})

    def _body(self, turn: Turn, history: list[dict[str, str]]) -> bytes:
        return request_body(
            turn,
            history,
            endpoint=self._endpoint,
            model=self._setup["model"],
            vocabulary=self._setup["vocabulary"],
            ignore_eos=self._order["ignore_eos"],
        )

    def _launch_due(self) -> None:
        """Open loop: send everything whose time has come, then set the alarm for the next."""
        while not self._stopped:
            if not self._prepared:
                self._prepare(1)
            if not self._prepared:
                break
            job, body = self._prepared[0]
            when = self._start + (job["at"] or 0.0)
            if when > self._until:
                self._jobs.clear()
                self._prepared.clear()
                self._no_more = True
                break
            if when > time.monotonic():
                self._timer.call_at(when, self._launch_due)
                asyncio.get_running_loop().call_soon(self._prepare, _PREPARED)
                return
            self._prepared.popleft()
            self._spawn(self._conversation(job, body, when))
        self._check_end()

    async def _user(self) -> None:
        """Closed loop: one user sends the next request after the answer to the last and a time to think."""
        wait_until = self._start
        await _sleep_until(wait_until)
        # All users begin at once, but one process can only send for one after the other.
        wait_until = time.monotonic()
        while not self._stopped:
            await _sleep_until(wait_until)
            if time.monotonic() >= self._until:
                return
            while not self._prepared:
                self._prepare(1)
                if self._prepared:
                    break
                if self._no_more:
                    return
                self._more.clear()
                await self._more.wait()
                wait_until = time.monotonic()
            job, body = self._prepared.popleft()
            await self._conversation(job, body, wait_until)
            asyncio.get_running_loop().call_soon(self._prepare, max(_PREPARED, self._order["users"] or 0))
            wait_until = time.monotonic() + job["think"]

    async def _conversation(self, job: Job, body: bytes, scheduled: float) -> None:
        history: list[dict[str, str]] = []
        turns = job["turns"]
        for position, turn in enumerate(turns):
            if position:
                scheduled = time.monotonic() + turn["wait"]
                body = self._body(turn, history)
                await _sleep_until(scheduled)
                if time.monotonic() >= self._until:
                    return
            self._sent.append((turn["index"], scheduled))
            answer = await self._sender.send(turn, body, scheduled, keep_text=position + 1 < len(turns))
            self._note(answer)
            if self._stopped or answer.row[10] is not None:
                return
            if position + 1 < len(turns):
                history += [*user_messages(turn["prompt"]), {"role": "assistant", "content": answer.text}]

    def _note(self, answer: Answer) -> None:
        self._done.append(answer.row)
        self._gaps.extend(answer.gaps)

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()
        self._check_end()

    def _check_end(self) -> None:
        nothing_left = self._no_more and not self._jobs and not self._prepared
        users_gone = self._order["users"] is not None and self._start > 0
        if not self._tasks and (nothing_left or users_gone):
            self._ended.set()

    async def _flush_often(self) -> None:
        """Report a few times a second, and note how late the event loop serves this timer."""
        while True:
            due = time.monotonic() + _FLUSH_INTERVAL
            await asyncio.sleep(_FLUSH_INTERVAL)
            self._lags.append(time.monotonic() - due)
            await self._flush()

    async def _flush(self) -> None:
        if self._sent or self._done:
            sent, self._sent = self._sent, []
            done, self._done = self._done, []
            if self._gaps:
                self._writer.write(encode_gaps(self._gaps))
                self._gaps = array("d")
            self._post({"type": "batch", "run": self.number, "sent": sent, "done": done})
        await self._writer.drain()

    def _post(self, message: Message) -> None:
        self._writer.write(encode(message))


async def _sleep_until(when: float) -> None:
    if (left := when - time.monotonic()) > 0:
        await asyncio.sleep(left)


def _die(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A fault of our own must end the run with its reason, not hang it."""
    error = context.get("exception")
    sys.stderr.write("".join(traceback.format_exception(error)) if error else f"{context['message']}\n")
    sys.stderr.flush()
    os._exit(1)


async def _serve(channel: socket.socket) -> None:
    asyncio.get_running_loop().set_exception_handler(_die)
    reader, writer = await asyncio.open_connection(sock=channel)
    setup = cast("Setup", await receive(reader))
    transport = StreamTransport()
    writer.write(encode({"type": "hello", "pid": os.getpid()}))
    run: Run | None = None
    ending: asyncio.Task[None] | None = None
    while isinstance(message := await receive(reader), dict):
        match message["type"]:
            case "run":
                run = Run(cast("RunOrder", message), setup, transport, writer)
                ending = asyncio.create_task(run.finish())
                ending.add_done_callback(lambda task: None if task.cancelled() else task.result())
            case "jobs" if run is not None and message["run"] == run.number:
                run.add_jobs(message["jobs"], last=message["last"])
                if message["first"]:
                    writer.write(encode({"type": "ready", "run": run.number}))
            case "go" if run is not None and message["run"] == run.number:
                run.go(message["start"], message["until"])
            case "stop" if run is not None and message["run"] == run.number:
                run.stop()
            case _:
                pass


def main(argv: list[str]) -> None:
    """Serve one load generator until it goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A little before others: what is measured here is time, and it needs little CPU.
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.set_threshold(50_000, 50, 50)
    asyncio.run(_serve(socket.socket(fileno=int(argv[1]))))
    # What is still out is nobody's business any more: end without waiting for it.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv)
