"""Sees an engine that makes no progress while it starts: no word, no processor time, or held by a signal."""

from __future__ import annotations

import time
from dataclasses import dataclass

from autotune.engine._process import SupervisedProcess

_BUSY_CPU_S = 0.02
_LOOK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class StartWatchdog:
    """Patience in wall seconds. Compilers run for minutes without a word, but they use the processor."""

    silence: float = 240.0
    stopped: float = 15.0

    def watch(self, process: SupervisedProcess) -> StartWatch:
        """Begin to watch a process that was just started."""
        return StartWatch(self, process)


class StartWatch:
    """The watch over one start."""

    def __init__(self, patience: StartWatchdog, process: SupervisedProcess) -> None:
        self._patience = patience
        self._process = process
        self._grown = 0
        self._cpu = 0.0
        self._moved = self._looked = time.monotonic()
        self._stopped_since: float | None = None

    def is_stuck(self) -> bool:
        """True when nothing moved for longer than the patience allows."""
        now = time.monotonic()
        if now - self._looked < _LOOK_EVERY_S:
            return False
        self._looked = now
        living = self._process.look()
        cpu = sum(process.cpu_seconds for process in living)
        # Processor time falls when a child ends; that is a movement, too.
        if self._process.log.grown != self._grown or abs(cpu - self._cpu) > _BUSY_CPU_S:
            self._moved = now
        self._grown, self._cpu = self._process.log.grown, cpu
        if any(process.stopped for process in living):
            self._stopped_since = self._stopped_since or now
        else:
            self._stopped_since = None
        held = self._stopped_since is not None and now - self._stopped_since > self._patience.stopped
        return held or now - self._moved > self._patience.silence
