"""The systems of the search benchmark: simulated GPUs whose physics differ from what the planner knows."""

from __future__ import annotations

import hashlib
import json
import statistics
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from autotune.catalog import Gpu, ModelShape, load_gpu, load_model, load_workload
from autotune.simulator.arguments import CommandLineError
from autotune.simulator.engine_model import EngineModel, StartError, build_engine_model
from autotune.simulator.long_run import LongRuns
from autotune.simulator.memory import Perturbation
from autotune.simulator.options import ConfigError
from autotune.space import SearchSpace, build_space
from autotune.spec import Arguments, Slo, Workload

OPTIMA = Path(__file__).parent / "data" / "search_optima.json"
TRUTH_REQUESTS = 3000
TRUTH_SEED = 4711
TRUTH_PRECISION = 0.005
_LONG_REQUESTS, _LONG_SEEDS = 20_000, 2
_SPREAD = 0.12
"""Standard deviation of the logarithm of each physical constant around the catalogue's."""
_MEMORY_SPREAD = 0.1
_SHARES = (
    "prefill_efficiency", "bandwidth_efficiency", "attention_bandwidth_efficiency", "attention_efficiency",
)  # fmt: skip
_TIMES = (
    "step_overhead_s", "sequence_overhead_s", "token_overhead_s", "output_overhead_s", "request_overhead_s",
    "graph_overhead_per_layer_s", "piecewise_overhead_per_layer_s", "compiled_overhead_per_layer_s",
)  # fmt: skip


@dataclass(frozen=True)
class System:
    """A GPU, a model, a workload and an objective."""

    name: str
    gpu_name: str
    model_name: str
    workload_name: str
    slo_text: tuple[tuple[str, str], ...]
    regime: str

    @cached_property
    def planned_gpu(self) -> Gpu:
        """What the catalogue says."""
        return load_gpu(self.gpu_name)

    @cached_property
    def gpu(self) -> Gpu:
        """What is really there."""
        random = np.random.default_rng(int(hashlib.sha256(self.name.encode()).hexdigest()[:8], 16))
        calibration = self.planned_gpu.calibration
        changed: dict[str, float] = {}
        for name in (*_SHARES, *_TIMES):
            value = getattr(calibration, name) * float(np.exp(_SPREAD * random.standard_normal()))
            changed[name] = min(value, 0.98) if name in _SHARES else value
        return self.planned_gpu.model_copy(update={"calibration": calibration.model_copy(update=changed)})

    @cached_property
    def perturbation(self) -> Perturbation:
        """Factors on the memory model."""
        random = np.random.default_rng(int(hashlib.sha256(self.name.encode()).hexdigest()[8:16], 16))
        factors = np.exp(_MEMORY_SPREAD * random.standard_normal(3))
        return Perturbation(activation=float(factors[0]), graphs=float(factors[1]), overhead=float(factors[2]))

    @cached_property
    def model(self) -> ModelShape:
        return load_model(self.model_name)

    @cached_property
    def workload(self) -> Workload:
        return load_workload(self.workload_name)

    @cached_property
    def slo(self) -> Slo:
        return Slo.from_mapping(dict(self.slo_text))

    @cached_property
    def space(self) -> SearchSpace:
        return build_space(self.planned_gpu, self.model, self.workload)

    @cached_property
    def _runs(self) -> LongRuns:
        return LongRuns(self.workload, self.slo, requests=TRUTH_REQUESTS, seed=TRUTH_SEED)

    def engine(self, arguments: Arguments) -> EngineModel | None:
        """The real engine; None where it does not start."""
        try:
            return build_engine_model(self.gpu, self.model, arguments, perturbation=self.perturbation)
        except (ConfigError, CommandLineError, StartError):
            return None

    def holds(self, arguments: Arguments, rate: float) -> bool:
        """Whether the objective really holds at this rate."""
        engine = self.engine(arguments)
        return engine is not None and self._runs.holds(engine, rate)

    def capacity(self, arguments: Arguments, near: float) -> float:
        """The true capacity, req/s; 0 where the engine does not run."""
        engine = self.engine(arguments)
        return 0.0 if engine is None else self._runs.capacity(engine, near, precision=TRUTH_PRECISION)

    def long_capacity(self, arguments: Arguments, near: float) -> float:
        """The capacity to about one percent: what a reported figure is compared with.

        Runs of ``TRUTH_REQUESTS`` rank configurations, as all meet the same requests; by themselves they know a
        capacity to 3 %, no better than what is judged.
        """
        engine = self.engine(arguments)
        if engine is None:
            return 0.0
        seeds = range(TRUTH_SEED + 1, TRUTH_SEED + 1 + _LONG_SEEDS)
        return statistics.fmean(
            LongRuns(self.workload, self.slo, requests=_LONG_REQUESTS, seed=seed).capacity(engine, near, precision=0.01)
            for seed in seeds
        )


