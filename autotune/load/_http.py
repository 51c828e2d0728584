"""Incremental HTTP/1.1 response parsing without input and output: RFC 9112, what a client needs of it."""

from __future__ import annotations

import re
from collections.abc import Callable

_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]*)?\r?\n")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([0-9]{3})(?: [^\r\n]*)?")
_MAX_HEAD = 64 * 2**10
_NO_BODY = (204, 304)


class MalformedResponseError(Exception):
    """The bytes are not an HTTP/1.1 response."""


class ResponseParser:
    """Parses one response. ``on_head`` is called once, ``on_body`` with every piece of the body.

    Pieces are handed on as they come: a piece is never held back to make it larger.
    """

    __slots__ = (
        "_chunked",
        "_keep_alive",
        "_left",
        "_on_body",
        "_on_head",
        "_request_method",
        "_rest",
        "_step",
        "ended",
        "started",
    )

    def __init__(
        self,
        request_method: bytes,
        on_head: Callable[[int, list[tuple[bytes, bytes]]], None],
        on_body: Callable[[bytes], None],
    ) -> None:
        self._request_method = request_method
        self._on_head = on_head
        self._on_body = on_body
        self._step = self._head
        self._rest = b""
        self._left = 0
        self._chunked = False
        self._keep_alive = False
        self.ended = False
        """True once the whole response was read."""
        self.started = False
        """True once a byte of the response arrived."""

    @property
    def reusable(self) -> bool:
        """True when the connection may carry another request."""
        return self.ended and self._keep_alive and not self._rest

    @property
    def between_chunks(self) -> bool:
        """True when the next byte begins a chunk."""
        return self._chunked and not self._rest and self._step == self._chunk_size

    def feed(self, data: bytes) -> None:
        """Take bytes from the connection.

        Raises:
            MalformedResponseError: they cannot be a response.
        """
        self.started = True
        buffer = self._rest + data if self._rest else data
        position = 0
        # Each step consumes one element and names the next step; -1 when it needs more bytes.
        while not self.ended and (advanced := self._step(buffer, position)) >= 0:
            position = advanced
        self._rest = buffer[position:]

    def end_of_stream(self) -> bool:
        """The server closed. True when the response is whole nevertheless."""
        if self._step == self._until_close:
            self.ended = True
            self._keep_alive = False
        return self.ended

    def _head(self, buffer: bytes, position: int) -> int:
        end = buffer.find(b"\r\n\r\n", position)
        if end < 0:
            if len(buffer) - position > _MAX_HEAD:
                raise MalformedResponseError("response head of more than 64 KiB")
            if position < len(buffer) and not b"HTTP/1.".startswith(buffer[position : position + 7]):
                raise MalformedResponseError(f"not HTTP/1.1: {buffer[position : position + 40]!r}")
            return -1
        lines = buffer[position:end].split(b"\r\n")
        status_line = _STATUS_LINE.fullmatch(lines[0])
        if status_line is None:
            raise MalformedResponseError(f"not a status line: {lines[0][:80]!r}")
        status = int(status_line.group(2))
        headers = [_header(line) for line in lines[1:]]
        if 100 <= status < 200:
            return end + 4
        self._frame_body(status, status_line.group(1) == b"1", headers)
        self._on_head(status, headers)
        return end + 4

    def _frame_body(self, status: int, version_1_1: bool, headers: list[tuple[bytes, bytes]]) -> None:
        fields = {name.lower(): value for name, value in headers}
        connection = fields.get(b"connection", b"").lower()
        self._keep_alive = b"close" not in connection and (version_1_1 or b"keep-alive" in connection)
        length = fields.get(b"content-length")
        if self._request_method == b"HEAD" or status in _NO_BODY:
            self.ended = True
        elif b"chunked" in fields.get(b"transfer-encoding", b"").lower():
            self._chunked = True
            self._step = self._chunk_size
        elif length is not None:
            if not length.isdigit():
                raise MalformedResponseError(f"content-length {length[:40]!r}")
            self._left = int(length)
            self._step = self._counted
            self.ended = not self._left
        else:
            self._step = self._until_close

    def _chunk_size(self, buffer: bytes, position: int) -> int:
        match = _CHUNK_SIZE.match(buffer, position)
        if match is None:
            if b"\n" in buffer[position:] or len(buffer) - position > 1024:
                raise MalformedResponseError(f"not a chunk size: {buffer[position : position + 40]!r}")
            return -1
        self._left = int(match.group(1), 16)
        self._step = self._counted if self._left else self._trailer
        return match.end()

    def _counted(self, buffer: bytes, position: int) -> int:
        piece = buffer[position : position + self._left]
        if not piece:
            return -1
        self._left -= len(piece)
        if not self._left:
            if self._chunked:
                self._step = self._chunk_end
            else:
                self.ended = True
        self._on_body(piece)
        return position + len(piece)

    def _chunk_end(self, buffer: bytes, position: int) -> int:
        end = buffer[position : position + 2]
        if len(end) < 2:
            return -1
        if end != b"\r\n":
            raise MalformedResponseError(f"chunk ends with {end!r}")
        self._step = self._chunk_size
        return position + 2

    def _until_close(self, buffer: bytes, position: int) -> int:
        if position == len(buffer):
            return -1
        self._on_body(buffer[position:])
        return len(buffer)

    def _trailer(self, buffer: bytes, position: int) -> int:
        end = buffer.find(b"\r\n", position)
        if end < 0:
            if len(buffer) - position > _MAX_HEAD:
                raise MalformedResponseError("trailers of more than 64 KiB")
            return -1
        if end == position:
            self.ended = True
        return end + 2


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not name or name != name.strip():
        raise MalformedResponseError(f"not a header: {line[:80]!r}")
    return name, value.strip()
