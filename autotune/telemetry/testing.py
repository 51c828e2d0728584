"""For tests of telemetry devices, here and elsewhere: what each must pass, and an NVML without a GPU."""

# ruff: noqa: N802, N815 - the fake has the names of NVML
from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import NoReturn

from autotune.telemetry.device import Device, DeviceError, Sample

_MIB = 2**20


class DeviceConformance:
    """What every device must do. Subclass it in a test as ``TestMyDevice`` and give the two devices."""

    def make_device(self) -> Device:
        """A new device that works."""
        raise NotImplementedError

    def make_broken_device(self) -> Device | None:
        """A new device that cannot be opened or sampled; None when this kind of device always works."""
        raise NotImplementedError

    def samples(self, count: int) -> list[Sample]:
        """So many looks at a new device."""
        device = self.make_device()
        device.open()
        try:
            return [device.sample() for _ in range(count)]
        finally:
            device.close()

    def test_name_can_be_part_of_a_column(self) -> None:
        name = self.make_device().name
        assert name
        assert not set(name) & set('., "\n')

    def test_values_are_finite_numbers_or_none(self) -> None:
        for sample in self.samples(2):
            assert sample
            for field_name, value in sample.items():
                assert "." not in field_name
                assert value is None or (isinstance(value, float) and math.isfinite(value)), field_name

    def test_every_look_has_the_same_fields(self) -> None:
        first, second = self.samples(2)
        assert list(first) == list(second)

    def test_counters_are_fields_and_never_fall(self) -> None:
        counters = self.make_device().counters
        first, second = self.samples(2)
        assert counters <= set(first)
        for counter in counters:
            before, after = first[counter], second[counter]
            assert before is None or after is None or after >= before

    def test_close_is_safe_at_any_time(self) -> None:
        device = self.make_device()
        device.close()
        device.open()
        device.close()
        device.close()

    def test_opens_again_after_close(self) -> None:
        device = self.make_device()
        for _ in range(2):
            device.open()
            assert device.sample()
            device.close()

    def test_a_broken_device_says_so_in_one_sentence(self) -> None:
        device = self.make_broken_device()
        if device is None:
            return
        problem = ""
        try:
            device.open()
            device.sample()
        except DeviceError as error:
            problem = str(error)
        finally:
            device.close()
        assert problem.endswith(".")
        assert "\n" not in problem


@dataclass
class FakeGpu:
    """A GPU of the fake NVML; every figure may be changed while a test runs."""

    name: str = "Tesla T4"
    uuid: str = "GPU-11111111-2222-3333-4444-555555555555"
    memory_total: int = 15360 * _MIB
    memory_used: int = 450 * _MIB
    compute_capability: tuple[int, int] = (7, 5)
    utilization_percent: int = 87
    memory_utilization_percent: int = 40
    power_milliwatts: int = 66_500
    power_limit_milliwatts: int = 70_000
    energy_millijoules: int = 1_000_000
    temperature: int = 71
    sm_clock: int = 1215
    sm_clock_max: int = 1590
    memory_clock: int = 5000
    clock_reasons: int = 0x4
    processes: dict[int, int | None] = field(default_factory=dict)
    """Bytes by process id; None as the driver does where it cannot tell."""
    process_utilization_percent: dict[int, int] = field(default_factory=dict)
    instances: list[FakeGpu] = field(default_factory=list)
    """MIG instances."""
    parent: FakeGpu | None = None