def _system(name: str, gpu: str, model: str, workload: str, regime: str, **slo: str) -> System:
    return System(name, gpu, model, workload, tuple(slo.items()), regime)


SYSTEMS = (
    _system("t4-chat", "t4", "qwen3-4b", "chat", "little KV, low rate", p99_latency="10s"),
    _system("t4-small-model", "t4", "qwen3-0.6b", "chat", "per-token limits", p99_ttft="1s", p99_tpot="60ms"),
    _system("l4-rag", "l4", "qwen3-4b", "rag", "compute-bound, tiny rate", p99_latency="30s"),
    _system("l4-kv", "l4", "qwen3-8b", "batch", "KV-bound, tiny rate", p99_latency="180s"),
    _system("a10g-batch", "a10g", "qwen3-4b", "batch", "decode-bound, KV", p99_latency="60s"),
    _system("rtx3090-summarize", "rtx3090", "qwen3-4b", "summarize", "compute-bound", p99_latency="20s"),
    _system("rtx4090-chat", "rtx4090", "nanbeige4.1-3b", "chat", "latency-bound", p99_latency="4s"),
    _system("rtx4090-code", "rtx4090", "qwen3-8b", "code", "first token", p99_ttft="1500ms", p99_tpot="60ms"),
    _system("l40s-batch", "l40s", "qwen3-8b", "batch", "decode-bound", p99_latency="60s"),
    _system("a100-rag", "a100-80gb", "qwen3-8b", "rag", "plenty of memory", p99_latency="20s"),
    _system("h100-chat", "h100", "qwen3-8b", "chat", "interactive", p99_ttft="400ms", p99_tpot="25ms"),
    _system("h200-chat", "h200", "qwen3-4b", "chat", "API server", p99_latency="5s"),
    _system("t4-code", "t4", "qwen3-1.7b", "code", "compute-bound, first token", p99_ttft="3s", p99_tpot="120ms"),
    _system("l4-rag-first-token", "l4", "qwen3-4b", "rag", "compute-bound, first token", p99_ttft="5s"),
    _system("a10g-kv", "a10g", "qwen3-8b", "batch", "KV-bound", p99_latency="90s"),
    _system("rtx4090-decode", "rtx4090", "llama-3.1-8b-instruct", "chat", "decode-bound, TPOT", p99_tpot="35ms"),
    _system("h100-tpot", "h100", "qwen3-14b", "summarize", "prefill beside decode", p99_ttft="3s", p99_tpot="30ms"),
    _system("h200-moe", "h200", "qwen3-30b-a3b", "chat", "experts", p99_ttft="1s", p99_tpot="25ms"),
)


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best configuration of a system, its capacity, and that of the default it must beat."""

    arguments: dict[str, Any]
    rate: float
    default_rate: float
    default_arguments: dict[str, Any]
    tried: int


def read_optima() -> dict[str, Optimum]:
    """The stored optima; empty where none were made yet."""
    if not OPTIMA.exists():
        return {}
    return {name: Optimum(**entry) for name, entry in json.loads(OPTIMA.read_text())["systems"].items()}
