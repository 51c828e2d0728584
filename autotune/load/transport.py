"""A transport for httpx that costs little per streamed chunk.

``httpx.AsyncClient(transport=StreamTransport())`` behaves as with httpx's own transport for what this
program needs: HTTP/1.1 over TCP or TLS, connections kept alive, no limit on their number, no proxies. A
request that carries the extension ``"sink"`` (a :class:`BodySink`) has its body handed to the sink where it
is read; its response's stream is then empty and ends with the body. Why it exists and what it saves:
``docs/decisions/0006-http-transport.md``.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import time
from collections.abc import AsyncIterator

import httpx

from autotune.load._connection import Connection, OnIdle, ProtocolConnection, SocketConnection
from autotune.load._exchange import BodySink, ConnectionBrokenError, Exchange, Head
from autotune.load._poller import Poller

__all__ = ["BodySink", "StreamTransport"]

_DEFAULT_PORTS = {"http": 80, "https": 443}
_Origin = tuple[str, str, int]


class StreamTransport(httpx.AsyncBaseTransport):
    """HTTP/1.1 client transport. Use it from one event loop only.

    Args:
        keepalive_expiry: wall seconds after which an idle connection is not used again. Below the 5 s after
            which uvicorn closes one, so that a request never meets a connection that is being closed.
        verify: certificate check of TLS servers, as httpx has it.
    """

    def __init__(self, *, keepalive_expiry: float = 4.0, verify: bool = True) -> None:
        self._keepalive_expiry = keepalive_expiry
        self._verify = verify
        self._tls: ssl.SSLContext | None = None
        self._poller: Poller | None = None
        self._idle: dict[_Origin, list[Connection]] = {}
        self._open: set[Connection] = set()
        self._addresses: dict[tuple[str, int], str] = {}
        self.reconnects = 0
        """Requests sent again because a kept connection was gone before a byte of the answer."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; the response's head has arrived when this returns.

        Raises:
            httpx.ConnectError, httpx.ConnectTimeout: no connection.
            httpx.ReadTimeout: no head, or no further piece of the body, in time.
            httpx.RemoteProtocolError: the answer is not HTTP, or broke off.
        """
        timeouts: dict[str, float | None] = request.extensions.get("timeout", {})
        sink: BodySink | None = request.extensions.get("sink")
        message = _serialise(request, await request.aread())
        connection, exchange, head = await self._exchange(request, message, sink, timeouts)
        return httpx.Response(
            status_code=head.status,
            headers=head.headers,
            stream=_Body(connection, exchange, timeouts.get("read")),
            extensions={"http_version": b"HTTP/1.1"},
        )

    async def aclose(self) -> None:
        """Close every connection."""
        for connection in list(self._open):
            connection.close()
        self._open.clear()
        self._idle.clear()
        if self._poller is not None:
            self._poller.close()
            self._poller = None

    async def _exchange(
        self, request: httpx.Request, message: bytes, sink: BodySink | None, timeouts: dict[str, float | None]
    ) -> tuple[Connection, Exchange, Head]:
        url = request.url
        origin = (url.scheme, url.host, url.port or _DEFAULT_PORTS.get(url.scheme, 0))
        method = request.method.encode()
        while True:
            connection = self._take_idle(origin) or await self._connect(origin, timeouts.get("connect"))
            reused = connection.used
            try:
                exchange = await connection.send(method, message, sink)
                if (limit := timeouts.get("read")) is None:
                    return connection, exchange, await exchange.head
                return connection, exchange, await asyncio.wait_for(exchange.head, limit)
            except ConnectionBrokenError as error:
                connection.close()
                if not (reused and error.fresh):
                    raise httpx.RemoteProtocolError(str(error), request=request) from error
                self.reconnects += 1
            except TimeoutError as error:
                connection.close()
                raise httpx.ReadTimeout("no answer in time", request=request) from error
            except BaseException:
                connection.close()
                raise

    def _take_idle(self, origin: _Origin) -> Connection | None:
        idle = self._idle.get(origin)
        oldest = time.monotonic() - self._keepalive_expiry
        while idle:
            connection = idle.pop()
            if not connection.closed and connection.idle_since >= oldest:
                return connection
            connection.close()
        return None

    async def _connect(self, origin: _Origin, timeout: float | None) -> Connection:
        scheme, host, port = origin
        if scheme not in _DEFAULT_PORTS:
            raise httpx.UnsupportedProtocol(f"'{scheme}' is neither http nor https")
        on_idle = self._idle.setdefault(origin, []).append
        use_tls = scheme == "https"
        opening = (
            self._open_protocol(host, port, on_idle, tls=use_tls)
            if use_tls or not hasattr(select, "epoll")
            else (self._open_socket(host, port, on_idle))
        )
        try:
            connection = await (opening if timeout is None else asyncio.wait_for(opening, timeout))
        except TimeoutError as error:
            raise httpx.ConnectTimeout(f"no connection to {host}:{port} in {timeout:g} s") from error
        except OSError as error:
            raise httpx.ConnectError(_reason(error, host, port)) from error
        if len(self._open) % 64 == 63:
            self._open = {known for known in self._open if not known.closed}
        self._open.add(connection)
        return connection

    async def _open_socket(self, host: str, port: int, on_idle: OnIdle) -> Connection:
        loop = asyncio.get_running_loop()
        if self._poller is None:
            self._poller = Poller()
        known = self._addresses.get((host, port))
        candidates = (
            [known]
            if known
            else [str(entry[4][0]) for entry in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        )
        failure: OSError = OSError(f"no address for {host}")
        for address in candidates:
            sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.sock_connect(sock, (address, port))
            except OSError as error:
                sock.close()
                failure = error
                continue
            except BaseException:
                sock.close()
                raise
            # A name is looked up once, not for each of thousands of connections.
            self._addresses[host, port] = address
            return SocketConnection(sock, self._poller, on_idle)
        raise failure

    async def _open_protocol(self, host: str, port: int, on_idle: OnIdle, *, tls: bool) -> Connection:
        if tls and self._tls is None:
            self._tls = httpx.create_ssl_context(verify=self._verify)
        connection = ProtocolConnection(on_idle)
        await asyncio.get_running_loop().create_connection(
            lambda: connection, host, port, ssl=self._tls if tls else None
        )
        return connection


class _Body(httpx.AsyncByteStream):
    """The body of a response: empty with a sink, which has taken it."""

    def __init__(self, connection: Connection, exchange: Exchange, timeout: float | None) -> None:
        self._connection = connection
        self._exchange = exchange
        self._timeout = timeout

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while piece := await self._next():
                yield piece
        except TimeoutError as error:
            raise httpx.ReadTimeout("the answer stalled") from error
        except ConnectionBrokenError as error:
            raise httpx.RemoteProtocolError(str(error)) from error

    async def aclose(self) -> None:
        """Drop the connection unless the body was read to its end."""
        if not self._exchange.ended.done():
            self._connection.close()

    async def _next(self) -> bytes:
        if self._timeout is None:
            return await self._exchange.next_piece()
        return await asyncio.wait_for(self._exchange.next_piece(), self._timeout)


def _serialise(request: httpx.Request, body: bytes) -> bytes:
    """The request on the wire; the body is whole, so its length is told whatever the headers say."""
    lines = [b"%s %s HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
    lines += [
        b"%s: %s" % header
        for header in request.headers.raw
        if header[0].lower() not in (b"content-length", b"transfer-encoding")
    ]
    if body or request.method in ("POST", "PUT", "PATCH"):
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join((*lines, b"", body))


def _reason(error: OSError, host: str, port: int) -> str:
    refused = isinstance(error, ConnectionRefusedError)
    return f"{host}:{port}: {'connection refused' if refused else error.strerror or error}"
