"""Clocks. Every duration in a study is read from one, so that the simulated engine can run scaled.

Times are seconds of the *engine's* time: on a real engine that is wall time; on the simulated engine
running at scale 60, one wall second is 60 engine seconds. The epoch is the machine's monotonic clock,
which all processes of one machine share, so clocks of the same scale agree across processes.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Source of engine time."""

    def now(self) -> float:
        """Engine time in seconds; only differences mean anything."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Suspend for a span of engine time; a span of zero or less only yields."""
        ...


@dataclass(frozen=True, slots=True)
class WallClock:
    """The machine's monotonic clock, sped up by ``scale`` (1 = real time). Picklable."""

    scale: float = 1.0

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ValueError(f"clock scale must be positive, not {self.scale}")

    def now(self) -> float:
        """Engine time in seconds since the machine's monotonic epoch, times the scale."""
        return time.monotonic() * self.scale

    async def sleep(self, seconds: float) -> None:
        """Sleep ``seconds`` of engine time."""
        await asyncio.sleep(max(0.0, seconds) / self.scale)


class VirtualClock:
    """Engine time that passes only when it is told to: nothing sleeps."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        """Engine time in seconds."""
        return self._now

    def advance_to(self, moment: float) -> None:
        """Let time pass up to ``moment``; time never goes back."""
        self._now = max(self._now, moment)

    async def sleep(self, seconds: float) -> None:
        """Let ``seconds`` of engine time pass at once."""
        self._now += max(0.0, seconds)
