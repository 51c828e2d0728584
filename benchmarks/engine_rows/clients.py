"""The load: client processes that send streaming requests and keep a record of each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import re
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import cast

import aiohttp
import numpy as np
from numpy.typing import NDArray

from .plan import Load

Records = NDArray[np.void]
"""An array of ``RECORD``."""

RECORD = np.dtype(
    [
        ("scheduled", "f8"),
        ("sent", "f8"),
        ("first", "f8"),
        ("last", "f8"),
        ("prompt", "i4"),
        ("output", "i4"),
        ("chunks", "i4"),
        ("status", "i4"),
    ]
)
"""One request as a client saw it. Times are CLOCK_MONOTONIC seconds; status is one of the three below."""

FINISHED, FAILED, CUT = 0, 1, 2

_ENDPOINT = "/v1/completions"
_USAGE_PROMPT = re.compile(rb'"prompt_tokens":\s*(\d+)')
_USAGE_OUTPUT = re.compile(rb'"completion_tokens":\s*(\d+)')
_ERRORS_KEPT = 5


@dataclass(frozen=True)
class ClientTask:
    """What one client process does for one load."""

    url: str
    model: str
    load: Load
    index: int
    clients: int
    start: float
    seed: int
    vocabulary: tuple[int, int]


class Client:
    """Sends the share of a load that belongs to one process."""

    def __init__(self, task: ClientTask) -> None:
        self.rows: list[tuple[float, float, float, float, int, int, int, int]] = []
        self.errors: list[str] = []
        self._task = task
        self._random = np.random.default_rng([task.seed, task.index])
        self._window = task.load.window(task.start)

    async def run(self) -> None:
        """Run the load."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            await (self._closed(session) if self._task.load.kind == "closed" else self._open(session))

    def _body(self) -> bytes:
        load = self._task.load
        sizes = [
            mean if load.fixed else int(self._random.integers(low, high + 1))
            for mean in (load.input_tokens, load.output_tokens)
            for low, high in [load.bounds(mean)]
        ]
        tokens = self._random.integers(*self._task.vocabulary, size=max(1, sizes[0])).tolist()
        return json.dumps(
            {
                "model": self._task.model,
                "prompt": tokens,
                "max_tokens": max(1, sizes[1]),
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()

    async def _request(self, session: aiohttp.ClientSession, scheduled: float) -> bool:
        """Send one request and keep its record, whatever becomes of it. False when it failed.

        Events are counted, not parsed: the client must cost little beside the engine on the same machine.
        """
        body = self._body()
        sent = time.monotonic()
        first = last = float("nan")
        events, tail, status, problem = 0, b"", CUT, ""
        try:
            async with session.post(
                self._task.url + _ENDPOINT, data=body, headers={"Content-Type": "application/json"}
            ) as response:
                async for data in response.content.iter_any():
                    last = time.monotonic()
                    if events == 0:
                        first = last
                    events += data.count(b"data: ")
                    tail = (tail + data)[-4096:]
                complete = response.status == 200 and b"[DONE]" in tail and _USAGE_OUTPUT.search(tail) is not None
                status = FINISHED if complete else FAILED
                problem = "" if complete else f"HTTP {response.status}: {tail[:300]!r}"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            status, problem = FAILED, repr(error)[:300]
        finally:
            counts = [int(found[-1]) if (found := p.findall(tail)) else 0 for p in (_USAGE_PROMPT, _USAGE_OUTPUT)]
            # The last two events are the usage and [DONE], which carry no token.
            chunks = events - 2 if status == FINISHED else events
            self.rows.append((scheduled, sent, first, last, counts[0], counts[1], chunks, status))
            if problem and len(self.errors) < _ERRORS_KEPT:
                self.errors.append(problem)
        return status != FAILED

    async def _closed(self, session: aiohttp.ClientSession) -> None:
        """Keep this process's share of N requests in flight until the window ends, then cut what is left."""
        task, load = self._task, self._task.load
        total = int(load.level)

        async def user(rank: int) -> None:
            await asyncio.sleep(max(0.0, task.start + load.ramp_s / 2 * rank / total - time.monotonic()))
            while time.monotonic() < self._window[1]:
                if not await self._request(session, time.monotonic()):
                    await asyncio.sleep(0.2)

        users = [asyncio.create_task(user(rank)) for rank in range(task.index, total, task.clients)]
        await asyncio.sleep(max(0.0, self._window[1] - time.monotonic()))
        await _cancel(users)

    async def _open(self, session: aiohttp.ClientSession) -> None:
        """Send a Poisson stream; go on after the window until every request scheduled in it is done."""
        task, load = self._task, self._task.load
        gap = task.clients / load.level
        running: set[asyncio.Task[bool]] = set()
        waited: set[asyncio.Task[bool]] = set()
        at = task.start + float(self._random.exponential(gap))
        while True:
            while (now := time.monotonic()) < at:
                over = now >= self._window[1]
                if over and (all(item.done() for item in waited) or now >= self._window[1] + load.drain_s):
                    await _cancel(running)
                    return
                await asyncio.sleep(min(at - now, 0.05) if over else at - now)
            item = asyncio.create_task(self._request(session, at))
            running.add(item)
            item.add_done_callback(running.discard)
            if self._window[0] <= at < self._window[1]:
                waited.add(item)
            at += float(self._random.exponential(gap))


async def _cancel(tasks: Collection[asyncio.Task[bool]] | Collection[asyncio.Task[None]]) -> None:
    leaving = list(tasks)
    for item in leaving:
        item.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)


def client_process(pipe: Connection) -> None:
    """Body of a client process: tasks in, records and errors out, until None comes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while (task := pipe.recv()) is not None:
        client = Client(task)
        try:
            asyncio.run(client.run())
        except Exception as error:  # a broken client must not hang the parent
            client.errors.append(f"client: {error!r}")
        pipe.send((np.array(client.rows, dtype=RECORD), client.errors))


class ClientPool:
    """Client processes that live for the whole run."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=client_process, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(
        self, url: str, model: str, load: Load, start: float, seed: int, vocabulary: tuple[int, int]
    ) -> tuple[Records, list[str]]:
        """Run a load on every process and return all records, in order of schedule, and some error texts."""
        count = len(self._pipes)
        for index, pipe in enumerate(self._pipes):
            pipe.send(ClientTask(url, model, load, index, count, start, seed, vocabulary))
        answers = [cast("tuple[Records, list[str]]", pipe.recv()) for pipe in self._pipes]
        records = np.concatenate([answer[0] for answer in answers])
        return records[np.argsort(records["scheduled"])], [text for answer in answers for text in answer[1]][:10]

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()
