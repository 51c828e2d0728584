"""Which GPUs are here, how full they are, and who computes on them."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

from autotune.telemetry import _nvml
from autotune.telemetry.device import DeviceError

_GIB = 2**30


class Handle(Protocol):
    """An NVML device handle; opaque."""


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """A GPU as NVML presents it; None where it does not say. The index counts in PCI bus order."""

    index: int
    uuid: str | None
    name: str
    memory_total_gib: float | None
    memory_used_gib: float | None
    driver: str | None
    compute_capability: tuple[int, int] | None
    mig_uuids: tuple[str, ...] = ()
    """UUIDs of its MIG instances; with MIG on, only these can compute."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that computes on a GPU. ``memory_bytes`` is None where the driver does not tell."""

    pid: int
    memory_bytes: int | None


def list_gpus() -> list[GpuInfo]:
    """All GPUs in PCI bus order; empty without NVML (``nvml_problem`` says why)."""
    try:
        with _nvml.session() as nvml:
            count = _nvml.read(nvml, nvml.nvmlDeviceGetCount) or 0
            driver = _nvml.text(_nvml.read(nvml, nvml.nvmlSystemGetDriverVersion))
            found = (_describe(nvml, index, driver) for index in range(count))
            return [gpu for gpu in found if gpu is not None]
    except DeviceError:
        return []


def detect_gpu(index: int = 0) -> str | None:
    """Product name of a GPU as NVML reports it, e.g. ``Tesla T4``; None when it is not there."""
    return next((gpu.name for gpu in list_gpus() if gpu.index == index), None)


def driver_cuda_version() -> tuple[int, int] | None:
    """Newest CUDA that the driver supports, e.g. (13, 0); None without NVML."""
    try:
        with _nvml.session() as nvml:
            version = _nvml.read(nvml, nvml.nvmlSystemGetCudaDriverVersion)
    except DeviceError:
        return None
    return None if not version else (int(version) // 1000, int(version) % 1000 // 10)


def gpu_memory_used(gpu: int | str) -> int | None:
    """Bytes taken on a GPU (index or UUID) by anybody.

    Where the GPU shares the host's memory and reports none of its own, the sum over its processes; None when
    neither is known.
    """
    try:
        with _nvml.session() as nvml:
            handle = find_handle(nvml, gpu)
            memory = read_memory(nvml, handle)
            if memory is not None:
                return memory[0]
            processes = read_processes(nvml, handle)
    except DeviceError:
        return None
    if processes is None or any(p.memory_bytes is None for p in processes):
        return None
    return sum(p.memory_bytes or 0 for p in processes)


def gpu_processes(gpu: int | str) -> list[GpuProcess] | None:
    """Processes computing on a GPU (index or UUID); None when the driver does not tell."""
    try:
        with _nvml.session() as nvml:
            return read_processes(nvml, find_handle(nvml, gpu))
    except DeviceError:
        return None


def find_handle(nvml: ModuleType, gpu: int | str) -> Handle:
    """NVML's handle of an index (or its digits), a ``GPU-...`` or a ``MIG-...`` UUID.

    Raises:
        DeviceError: there is no such GPU.
    """
    by_index = isinstance(gpu, int) or gpu.isdigit()
    try:
        handle: Handle = (
            nvml.nvmlDeviceGetHandleByIndex(int(gpu)) if by_index else nvml.nvmlDeviceGetHandleByUUID(str(gpu))
        )
    except nvml.NVMLError as error:
        count = _nvml.read(nvml, nvml.nvmlDeviceGetCount)
        raise DeviceError(f"There is no GPU {gpu} here ({error}); NVML sees {count or 0}.") from error
    return handle


def read_memory(nvml: ModuleType, handle: Handle) -> tuple[int, int] | None:
    """Bytes used and in total; None where the device refuses.

    The second version of the call leaves the driver's own reserve out of "used", as nvidia-smi does.
    """
    newer = _nvml.read(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))
    memory = newer if newer is not None else _nvml.read(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    return None if memory is None else (int(memory.used), int(memory.total))


def read_processes(nvml: ModuleType, handle: Handle) -> list[GpuProcess] | None:
    """Processes with a compute context on the device; None where it refuses."""
    found = _nvml.read(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    if found is None:
        return None
    return [GpuProcess(int(p.pid), None if p.usedGpuMemory is None else int(p.usedGpuMemory)) for p in found]


def _describe(nvml: ModuleType, index: int, driver: str | None) -> GpuInfo | None:
    handle = _nvml.read(nvml, lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    if handle is None:
        return None
    memory = read_memory(nvml, handle)
    capability = _nvml.read(nvml, lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
    return GpuInfo(
        index=index,
        uuid=_nvml.text(_nvml.read(nvml, lambda: nvml.nvmlDeviceGetUUID(handle))),
        name=_nvml.text(_nvml.read(nvml, lambda: nvml.nvmlDeviceGetName(handle))) or "unknown GPU",
        memory_total_gib=memory[1] / _GIB if memory else None,
        memory_used_gib=memory[0] / _GIB if memory else None,
        driver=driver,
        compute_capability=(int(capability[0]), int(capability[1])) if capability else None,
        mig_uuids=_mig_uuids(nvml, handle),
    )


def _mig_uuids(nvml: ModuleType, handle: Handle) -> tuple[str, ...]:
    mode = _nvml.read(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle))
    if not mode or not mode[0]:
        return ()
    uuids: list[str] = []
    for slot in range(_nvml.read(nvml, lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0):
        uuid = _mig_uuid(nvml, handle, slot)
        if uuid is not None:
            uuids.append(uuid)
    return tuple(uuids)


def _mig_uuid(nvml: ModuleType, handle: Handle, slot: int) -> str | None:
    instance = _nvml.read(nvml, lambda: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot))
    if instance is None:
        return None
    return _nvml.text(_nvml.read(nvml, lambda: nvml.nvmlDeviceGetUUID(instance)))
