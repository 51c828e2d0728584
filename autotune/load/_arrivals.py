"""When requests arrive: streams of unit rate, stretched to the rate that is asked for.

The same ``(seed, stream)`` gives the same pattern at every rate, so that configurations which are compared
at different rates still share their luck.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import numpy as np

from autotune.spec import Ramp
from autotune.spec.dataset import Dataset

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


def ramped(times: Iterator[float], ramp: Ramp) -> Iterator[float]:
    """Arrivals whose rate grows linearly from a share of it to all of it, then stays.

    Args:
        times: arrivals at the full rate.
        ramp: with its ``seconds`` and the share at its start.
    """
    start, span = ramp.start, ramp.seconds
    through = span * (1 + start) / 2
    growth = (1 - start) / span
    for time in times:
        if time >= through:
            yield span + time - through
        elif growth == 0:
            yield time
        else:
            # Inverse of the integral of the rate: start * t + growth * t^2 / 2 = time.
            yield (math.sqrt(start * start + 2 * growth * time) - start) / growth


def replayed(dataset: Dataset, rate: float) -> Iterator[float]:
    """Arrivals in the pattern of a trace, stretched so that their mean rate is ``rate``; over again at its end."""
    stretch = dataset.rate / rate
    times = [row.at or 0.0 for row in dataset.rows]
    period = times[-1] + 1 / dataset.rate
    lap = 0
    while True:
        for time in times:
            yield (lap * period + time) * stretch
        lap += 1
