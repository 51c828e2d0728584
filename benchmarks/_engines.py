"""The simulated vLLM engine as a system with known truth, in virtual time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from _queues import ENGINE_FILE, Run, Truth

from autotune.catalog import load_gpu, load_model, load_workload
from autotune.simulator.engine_model import EngineModel, build_engine_model
from autotune.simulator.prediction import draw_lengths
from autotune.simulator.virtual import simulate_load
from autotune.spec import LoadLevel, Workload


@dataclass(frozen=True, slots=True)
class SimulatedEngine:
    """One GPU, model and workload with vLLM's defaults; has the face of `_queues.System`."""

    name: str
    gpu: str
    model: str
    workload: str
    limit: float
    """Limit on the latency, s."""
    bound: float
    """A rate (req/s) far above what it carries."""
    unit: float = 1.0

    def run(self, rate: float, n: int, rng: np.random.Generator) -> Run:
        """``n`` requests with Poisson arrivals at ``rate`` req/s into the idle engine."""
        engine, workload = _build(self.gpu, self.model, self.workload)
        inputs = draw_lengths(workload.input_tokens, n, rng)
        outputs = draw_lengths(workload.output_tokens, n, rng)
        arrivals = np.cumsum(rng.exponential(size=n)) / rate
        seed = int(rng.integers(2**31))
        done = simulate_load(engine, LoadLevel.open(rate), inputs, outputs, arrivals=arrivals, seed=seed)
        return Run(done.scheduled, done.finished, done.first_token)


@cache
def _build(gpu: str, model: str, workload: str) -> tuple[EngineModel, Workload]:
    arguments: dict[str, int | float | str | bool] = {"max-model-len": 8192}
    return build_engine_model(load_gpu(gpu), load_model(model), arguments), load_workload(workload)


ENGINES = (
    SimulatedEngine("t4-chat", "t4", "qwen3-4b", "chat", 15.0, 4.0),
    SimulatedEngine("a10g-rag", "a10g", "qwen3-4b", "rag", 60.0, 2.0),
    SimulatedEngine("rtx4090-chat", "rtx4090", "nanbeige4.1-3b", "chat", 5.0, 40.0),
    SimulatedEngine("a10g-batch", "a10g", "qwen3-4b", "batch", 120.0, 4.0),
    SimulatedEngine("h200-chat", "h200", "qwen3-4b", "chat", 4.0, 160.0),
)


def load_engine_truths() -> list[Truth]:
    """The simulated engines of ``engine_truth.json``."""
    rows: list[dict[str, Any]] = json.loads(ENGINE_FILE.read_text())
    return [Truth(**{**row, "system": SimulatedEngine(**row["system"])}) for row in rows]
