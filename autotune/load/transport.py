"""A transport for httpx that costs little per streamed chunk.

``httpx.AsyncClient(transport=StreamTransport())`` behaves as with httpx's own transport for what this
program needs: HTTP/1.1 over TCP or TLS, connections kept alive, no limit on their number, no proxies. A
request that carries the extension ``"sink"`` (a :class:`BodySink`) has its body handed to the sink inside
the event loop's read callback; its response's stream is then empty and ends with the body. Why it exists
and what it saves: ``docs/decisions/0003-http-transport.md``.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable

import httpx

from autotune.load._connection import BodySink, Connection, ConnectionBrokenError, Head

__all__ = ["BodySink", "StreamTransport"]

_DEFAULT_PORTS = {"http": 80, "https": 443}

_Origin = tuple[str, str, int]


class StreamTransport(httpx.AsyncBaseTransport):
    """HTTP/1.1 client transport on asyncio protocols. Use it from one event loop only.

    Args:
        keepalive_expiry: wall seconds after which an idle connection is not used again. Below the 5 s after
            which uvicorn closes one, so that a request never meets a connection that is being closed.
        verify: certificate check of TLS servers, as httpx has it.
    """

    def __init__(self, *, keepalive_expiry: float = 4.0, verify: bool = True) -> None:
        self._keepalive_expiry = keepalive_expiry
        self._verify = verify
        self._tls: ssl.SSLContext | None = None
        self._idle: dict[_Origin, list[Connection]] = {}
        self._open: set[Connection] = set()
        self._addresses: dict[tuple[str, int], str] = {}
        self.reconnects = 0
        """Requests sent again because a kept connection was gone before a byte of the answer."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; the response's head has arrived when this returns.

        Raises:
            httpx.ConnectError, httpx.ConnectTimeout: no connection.
            httpx.ReadTimeout: no head in time. The body is not timed.
            httpx.RemoteProtocolError: the answer is not HTTP, or broke off.
        """
        timeouts: dict[str, float | None] = request.extensions.get("timeout", {})
        sink: BodySink | None = request.extensions.get("sink")
        message = _serialise(request, await request.aread())
        method = request.method.encode()
        connection, head = await self._exchange(request, method, message, sink, timeouts)
        with_sink = sink is not None and head.status == 200
        return httpx.Response(
            status_code=head.status,
            headers=head.headers,
            stream=_Body(connection, timeouts.get("read"), with_sink=with_sink),
            extensions={"http_version": b"HTTP/1.1"},
        )

    async def aclose(self) -> None:
        """Close every connection."""
        for connection in list(self._open):
            connection.close()
        self._open.clear()
        self._idle.clear()

    async def _exchange(
        self,
        request: httpx.Request,
        method: bytes,
        message: bytes,
        sink: BodySink | None,
        timeouts: dict[str, float | None],
    ) -> tuple[Connection, Head]:
        origin = (request.url.scheme, request.url.host, request.url.port or _DEFAULT_PORTS.get(request.url.scheme, 0))
        while True:
            connection = self._take_idle(origin) or await self._connect(origin, timeouts.get("connect"))
            reused = connection.used
            try:
                head = connection.send(method, message, sink)
                if (limit := timeouts.get("read")) is not None:
                    return connection, await asyncio.wait_for(head, limit)
                return connection, await head
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
        if scheme == "https" and self._tls is None:
            self._tls = httpx.create_ssl_context(verify=self._verify)
        idle = self._idle.setdefault(origin, [])
        loop = asyncio.get_running_loop()
        connection = Connection(_returner(idle))
        opening = loop.create_connection(
            lambda: connection,
            self._addresses.get((host, port), host),
            port,
            ssl=self._tls if scheme == "https" else None,
            server_hostname=host if scheme == "https" else None,
        )
        try:
            transport, _ = await (opening if timeout is None else asyncio.wait_for(opening, timeout))
        except TimeoutError as error:
            raise httpx.ConnectTimeout(f"no connection to {host}:{port} in {timeout:g} s") from error
        except OSError as error:
            raise httpx.ConnectError(_reason(error, host, port)) from error
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            # A name is looked up once, not for each of thousands of connections.
            self._addresses[host, port] = str(peer[0])
        self._open = {known for known in self._open if not known.closed} if len(self._open) % 64 == 63 else self._open
        self._open.add(connection)
        return connection


class _Body(httpx.AsyncByteStream):
    """The body of a response: empty with a sink, which has taken it."""

    def __init__(self, connection: Connection, timeout: float | None, *, with_sink: bool) -> None:
        self._connection = connection
        self._timeout = timeout
        self._with_sink = with_sink
        self._ended = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            if self._with_sink:
                await self._connection.wait_ended()
            else:
                while piece := await asyncio.wait_for(self._connection.next_piece(), self._timeout):
                    yield piece
            self._ended = True
        except TimeoutError as error:
            raise httpx.ReadTimeout("the answer stalled") from error
        except ConnectionBrokenError as error:
            raise httpx.RemoteProtocolError(str(error)) from error

    async def aclose(self) -> None:
        """Drop the connection unless the body was read to its end."""
        if not self._ended:
            self._connection.close()


def _returner(idle: list[Connection]) -> Callable[[Connection], None]:
    return idle.append


def _serialise(request: httpx.Request, body: bytes) -> bytes:
    lines = [request.method.encode() + b" " + request.url.raw_path + b" HTTP/1.1"]
    lines += [name + b": " + value for name, value in request.headers.raw]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _reason(error: OSError, host: str, port: int) -> str:
    refused = isinstance(error, ConnectionRefusedError)
    return f"{host}:{port}: {'connection refused' if refused else error.strerror or error}"
