"""The usual case of a stream: one read that holds one chunk that holds one token. It decides the cost.

Everything else goes through the parser of HTTP and the reader of events. Both say when their state is such
that the next bytes may take the shortcut, and what to compare them with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

_LARGEST = 4096


class Shortcut(NamedTuple):
    """An event of a plain token is ``before`` + the token's text + ``after``; ``note`` is told its time."""

    before: bytes
    after: bytes
    note: Callable[[float], None]


def _chunk_head(length: int) -> bytes:
    """The size line of the only chunk in ``length`` bytes, as servers write it; empty if there is none."""
    for digits in (1, 2, 3, 4):
        size = length - digits - 4
        if size > 0 and len(f"{size:x}") == digits:
            return b"%x\r\n" % size
    return b""


_HEADS = tuple(_chunk_head(length) for length in range(_LARGEST))


def take(shortcut: Shortcut, data: bytes, now: float) -> bool:
    """Count ``data`` as a plain token if that is all it can be."""
    before, after, note = shortcut
    length = len(data)
    if length >= _LARGEST:
        return False
    head = _HEADS[length]
    start = len(head)
    if not (start and data.startswith(head) and data.startswith(before, start) and data.endswith(b"\r\n")):
        return False
    stop = length - 2 - len(after)
    text = data[start + len(before) : stop]
    if not text or not data.endswith(after, 0, length - 2) or not is_plain_text(text):
        return False
    note(now)
    return True


def is_plain_text(text: bytes) -> bool:
    """True when ``text`` can only be the inside of one JSON string."""
    return not (b'"' in text or b"\n" in text or b"\r" in text or text.endswith(b"\\"))
