"""One HTTP/1.1 client connection on an asyncio protocol."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from autotune.load._http import MalformedResponseError, ResponseParser

_READ_SIZE = 256 * 2**10
_LINGER = 2.0
_READ_BUFFER = bytearray(_READ_SIZE)
# Every read is consumed before the next one starts, so that all connections of a process share one buffer.
_READ_VIEW = memoryview(_READ_BUFFER)


class BodySink(Protocol):
    """Takes a body piece by piece inside the event loop's read callback, without a task switch."""

    @property
    def done(self) -> bool:
        """True when nothing that may follow matters."""
        ...

    def feed(self, data: bytes, now: float) -> None:
        """Take a piece that was read at ``now`` (``time.monotonic``)."""
        ...


class ConnectionBrokenError(Exception):
    """The connection ended before the response did. ``fresh``: not a byte of the response had arrived."""

    def __init__(self, message: str, *, fresh: bool) -> None:
        super().__init__(message)
        self.fresh = fresh


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of a response."""

    status: int
    headers: list[tuple[bytes, bytes]]


class Connection(asyncio.BufferedProtocol):
    """Carries one exchange at a time; ``on_idle`` is told when it may carry the next one."""

    def __init__(self, on_idle: Callable[[Connection], None]) -> None:
        self._on_idle = on_idle
        self._transport: asyncio.Transport | None = None
        self._parser: ResponseParser | None = None
        self._head: asyncio.Future[Head] | None = None
        self._ended: asyncio.Future[None] | None = None
        self._sink: BodySink | None = None
        self._wanted_sink: BodySink | None = None
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue()
        self._now = 0.0
        self.idle_since = 0.0
        self.closed = False
        self.used = False

    def send(self, method: bytes, message: bytes, sink: BodySink | None) -> asyncio.Future[Head]:
        """Write a request; the future gives the response's head."""
        if self._transport is None or self.closed:
            raise ConnectionBrokenError("the connection is closed", fresh=True)
        loop = asyncio.get_running_loop()
        self._parser = ResponseParser(method, self._got_head, self._got_body)
        self._head, self._ended = loop.create_future(), loop.create_future()
        self._wanted_sink, self._sink = sink, None
        self._pieces = asyncio.Queue()
        self._transport.write(message)
        return self._head

    async def wait_ended(self) -> None:
        """Wait for the end of the body, or until the sink is done.

        Raises:
            ConnectionBrokenError: the body ended too early.
        """
        if self._ended is not None:
            await asyncio.shield(self._ended)

    async def next_piece(self) -> bytes:
        """The next piece of a body without a sink; empty at its end.

        Raises:
            ConnectionBrokenError: the body ended too early.
        """
        if self._pieces.empty() and self._ended is not None and self._ended.done():
            self._ended.result()
            return b""
        piece = await self._pieces.get()
        if not piece and self._ended is not None:
            self._ended.result()
        return piece

    def close(self) -> None:
        """Drop the connection at once, whatever it carries."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by asyncio."""
        return _READ_VIEW

    def buffer_updated(self, nbytes: int) -> None:
        """Called by asyncio."""
        self._now = time.monotonic()
        parser = self._parser
        if parser is None or parser.ended:
            self.close()
            return
        try:
            parser.feed(bytes(_READ_VIEW[:nbytes]))
        except MalformedResponseError as error:
            self._break(str(error))
            self.close()
            return
        if parser.ended:
            self._finish()
            if parser.reusable:
                self.idle_since = self._now
                self.used = True
                self._on_idle(self)
            else:
                self.close()
        elif self._ended is not None and self._ended.done():
            # The sink has all it wants; the rest of the body is welcome to end, but not waited for.
            asyncio.get_running_loop().call_later(_LINGER, self._give_up, parser)

    def _give_up(self, parser: ResponseParser) -> None:
        if self._parser is parser and not parser.ended:
            self.close()

    def eof_received(self) -> bool:
        """Called by asyncio."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self.closed = True
        self._now = time.monotonic()
        parser = self._parser
        if parser is None or self._ended is None or self._ended.done():
            return
        if parser.end_of_stream():
            self._finish()
        elif not parser.started:
            self._break(f"server disconnected without an answer{_because(exc)}", fresh=True)
        else:
            self._break(f"connection closed before the answer was whole{_because(exc)}")

    def _got_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if status == 200:
            self._sink = self._wanted_sink
        if self._head is not None and not self._head.done():
            self._head.set_result(Head(status, headers))

    def _got_body(self, data: bytes) -> None:
        sink = self._sink
        if sink is None:
            self._pieces.put_nowait(data)
            return
        sink.feed(data, self._now)
        if sink.done:
            self._finish()

    def _finish(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
            self._pieces.put_nowait(b"")

    def _break(self, message: str, *, fresh: bool = False) -> None:
        error = ConnectionBrokenError(message, fresh=fresh)
        if self._head is not None and not self._head.done():
            self._head.set_exception(error)
            self._head.exception()
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)
            self._ended.exception()
            self._pieces.put_nowait(b"")


def _because(error: Exception | None) -> str:
    return "" if error is None else f": {error}"
