"""GPUs through a fake NVML: every value degrades alone, and what is missing is said in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.telemetry import (
    DeviceError,
    NvmlDevice,
    decode_reasons,
    detect_gpu,
    driver_cuda_version,
    gpu_memory_used,
    gpu_processes,
    list_gpus,
    nvml_problem,
    pynvml_conflict,
)
from autotune.telemetry.testing import DeviceConformance, FakeGpu, FakeNvml, installed

MIB = 2**20
ENGINE, STRANGER = 4242, 9999


@pytest.fixture
def nvml() -> Iterator[FakeNvml]:
    with installed(FakeNvml([FakeGpu()])) as fake:
        yield fake


def look(device: NvmlDevice) -> dict[str, float | None]:
    device.open()
    try:
        return dict(device.sample())
    finally:
        device.close()


class TestNvmlDeviceConforms(DeviceConformance):
    @pytest.fixture(autouse=True)
    def _fake(self) -> Iterator[None]:
        with installed(FakeNvml([FakeGpu(processes={ENGINE: 10 * MIB})])):
            yield

    def make_device(self) -> NvmlDevice:
        return NvmlDevice(0, own_pids=lambda: {ENGINE})

    def make_broken_device(self) -> NvmlDevice:
        return NvmlDevice(7)


def test_units(nvml: FakeNvml) -> None:
    values = look(NvmlDevice(0))
    assert values["utilization"] == 0.87
    assert values["memory_utilization"] == 0.40
    assert values["memory_used_bytes"] == 450 * MIB
    assert values["memory_total_bytes"] == 15360 * MIB
    assert values["power_w"] == 66.5
    assert values["power_limit_w"] == 70
    assert values["energy_j"] == 1000
    assert values["temperature_c"] == 71
    assert values["sm_clock_mhz"] == 1215
    assert values["sm_clock_max_mhz"] == 1590
    assert values["memory_clock_mhz"] == 5000
    assert nvml.opened == 0


FIELDS_OF_CALLS = {
    "nvmlDeviceGetUtilizationRates": {"utilization", "memory_utilization"},
    "nvmlDeviceGetMemoryInfo": {"memory_used_bytes", "memory_total_bytes"},
    "nvmlDeviceGetPowerUsage": {"power_w"},
    "nvmlDeviceGetEnforcedPowerLimit": {"power_limit_w"},
    "nvmlDeviceGetTotalEnergyConsumption": {"energy_j"},
    "nvmlDeviceGetTemperature": {"temperature_c"},
    "nvmlDeviceGetClockInfo": {"sm_clock_mhz", "memory_clock_mhz"},
    "nvmlDeviceGetMaxClockInfo": {"sm_clock_max_mhz"},
    "nvmlDeviceGetComputeRunningProcesses": {
        "processes",
        "foreign_processes",
        "foreign_memory_bytes",
        "foreign_utilization",
    },
    "nvmlDeviceIsMigDeviceHandle": set(),
}


@pytest.mark.parametrize("how", ["refused", "absent"])
@pytest.mark.parametrize("call", FIELDS_OF_CALLS)
def test_each_value_degrades_alone(call: str, how: str) -> None:
    gpu = FakeGpu(processes={ENGINE: 5 * MIB})
    fake = FakeNvml([gpu], refused={call} if how == "refused" else set(), absent={call} if how == "absent" else set())
    with installed(fake):
        values = look(NvmlDevice(0, own_pids=lambda: {ENGINE}))
    assert {name for name, value in values.items() if value is None} == FIELDS_OF_CALLS[call]


def test_throttle_reasons_are_named(nvml: FakeNvml) -> None:
    nvml.gpus[0].clock_reasons = 0x4 | 0x20 | 0x400
    values = look(NvmlDevice(0))
    assert values["throttle_bits"] == 0x424
    assert values["throttled"] == values["throttle_power_cap"] == values["throttle_sw_thermal"] == 1
    assert values["throttle_hw_thermal"] == 0
    assert decode_reasons(0x424) == ("power_cap", "sw_thermal", "0x400")


def test_power_cap_alone_is_how_a_small_card_works(nvml: FakeNvml) -> None:
    values = look(NvmlDevice(0))
    assert (values["throttle_power_cap"], values["throttled"]) == (1, 0)


def test_older_modules_name_the_reasons_otherwise(nvml: FakeNvml) -> None:
    nvml.absent.add("nvmlDeviceGetCurrentClocksEventReasons")
    assert look(NvmlDevice(0))["throttle_power_cap"] == 1


def test_sentinel_of_an_unknown_value_is_none(nvml: FakeNvml) -> None:
    nvml.gpus[0].sm_clock = 0xFFFFFFFF
    assert look(NvmlDevice(0))["sm_clock_mhz"] is None


def test_foreign_process_is_told_from_the_engine(nvml: FakeNvml) -> None:
    nvml.gpus[0].processes = {ENGINE: 900 * MIB, STRANGER: 100 * MIB}
    nvml.gpus[0].process_utilization_percent = {ENGINE: 80, STRANGER: 15}
    values = look(NvmlDevice(0, own_pids=lambda: {ENGINE}))
    assert values["processes"] == 2
    assert values["foreign_processes"] == 1
    assert values["foreign_memory_bytes"] == 100 * MIB
    assert values["foreign_utilization"] == 0.15


def test_idle_foreign_process_takes_no_time(nvml: FakeNvml) -> None:
    nvml.gpus[0].processes = {ENGINE: 900 * MIB, STRANGER: 100 * MIB}
    assert look(NvmlDevice(0, own_pids=lambda: {ENGINE}))["foreign_utilization"] == 0


def test_process_ids_of_another_namespace_accuse_nobody(nvml: FakeNvml) -> None:
    nvml.gpus[0].processes = {STRANGER: 900 * MIB}
    values = look(NvmlDevice(0, own_pids=lambda: {ENGINE}))
    assert values["processes"] == 1
    assert values["foreign_processes"] is None


def mig() -> FakeNvml:
    gpu = FakeGpu(name="NVIDIA A100-SXM4-40GB", uuid="GPU-aaaa", clock_reasons=0)
    gpu.instances = [FakeGpu(name="MIG 1g.5gb", uuid=f"MIG-{i}", memory_used=i * MIB, parent=gpu) for i in (1, 2)]
    return FakeNvml([FakeGpu(uuid="GPU-bbbb"), gpu])


def test_mig_instance_shares_clocks_but_not_power() -> None:
    with installed(mig()):
        values = look(NvmlDevice("MIG-2"))
        info = list_gpus()[1]
    assert values["memory_used_bytes"] == 2 * MIB
    assert values["temperature_c"] == 71
    assert values["throttled"] == 0
    assert values["power_w"] is values["energy_j"] is values["power_limit_w"] is values["utilization"] is None
    assert info.mig_uuids == ("MIG-1", "MIG-2")


def test_names_by_index_and_uuid() -> None:
    assert NvmlDevice(1).name == NvmlDevice("1").name == "gpu1"
    assert NvmlDevice("GPU-12345678-90ab").name == "gpu-12345678"
    with installed(mig()):
        assert look(NvmlDevice("GPU-aaaa"))["throttled"] == 0


def test_listing(nvml: FakeNvml) -> None:
    (gpu,) = list_gpus()
    assert (gpu.index, gpu.name, gpu.driver, gpu.compute_capability) == (0, "Tesla T4", "580.95.05", (7, 5))
    assert gpu.memory_total_gib == 15
    assert detect_gpu() == "Tesla T4"
    assert detect_gpu(3) is None
    assert driver_cuda_version() == (13, 0)
    assert nvml_problem() is None
    assert nvml.opened == 0


def test_memory_of_a_gpu_that_shares_the_hosts() -> None:
    with installed(
        FakeNvml([FakeGpu(processes={1: 3 * MIB, 2: 4 * MIB})], refused={"nvmlDeviceGetMemoryInfo"})
    ) as fake:
        assert gpu_memory_used(0) == 7 * MIB
        assert list_gpus()[0].memory_total_gib is None
        fake.gpus[0].processes[2] = None
        assert gpu_memory_used(0) is None


def test_memory_leaves_the_drivers_reserve_out(nvml: FakeNvml) -> None:
    assert gpu_memory_used(0) == 450 * MIB
    assert gpu_memory_used("GPU-nobody") is None
    assert gpu_processes(0) == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("NVMLError_LibraryNotFound", "No NVML library"),
        ("NVMLError_DriverNotLoaded", "driver is not loaded"),
        ("NVMLError_LibRmVersionMismatch", "reboot"),
        ("NVMLError_NoPermission", "permission"),
        ("NVMLError_Unknown", "nvidia-smi"),
    ],
)
def test_no_nvml_is_one_sentence(error: str, words: str) -> None:
    with installed(FakeNvml([], errors={"nvmlInit": error})):
        problem = nvml_problem()
        assert problem is not None
        assert words in problem
        assert "\n" not in problem
        assert list_gpus() == []
        assert gpu_memory_used(0) is None
        assert gpu_processes(0) is None
        assert detect_gpu() is None
        assert driver_cuda_version() is None
        with pytest.raises(DeviceError, match=words):
            NvmlDevice(0).open()


def test_nvml_without_a_gpu() -> None:
    with installed(FakeNvml([])):
        assert "no GPU" in (nvml_problem() or "")


def test_a_lost_gpu_is_an_error_not_a_none(nvml: FakeNvml) -> None:
    device = NvmlDevice(0)
    device.open()
    nvml.errors["nvmlDeviceGetPowerUsage"] = "NVMLError_GpuIsLost"
    with pytest.raises(DeviceError, match="fallen off the bus"):
        device.sample()
    device.close()


@pytest.mark.parametrize(("version", "warns"), [("11.5.3", True), ("13.0.1", False)])
def test_old_pynvml_distribution_is_reported(tmp_path: Path, version: str, warns: bool) -> None:
    info = tmp_path / f"pynvml-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: pynvml\nVersion: {version}\n")
    assert (pynvml_conflict(tmp_path) is not None) is warns


def test_this_environment_has_no_conflict() -> None:
    assert pynvml_conflict() is None
