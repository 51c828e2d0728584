"""One GPU, or one MIG instance of it, sampled through NVML."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from types import ModuleType

from autotune.telemetry import _nvml
from autotune.telemetry.device import DeviceError, Sample
from autotune.telemetry.gpus import GpuProcess, Handle, find_handle, read_memory, read_processes
from autotune.telemetry.throttle import REASONS, is_disturbed

_TEMPERATURE_GPU = 0
_CLOCK_SM = 1
_CLOCK_MEMORY = 2
_PERCENT = 100.0
_MILLI = 1000.0
_NO_SAMPLES = "NVMLError_NotFound"


class NvmlDevice:
    """A GPU by index in PCI bus order, or by ``GPU-...`` or ``MIG-...`` UUID.

    Fields: ``utilization`` and ``memory_utilization`` (shares of time with a kernel running, with memory
    traffic), ``memory_used_bytes``, ``memory_total_bytes``, ``power_w``, ``power_limit_w``, ``energy_j``
    (counter), ``temperature_c``, ``sm_clock_mhz``, ``sm_clock_max_mhz``, ``memory_clock_mhz``,
    ``throttle_bits``, ``throttled`` (1 when heat, a hardware slowdown or a power brake holds the clocks
    down) and ``throttle_REASON`` for each reason, ``processes``, ``foreign_processes``,
    ``foreign_memory_bytes``, ``foreign_utilization`` (shares of the SMs' time).

    A MIG instance has no power and energy of its own and reports none; clocks, temperature and throttle
    reasons are its parent's, which it shares.

    Args:
        gpu: index or UUID.
        own_pids: gives the process ids that may use the GPU (the engine's tree). Others are foreign. Without
            it, or where the driver counts process ids in another namespace so that not one of ours is seen,
            the foreign fields are None.
    """

    def __init__(self, gpu: int | str = 0, own_pids: Callable[[], Collection[int]] | None = None) -> None:
        self._gpu = gpu
        self._own_pids = own_pids
        self._nvml: ModuleType | None = None
        self._handle: Handle | None = None
        self._board: Handle | None = None
        self._power_limit: float | None = None
        self._sm_clock_max: float | None = None
        self._looked_at_microseconds = 0
        self._is_mig = False

    @property
    def name(self) -> str:
        """``gpu0`` for an index; ``gpu-`` and the first digits of a UUID otherwise."""
        if isinstance(self._gpu, int) or self._gpu.isdigit():
            return f"gpu{int(self._gpu)}"
        return f"gpu-{self._gpu.partition('-')[2][:8]}"

    @property
    def counters(self) -> frozenset[str]:
        """Energy only grows."""
        return frozenset({"energy_j"})

    def open(self) -> None:
        """Initialise NVML and find the GPU.

        Raises:
            DeviceError: no NVML or no such GPU.
        """
        self.close()
        nvml = _nvml.load()
        self._nvml = nvml
        handle = find_handle(nvml, self._gpu)
        self._is_mig = bool(_nvml.read(nvml, lambda: nvml.nvmlDeviceIsMigDeviceHandle(handle)))
        board = handle
        if self._is_mig:
            board = _nvml.read(nvml, lambda: nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)) or handle
        self._handle, self._board = handle, board
        limit = None if self._is_mig else _nvml.read(nvml, lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(board))
        self._power_limit = _scaled(limit, _MILLI)
        self._sm_clock_max = _scaled(_nvml.read(nvml, lambda: nvml.nvmlDeviceGetMaxClockInfo(board, _CLOCK_SM)), 1)
        self._looked_at_microseconds = time.time_ns() // 1000

    def close(self) -> None:
        """Give NVML back."""
        if self._nvml is not None:
            _nvml.release(self._nvml)
        self._nvml = self._handle = self._board = None

    def sample(self) -> Sample:
        """All fields, each alone None where the device refuses it.

        Raises:
            DeviceError: not open, or the GPU is gone.
        """
        nvml, handle, board = self._nvml, self._handle, self._board
        if nvml is None or handle is None:
            raise DeviceError("The GPU is not open.")
        values: dict[str, float | None] = {}
        utilization = _nvml.read(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        values["utilization"] = _scaled(utilization.gpu if utilization else None, _PERCENT)
        values["memory_utilization"] = _scaled(utilization.memory if utilization else None, _PERCENT)
        memory = read_memory(nvml, handle)
        values["memory_used_bytes"] = float(memory[0]) if memory else None
        values["memory_total_bytes"] = float(memory[1]) if memory else None
        values["power_w"] = values["energy_j"] = None
        if not self._is_mig:
            values["power_w"] = _scaled(_nvml.read(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(handle)), _MILLI)
            energy = _nvml.read(nvml, lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
            values["energy_j"] = _scaled(energy, _MILLI)
        values["power_limit_w"] = self._power_limit
        values["temperature_c"] = _scaled(
            _nvml.read(nvml, lambda: nvml.nvmlDeviceGetTemperature(board, _TEMPERATURE_GPU)), 1
        )
        values["sm_clock_mhz"] = _scaled(_nvml.read(nvml, lambda: nvml.nvmlDeviceGetClockInfo(board, _CLOCK_SM)), 1)
        values["sm_clock_max_mhz"] = self._sm_clock_max
        values["memory_clock_mhz"] = _scaled(
            _nvml.read(nvml, lambda: nvml.nvmlDeviceGetClockInfo(board, _CLOCK_MEMORY)), 1
        )
        values.update(_throttle_fields(_throttle_bits(nvml, board)))
        values.update(self._process_fields(nvml, handle))
        return values

    def _process_fields(self, nvml: ModuleType, handle: Handle) -> dict[str, float | None]:
        processes = read_processes(nvml, handle)
        since, self._looked_at_microseconds = self._looked_at_microseconds, time.time_ns() // 1000
        foreign = self._foreign(processes)
        fields: dict[str, float | None] = {
            "processes": None if processes is None else float(len(processes)),
            "foreign_processes": None,
            "foreign_memory_bytes": None,
            "foreign_utilization": None,
        }
        if foreign is None:
            return fields
        fields["foreign_processes"] = float(len(foreign))
        if all(p.memory_bytes is not None for p in foreign):
            fields["foreign_memory_bytes"] = float(sum(p.memory_bytes or 0 for p in foreign))
        fields["foreign_utilization"] = _utilization_of(nvml, handle, {p.pid for p in foreign}, since)
        return fields

    def _foreign(self, processes: list[GpuProcess] | None) -> list[GpuProcess] | None:
        if processes is None or self._own_pids is None:
            return None
        own = self._own_pids()
        foreign = [p for p in processes if p.pid not in own]
        return None if foreign and len(foreign) == len(processes) else foreign


def _scaled(value: float | None, divisor: float) -> float | None:
    return None if value is None else value / divisor


def _throttle_bits(nvml: ModuleType, board: Handle | None) -> int | None:
    newer = _nvml.read(nvml, lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(board))
    if newer is not None:
        return int(newer)
    older = _nvml.read(nvml, lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(board))
    return None if older is None else int(older)


def _throttle_fields(bits: int | None) -> dict[str, float | None]:
    if bits is None:
        return dict.fromkeys(("throttle_bits", "throttled", *(f"throttle_{name}" for name in REASONS)))
    fields: dict[str, float | None] = {"throttle_bits": float(bits), "throttled": float(is_disturbed(bits))}
    return fields | {f"throttle_{name}": float(bool(bits & bit)) for name, bit in REASONS.items()}


def _utilization_of(nvml: ModuleType, handle: Handle, pids: set[int], since_microseconds: int) -> float | None:
    """Largest share of the SMs' time that the processes took since a moment; 0 when they took none."""
    if not pids:
        return 0.0
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(handle, since_microseconds)
    except AttributeError:
        return None
    except nvml.NVMLError as error:
        return 0.0 if type(error).__name__ == _NO_SAMPLES else None
    shares: dict[int, float] = {}
    for sample in samples:
        if sample.pid in pids:
            shares[sample.pid] = max(shares.get(sample.pid, 0.0), sample.smUtil / _PERCENT)
    return min(1.0, sum(shares.values()))
