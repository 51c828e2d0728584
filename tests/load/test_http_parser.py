"""The HTTP/1.1 response parser, however the bytes are cut."""

from __future__ import annotations

import contextlib
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.load._http import MalformedResponseError, ResponseParser

CHUNKED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n1;name=value\r\n \r\n00a\r\nwide world\r\n0\r\ntrailer: x\r\n\r\n"
)
COUNTED = b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\nConnection: close\r\n\r\nnot found"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + COUNTED
UNTIL_CLOSE = b"HTTP/1.0 200 OK\r\n\r\nall of it"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"


class Parsed:
    """A response fed in pieces."""

    def __init__(self, pieces: list[bytes], method: bytes = b"POST") -> None:
        self.status = 0
        self.body = b""
        parser = ResponseParser(method, self.on_head, self.on_body)
        for piece in pieces:
            parser.feed(piece)
        self.ended = parser.ended
        self.reusable = parser.reusable
        self.whole = parser.end_of_stream()

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        assert not self.status
        self.status = status

    def on_body(self, data: bytes) -> None:
        assert data
        self.body += data

    @property
    def all(self) -> tuple[int, bytes, bool, bool, bool]:
        return self.status, self.body, self.ended, self.reusable, self.whole


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (CHUNKED, (200, b"hello wide world", True, True, True)),
        (COUNTED, (404, b"not found", True, False, True)),
        (CONTINUED, (404, b"not found", True, False, True)),
        (UNTIL_CLOSE, (200, b"all of it", False, False, True)),
        (EMPTY, (204, b"", True, True, True)),
        (COUNTED[:-2], (404, b"not fou", False, False, False)),
        (CHUNKED[:-2], (200, b"hello wide world", False, False, False)),
    ],
)
@given(cuts=st.lists(st.integers(0, 200), max_size=8))
@settings(max_examples=60, deadline=None)
def test_a_response_reads_the_same_however_cut(
    data: bytes, expected: tuple[int, bytes, bool, bool, bool], cuts: list[int]
) -> None:
    marks = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in pairwise(marks)]
    assert Parsed(pieces).all == expected


def test_a_head_request_has_no_body() -> None:
    assert Parsed([b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n"], b"HEAD").all == (200, b"", True, True, True)


def test_bytes_after_the_response_make_the_connection_useless() -> None:
    assert Parsed([EMPTY + b"HTTP"]).reusable is False


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1e3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnot hex\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000,
    ],
)
def test_what_is_not_http_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedResponseError):
        Parsed([data])


@given(st.lists(st.binary(max_size=60), max_size=10))
@settings(deadline=None)
def test_random_bytes_end_in_a_response_or_a_refusal(pieces: list[bytes]) -> None:
    with contextlib.suppress(MalformedResponseError):
        Parsed(pieces)
