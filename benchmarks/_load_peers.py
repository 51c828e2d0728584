"""Minimal streaming clients on other HTTP libraries, each in its own process: what a chunk costs there.

    python benchmarks/_load_peers.py KIND URL CONCURRENCY REQUESTS TOKENS

Each does what any load generator on that library does: posts the same bodies, reads the stream as it comes,
parses every event, notes its time. Prints JSON: CPU seconds of the process, chunks, wall seconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

Stream = Callable[[dict[str, object]], AbstractAsyncContextManager[AsyncIterator[bytes]]]


class Events:
    """Splits a body into events, parses each, and notes when output came."""

    def __init__(self) -> None:
        self.rest = b""
        self.times: list[float] = []

    def feed(self, data: bytes) -> None:
        self.rest += data
        while (end := self.rest.find(b"\n\n")) >= 0:
            event, self.rest = self.rest[:end], self.rest[end + 2 :]
            if event.startswith(b"data: ") and event != b"data: [DONE]":
                choices = json.loads(event[6:])["choices"]
                if choices and choices[0]["text"]:
                    self.times.append(time.monotonic())


@asynccontextmanager
async def aiohttp_stream(url: str) -> AsyncIterator[Stream]:
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:

        @asynccontextmanager
        async def stream(body: dict[str, object]) -> AsyncIterator[AsyncIterator[bytes]]:
            async with session.post(url, json=body) as response:
                yield response.content.iter_any()

        yield stream


@asynccontextmanager
async def httpx_stream(url: str, kind: str) -> AsyncIterator[Stream]:
    import httpx

    limits = httpx.Limits(max_connections=100_000, max_keepalive_connections=100_000)
    if kind == "httpx-aiohttp":
        from httpx_aiohttp import HttpxAiohttpClient

        client: httpx.AsyncClient = HttpxAiohttpClient(limits=limits, timeout=None)
    elif kind == "stream-transport":
        from autotune.load.transport import StreamTransport

        client = httpx.AsyncClient(transport=StreamTransport(), timeout=None)
    else:
        client = httpx.AsyncClient(limits=limits, timeout=None)
    async with client:

        @asynccontextmanager
        async def stream(body: dict[str, object]) -> AsyncIterator[AsyncIterator[bytes]]:
            async with client.stream("POST", url, json=body) as response:
                yield response.aiter_raw()

        yield stream


async def measure(kind: str, url: str, concurrency: int, requests: int, tokens: int) -> dict[str, float]:
    chunks = 0

    async def user(stream: Stream, numbers: Iterator[int], answer: int) -> None:
        nonlocal chunks
        for number in numbers:
            body = {
                "model": "golden",
                "prompt": [(number * 131 + i * 7) % 30_000 for i in range(128)],
                "max_tokens": answer,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            events = Events()
            async with stream(body) as pieces:
                async for piece in pieces:
                    events.feed(piece)
            chunks += len(events.times)

    opened = aiohttp_stream(url) if kind == "aiohttp" else httpx_stream(url, kind)
    async with opened as stream:
        # Connections are opened and code is warm before the measurement.
        opening = iter(range(concurrency))
        await asyncio.gather(*(user(stream, opening, 2) for _ in range(concurrency)))
        numbers = iter(range(requests))
        chunks = 0
        cpu, started = time.process_time(), time.monotonic()
        await asyncio.gather(*(user(stream, numbers, tokens) for _ in range(concurrency)))
        return {"cpu_s": time.process_time() - cpu, "chunks": chunks, "wall_s": time.monotonic() - started}


if __name__ == "__main__":
    result = asyncio.run(measure(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])))
    print(json.dumps(result))
