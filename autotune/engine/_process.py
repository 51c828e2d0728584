"""One supervised process tree: started in a session of its own, watched, logged, and ended to its last member."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from autotune.engine._gpu_memory import MemoryProbe
from autotune.engine._guard import Guard
from autotune.engine._log import CappedLog
from autotune.engine._marker import Marker
from autotune.engine._procfs import ProcessIdentity, ProcessState, look_at, oom_kills
from autotune.engine._session import TERM_GRACE_S, Session

MEMORY_PATIENCE_S = 30.0
"""Wall seconds in which the driver must give back the memory of processes that are gone."""
_MEMORY_TOLERANCE = 256 * 2**20
_MEMORY_POLL_S = 0.25
_STEADY_SAMPLES = 2


class Child(Protocol):
    """A started process, by whatever means: its number and its exit code."""

    @property
    def pid(self) -> int:
        """Process id; the process leads a session of its own."""
        ...

    def poll(self) -> int | None:
        """The exit code (negative for a signal), or None while it runs."""
        ...


class LifeHooks(Protocol):
    """Told of each engine, so that a ledger can be kept."""

    def on_started(self, leader: ProcessIdentity, port: int) -> None:
        """A process was started; on disk when this returns."""
        ...

    def on_stopped(self, leader: ProcessIdentity) -> None:
        """Nothing of it is left."""
        ...


class NoHooks:
    """Keeps no ledger: the marks in the engines' environments suffice to find orphans."""

    def on_started(self, leader: ProcessIdentity, port: int) -> None:
        """Nothing."""

    def on_stopped(self, leader: ProcessIdentity) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class EndOfProcess:
    """How a tree ended. ``left`` counts processes that not even SIGKILL ended."""

    wall_seconds: float
    forced: bool
    memory_returned: bool | None
    left: int


class Launcher(Protocol):
    """A way to start a program in a session of its own, its output into a log."""

    def __call__(self, command: Sequence[str], environment: Mapping[str, str], log: CappedLog) -> Child:
        """Start it.

        Raises:
            OSError: the program cannot be run, or the start was cancelled.
        """
        ...

    def cancel(self) -> None:
        """Have a start that goes on in another thread end soon."""
        ...


class PlainLauncher:
    """Starts programs as usual; it takes no time that could be cut short."""

    def __call__(self, command: Sequence[str], environment: Mapping[str, str], log: CappedLog) -> Child:
        """Start it."""
        return spawn(command, environment, log)

    def cancel(self) -> None:
        """Nothing."""


def spawn(command: Sequence[str], environment: Mapping[str, str], log: CappedLog) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, its two outputs into one log.

    Raises:
        OSError: the program cannot be run.
    """
    reading, writing = os.pipe()
    try:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            env=dict(environment),
            start_new_session=True,
        )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    log.drain(reading)
    return child


class SupervisedProcess:
    """The tree under one child. All methods may be called from any thread."""

    def __init__(
        self,
        child: Child,
        log: CappedLog,
        marker: Marker,
        *,
        port: int,
        guard: Guard | None,
        hooks: LifeHooks,
        memory_used: MemoryProbe,
        memory_before: int | None,
    ) -> None:
        self._child = child
        self.log = log
        self._hooks = hooks
        self._guard = guard
        self._memory_used = memory_used
        self._memory_before = memory_before
        self._oom_kills_before = oom_kills()
        self._ended: EndOfProcess | None = None
        self._lock = threading.Lock()
        state = look_at(child.pid)
        # A child that is gone already was reaped by nobody but us: its number is still ours.
        self.leader = state.identity if state is not None else ProcessIdentity(child.pid, 0.0)
        self._session = Session(self.leader, marker)
        if guard is not None:
            guard.watch(self.leader, marker)
        hooks.on_started(self.leader, port)

    @property
    def pid(self) -> int:
        """Process id of the leader."""
        return self._child.pid

    def exit_code(self) -> int | None:
        """The leader's exit code, negative for a signal; None while it runs."""
        return self._child.poll()

    def oom_kills(self) -> int | None:
        """Processes that the kernel's out-of-memory killer ended since the start, of whomever."""
        now = oom_kills()
        return None if now is None or self._oom_kills_before is None else now - self._oom_kills_before

    def look(self) -> list[ProcessState]:
        """The living processes of the tree."""
        return self._session.look()

    def stop(self, grace: float = TERM_GRACE_S) -> EndOfProcess:
        """End the tree and wait for its GPU memory; the second call returns what the first did."""
        with self._lock:
            if self._ended is None:
                self._ended = self._stop(grace)
            return self._ended

    def _stop(self, grace: float) -> EndOfProcess:
        began = time.monotonic()
        end = self._session.end(self._child.poll, grace=grace)
        self._reap()
        self.log.finish()
        returned = self._wait_for_memory()
        if not end.left:
            if self._guard is not None:
                self._guard.forget(self.leader)
            self._hooks.on_stopped(self.leader)
        return EndOfProcess(time.monotonic() - began, end.forced, returned, len(end.left))

    def _reap(self) -> None:
        for _ in range(100):
            if self._child.poll() is not None:
                return
            time.sleep(0.02)

    def _wait_for_memory(self) -> bool | None:
        """Wait until the GPU holds no more than before the start, seen twice in a row."""
        if self._memory_before is None:
            return None
        deadline = time.monotonic() + MEMORY_PATIENCE_S
        steady = 0
        while True:
            used = self._memory_used()
            if used is None:
                return None
            steady = steady + 1 if used <= self._memory_before + _MEMORY_TOLERANCE else 0
            if steady >= _STEADY_SAMPLES:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_MEMORY_POLL_S)