class FakeNvml(ModuleType):
    """Stands for the module ``pynvml``.

    Args:
        gpus: what is in the machine.
        refused: names of calls that raise ``NVMLError_NotSupported``.
        errors: names of calls and the NVML error each raises, e.g. ``{"nvmlInit": "NVMLError_DriverNotLoaded"}``.
        absent: names that this release of the module does not have.
    """

    NVMLError: type[Exception]
    nvmlMemory_v2 = 0x2000028

    def __init__(
        self,
        gpus: list[FakeGpu],
        *,
        refused: set[str] | None = None,
        errors: dict[str, str] | None = None,
        absent: set[str] | None = None,
    ) -> None:
        super().__init__("pynvml")
        self.NVMLError = type("NVMLError", (Exception,), {})
        self.gpus = gpus
        self.opened = 0
        self.refused = refused or set()
        self.errors = errors or {}
        self.absent = absent or set()

    def __getattribute__(self, name: str) -> object:
        if not name.startswith("nvml") or name == "nvmlMemory_v2":
            return super().__getattribute__(name)
        if name in self.absent:
            raise AttributeError(name)
        if name in self.refused:
            return self._refuse("NVMLError_NotSupported", "Not Supported")
        if name in self.errors:
            return self._refuse(self.errors[name], self.errors[name].removeprefix("NVMLError_"))
        return super().__getattribute__(name)

    def _refuse(self, kind: str, message: str) -> Callable[..., NoReturn]:
        error = type(kind, (self.NVMLError,), {})(message)

        def call(*_arguments: object, **_options: object) -> NoReturn:
            raise error

        return call

    def nvmlInit(self) -> None:
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.95.05"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13000

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        if not 0 <= index < len(self.gpus):
            self._refuse("NVMLError_InvalidArgument", "Invalid Argument")()
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        for gpu in self.gpus:
            for device in (gpu, *gpu.instances):
                if device.uuid == uuid:
                    return device
        return self._refuse("NVMLError_NotFound", "Not Found")()

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:
        return gpu.name

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu, version: int | None = None) -> SimpleNamespace:
        reserve = 0 if version else 256 * _MIB
        return SimpleNamespace(used=gpu.memory_used + reserve, total=gpu.memory_total)

    def nvmlDeviceGetCudaComputeCapability(self, gpu: FakeGpu) -> tuple[int, int]:
        return gpu.compute_capability

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> SimpleNamespace:
        self._refuse_on_instance(gpu)
        return SimpleNamespace(gpu=gpu.utilization_percent, memory=gpu.memory_utilization_percent)

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGpu) -> int:
        self._refuse_on_instance(gpu)
        return gpu.power_milliwatts

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: FakeGpu) -> int:
        self._refuse_on_instance(gpu)
        return gpu.power_limit_milliwatts

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: FakeGpu) -> int:
        self._refuse_on_instance(gpu)
        return gpu.energy_millijoules

    def nvmlDeviceGetTemperature(self, gpu: FakeGpu, _sensor: int) -> int:
        self._refuse_on_instance(gpu)
        return gpu.temperature

    def nvmlDeviceGetClockInfo(self, gpu: FakeGpu, clock: int) -> int:
        self._refuse_on_instance(gpu)
        return gpu.sm_clock if clock == 1 else gpu.memory_clock

    def nvmlDeviceGetMaxClockInfo(self, gpu: FakeGpu, _clock: int) -> int:
        self._refuse_on_instance(gpu)
        return gpu.sm_clock_max

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: FakeGpu) -> int:
        self._refuse_on_instance(gpu)
        return gpu.clock_reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: FakeGpu) -> int:
        self._refuse_on_instance(gpu)
        return gpu.clock_reasons

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpu.processes.items()]

    def nvmlDeviceGetProcessUtilization(self, gpu: FakeGpu, _since: int) -> list[SimpleNamespace]:
        self._refuse_on_instance(gpu)
        if not gpu.process_utilization_percent:
            self._refuse("NVMLError_NotFound", "Not Found")()
        return [SimpleNamespace(pid=pid, smUtil=share) for pid, share in gpu.process_utilization_percent.items()]

    def nvmlDeviceIsMigDeviceHandle(self, gpu: FakeGpu) -> int:
        return int(gpu.parent is not None)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, gpu: FakeGpu) -> FakeGpu:
        return gpu.parent or self._refuse("NVMLError_InvalidArgument", "Invalid Argument")()

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> list[int]:
        return [int(bool(gpu.instances))] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:
        return max(7, len(gpu.instances))

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, index: int) -> FakeGpu:
        if index >= len(gpu.instances):
            self._refuse("NVMLError_NotFound", "Not Found")()
        return gpu.instances[index]

    def _refuse_on_instance(self, gpu: FakeGpu) -> None:
        if gpu.parent is not None:
            self._refuse("NVMLError_NotSupported", "Not Supported")()


@contextmanager
def installed(nvml: FakeNvml) -> Iterator[FakeNvml]:
    """``import pynvml`` gives the fake within the ``with`` block."""
    real = sys.modules.get("pynvml")
    sys.modules["pynvml"] = nvml
    try:
        yield nvml
    finally:
        if real is None:
            del sys.modules["pynvml"]
        else:
            sys.modules["pynvml"] = real
