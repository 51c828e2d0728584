"""Which machine this is, and whether a process that was noted down still lives."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import psutil

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")
_TOLERANCE_S = 2.0
"""Start times are computed from the boot time, which moves a little when the wall clock is corrected."""


@cache
def host_identity() -> str:
    """Names the space in which process ids mean something: this boot of this machine, this container."""
    try:
        return f"{_BOOT_ID.read_text().strip()}/{_PID_NAMESPACE.readlink()}"
    except OSError:
        return f"{platform.node()}/{psutil.boot_time():.0f}"


def is_same_process(pid: int, create_time: float) -> bool:
    """True while the process that had this id then still lives; a zombie does not, nor a successor of its id."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - create_time) < _TOLERANCE_S
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
