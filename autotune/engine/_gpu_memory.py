"""How much of the GPU is taken before an engine starts: a trial must not pay for what another process holds."""

from __future__ import annotations

import time
from collections.abc import Callable

from autotune.engine.api import EngineStartError
from autotune.engine.failure import Cause, Failure, FailureKind, Phase

MemoryProbe = Callable[[], int | None]
"""Bytes taken on the GPU by anybody, or None where nobody can tell."""

PATIENCE_S = 30.0
"""Wall seconds in which memory that another process holds may come back."""
_MORE_THAN_BEFORE = 2**30
_POLL_S = 0.5
_GIB = 2**30


class GpuMemory:
    """The memory of the GPU under test, and the least of it that was taken between two engines."""

    def __init__(self, used: MemoryProbe = lambda: None, *, patience: float = PATIENCE_S) -> None:
        self.used = used
        self._patience = patience
        self._least: int | None = None

    def wait_until_free(self) -> int | None:
        """Bytes taken now, when that is about what was taken before the first engine; blocks for a while if it is more.

        Raises:
            EngineStartError: much more is taken, and stays so: no engine could show what it can do.
        """
        deadline = time.monotonic() + self._patience
        while True:
            used = self.used()
            if used is None:
                return None
            if self._least is None or used <= self._least + _MORE_THAN_BEFORE:
                self._least = used if self._least is None else min(used, self._least)
                return used
            if time.monotonic() > deadline:
                raise EngineStartError(_busy(used - self._least))
            time.sleep(_POLL_S)


def _busy(more: int) -> Failure:
    return Failure(
        Cause.GPU_MEMORY_BUSY,
        FailureKind.FAULT,
        Phase.LAUNCH,
        f"{more / _GIB:.1f} GiB more of the GPU's memory are taken than before the first engine",
        "Another process holds them: end it ('autotune doctor' finds engines that were left behind), then go on.",
    )
