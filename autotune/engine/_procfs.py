"""Processes as the kernel knows them: identity, session, state and starting environment, from ``/proc``."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_DEAD_STATES = frozenset("ZXx")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process that cannot be mistaken for a later one with the same number.

    ``create_time`` is in seconds since the machine's boot, as the kernel counts it: unlike wall time it never shifts.
    """

    pid: int
    create_time: float


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One look at a process. ``cpu_seconds`` is user and system time together."""

    identity: ProcessIdentity
    parent: int
    session: int
    state: str
    cpu_seconds: float

    @property
    def alive(self) -> bool:
        """False for a zombie: nothing of it is left but its exit code."""
        return self.state not in _DEAD_STATES

    @property
    def stopped(self) -> bool:
        """True while a signal or a debugger holds it."""
        return self.state in {"T", "t"}


def look_at(pid: int) -> ProcessState | None:
    """The process of that number, or None when there is none."""
    try:
        line = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = line.rpartition(")")[2].split()
    return ProcessState(
        identity=ProcessIdentity(pid, int(fields[19]) / _TICKS),
        parent=int(fields[1]),
        session=int(fields[3]),
        state=fields[0],
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
    )


def own_identity() -> ProcessIdentity:
    """The identity of this process."""
    state = look_at(os.getpid())
    if state is None:
        raise OSError("/proc is not mounted: processes cannot be supervised here")
    return state.identity


def is_alive(identity: ProcessIdentity) -> bool:
    """True while exactly this process runs; a zombie or a later process of that number does not count."""
    state = look_at(identity.pid)
    return state is not None and state.identity == identity and state.alive


def all_processes() -> Iterator[ProcessState]:
    """Every process that can be seen now."""
    for entry in os.scandir(_PROC):
        if entry.name.isdigit() and (state := look_at(int(entry.name))) is not None:
            yield state


def environment_of(pid: int) -> dict[str, str]:
    """The environment with which a process was started; empty when it may not be read."""
    try:
        raw = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if b"=" in entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def command_of(pid: int) -> list[str]:
    """The argument vector of a process; empty when it may not be read."""
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(word) for word in raw.split(b"\0") if word]


def descendants(roots: Collection[int], processes: Collection[ProcessState]) -> list[ProcessState]:
    """Processes whose line of parents leads to one of the roots, the roots included."""
    found = set(roots)
    grown = True
    while grown:
        grown = False
        for process in processes:
            if process.parent in found and process.identity.pid not in found:
                found.add(process.identity.pid)
                grown = True
    return [process for process in processes if process.identity.pid in found]


def send_signal(identity: ProcessIdentity, number: signal.Signals) -> bool:
    """Signal exactly this process: the descriptor pins it, so a reused number is never hit. False when it is gone."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except (ProcessLookupError, PermissionError):
        return False
    try:
        if not is_alive(identity):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def namespace_of_processes() -> str:
    """Names this boot and this PID namespace: numbers of processes mean the same only within one."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot[:8]}-{Path('/proc/self/ns/pid').stat().st_ino}"
    return "unknown"


def oom_kills() -> int | None:
    """How many processes the kernel's out-of-memory killer ended so far, here or in this container; None if unknown."""
    for path in (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat")):
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text(encoding="ascii").splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
    return None
