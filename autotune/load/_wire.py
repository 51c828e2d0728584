"""Messages between the load generator and its worker processes: length-prefixed JSON on a socket pair."""

from __future__ import annotations

import asyncio
import json
import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict

_HEADER = struct.Struct(">IB")
_JSON, _GAPS = 0, 1

Message = Mapping[str, Any]
"""A JSON object with a ``"type"``; the keys of each type are those of the TypedDicts here."""


class Prompt(TypedDict):
    """What one request asks. Exactly one of ``tokens``, ``text`` and ``messages`` is there.

    ``tokens``: spans of token ids that the worker draws, each ``[seed, count]``. ``words``: the same spans
    as words, for an endpoint that takes text.
    """

    tokens: NotRequired[list[list[int]]]
    words: NotRequired[list[list[int]]]
    text: NotRequired[str]
    messages: NotRequired[list[dict[str, str]]]


class Turn(TypedDict):
    """One request of a conversation; ``wait`` wall seconds pass between the answer before it and this."""

    index: int
    prompt: Prompt
    input: int
    output: int
    wait: float


class Job(TypedDict):
    """A conversation (usually of one turn); ``at`` wall seconds after the start, None in a closed loop.

    ``think`` wall seconds pass after it before a user of a closed loop begins the next one.
    """

    at: float | None
    turns: list[Turn]
    think: float


class Setup(TypedDict):
    """First message to a worker: whom to send to."""

    type: Literal["setup"]
    url: str
    model: str
    vocabulary: int
    api_key: str | None


class RunOrder(TypedDict):
    """Prepare a run. ``users`` is None in an open loop; ``timeout`` is in wall seconds."""

    type: Literal["run"]
    run: int
    endpoint: str
    users: int | None
    timeout: float
    ignore_eos: bool


Row = list[Any]
"""A finished request as it travels: see ``ROW_FIELDS``."""

ROW_FIELDS = (
    "index",
    "scheduled",
    "sent",
    "first_token",
    "last_token",
    "finished",
    "input_tokens",
    "output_tokens",
    "token_source",
    "chunks",
    "error",
    "detail",
    "http_status",
    "finish_reason",
    "max_gap",
)


def encode(message: Message) -> bytes:
    """A JSON message as it travels."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return _HEADER.pack(len(body), _JSON) + body


def encode_gaps(gaps: Sequence[float]) -> bytes:
    """Inter-chunk gaps (wall seconds) as they travel: single precision."""
    body = array("f", gaps).tobytes()
    return _HEADER.pack(len(body), _GAPS) + body


async def receive(reader: asyncio.StreamReader) -> Message | array[float] | None:
    """The next message, or gaps; None when the other side is gone."""
    try:
        size, kind = _HEADER.unpack(await reader.readexactly(_HEADER.size))
        body = await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    if kind == _GAPS:
        gaps = array("f")
        gaps.frombytes(body)
        return gaps
    message: Message = json.loads(body)
    return message
