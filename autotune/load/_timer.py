"""A timer that rings on time: asyncio's own rounds up to the next millisecond."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable

_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_ABSOLUTE = 1


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class PreciseTimer:
    """One alarm at a time on ``time.monotonic``; Linux ``timerfd``, elsewhere the event loop's timer."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._callback: Callable[[], None] | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = -1
        if hasattr(self._libc, "timerfd_create"):
            self._fd = int(self._libc.timerfd_create(time.CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC))
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._ring)

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        """Call ``callback`` at ``when`` (``time.monotonic``), in place of an alarm set before."""
        self._callback = callback
        if self._fd < 0:
            if self._handle is not None:
                self._handle.cancel()
            self._handle = self._loop.call_at(when, self._ring)
            return
        nanoseconds = max(1, round(when * 1e9))
        spec = _TimerSpec(_TimeSpec(0, 0), _TimeSpec(*divmod(nanoseconds, 1_000_000_000)))
        self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(spec), None)

    def close(self) -> None:
        """Cancel the alarm and give the descriptor back."""
        self._callback = None
        if self._handle is not None:
            self._handle.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _ring(self) -> None:
        if self._fd >= 0:
            try:
                os.read(self._fd, 8)
            except BlockingIOError:
                return
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()
