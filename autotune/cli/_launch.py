"""From a best.yaml to the engine that serves it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import autotune
from autotune.base.errors import EnvironmentProblemError, UsageError
from autotune.base.units import format_duration
from autotune.catalog import Gpu, load_gpu
from autotune.engine import VllmInstallation, detect_vllm
from autotune.export import BestFile
from autotune.search.engines import matching_device
from autotune.space import to_argv
from autotune.spec import EngineChoice
from autotune.telemetry import list_gpus as list_devices

_OWN = frozenset({"host", "port"})


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine that will serve: an installed vLLM, or (None) the simulated engine of ``gpu``."""

    installation: VllmInstallation | None
    gpu: Gpu | None
    cautions: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Which engine, in a phrase."""
        if self.installation is not None:
            return f"vLLM {self.installation.version}"
        assert self.gpu is not None
        return f"the SIMULATED engine of {self.gpu.title}"


def choose_engine(best: BestFile, engine: EngineChoice, vllm_command: str | None) -> Choice:
    """The engine for a configuration.

    ``auto`` takes an installed vLLM where its GPU is here, or where the file comes from a real engine; and the
    simulated one for a file whose figures were simulated.

    Raises:
        EnvironmentProblemError: no vLLM is found and the file's figures are real.
        UsageError: the simulated engine was asked for and the file does not say of which GPU.
    """
    facts = best.provenance
    gpu = _gpu(facts.gpu) if facts is not None else None
    if engine is EngineChoice.SIMULATED:
        if gpu is None:
            raise UsageError(
                f"{best.path}: it does not say on which GPU it was measured.", "Use a best.yaml that a search left."
            )
        return Choice(None, gpu)
    may_simulate = engine is EngineChoice.AUTO and facts is not None and facts.simulated and gpu is not None
    if may_simulate and vllm_command is None and not _is_here(gpu):
        return Choice(None, gpu)
    try:
        installation = detect_vllm(vllm_command)
    except EnvironmentProblemError:
        if may_simulate and vllm_command is None:
            return Choice(None, gpu)
        raise
    return Choice(installation, gpu, tuple(_cautions(best, installation, gpu)))


def _gpu(name: str) -> Gpu | None:
    try:
        return load_gpu(name)
    except UsageError:
        return None


def _is_here(gpu: Gpu | None) -> bool:
    return gpu is not None and (gpu.kind == "cpu" or matching_device(gpu) is not None)


def _cautions(best: BestFile, installation: VllmInstallation, gpu: Gpu | None) -> list[str]:
    facts = best.provenance
    if facts is None:
        return [f"{best.path} does not say where it comes from."]
    found = []
    if facts.simulated:
        found.append("The figures in the file are SIMULATED; check them with: autotune verify")
    elif facts.engine_version != installation.version:
        versions = f"vLLM {facts.engine_version}, and this is {installation.version}"
        found.append(f"It was measured with {versions}; check with: autotune verify")
    devices = list_devices()
    if gpu is not None and gpu.kind == "cuda" and devices and matching_device(gpu) is None:
        found.append(f"It was tuned for {gpu.title}; this machine has {devices[0].name}.")
    return found


def launch_command(
    best: BestFile, choice: Choice, host: str, port: int, extra: Sequence[str], time_scale: float = 1.0
) -> list[str]:
    """The argument vector that serves a configuration at an address."""
    flags = to_argv({name: value for name, value in best.arguments.items() if name not in _OWN})
    argv = [*flags, "--host", host, "--port", str(port), *extra]
    if choice.installation is not None:
        return choice.installation.launch_command(best.model, argv)
    assert choice.gpu is not None
    simulator = [sys.executable, "-m", "autotune.simulator", "serve", best.model, "--sim-gpu", choice.gpu.name]
    return [*simulator, "--time-scale", f"{time_scale:g}", *argv]


def ready_words(best: BestFile) -> str:
    """How long the start took when it was measured; empty when unknown."""
    facts = best.provenance
    return f"; it took {format_duration(facts.start_s)} to get ready" if facts is not None and facts.start_s else ""


def launch_environment(best: BestFile, choice: Choice) -> dict[str, str]:
    """This process's environment with the configuration's own variables over it.

    Only the simulated engine is told where this program lies: a vLLM of another environment must not import from here.
    """
    outer = {**os.environ, **best.environment}
    if choice.installation is not None:
        return outer
    root = str(Path(autotune.__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    return {**outer, "PYTHONPATH": path}


def check_address(host: str, port: int) -> None:
    """Make sure that the address is free before an engine spends minutes on loading.

    Raises:
        EnvironmentProblemError: it is taken or not one of this machine's.
    """
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise EnvironmentProblemError(
            f"{host}:{port} cannot be listened on ({error.strerror or error}).", "Choose another with --port."
        ) from error
