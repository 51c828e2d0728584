"""Engines that a killed tuner left behind: found by their mark, ended on request."""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from dataclasses import dataclass

from autotune.engine._marker import Marker
from autotune.engine._procfs import (
    ProcessIdentity,
    all_processes,
    command_of,
    environment_of,
    is_alive,
    namespace_of_processes,
    send_signal,
)
from autotune.engine._session import KILL_PATIENCE_S, TERM_GRACE_S

_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Orphan:
    """An engine whose tuner is dead. ``pid`` is the number of its oldest living process."""

    engine_id: str
    study: str
    pid: int
    tuner_pid: int
    processes: tuple[ProcessIdentity, ...]
    command: str
    seconds: float
    """How long it has been running, in wall seconds."""


def find_orphans() -> list[Orphan]:
    """Engines that this program started on this machine (as this user) and whose tuner is gone, oldest first."""
    here = namespace_of_processes()
    marks: dict[Marker, list[ProcessIdentity]] = defaultdict(list)
    for process in all_processes():
        if not process.alive or process.identity.pid == os.getpid():
            continue
        marker = Marker.read(environment_of(process.identity.pid))
        if marker is not None and marker.namespace == here and not is_alive(marker.tuner):
            marks[marker].append(process.identity)
    orphans = [_orphan(marker, processes) for marker, processes in marks.items()]
    return sorted(orphans, key=lambda orphan: orphan.processes[0].create_time)


def end_orphan(orphan: Orphan, *, grace: float = TERM_GRACE_S) -> bool:
    """End an orphan: SIGTERM, a wait of ``grace`` wall seconds, SIGKILL. True when nothing of it is left."""
    began = time.monotonic()
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, KILL_PATIENCE_S)):
        began = time.monotonic()
        while living := _living(orphan):
            for process in living:
                send_signal(process, number)
                send_signal(process, signal.SIGCONT)
            if time.monotonic() - began > patience:
                break
            time.sleep(_POLL_S if number is signal.SIGKILL else 0.5)
        if not living:
            return True
    return False


def _living(orphan: Orphan) -> list[ProcessIdentity]:
    """What lives of it now, children that were born meanwhile included."""
    found = {process for process in orphan.processes if is_alive(process)}
    for process in all_processes():
        if process.alive and process.identity not in found:
            marker = Marker.read(environment_of(process.identity.pid))
            if marker is not None and marker.engine_id == orphan.engine_id and marker.tuner.pid == orphan.tuner_pid:
                found.add(process.identity)
    return sorted(found, key=lambda process: process.create_time)


def _orphan(marker: Marker, processes: list[ProcessIdentity]) -> Orphan:
    oldest_first = tuple(sorted(processes, key=lambda process: process.create_time))
    return Orphan(
        engine_id=marker.engine_id,
        study=marker.study,
        pid=oldest_first[0].pid,
        tuner_pid=marker.tuner.pid,
        processes=oldest_first,
        command=" ".join(command_of(oldest_first[0].pid))[:200],
        seconds=time.clock_gettime(time.CLOCK_BOOTTIME) - oldest_first[0].create_time,
    )
