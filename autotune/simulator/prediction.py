"""What the models say of one configuration under one load, with no engine and no waiting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.catalog import Gpu, ModelShape
from autotune.simulator.arguments import CommandLineError
from autotune.simulator.engine_model import EngineModel, StartError, StartPhase, build_engine_model
from autotune.simulator.options import ConfigError
from autotune.simulator.virtual import SimulatedRun, simulate_load
from autotune.spec import Arguments, LengthKind, LengthSpec, LoadLevel, Loop, Metric, Slo, Workload

_REASONS: Mapping[StartPhase, str] = {
    StartPhase.INIT_DEVICE: "gpu_memory_busy",
    StartPhase.LOAD_WEIGHTS: "oom_weights",
    StartPhase.PROFILE: "oom_activation",
    StartPhase.KV_CACHE: "oom_kv_cache",
    StartPhase.KV_ALLOCATION: "oom_kv_cache",
    StartPhase.CAPTURE: "oom_cudagraph",
}
_UNSUPPORTED = ("compute capability", "current GPU", "needs native fp8", "does not support float16")
SETTLING_SHARE = 0.15
"""Share of a run's requests that are left out at its start: the batch is still filling."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One configuration under one load. Figures are None where the engine does not start or dies.

    ``reason`` is a cause's name as in ``autotune.engine.failure.Cause``, empty when it fits. Throughputs and
    percentiles leave out the start of the run.
    """

    arguments: Arguments
    level: LoadLevel
    fits: bool
    reason: str = ""
    detail: str = ""
    kv_tokens: int | None = None
    weights_gib: float | None = None
    kv_gib: float | None = None
    request_rate: float | None = None
    """Requests per second that were answered."""
    output_tokens_per_s: float | None = None
    total_tokens_per_s: float | None = None
    p50_latency_s: float | None = None
    p99_latency_s: float | None = None
    p50_ttft_s: float | None = None
    p99_ttft_s: float | None = None
    p99_tpot_s: float | None = None
    preemptions: int | None = None
    requests: int = 0
    slo_met: bool | None = None
    """Whether the shares of requests that miss each target stay within what the objective allows."""


def predict(
    gpu: Gpu,
    model: ModelShape,
    workload: Workload,
    arguments: Arguments,
    level: LoadLevel,
    *,
    slo: Slo | None = None,
    requests: int | None = None,
    seed: int = 0,
    gpus: int = 1,
) -> Prediction:
    """Start the engine on paper and run the load in virtual time.

    Args:
        gpu: the GPU.
        model: the model.
        workload: lengths and burstiness.
        arguments: engine arguments; unset ones take vLLM's defaults.
        level: open or closed loop.
        slo: judged, if given.
        requests: how many to send; by default enough for the run to settle and for a P99.
        seed: of lengths, arrivals and step times.
        gpus: GPUs in the host.
    """
    try:
        engine = build_engine_model(gpu, model, arguments, gpus=gpus)
    except CommandLineError as error:
        return Prediction(arguments, level, fits=False, reason="invalid_config", detail=str(error))
    except ConfigError as error:
        unsupported = any(text in str(error) for text in _UNSUPPORTED)
        reason = "unsupported_hardware" if unsupported else "invalid_config"
        return Prediction(arguments, level, fits=False, reason=reason, detail=str(error))
    except StartError as error:
        return Prediction(arguments, level, fits=False, reason=_REASONS[error.phase], detail=str(error))
    if engine.options.max_model_len < workload.longest_sequence:
        detail = f"max-model-len {engine.options.max_model_len} is less than {workload.longest_sequence} tokens"
        return Prediction(arguments, level, fits=False, reason="invalid_config", detail=detail)
    run = run_workload(engine, workload, level, requests=requests or default_requests(level), seed=seed)
    if run.out_of_memory is not None:
        return Prediction(arguments, level, fits=False, reason="oom_runtime", detail=run.out_of_memory)
    return _summarise(engine, arguments, level, run, slo)


def default_requests(level: LoadLevel) -> int:
    """Enough requests for a P99 and for the batch to turn over some times."""
    if level.loop is Loop.CLOSED:
        assert level.concurrency is not None
        return max(300, 8 * level.concurrency)
    assert level.rate is not None
    return int(min(4000, max(400, 120 * level.rate)))


def run_workload(
    engine: EngineModel, workload: Workload, level: LoadLevel, *, requests: int, seed: int = 0, noise: float = 1.0
) -> SimulatedRun:
    """A workload on an engine in virtual time. The same seed gives the same prompts and arrivals to every engine."""
    inputs, outputs, unit_arrivals = draw_requests(workload, requests, seed)
    arrivals = None if level.rate is None else unit_arrivals / level.rate
    return simulate_load(engine, level, inputs, outputs, arrivals=arrivals, seed=seed, noise=noise)


def draw_requests(
    workload: Workload, count: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Prompt lengths, answer lengths, and arrivals of an open loop at one request per second."""
    random = np.random.default_rng(seed)
    inputs = draw_lengths(workload.input_tokens, count, random)
    outputs = draw_lengths(workload.output_tokens, count, random)
    return inputs, outputs, np.cumsum(_gaps(workload.burstiness, count, random))


