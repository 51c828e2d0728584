"""Which engine a study uses: the real one where its GPU and a vLLM are, otherwise the simulated one."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.base.clock import WallClock
from autotune.base.errors import EnvironmentProblemError, UsageError
from autotune.catalog import Gpu, identify_gpu
from autotune.engine import SimulatedEngine, VllmEngine, VllmInstallation, detect_vllm
from autotune.spec import EngineChoice, Objective, StudySpec
from autotune.telemetry import DeviceError, GpuInfo, NvmlDevice, nvml_problem
from autotune.telemetry import list_gpus as list_devices


@dataclass(frozen=True, slots=True)
class EngineSelection:
    """The engine of a study, and why it is that one."""

    engine: SimulatedEngine | VllmEngine
    device: GpuInfo | None
    """The GPU under test; None on the simulated engine and on CPU."""
    time_scale: float
    reason: str
    command: tuple[str, ...] = ()

    @property
    def vllm_version(self) -> str | None:
        """Version of the installed vLLM; None on the simulated engine, which follows the newest."""
        return self.engine.version if isinstance(self.engine, VllmEngine) else None


def matching_device(gpu: Gpu) -> GpuInfo | None:
    """The first GPU of this machine that is of the catalogue's kind."""
    for device in list_devices():
        found = identify_gpu(device.name, device.memory_total_gib or gpu.memory_gib)
        if found is not None and found.name == gpu.name:
            return device
    return None


def detect_gpu_name() -> str:
    """The catalogue's name of this machine's GPU.

    Raises:
        EnvironmentProblemError: there is no GPU, or it is not in the catalogue.
    """
    devices = list_devices()
    if not devices:
        raise EnvironmentProblemError(
            f"--gpu auto: no NVIDIA GPU found ({nvml_problem() or 'NVML lists none'}).", "Name the GPU, e.g. --gpu t4."
        )
    gpu = identify_gpu(devices[0].name, devices[0].memory_total_gib or 0.0)
    if gpu is not None:
        return gpu.name
    raise EnvironmentProblemError(
        f"--gpu auto: '{devices[0].name}' is not in the catalogue.",
        "'autotune gpus' lists what is; name the nearest with --gpu.",
    )


def select_engine(
    choice: EngineChoice,
    gpu: Gpu,
    *,
    vllm_command: str | None,
    time_scale: float | None,
    seed: int,
    study: str,
    expected_tokens_per_s: float,
    shortest_time_s: float,
) -> EngineSelection:
    """The engine that a study will use.

    Raises:
        EnvironmentProblemError: a real vLLM was asked for and its GPU or its installation is missing.
    """
    device = None if gpu.kind == "cpu" else matching_device(gpu)
    here = gpu.kind == "cpu" or device is not None
    if choice is EngineChoice.VLLM or (choice is EngineChoice.AUTO and (vllm_command is not None or here)):
        installation = _installation(choice, vllm_command)
        if installation is not None:
            if not here:
                raise EnvironmentProblemError(
                    f"--gpu {gpu.name} with a real vLLM: {_missing_gpu()}.",
                    "Name this machine's GPU (--gpu auto), or use --engine simulated.",
                )
            engine = VllmEngine(installation, device_uuid=None if device is None else device.uuid, study=study)
            return EngineSelection(engine, device, 1.0, f"vLLM {installation.version}", tuple(installation.command))
    scale = time_scale or simulation_scale(expected_tokens_per_s, shortest_time_s)
    why = f"no {gpu.title} with a vLLM here" if choice is EngineChoice.AUTO else "as asked"
    return EngineSelection(SimulatedEngine(gpu, clock=WallClock(scale), seed=seed, study=study), None, scale, why)


def check_objective(spec: StudySpec, gpu: Gpu, selection: EngineSelection) -> None:
    """Whether what the study seeks can be told here.

    Raises:
        UsageError: a cost without a price, or energy on the simulated engine.
        EnvironmentProblemError: energy on a machine that does not report its power.
    """
    if spec.objective is Objective.COST and spec.price_per_hour is None and gpu.price_per_hour is None:
        raise UsageError(f"objective cost: the catalogue has no price of {gpu.name}.", "Add one, e.g. --price 2.50/h.")
    if spec.objective is not Objective.ENERGY:
        return
    if isinstance(selection.engine, SimulatedEngine):
        raise UsageError(
            "objective energy: the simulated engine draws no power.",
            "Run it on a GPU with vLLM (--engine vllm), or seek the capacity or the cost.",
        )
    if selection.device is None or gpu_power(selection.device) is None:
        raise EnvironmentProblemError(
            f"objective energy: {gpu.title} does not report its power here.", "Seek the capacity or the cost."
        )


def gpu_power(device: GpuInfo) -> float | None:
    """What a GPU draws now, W; None where it does not say (a MIG instance, an old driver)."""
    watched = NvmlDevice(device.uuid or device.index)
    try:
        watched.open()
        return watched.sample().get("power_w")
    except DeviceError:
        return None
    finally:
        watched.close()


def simulation_scale(expected_tokens_per_s: float, shortest_time_s: float) -> float:
    """How many times faster than real the simulated engine runs.

    As fast as two cores carry its tokens, and no faster than this machine's delays of some milliseconds, which
    the scale multiplies, stay small against the times that are measured.
    """
    by_tokens = SIMULATED_TOKENS_PER_WALL_SECOND / max(expected_tokens_per_s, 1.0)
    by_delay = TOLERATED_SHARE * shortest_time_s / MACHINE_DELAY_S
    return max(1.0, min(FASTEST_SCALE, by_tokens, by_delay))


FASTEST_SCALE = 100.0
TOLERATED_SHARE = 0.05
MACHINE_DELAY_S = 0.002
"""Delay of a quiet two-core machine (P99 of an event loop's lateness), wall seconds; a busy one slows the clock."""
SIMULATED_TOKENS_PER_WALL_SECOND = 30_000.0
"""Tokens that the simulated engine and the load generator carry on two cores without lagging: 34,000 to 41,000 were
measured at a sixth of a core, since tokens that are due together share a chunk."""


def _installation(choice: EngineChoice, vllm_command: str | None) -> VllmInstallation | None:
    try:
        return detect_vllm(vllm_command)
    except EnvironmentProblemError:
        if choice is EngineChoice.VLLM or vllm_command is not None:
            raise
        return None


def _missing_gpu() -> str:
    devices = list_devices()
    if devices:
        return f"this machine has {devices[0].name}"
    return f"this machine has no such GPU ({nvml_problem() or 'NVML lists none'})"
