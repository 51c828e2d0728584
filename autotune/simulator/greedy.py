"""Greedy answers with log-probabilities, of an engine that has no weights: the same for the same prompt.

At each position two tokens compete, with a gap between their log-probabilities that a hash draws from an exponential
distribution. Formats with fewer bits move the gap by a normal error; where the error exceeds the gap the other token
wins, and the answer goes another way from there. The spreads are assumptions that order the formats, not measurements.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from statistics import NormalDist

_MEAN_GAP = 2.0
_LEAST_SHARE = 1e-6
_FOUR_BIT_SPREAD, _EIGHT_BIT_SPREAD, _KV_SPREAD = 0.2, 0.04, 0.02
_WEIGHT_SPREADS = {"fp8": _EIGHT_BIT_SPREAD, "int8": _EIGHT_BIT_SPREAD, "compressed-tensors": _EIGHT_BIT_SPREAD,
                   "modelopt": _EIGHT_BIT_SPREAD}  # fmt: skip

TopTokens = dict[int, float]
"""Log-probabilities of the two best tokens of a position, the chosen one first."""


def greedy_answer(
    prompt: Sequence[int], count: int, vocabulary: int, *, quantization: str | None, kv_dtype: str
) -> list[TopTokens]:
    """The ``count`` tokens that temperature 0 gives, as weights and KV cache of these formats compute them."""
    spreads = {f"weights {quantization}": _weight_spread(quantization), f"kv {kv_dtype}": _kv_spread(kv_dtype)}
    context = _hash(" ".join(map(str, prompt)))
    answer: list[TopTokens] = []
    for position in range(count):
        drawn = f"{context}:{position}"
        best = _hash(drawn + ":best") % vocabulary
        other = (best + 1 + _hash(drawn + ":other") % (vocabulary - 1)) % vocabulary
        gap = -_MEAN_GAP * math.log(_share(drawn + ":gap"))
        gap += sum(spread * _normal(f"{drawn}:{format}") for format, spread in spreads.items() if spread)
        if gap < 0:
            best, other, gap = other, best, -gap
        answer.append({best: -math.log1p(math.exp(-gap)), other: -gap - math.log1p(math.exp(-gap))})
        context = _hash(f"{context}:{best}")
    return answer


def _weight_spread(quantization: str | None) -> float:
    if quantization is None:
        return 0.0
    return next((s for name, s in _WEIGHT_SPREADS.items() if quantization.startswith(name)), _FOUR_BIT_SPREAD)


def _kv_spread(dtype: str) -> float:
    if dtype.startswith(("fp8", "int8")):
        return _KV_SPREAD
    return _FOUR_BIT_SPREAD if dtype.startswith(("int4", "nvfp4")) else 0.0


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())


def _share(text: str) -> float:
    """Uniform between 0 and 1, exclusive."""
    return max(_LEAST_SHARE, min(1 - _LEAST_SHARE, (_hash(text) + 0.5) / 2**32))


def _normal(text: str) -> float:
    return NormalDist().inv_cdf(_share(text))
