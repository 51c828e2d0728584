"""An asyncio event loop whose timers are exact to some 60 microseconds instead of a millisecond.

asyncio rounds waits up to the millisecond of ``epoll_wait``; at 60 engine seconds a second that would be 60 ms of
engine time. An epoll descriptor can itself be waited for with ``select``, which takes microseconds.
"""

from __future__ import annotations

import asyncio
import select
import selectors


class _FineEpollSelector(selectors.EpollSelector):
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and 0 < timeout < 0.1:
            select.select([self.fileno()], [], [], timeout)
            timeout = 0
        return super().select(timeout)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop with exact timers where epoll exists, else the platform's own."""
    if hasattr(select, "epoll"):
        return asyncio.SelectorEventLoop(_FineEpollSelector())
    return asyncio.new_event_loop()
