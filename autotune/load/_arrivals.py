"""When requests arrive: streams of unit rate, stretched to the rate that is asked for.

The same ``(seed, stream)`` gives the same pattern at every rate, so that configurations which are compared
at different rates still share their luck.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import numpy as np

_PAGE = 512


def random_stream(seed: int, stream: str, purpose: str) -> np.random.Generator:
    """A generator that depends on the three names alone; different names give independent streams."""
    digest = hashlib.sha256(f"{seed}/{stream}/{purpose}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "big")))


def unit_arrivals(seed: int, stream: str, burstiness: float) -> Iterator[float]:
    """Arrival times of a renewal process with mean gap 1 and gamma gaps of shape ``burstiness``."""
    generator = random_stream(seed, stream, "arrivals")
    now = 0.0
    while True:
        gaps = np.ones(_PAGE) if math.isinf(burstiness) else generator.gamma(burstiness, 1 / burstiness, _PAGE)
        times = now + np.cumsum(gaps)
        now = float(times[-1])
        yield from times.tolist()
