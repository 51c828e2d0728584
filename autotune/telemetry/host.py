"""The machine around the engine: CPU, memory, pressure, and what engine and client cost."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from autotune.telemetry._processes import ProcessStat, read_processes, tree
from autotune.telemetry.device import Sample

_CPU_PRESSURE = Path("/proc/pressure/cpu")
_CGROUP_CPU = Path("/sys/fs/cgroup/cpu.stat")
_MICRO = 1e6

Pids = Iterable[int] | Callable[[], Iterable[int]]


class HostDevice:
    """CPU and memory of the machine, and of the process trees that matter.

    Fields: ``cpu`` (share of all cores busy since the last sample), ``cpu_steal`` and ``cpu_iowait`` (shares),
    ``load_1m``, ``memory_used_bytes``, ``memory_available_bytes``, ``shm_free_bytes``;
    counters ``engine_cpu_seconds`` (the engine's trees and sessions), ``own_cpu_seconds`` (this program and its
    children without the engine), ``pressure_seconds`` (wall time in which a runnable task waited for a CPU, from
    the kernel's pressure stall information), ``quota_throttled_seconds`` (a container's CPU quota ran out);
    ``engine_memory_bytes`` (resident, shared pages counted once per process).

    Args:
        engine_pids: leaders of the engines, or a function that gives them.
    """

    def __init__(self, engine_pids: Pids = ()) -> None:
        self._engine_pids = engine_pids
        self._last_times: _CpuTimes | None = None
        self._engine_cpu = _CpuLedger()
        self._own_cpu = _CpuLedger()

    @property
    def name(self) -> str:
        """``host``."""
        return "host"

    @property
    def counters(self) -> frozenset[str]:
        """CPU seconds and the two kinds of waiting."""
        return frozenset({"engine_cpu_seconds", "own_cpu_seconds", "pressure_seconds", "quota_throttled_seconds"})

    def open(self) -> None:
        """Start the first interval."""
        self._last_times = _CpuTimes.read()

    def close(self) -> None:
        """Nothing is held."""
        self._last_times = None

    def sample(self) -> Sample:
        """Look at the machine; shares are of the time since the previous sample, None in the first."""
        times = _CpuTimes.read()
        shares = times.shares_since(self._last_times)
        self._last_times = times
        memory = psutil.virtual_memory()
        processes = read_processes()
        roots = self._engine_pids() if callable(self._engine_pids) else self._engine_pids
        engine = tree(processes, roots)
        own = tree(processes, [os.getpid()]) - engine
        return {
            "cpu": shares[0],
            "cpu_steal": shares[1],
            "cpu_iowait": shares[2],
            "load_1m": os.getloadavg()[0],
            "memory_used_bytes": float(memory.total - memory.available),
            "memory_available_bytes": float(memory.available),
            "shm_free_bytes": _free_bytes(Path("/dev/shm")),  # noqa: S108 - the mount, not a temporary file
            "engine_cpu_seconds": self._engine_cpu.add(processes[pid] for pid in engine),
            "engine_memory_bytes": float(sum(processes[pid].resident_bytes for pid in engine)) if engine else None,
            "own_cpu_seconds": self._own_cpu.add(processes[pid] for pid in own),
            "pressure_seconds": _cpu_pressure(),
            "quota_throttled_seconds": _quota_throttled(),
        }


class _CpuLedger:
    """CPU seconds of a changing set of processes: what an ended one had used stays counted."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, int], float] = {}

    def add(self, processes: Iterable[ProcessStat]) -> float:
        for stat in processes:
            self._seconds[stat.pid, stat.start_ticks] = stat.cpu_seconds
        return math.fsum(self._seconds.values())


class _CpuTimes:
    """Seconds that all cores together spent so far: total, busy, stolen by the hypervisor, waiting for disks."""

    def __init__(self, total: float, busy: float, steal: float, iowait: float) -> None:
        self.total, self.busy, self.steal, self.iowait = total, busy, steal, iowait

    @classmethod
    def read(cls) -> _CpuTimes:
        t = psutil.cpu_times()
        steal, iowait = getattr(t, "steal", 0.0), getattr(t, "iowait", 0.0)
        # Guests' time is part of user and nice (proc(5)), so it is not added again.
        busy = t.user + t.nice + t.system + getattr(t, "irq", 0.0) + getattr(t, "softirq", 0.0)
        return cls(busy + steal + iowait + t.idle, busy, steal, iowait)

    def shares_since(self, earlier: _CpuTimes | None) -> tuple[float | None, float | None, float | None]:
        elapsed = self.total - earlier.total if earlier else 0.0
        if earlier is None or elapsed <= 0:
            return None, None, None
        busy, steal, iowait = (
            min(1.0, max(0.0, (now - then) / elapsed))
            for now, then in (
                (self.busy, earlier.busy),
                (self.steal, earlier.steal),
                (self.iowait, earlier.iowait),
            )
        )
        return busy, steal, iowait


def _free_bytes(path: Path) -> float | None:
    try:
        return float(psutil.disk_usage(str(path)).free)
    except OSError:
        return None


def _cpu_pressure(path: Path = _CPU_PRESSURE) -> float | None:
    """Seconds from the line ``some avg10=.. avg60=.. avg300=.. total=MICROSECONDS``; None without the kernel's PSI."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    some = next((line for line in lines if line.startswith("some ")), "")
    _, found, total = some.partition("total=")
    return int(total) / _MICRO if found and total.isdigit() else None


def _quota_throttled(path: Path = _CGROUP_CPU) -> float | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    value = next((line.split()[1] for line in lines if line.startswith("throttled_usec ")), None)
    return int(value) / _MICRO if value and value.isdigit() else None
