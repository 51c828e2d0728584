"""The simulated engine in virtual time: starts, serves and dies on paper, with no process and no sleeping."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

import autotune
from autotune.base.clock import VirtualClock
from autotune.catalog import Gpu, ModelShape
from autotune.engine.api import EngineFacts, EngineKind, EngineStartError, LaunchRequest, StopReport
from autotune.engine.catalogue import ArgumentCatalogue, catalogue_from
from autotune.engine.failure import Cause, Failure, FailureKind, Phase
from autotune.engine.inside.vllm_arguments import describe
from autotune.simulator.arguments import CommandLineError, build_parser
from autotune.simulator.core import EngineCore
from autotune.simulator.engine_model import EngineModel, StartError, StartPhase, build_engine_model, oom_text
from autotune.simulator.memory import Perturbation
from autotune.simulator.options import ConfigError
from autotune.simulator.start_times import compile_key, start_times
from autotune.spec import Arguments

STOP_S = 3.0
"""From SIGTERM until the memory of a vLLM server is back."""
_REFUSED_AFTER = 0.5
"""Share of the imports after which vLLM looks at its arguments."""

_START_FAILURES: dict[StartPhase, tuple[Cause, Phase, str]] = {
    StartPhase.INIT_DEVICE: (Cause.GPU_MEMORY_BUSY, Phase.LOAD_WEIGHTS, "Lower gpu-memory-utilization."),
    StartPhase.LOAD_WEIGHTS: (Cause.OOM_WEIGHTS, Phase.LOAD_WEIGHTS, "Use a smaller or quantized model."),
    StartPhase.PROFILE: (Cause.OOM_ACTIVATION, Phase.PROFILE, "Lower max-num-batched-tokens."),
    StartPhase.KV_CACHE: (Cause.OOM_KV_CACHE, Phase.KV_CACHE, "Lower max-model-len or raise gpu-memory-utilization."),
    StartPhase.KV_ALLOCATION: (Cause.OOM_KV_CACHE, Phase.KV_CACHE, "Lower gpu-memory-utilization."),
    StartPhase.CAPTURE: (Cause.OOM_CUDAGRAPH, Phase.CUDA_GRAPHS, "Lower gpu-memory-utilization."),
}


def start_failure(error: StartError | ConfigError | CommandLineError) -> Failure:
    """What a start that failed on paper means, as the diagnosis of a log would say it."""
    if not isinstance(error, StartError):
        return Failure(
            Cause.INVALID_CONFIG, FailureKind.INFEASIBLE, Phase.CONFIG, str(error), "Correct the argument it names."
        )
    cause, phase, advice = _START_FAILURES[error.phase]
    return Failure(cause, FailureKind.INFEASIBLE, phase, str(error), advice)


@cache
def _catalogue() -> ArgumentCatalogue:
    return catalogue_from(describe(build_parser()))


@dataclass
class VirtualRunningEngine:
    """A started engine: each load runs on an idle engine core."""

    engine: EngineModel
    clock: VirtualClock
    facts: EngineFacts
    log_path: Path
    seed: int
    """Of the noise of its step times."""
    slowdown: float = 1.0
    """Factor on its step times: no two starts are equally fast."""
    url: str = "virtual://engine"
    served_model: str = "virtual"
    process_id: int = 0
    death: str | None = None
    """Why it died while it served."""
    _loads: int = 0

    def new_core(self) -> EngineCore:
        """An idle engine core for the next load."""
        self._loads += 1
        core = self.engine.new_core(seed=self.seed + self._loads)
        core.slowdown = self.slowdown
        return core

    def exited(self) -> bool:
        """True once it died."""
        return self.death is not None

    async def reset_prefix_cache(self) -> bool:
        """Every load begins with empty caches anyway."""
        return True

    async def diagnose(self, *, hung: bool = False) -> Failure:
        """Out of memory under load: the only way a virtual engine dies."""
        line = self.death or "No token came while requests were open."
        cause = Cause.ENGINE_HANG if hung else Cause.OOM_RUNTIME
        kind = FailureKind.FAULT if hung else FailureKind.INFEASIBLE
        return Failure(cause, kind, Phase.SERVING, line, "Lower gpu-memory-utilization or max-num-batched-tokens.")

    def die(self, wanted_and_free: str) -> None:
        """The engine core ran out of memory."""
        memory = self.engine.memory
        self.death = f"{oom_text(0.1, 0.05, memory.total)} ({wanted_and_free})"

    async def stop(self) -> StopReport:
        """End it; takes engine time."""
        await self.clock.sleep(STOP_S)
        return StopReport(STOP_S, False, True)


@dataclass
class VirtualEngine:
    """Starts engines on paper.

    Args:
        gpu: the GPU that is simulated.
        model: what is served; the launch request's model is not looked at.
        clock: carries the engine seconds.
        seed: of all noise.
        instance_noise: standard deviation of the logarithm of an engine's speed from start to start.
        perturbation: factors on the memory model.
    """

    gpu: Gpu
    model: ModelShape
    clock: VirtualClock = field(default_factory=VirtualClock)
    seed: int = 0
    instance_noise: float = 0.0
    perturbation: Perturbation | None = None
    _compiled: set[tuple[object, ...]] = field(default_factory=set)
    _starts: int = 0
    _latest: VirtualRunningEngine | None = None

    @property
    def kind(self) -> EngineKind:
        """Simulated."""
        return EngineKind.SIMULATED

    @property
    def version(self) -> str:
        """Version of this program, whose simulator it is."""
        return autotune.__version__

    @property
    def catalogue(self) -> ArgumentCatalogue:
        """The arguments that the simulator takes."""
        return _catalogue()

    def check(self, arguments: Arguments) -> list[str]:
        """Reasons why the simulator would refuse the arguments."""
        return self.catalogue.check(arguments)

    async def start(self, request: LaunchRequest) -> VirtualRunningEngine:
        """Start an engine; its start-up passes on the clock.

        Raises:
            EngineStartError: it does not fit, or vLLM would refuse its arguments.
        """
        self._starts += 1
        try:
            engine = build_engine_model(self.gpu, self.model, request.arguments, perturbation=self.perturbation)
        except (ConfigError, CommandLineError, StartError) as error:
            await self.clock.sleep(self._seconds_until(error))
            raise EngineStartError(start_failure(error)) from error
        key = compile_key(self.gpu, self.model, engine.options)
        times = start_times(self.gpu, self.model, engine.options, engine.memory.weights, warm=key in self._compiled)
        self._compiled.add(key)
        await self.clock.sleep(times.total)
        options = engine.options
        facts = EngineFacts(
            kv_cache_tokens=engine.kv_tokens,
            kv_cache_gib=engine.kv_gib,
            weights_gib=engine.memory.weights,
            graphs_gib=engine.memory.graphs,
            start_seconds={
                "weights": times.weights, "compile": times.compile, "graphs": times.graphs, "total": times.total,
            },
            resolved={
                "max-num-seqs": options.max_num_seqs,
                "max-num-batched-tokens": options.max_num_batched_tokens,
                "max-model-len": options.max_model_len,
                "gpu-memory-utilization": options.gpu_memory_utilization,
            },
        )  # fmt: skip
        seed = zlib.crc32(f"{self.seed}/{self._starts}".encode())
        spread = np.random.Generator(np.random.PCG64(seed)).standard_normal()
        self._latest = VirtualRunningEngine(
            url=f"virtual://engine-{self._starts}",
            engine=engine,
            clock=self.clock,
            facts=facts,
            log_path=request.folder / "engine.log",
            seed=seed,
            slowdown=float(np.exp(self.instance_noise * spread)),
        )
        return self._latest

    def at(self, url: str) -> VirtualRunningEngine:
        """The engine that was started last, which a load generator reaches by its address."""
        if self._latest is None or self._latest.url != url:
            raise ValueError(f"no virtual engine at {url}")
        return self._latest

    def _seconds_until(self, error: Exception) -> float:
        """Engine seconds that a start takes until it fails."""
        imports = self.gpu.calibration.import_s
        if not isinstance(error, StartError):
            return _REFUSED_AFTER * imports
        if error.phase is StartPhase.INIT_DEVICE:
            return imports
        weights = self.model.weight_bytes() / 1e9 / self.gpu.calibration.load_gbs
        compiling = self.gpu.calibration.compile_cold_s * self.model.layers / 36
        return imports + weights + (0.0 if error.phase is StartPhase.LOAD_WEIGHTS else compiling)
