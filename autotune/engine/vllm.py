"""The real engine: an installed vLLM, found and not imported."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from autotune.base.clock import Clock, WallClock
from autotune.engine._environment import engine_environment
from autotune.engine._gpu_memory import GpuMemory, MemoryProbe
from autotune.engine._guard import Guard, shared_guard
from autotune.engine._process import LifeHooks, NoHooks, PlainLauncher
from autotune.engine._supervised import SupervisedEngine, Supervision, server_arguments, start_engine
from autotune.engine._warm import WarmLauncher
from autotune.engine.api import EngineKind, EngineStartError, LaunchRequest
from autotune.engine.catalogue import ArgumentCatalogue, load_catalogue
from autotune.engine.failure import Cause
from autotune.engine.installation import VllmInstallation
from autotune.space import normalise, to_argv
from autotune.spec import Arguments
from autotune.telemetry import gpu_memory_used

FORK_ON_GPU = "AUTOTUNE_FORK_ON_GPU"
"""Environment variable: set to 0, engines on a GPU are started plainly (docs/decisions/0007-forked-starts.md)."""
SOCKETS = "VLLM_RPC_BASE_PATH"
"""Environment variable: where vLLM's processes put the sockets by which they talk."""
FORKED_LOG = "engine.forked.log"
"""Where the log of a forked start that failed oddly is kept, while the plain one writes its own."""


class VllmEngine:
    """Starts engines of one vLLM installation on one GPU.

    Args:
        installation: what ``detect_vllm`` found.
        device_uuid: GPU or MIG UUID, or an index in PCI bus order; None leaves ``CUDA_VISIBLE_DEVICES`` alone.
        clock: wall time unless a test says otherwise.
        study: name that is put on the processes, so that orphans are known by it.
        hooks: told of each started and ended process.
        environment: variables for every engine, over the outer ones.
        memory_used: bytes taken on the GPU by anybody; NVML is asked unless given.
        cache_folder: where answers of the installation are kept; the user's cache folder unless given.
        warm_starts: fork engines from a process that has vLLM imported, where that is known to work; it saves most of
            a start's time.
    """

    def __init__(
        self,
        installation: VllmInstallation,
        device_uuid: str | None = None,
        *,
        clock: Clock | None = None,
        study: str = "",
        hooks: LifeHooks | None = None,
        environment: Mapping[str, str] | None = None,
        memory_used: MemoryProbe | None = None,
        cache_folder: Path | None = None,
        warm_starts: bool = True,
    ) -> None:
        self.installation = installation
        self._device = device_uuid
        self._clock = clock or WallClock()
        self._environment = dict(environment or {})
        self._cache_folder = cache_folder
        guard = shared_guard()
        # As it was when the study began: our libraries set variables as they are imported, which are not the engine's
        # business, and a process with other variables cannot fork it.
        self._outer = dict(os.environ)
        # vLLM leaves the sockets of its processes behind: they get a folder that is removed.
        self._sockets = tempfile.TemporaryDirectory(prefix="autotune-vllm-", ignore_cleanup_errors=True)
        self._outer.setdefault(SOCKETS, self._sockets.name)
        self._launcher = _launcher(installation, guard, {**self._outer, **self._environment}) if warm_starts else None
        self._supervision = Supervision(
            clock=self._clock,
            guard=guard,
            launcher=self._launcher or PlainLauncher(),
            memory=GpuMemory(memory_used or _probe(device_uuid)),
            hooks=hooks or NoHooks(),
            study=study,
        )

    @property
    def kind(self) -> EngineKind:
        """Real."""
        return EngineKind.VLLM

    @property
    def version(self) -> str:
        """Version of vLLM."""
        return self.installation.version

    @property
    def clock(self) -> Clock:
        """Wall time."""
        return self._clock

    @cached_property
    def catalogue(self) -> ArgumentCatalogue:
        """The arguments that this installation takes; asked of it once per version."""
        return load_catalogue(self.installation, self._cache_folder)

    def check(self, arguments: Arguments) -> list[str]:
        """Reasons why this installation would refuse the arguments."""
        ours = [f"{name} is set for each engine: leave it out." for name in arguments if normalise(name) in _RESERVED]
        return ours + self.catalogue.check(arguments)

    async def start(self, request: LaunchRequest) -> SupervisedEngine:
        """Start an engine and wait until it is ready.

        Raises:
            EngineStartError: it did not become ready; nothing of it is left running.
        """

        def command(port: int, served: str) -> Sequence[str]:
            argv = to_argv(server_arguments(request.arguments, port, served))
            return self.installation.launch_command(request.model, argv)

        environment = engine_environment(
            self._outer,
            model=request.model,
            devices=self._device,
            extra={**self._environment, **request.environment},
        )
        try:
            return await start_engine(request, command, environment, self._supervision)
        except EngineStartError as error:
            if self._launcher is None or not self._launcher.warm or error.failure.cause not in _MAYBE_FROM_FORKING:
                raise
            # A configuration must not be blamed for the way in which it was started.
            await asyncio.to_thread(self._launcher.give_up)
            with contextlib.suppress(OSError):
                (request.folder / "engine.log").replace(request.folder / FORKED_LOG)
        return await start_engine(request, command, environment, self._supervision)

    async def close(self) -> None:
        """End the preloaded process; no engine may run any more. It also ends with this program."""
        if self._launcher is not None:
            await asyncio.to_thread(self._launcher.close)
        self._sockets.cleanup()


_RESERVED = frozenset(
    {
        "host",
        "port",
        "uds",
        "api-key",
        "ssl-keyfile",
        "ssl-certfile",
        "root-path",
        "headless",
        "grpc",
        "config",
        "model",
    }
)
"""Arguments by which an engine would not be found, or not be ours alone."""
_MAYBE_FROM_FORKING = frozenset(
    {
        Cause.ENGINE_CRASH,
        Cause.ENGINE_HANG,
        Cause.DEPENDENCY_ERROR,
        Cause.DRIVER_ERROR,
        Cause.NCCL_DISTRIBUTED,
        Cause.UNKNOWN,
    }
)


def _launcher(installation: VllmInstallation, guard: Guard, environment: Mapping[str, str]) -> WarmLauncher | None:
    """A launcher that forks, where the installation's Python is known and its processes may be forked."""
    if installation.on_cpu:
        # On a CPU vLLM binds the threads of its workers by variables that only a fresh process reads.
        wanted = environment.get("VLLM_CPU_OMP_THREADS_BIND", "auto") == "nobind"
    else:
        wanted = environment.get(FORK_ON_GPU, "") != "0"
    if installation.python is None or not wanted:
        return None
    return WarmLauncher(installation.python, installation.command, guard)


def _probe(device: str | None) -> MemoryProbe:
    if device is None:
        return lambda: None
    return lambda: gpu_memory_used(device)
