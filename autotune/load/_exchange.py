"""One request and its response on one connection, whatever carries the bytes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from autotune.load._http import MalformedResponseError, ResponseParser
from autotune.load._shortcut import Shortcut


class BodySink(Protocol):
    """Takes a body piece by piece where it is read, without a task switch."""

    @property
    def done(self) -> bool:
        """True when nothing that may follow matters."""
        ...

    @property
    def shortcut(self) -> Shortcut | None:
        """How to recognise the usual piece without calling the sink; None when the next piece needs it."""
        ...

    def feed(self, data: bytes, now: float) -> None:
        """Take a piece that arrived at ``now`` (``time.monotonic``)."""
        ...


class ConnectionBrokenError(Exception):
    """The connection ended before the response did. ``fresh``: not a byte of the response had arrived."""

    def __init__(self, message: str, *, fresh: bool = False) -> None:
        super().__init__(message)
        self.fresh = fresh


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of a response."""

    status: int
    headers: list[tuple[bytes, bytes]]


class Exchange:
    """Feeds the parser and wakes whoever waits for the head, for pieces, or for the end."""

    __slots__ = ("_now", "_parser", "_pieces", "_sink", "_wanted_sink", "ended", "head")

    def __init__(self, method: bytes, sink: BodySink | None) -> None:
        loop = asyncio.get_running_loop()
        self._parser = ResponseParser(method, self._got_head, self._got_body)
        self._wanted_sink = sink
        self._sink: BodySink | None = None
        self._pieces: asyncio.Queue[bytes] | None = None if sink is not None else asyncio.Queue()
        self._now = 0.0
        self.head: asyncio.Future[Head] = loop.create_future()
        """The response's head."""
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done at the end of the body, or when the sink is."""

    @property
    def over(self) -> bool:
        """True once the response was read to its last byte."""
        return self._parser.ended

    @property
    def reusable(self) -> bool:
        """True when the connection may carry another exchange."""
        return self._parser.reusable

    @property
    def shortcut(self) -> Shortcut | None:
        """The sink's, when the next byte begins a chunk of its body."""
        return self._sink.shortcut if self._sink is not None and self._parser.between_chunks else None

    def received(self, data: bytes, now: float) -> None:
        """Take bytes that arrived at ``now``.

        Raises:
            ConnectionBrokenError: they are not HTTP; those who wait were told.
        """
        self._now = now
        try:
            self._parser.feed(data)
        except MalformedResponseError as error:
            broken = ConnectionBrokenError(str(error))
            self._break(broken)
            raise broken from error
        if self._parser.ended:
            self._finish()

    def lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        because = "" if error is None else f": {error}"
        if self._parser.end_of_stream():
            self._finish()
        elif not self._parser.started:
            self._break(ConnectionBrokenError(f"server disconnected without an answer{because}", fresh=True))
        else:
            self._break(ConnectionBrokenError(f"connection closed before the answer was whole{because}"))

    async def next_piece(self) -> bytes:
        """The next piece of a body without a sink; empty at its end.

        Raises:
            ConnectionBrokenError: the body ended too early.
        """
        if self._pieces is None or (self._pieces.empty() and self.ended.done()):
            await self.ended
            return b""
        piece = await self._pieces.get()
        if not piece:
            self.ended.result()
        return piece

    def _got_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if status == 200 and self._wanted_sink is not None:
            self._sink = self._wanted_sink
        elif self._pieces is None:
            self._pieces = asyncio.Queue()
        if not self.head.done():
            self.head.set_result(Head(status, headers))

    def _got_body(self, data: bytes) -> None:
        sink = self._sink
        if sink is not None:
            sink.feed(data, self._now)
            if sink.done:
                self._finish()
        elif self._pieces is not None:
            self._pieces.put_nowait(data)

    def _finish(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
            if self._pieces is not None:
                self._pieces.put_nowait(b"")

    def _break(self, error: ConnectionBrokenError) -> None:
        for future in (self.head, self.ended):
            if not future.done():
                future.set_exception(error)
                # Whoever waits sees it; when nobody does, it must not be logged.
                future.exception()
        if self._pieces is not None:
            self._pieces.put_nowait(b"")
