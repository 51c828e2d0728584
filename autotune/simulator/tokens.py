"""Text and token ids of an engine that has no tokenizer and no weights.

Pieces of prompts become ids by hashing; answers are words of a fixed text, one word a token, so that counts of tokens
can be checked from the text alone.
"""

from __future__ import annotations

import itertools
import math
import re
import zlib
from array import array
from collections.abc import Sequence

from autotune.simulator.blocks import BlockKey

_PIECES = re.compile(r" ?[A-Za-z]{1,7}| ?\d{1,3}| ?[^\sA-Za-z0-9]|\s+")
_SENTENCE = (
    "this is a simulated answer : no model was run and every word here stands for one token of the output that a real "
    "engine would have written at this moment of its schedule"
)
_WORDS = _SENTENCE.split()
_TEXT = "".join(f" {word}" for word in itertools.islice(itertools.cycle(_WORDS), 8192))
_OFFSETS = [0, *itertools.accumulate(len(word) + 1 for word in itertools.islice(itertools.cycle(_WORDS), 8192))]
_CYCLE = len(_WORDS)


def encode(text: str, vocabulary: int) -> list[int]:
    """Token ids of a text: about one per word or punctuation mark, the same for the same text."""
    return [zlib.crc32(piece.encode()) % vocabulary for piece in _PIECES.findall(text)] or [0]


def answer_text(first: int, last: int) -> str:
    """The answer's tokens ``first`` to ``last`` (exclusive), one word each."""
    if last - first > len(_OFFSETS) - 1 - _CYCLE:
        half = (first + last) // 2
        return answer_text(first, half) + answer_text(half, last)
    start = first % _CYCLE
    return _TEXT[_OFFSETS[start] : _OFFSETS[start + last - first]]


def block_keys(tokens: Sequence[int], block_size: int) -> list[BlockKey]:
    """Keys of the full blocks of a prompt; each depends on everything before it."""
    raw = array("Q", tokens).tobytes()
    width = 8 * block_size
    keys: list[BlockKey] = []
    previous = 0
    for start in range(0, len(raw) - width + 1, width):
        previous = hash((previous, raw[start : start + width]))
        keys.append(previous)
    return keys


def natural_length(seed: int, key: int, minimum: int) -> int:
    """Tokens after which a model would have stopped by itself: log-normal around 300, the same for the same prompt."""
    uniform = (zlib.crc32(f"{seed}:{key}".encode()) + 0.5) / 2**32
    uniform2 = (zlib.crc32(f"{key}:{seed}".encode()) + 0.5) / 2**32
    normal = math.sqrt(-2.0 * math.log(uniform)) * math.cos(2.0 * math.pi * uniform2)
    return max(1, minimum, round(300 * math.exp(0.6 * normal)))
