"""The processes of one engine: its session, its recorded descendants, whatever carries its mark. How they are ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from autotune.engine._marker import Marker
from autotune.engine._procfs import (
    ProcessIdentity,
    ProcessState,
    all_processes,
    descendants,
    environment_of,
    is_alive,
    send_signal,
)

TERM_GRACE_S = 15.0
"""Wall seconds between SIGTERM and SIGKILL while the leader lives; vLLM gives its workers 5 to 9."""
LEADERLESS_GRACE_S = 5.0
"""Wall seconds that children get when their leader is gone."""
KILL_PATIENCE_S = 15.0
"""Wall seconds to wait for processes that were sent SIGKILL; the kernel may be giving back GPU memory."""
_POLL_S = 0.05


@dataclass
class Session:
    """The session that ``leader`` leads. Only processes of it, recorded ones and marked ones are ever signalled."""

    leader: ProcessIdentity
    marker: Marker | None = None
    _recorded: set[ProcessIdentity] = field(default_factory=set)

    def look(self) -> list[ProcessState]:
        """The living processes of the engine; what is seen is recorded, so that later strays are known."""
        processes = list(all_processes())
        # A session's number is not given away while a member lives; once another process leads it, ours is over.
        over = any(p.identity.pid == self.leader.pid and p.identity != self.leader for p in processes)
        mine = {p.identity.pid for p in processes if p.identity in self._recorded or (not over and self._is_member(p))}
        found = [p for p in descendants(mine, processes) if p.identity.create_time >= self.leader.create_time]
        self._recorded |= {p.identity for p in found}
        return [p for p in found if p.alive]

    def look_everywhere(self) -> list[ProcessState]:
        """Like ``look``, and every process with this engine's mark: those that left the session as well."""
        found = {p.identity: p for p in self.look()}
        if self.marker is not None:
            for process in all_processes():
                if process.identity in found or not process.alive:
                    continue
                marker = Marker.read(environment_of(process.identity.pid))
                if (
                    marker is not None
                    and marker.engine_id == self.marker.engine_id
                    and marker.tuner == self.marker.tuner
                ):
                    found[process.identity] = process
                    self._recorded.add(process.identity)
        return list(found.values())

    def _is_member(self, process: ProcessState) -> bool:
        return process.session == self.leader.pid and process.identity.create_time >= self.leader.create_time

    def end(self, reap: Callable[[], object] = lambda: None, *, grace: float = TERM_GRACE_S) -> EndOfSession:
        """SIGTERM to all, a wait, SIGKILL to all, a wait. ``reap`` collects the leader's exit code meanwhile."""
        began = time.monotonic()
        forced = False
        living = self.look_everywhere()
        for process in living:
            send_signal(process.identity, signal.SIGTERM)
            if process.stopped:
                send_signal(process.identity, signal.SIGCONT)
        leaderless_since: float | None = None
        while living:
            reap()
            living = self.look()
            now = time.monotonic()
            if leaderless_since is None and not is_alive(self.leader):
                leaderless_since = now
            patience_over = leaderless_since is not None and now - leaderless_since > min(grace, LEADERLESS_GRACE_S)
            if not living or now - began > grace or patience_over:
                break
            time.sleep(_POLL_S)
        killing = time.monotonic()
        while living := self.look_everywhere():
            forced = True
            for process in living:
                send_signal(process.identity, signal.SIGKILL)
            reap()
            if time.monotonic() - killing > KILL_PATIENCE_S:
                break
            time.sleep(_POLL_S)
        reap()
        return EndOfSession(time.monotonic() - began, forced, tuple(process.identity for process in living))


@dataclass(frozen=True, slots=True)
class EndOfSession:
    """How a session ended. ``left`` are processes that even SIGKILL did not end: the driver holds them."""

    seconds: float
    forced: bool
    left: tuple[ProcessIdentity, ...]
