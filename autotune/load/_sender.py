"""Sends one request and tells what came of it."""

from __future__ import annotations

import asyncio
import json
import time
from array import array
from dataclasses import dataclass
from typing import cast

import httpx

from autotune.load._body import PATHS
from autotune.load._wire import Row, Turn
from autotune.load.reader import StreamReader, error_text
from autotune.load.records import ErrorKind, TokenSource
from autotune.spec import Endpoint

_BODY_LIMIT = 64 * 2**10


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished request: its row for the parent, the gaps between its chunks, its text."""

    row: Row
    gaps: array[float]
    text: str


class Sender:
    """Sends requests of one run to one endpoint. All times are ``time.monotonic``."""

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport,
        base_url: str,
        endpoint: Endpoint,
        api_key: str | None,
        timeout: float,
    ) -> None:
        self._transport = transport
        self._url = httpx.URL(base_url.rstrip("/") + PATHS[endpoint])
        host = self._url.netloc.decode("ascii")
        headers = {
            "host": host,
            "content-type": "application/json",
            "accept": "text/event-stream",
            "user-agent": "autotune",
        }
        if api_key:
            headers["authorization"] = f"Bearer {api_key}"
        self._headers = httpx.Headers(headers)
        self._secret = api_key
        self._timeout = timeout

    async def send(self, turn: Turn, body: bytes, scheduled: float, *, keep_text: bool = False) -> Answer:
        """Send ``body`` now. Never raises for what the server or the network does."""
        reader = StreamReader(keep_text=keep_text)
        sent = time.monotonic()
        status: int | None = None
        failure: tuple[ErrorKind, str] | None
        try:
            # The time left counts from the scheduled arrival, as the latency does.
            async with asyncio.timeout(max(0.0, self._timeout - (sent - scheduled))):
                status, failure = await self._exchange(body, reader)
        except TimeoutError:
            failure = ErrorKind.TIMEOUT, f"no whole answer within {self._timeout:.4g} wall seconds"
        except asyncio.CancelledError:
            failure = ErrorKind.CANCELLED, ""
        except httpx.ConnectError as error:
            failure = ErrorKind.CONNECT, str(error)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            failure = ErrorKind.BROKEN_STREAM, str(error)
        now = time.monotonic()
        return self._answer(turn, reader, scheduled=scheduled, sent=sent, now=now, status=status, failure=failure)

    async def _exchange(self, body: bytes, reader: StreamReader) -> tuple[int, tuple[ErrorKind, str] | None]:
        # A stream and whole headers: httpx then takes the request as it is, at a third of the cost.
        request = httpx.Request(
            "POST", self._url, headers=self._headers, stream=httpx.ByteStream(body), extensions={"sink": reader}
        )
        response = await self._transport.handle_async_request(request)
        try:
            if response.status_code != 200:
                return response.status_code, _status_failure(response.status_code, await _read_some(response))
            try:
                async for piece in cast("httpx.AsyncByteStream", response.stream):
                    reader.feed(piece, time.monotonic())
            except httpx.RemoteProtocolError:
                # Without [DONE], but the finish reason was seen: the answer is whole all the same.
                if not reader.complete:
                    raise
            reader.close(time.monotonic())
            if reader.failure is not None and reader.events == 0:
                kind = response.headers.get("content-type", "")
                if "event-stream" not in kind:
                    return 200, (ErrorKind.BROKEN_STREAM, f"not an event stream but '{kind}'")
            return 200, reader.failure
        finally:
            await response.aclose()

    def _answer(
        self,
        turn: Turn,
        reader: StreamReader,
        *,
        scheduled: float,
        sent: float,
        now: float,
        status: int | None,
        failure: tuple[ErrorKind, str] | None,
    ) -> Answer:
        succeeded = failure is None
        kind, detail = failure or (None, "")
        if self._secret:
            detail = detail.replace(self._secret, "***")
        row: Row = [
            turn["index"],
            scheduled,
            sent,
            reader.first_token,
            reader.last_token,
            reader.finished if succeeded and reader.finished is not None else now,
            turn["input"] if reader.input_tokens is None else reader.input_tokens,
            reader.output_tokens if succeeded else 0,
            reader.token_source if succeeded else TokenSource.NONE,
            reader.chunks,
            kind,
            detail,
            status,
            reader.finish_reason,
            max(reader.gaps, default=None),
        ]
        return Answer(row, reader.gaps, reader.text)


def _status_failure(status: int, body: bytes) -> tuple[ErrorKind, str]:
    text = " ".join(body.decode("utf-8", "replace").split())
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    reason = error_text(document) if isinstance(document, dict) else text[:300] or httpx.codes.get_reason_phrase(status)
    missing_model = status == 404 and "model" in reason.lower()
    return (ErrorKind.WRONG_MODEL if missing_model else ErrorKind.HTTP_STATUS), f"HTTP {status}: {reason}"


async def _read_some(response: httpx.Response) -> bytes:
    body = b""
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > _BODY_LIMIT:
            break
    return body
