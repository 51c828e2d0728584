"""The simulated engine: a process of its own that speaks vLLM's HTTP and runs on a scaled clock."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import autotune
from autotune.base.clock import Clock, WallClock
from autotune.catalog import Gpu
from autotune.engine._environment import engine_environment
from autotune.engine._gpu_memory import GpuMemory
from autotune.engine._process import LifeHooks, NoHooks
from autotune.engine._supervised import SupervisedEngine, Supervision, server_arguments, start_engine
from autotune.engine._watchdog import StartWatchdog
from autotune.engine.api import EngineKind, LaunchRequest
from autotune.engine.catalogue import ArgumentCatalogue, catalogue_from
from autotune.engine.inside.vllm_arguments import describe
from autotune.simulator.arguments import build_parser
from autotune.simulator.gpu_state import STATE_VARIABLE, busy_bytes
from autotune.space import to_argv
from autotune.spec import Arguments

_SPAWN_ALLOWANCE_S = 60.0
"""Wall seconds that the process may take to appear, whatever the scale of its clock."""


class SimulatedEngine:
    """Starts simulated engines of one GPU.

    Args:
        gpu: the GPU that is simulated.
        clock: engine time; a ``WallClock`` whose scale the process runs at, too.
        seed: of the simulated noise.
        study: name that is put on the processes, so that orphans are known by it.
        hooks: told of each started and ended process.
        options: further words for the simulator's command line, e.g. ``("--sim-child",)``.
        environment: variables for every engine, over the outer ones.
    """

    def __init__(
        self,
        gpu: Gpu,
        *,
        clock: WallClock | None = None,
        seed: int = 0,
        study: str = "",
        hooks: LifeHooks | None = None,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        watchdog: StartWatchdog | None = None,
    ) -> None:
        self._gpu = gpu
        self._clock = clock or WallClock()
        self._seed = seed
        self._options = tuple(options)
        self._environment = dict(environment or {})
        self._supervision = Supervision(
            clock=self._clock,
            time_scale=self._clock.scale,
            spawn_allowance=_SPAWN_ALLOWANCE_S,
            memory=GpuMemory(self._memory_used),
            hooks=hooks or NoHooks(),
            study=study,
            watchdog=watchdog or StartWatchdog(),
        )

    def _memory_used(self) -> int | None:
        folder = self._environment.get(STATE_VARIABLE) or os.environ.get(STATE_VARIABLE)
        return busy_bytes(Path(folder)) if folder else None

    @property
    def kind(self) -> EngineKind:
        """Simulated."""
        return EngineKind.SIMULATED

    @property
    def version(self) -> str:
        """Version of this program, whose simulator it is."""
        return autotune.__version__

    @property
    def clock(self) -> Clock:
        """The scaled clock."""
        return self._clock

    @cached_property
    def catalogue(self) -> ArgumentCatalogue:
        """The arguments that the simulator takes."""
        return catalogue_from(describe(build_parser()))

    def check(self, arguments: Arguments) -> list[str]:
        """Reasons why the simulator would refuse the arguments."""
        return self.catalogue.check(arguments)

    async def start(self, request: LaunchRequest) -> SupervisedEngine:
        """Start an engine and wait until it is ready.

        Raises:
            EngineStartError: it did not become ready; nothing of it is left running.
        """

        def command(port: int, served: str) -> Sequence[str]:
            return [
                sys.executable,
                "-m",
                "autotune.simulator",
                "serve",
                request.model,
                "--sim-gpu",
                self._gpu.name,
                "--time-scale",
                str(self._clock.scale),
                "--sim-seed",
                str(self._seed),
                *self._options,
                *to_argv(server_arguments(request.arguments, port, served)),
            ]

        root = str(Path(autotune.__file__).resolve().parents[1])
        outer = dict(os.environ)
        outer["PYTHONPATH"] = os.pathsep.join(filter(None, (root, outer.get("PYTHONPATH", ""))))
        environment = engine_environment(
            outer, model=request.model, devices=None, extra={**self._environment, **request.environment}
        )
        return await start_engine(request, command, environment, self._supervision)