def draw_lengths(spec: LengthSpec, count: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Token counts from a length specification."""
    match spec.kind:
        case LengthKind.FIXED:
            return np.full(count, spec.low, dtype=np.int64)
        case LengthKind.UNIFORM:
            return random.integers(spec.low, spec.high + 1, count)
        case LengthKind.NORMAL:
            drawn = random.normal(spec.location, spec.spread, count)
        case LengthKind.LOGNORMAL:
            drawn = spec.location * np.exp(spec.spread * random.standard_normal(count))
        case LengthKind.FILE:
            drawn = random.choice(np.asarray(spec.values, dtype=np.float64), count)
    return np.clip(np.rint(drawn), spec.low, spec.high).astype(np.int64)


def _gaps(burstiness: float, count: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Gaps of mean 1 between arrivals: gamma distributed with shape ``burstiness``, constant when it is infinite."""
    if math.isinf(burstiness):
        return np.ones(count)
    return random.gamma(burstiness, 1.0 / burstiness, count)


def _summarise(
    engine: EngineModel, arguments: Arguments, level: LoadLevel, run: SimulatedRun, slo: Slo | None
) -> Prediction:
    count = len(run.scheduled)
    settled = np.arange(count) >= int(SETTLING_SHARE * count)
    start, end = float(run.scheduled[settled][0]), float(run.scheduled[-1])
    inside = (run.finished >= start) & (run.finished <= end)
    span = max(end - start, 1e-9)
    latency = (run.finished - run.scheduled)[settled]
    ttft = (run.first_token - run.scheduled)[settled]
    several = settled & (run.output_tokens > 1)
    tpot = (run.finished - run.first_token)[several] / (run.output_tokens[several] - 1)
    output_rate = run.output_tokens_per_s(start, end) if end > start else float(run.output_tokens.sum()) / run.ended
    return Prediction(
        arguments=arguments,
        level=level,
        fits=True,
        kv_tokens=engine.kv_tokens,
        weights_gib=engine.memory.weights,
        kv_gib=engine.kv_gib,
        request_rate=float(inside.sum()) / span,
        output_tokens_per_s=output_rate,
        total_tokens_per_s=output_rate + float(run.input_tokens[inside].sum()) / span,
        p50_latency_s=float(np.percentile(latency, 50)),
        p99_latency_s=float(np.percentile(latency, 99)),
        p50_ttft_s=float(np.percentile(ttft, 50)),
        p99_ttft_s=float(np.percentile(ttft, 99)),
        p99_tpot_s=float(np.percentile(tpot, 99)) if len(tpot) else None,
        preemptions=run.preemptions,
        requests=int(settled.sum()),
        slo_met=None if slo is None else _meets(slo, {Metric.LATENCY: latency, Metric.TTFT: ttft, Metric.TPOT: tpot}),
    )


def _meets(slo: Slo, values: Mapping[Metric, NDArray[np.float64]]) -> bool:
    return all(
        float(np.mean(values[target.metric] > target.limit_s)) <= target.allowed_miss_share
        for target in slo.targets
        if len(values[target.metric])
    )
