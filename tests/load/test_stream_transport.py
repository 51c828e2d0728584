"""The transport under httpx's own client."""

from __future__ import annotations

import asyncio
import select
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from autotune.load.reader import StreamReader
from autotune.load.transport import StreamTransport

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@asynccontextmanager
async def server(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = listening.sockets[0].getsockname()[1]
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"
    finally:
        listening.close()


def client(**options: float) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=StreamTransport(**options), timeout=5)  # type: ignore[arg-type]


async def request_of(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    return head + await reader.readexactly(length)


async def test_requests_share_one_connection_and_arrive_as_httpx_made_them() -> None:
    seen: list[bytes] = []
    connections = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            seen.append(await request_of(reader))
            writer.write(OK)

    async with server(handler) as url, client() as http:
        answers = [await http.post(f"{url}/path?q=1", json={"a": 1}) for _ in range(3)]
    assert [answer.text for answer in answers] == ["ok"] * 3
    assert connections == 1
    assert seen[0].startswith(b"POST /path?q=1 HTTP/1.1\r\n")
    assert seen[0].endswith(b'\r\n\r\n{"a":1}')
    assert b"host: 127.0.0.1:" in seen[0].lower()


async def test_a_kept_connection_that_the_server_closed_is_opened_again() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(OK)
        await request_of(reader)  # The second request on a connection finds it closed.

    transport = StreamTransport()
    async with server(handler) as url, httpx.AsyncClient(transport=transport) as http:
        assert (await http.get(url)).text == "ok"
        assert (await http.get(url)).text == "ok"
    assert transport.reconnects == 1


async def test_an_idle_connection_is_not_used_after_its_expiry() -> None:
    connections = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            await request_of(reader)
            writer.write(OK)

    async with server(handler) as url, client(keepalive_expiry=0.0) as http:
        await http.get(url)
        await http.get(url)
    assert connections == 2


async def test_a_fresh_connection_is_not_tried_twice() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)

    async with server(handler) as url, client() as http:
        with pytest.raises(httpx.RemoteProtocolError, match="without an answer"):
            await http.get(url)


async def test_a_body_is_streamed_as_it_comes_and_a_broken_one_raises() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for piece in (b"3\r\none\r\n", b"3\r\ntwo\r\n"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.02)

    pieces: list[bytes] = []

    async def collect(response: httpx.Response) -> None:
        async for piece in response.aiter_raw():
            pieces.append(piece)  # noqa: PERF401

    async with server(handler) as url, client() as http, http.stream("GET", url) as response:
        with pytest.raises(httpx.RemoteProtocolError, match="before the answer was whole"):
            await collect(response)
    assert pieces == [b"one", b"two"]


async def test_timeouts_are_httpxs() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        await asyncio.sleep(1)

    async with server(handler) as url, client() as http:
        with pytest.raises(httpx.ReadTimeout):
            await http.get(url, timeout=0.05)


async def test_no_server_and_no_such_name_are_connect_errors() -> None:
    async with client() as http:
        with pytest.raises(httpx.ConnectError, match=r"127\.0\.0\.1:9: connection refused"):
            await http.get("http://127.0.0.1:9")
        with pytest.raises(httpx.ConnectError):
            await http.get("http://no-such-host.invalid")
        with pytest.raises(httpx.UnsupportedProtocol):
            await http.get("ftp://127.0.0.1")


async def test_what_is_not_http_is_a_protocol_error() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")
        await asyncio.sleep(0.2)

    async with server(handler) as url, client() as http:
        with pytest.raises(httpx.RemoteProtocolError):
            await http.get(url)


async def test_a_sink_takes_the_body_and_its_end_ends_the_response() -> None:
    event = b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n'

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(5):
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n")
        await asyncio.sleep(5)  # Never ends the body.

    sink = StreamReader()
    async with server(handler) as url, client() as http:
        request = http.build_request("POST", url, extensions={"sink": sink})
        response = await http.send(request, stream=True)
        assert [piece async for piece in response.aiter_raw()] == []
        await response.aclose()
    assert sink.chunks == 5
    assert sink.saw_done


async def test_a_sink_is_not_given_the_body_of_a_refusal() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"HTTP/1.1 500 X\r\ncontent-length: 4\r\n\r\noops")

    sink = StreamReader()
    async with server(handler) as url, client() as http:
        request = http.build_request("POST", url, extensions={"sink": sink})
        response = await http.send(request, stream=True)
        assert await response.aread() == b"oops"
    assert sink.events == 0


async def test_many_connections_at_once() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        await asyncio.sleep(0.05)
        writer.write(OK)

    async with server(handler) as url, client() as http:
        answers = await asyncio.gather(*(http.get(url) for _ in range(150)))
    assert [answer.text for answer in answers] == ["ok"] * 150


async def test_a_large_request_body_is_sent_whole() -> None:
    body = bytes(range(256)) * 40_000

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received = await request_of(reader)
        assert received.endswith(body)
        writer.write(OK)

    async with server(handler) as url, client() as http:
        assert (await http.post(url, content=body)).text == "ok"


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A self-signed certificate and its key in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    path = tmp_path / "both.pem"
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    path.write_text(key.read_text() + cert.read_text())
    return path


async def test_tls_streams_too_and_checks_certificates(certificate: Path) -> None:
    event = b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n'

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request_of(reader)
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            for data in (event, event, event, b"data: [DONE]\n\n"):
                writer.write(b"%x\r\n%s\r\n" % (len(data), data))
                await writer.drain()
                await asyncio.sleep(0.01)
            writer.write(b"0\r\n\r\n")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    async with server(handler, context) as url:
        async with httpx.AsyncClient(transport=StreamTransport(verify=False)) as http:
            for _ in range(2):
                sink = StreamReader()
                request = http.build_request("POST", url, extensions={"sink": sink})
                await (await http.send(request, stream=True)).aread()
                assert (sink.chunks, sink.saw_done) == (3, True)
        async with client() as http:
            with pytest.raises(httpx.ConnectError, match="certificate"):
                await http.post(url)


async def test_without_epoll_asyncio_carries_plain_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "epoll")

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request_of(reader)
            writer.write(OK)

    async with server(handler) as url, client() as http:
        assert [(await http.get(url)).text for _ in range(2)] == ["ok", "ok"]
