"""How far the simulated engine is behind its clock: the mean over what it delivered lately."""

from __future__ import annotations

import time
from collections.abc import Callable

_WINDOW_S = 1.0


class LagMeter:
    """Mean lateness (wall seconds) of the deliveries of the last one to two wall seconds.

    A mean, since one stall of the machine delays the tokens that were due in it and no others: a probe is
    spoiled by an engine that is late for much of its time.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._windows = [(0.0, 0), (0.0, 0)]
        self._started = monotonic()

    def note(self, lag: float) -> None:
        """A delivery that was ``lag`` wall seconds late."""
        self._roll()
        total, count = self._windows[1]
        self._windows[1] = (total + lag, count + 1)

    def mean(self) -> float:
        """Wall seconds; zero when nothing was delivered lately."""
        self._roll()
        count = sum(n for _, n in self._windows)
        return sum(total for total, _ in self._windows) / count if count else 0.0

    def _roll(self) -> None:
        elapsed = self._monotonic() - self._started
        if elapsed > _WINDOW_S:
            self._windows = [self._windows[1] if elapsed < 2 * _WINDOW_S else (0.0, 0), (0.0, 0)]
            self._started = self._monotonic()
