"""What a streamed chat answer says, line by line; shared by the terminal and the page."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypedDict

URL = "AUTOTUNE_CHAT_URL"
MODEL = "AUTOTUNE_CHAT_MODEL"
MAX_TOKENS = "AUTOTUNE_CHAT_MAX_TOKENS"
API_KEY = "OPENAI_API_KEY"
"""Environment variables of the page; the key is only read, never written."""


class Message(TypedDict):
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Piece:
    """One event: ``text`` is what to show (reasoning included), ``answer`` what belongs to the answer."""

    text: str = ""
    answer: str = ""
    output_tokens: int | None = None
    error: str = ""


def piece_of(line: str) -> Piece:
    """Read one line of a stream; comments, ``[DONE]`` and what cannot be read are empty pieces."""
    if not line.startswith("data:"):
        return Piece()
    try:
        event: Any = json.loads(line.removeprefix("data:"))
    except ValueError:
        return Piece()
    if not isinstance(event, dict):
        return Piece()
    if event.get("error"):
        error = event["error"]
        return Piece(error=str(error.get("message", error) if isinstance(error, dict) else error))
    usage = event.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    choices = event.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    answer = delta.get("content") or ""
    thought = delta.get("reasoning") or delta.get("reasoning_content") or ""
    return Piece(thought + answer, answer, tokens)


def describe_error(status: int, body: bytes) -> str:
    """An HTTP error in one line, with the server's own words."""
    try:
        document: Any = json.loads(body)
        error = document.get("error", document)
        words = error.get("message", "") if isinstance(error, dict) else str(error)
    except (ValueError, AttributeError):
        words = body.decode("utf-8", "replace")
    return f"The engine refused with HTTP {status}: {' '.join(str(words).split())[:300] or 'no reason given'}"
