"""Connections that carry exchanges: on a plain socket of ours, or on asyncio's TLS."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from typing import Protocol, cast

from autotune.load._exchange import BodySink, ConnectionBrokenError, Exchange
from autotune.load._poller import Poller
from autotune.load._shortcut import Shortcut, take

_LINGER = 2.0
_READ_SIZE = 256 * 2**10
# Every read is consumed before the next one starts, so that all connections of a process share one buffer.
_READ_VIEW = memoryview(bytearray(_READ_SIZE))

OnIdle = Callable[["Connection"], None]


class Connection(Protocol):
    """One HTTP/1.1 connection."""

    closed: bool
    used: bool
    idle_since: float

    async def send(self, method: bytes, message: bytes, sink: BodySink | None) -> Exchange:
        """Write a request; what comes back goes to the exchange."""
        ...

    def close(self) -> None:
        """Drop the connection at once, whatever it carries."""
        ...


class _Base:
    """What both kinds share: the exchange under way and the way back to the pool."""

    def __init__(self, on_idle: OnIdle) -> None:
        self._on_idle = on_idle
        self._exchange: Exchange | None = None
        self._lingering = False
        self.idle_since = 0.0
        self.closed = False
        self.used = False

    def close(self) -> None:
        """Drop the connection at once."""
        raise NotImplementedError

    def _begin(self, method: bytes, sink: BodySink | None) -> Exchange:
        if self.closed:
            raise ConnectionBrokenError("the connection is closed", fresh=True)
        self._exchange = Exchange(method, sink)
        self._lingering = False
        return self._exchange

    def _received(self, data: bytes, now: float) -> Shortcut | None:
        """Take what was read; say how to recognise more of the same."""
        exchange = self._exchange
        if exchange is None or exchange.over:
            self.close()
            return None
        try:
            exchange.received(data, now)
        except ConnectionBrokenError:
            self.close()
            return None
        if not exchange.ended.done():
            return exchange.shortcut
        if exchange.over:
            if exchange.reusable:
                self.idle_since = now
                self.used = True
                self._on_idle(cast("Connection", self))
            else:
                self.close()
        elif not self._lingering:
            # The sink has all it wants; the rest of the body may still end, but is not waited for.
            self._lingering = True
            asyncio.get_running_loop().call_later(_LINGER, self._give_up, exchange)
        return None

    def _give_up(self, exchange: Exchange) -> None:
        if self._exchange is exchange and not exchange.over:
            self.close()

    def _lost(self, error: Exception | None) -> None:
        self.closed = True
        if self._exchange is not None and not self._exchange.ended.done():
            self._exchange.lost(error)


class SocketConnection(_Base):
    """A TCP connection read by the :class:`Poller`; its times are the kernel's."""

    def __init__(self, sock: socket.socket, poller: Poller, on_idle: OnIdle) -> None:
        super().__init__(on_idle)
        self._socket = sock
        self._poller = poller
        poller.add(sock, self._received, self._gone)

    async def send(self, method: bytes, message: bytes, sink: BodySink | None) -> Exchange:
        """Write a request; what comes back goes to the exchange."""
        exchange = self._begin(method, sink)
        # A server that refuses a request may answer and close before it was sent whole; the poller sees it.
        with contextlib.suppress(ConnectionError):
            await asyncio.get_running_loop().sock_sendall(self._socket, message)
        return exchange

    def close(self) -> None:
        """Drop the connection at once."""
        if self._socket.fileno() >= 0:
            self._poller.remove(self._socket)
            self._socket.close()
        self._lost(None)

    def _gone(self, error: Exception | None) -> None:
        if self._socket.fileno() >= 0:
            self._poller.remove(self._socket)
            self._socket.close()
        self._lost(error)


class ProtocolConnection(_Base, asyncio.BufferedProtocol):
    """A connection of asyncio's: TLS, and plain TCP where there is no ``epoll``."""

    def __init__(self, on_idle: OnIdle) -> None:
        super().__init__(on_idle)
        self._transport: asyncio.Transport | None = None
        self._shortcut: Shortcut | None = None

    async def send(self, method: bytes, message: bytes, sink: BodySink | None) -> Exchange:
        """Write a request; what comes back goes to the exchange."""
        exchange = self._begin(method, sink)
        if self._transport is not None:
            self._transport.write(message)
        return exchange

    def close(self) -> None:
        """Drop the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        self._lost(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by asyncio."""
        return _READ_VIEW

    def buffer_updated(self, nbytes: int) -> None:
        """Called by asyncio."""
        data, now = bytes(_READ_VIEW[:nbytes]), time.monotonic()
        if self._shortcut is None or not take(self._shortcut, data, now):
            self._shortcut = self._received(data, now)

    def eof_received(self) -> bool:
        """Called by asyncio."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._lost(exc)
