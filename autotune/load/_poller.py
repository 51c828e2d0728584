"""Reads many sockets at little cost, and knows when their bytes arrived.

Two ideas make it cheap and exact. The kernel stamps each segment on arrival (``SO_TIMESTAMPNS``), so the
time of a chunk does not depend on when this process gets round to reading it. And because of that there is
no hurry to read: while chunks are frequent, the poller sleeps a third of the usual gap between two chunks
of one stream (at most 20 ms) and then reads all that came, instead of waking up for every chunk. Chunks are
rarely merged by this, as the next chunk of the same stream is still two thirds of a gap away.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
import time
from collections.abc import Callable

from autotune.load._shortcut import Shortcut, take

OnData = Callable[[bytes, float], Shortcut | None]
OnGone = Callable[[Exception | None], None]

_SO_TIMESTAMPNS = 35
_STAMP = struct.Struct("@ll")
_STAMP_SPACE = socket.CMSG_SPACE(_STAMP.size) if hasattr(socket, "CMSG_SPACE") else 0
_READ_SIZE = 16 * 2**10
_MAX_EVENTS = 1024
_MAX_NAP = 0.02
_MIN_NAP = 0.001
_CHUNKS_WORTH_A_NAP = 3
_LONG_GAP = 0.1
_UNDISTURBED, _READINGS = 2e-6, 5
"""Seconds within which two readings of a clock lie unless something came between, and how often that is hoped for."""


class Poller:
    """One per event loop. Needs Linux."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._sockets: dict[int, _Watched] = {}
        self._gap = _LONG_GAP
        self._between = 1.0
        self._last_ready = 0.0
        self._loop.add_reader(self._epoll.fileno(), self._ready)

    def add(self, sock: socket.socket, on_data: OnData, on_gone: OnGone) -> None:
        """Read ``sock`` from now on. ``on_gone`` is called once when the other side closed or it broke."""
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._sockets[sock.fileno()] = _Watched(sock, on_data, on_gone)
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def remove(self, sock: socket.socket) -> None:
        """Stop reading ``sock``; call it before closing the socket."""
        if self._sockets.pop(sock.fileno(), None) is not None:
            self._epoll.unregister(sock.fileno())

    def close(self) -> None:
        """Stop altogether."""
        if not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
        self._sockets.clear()

    def _ready(self) -> None:
        """The event loop saw bytes somewhere."""
        count = self._read_all()
        now = time.monotonic()
        self._between += 0.1 * ((now - self._last_ready) / max(1, count) - self._between)
        self._last_ready = now
        nap = self._nap()
        if nap:
            self._loop.remove_reader(self._epoll.fileno())
            self._loop.call_later(nap, self._after_nap)

    def _after_nap(self) -> None:
        if self._epoll.closed:
            return
        count = self._read_all()
        now = time.monotonic()
        self._between += 0.1 * ((now - self._last_ready) / max(1, count) - self._between)
        self._last_ready = now
        nap = self._nap() if count else 0.0
        if nap:
            self._loop.call_later(nap, self._after_nap)
        else:
            self._loop.add_reader(self._epoll.fileno(), self._ready)

    def _nap(self) -> float:
        """How long to sleep before the next read; 0 when chunks are too rare or too close for it."""
        nap = min(_MAX_NAP, self._gap / 3)
        return nap if nap >= _MIN_NAP and nap > _CHUNKS_WORTH_A_NAP * self._between else 0.0

    def _read_all(self) -> int:
        if self._epoll.closed:
            return 0
        events = self._epoll.poll(0, _MAX_EVENTS)
        now = time.monotonic()
        offset = _monotonic_over_wall()
        sockets = self._sockets
        arrived = before = now
        for fd, _ in events:
            watched = sockets.get(fd)
            if watched is None:
                continue
            try:
                data, extra, _, _ = watched.receive(_READ_SIZE, _STAMP_SPACE)
            except BlockingIOError:
                continue
            except OSError as error:
                watched.on_gone(error)
                continue
            if not data:
                watched.on_gone(None)
                continue
            before, arrived = watched.last, now
            if extra:
                seconds, nanoseconds = _STAMP.unpack(extra[0][2])
                arrived = seconds + nanoseconds * 1e-9 + offset
                # What came since this round began is later than its beginning; but a clock that was just set must not
                # send an arrival into the future or the past.
                if not before <= arrived <= now:
                    arrived = min(arrived, time.monotonic()) if arrived > now else before
            watched.last = arrived
            shortcut = watched.shortcut
            if shortcut is None or not take(shortcut, data, arrived):
                watched.shortcut = watched.on_data(data, arrived)
        # One sample of each round is enough to know the usual gap.
        self._gap += 0.1 * (min(arrived - before, _LONG_GAP) - self._gap)
        return len(events)


def _monotonic_over_wall() -> float:
    """By how much the monotonic clock is ahead of the wall clock that the kernel stamps with, s."""
    for _ in range(_READINGS):
        before, wall, after = time.monotonic(), time.time(), time.monotonic()
        if after - before < _UNDISTURBED:
            break
    return (before + after) / 2 - wall


class _Watched:
    __slots__ = ("last", "on_data", "on_gone", "receive", "shortcut")

    def __init__(self, sock: socket.socket, on_data: OnData, on_gone: OnGone) -> None:
        self.receive = sock.recvmsg
        self.on_data = on_data
        self.on_gone = on_gone
        self.last = 0.0
        self.shortcut: Shortcut | None = None
