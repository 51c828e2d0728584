"""First guesses at speed, from the simulated engine's physics; they only decide where measuring starts."""

from __future__ import annotations

import math

from autotune.catalog import Gpu, ModelShape
from autotune.simulator.arguments import CommandLineError
from autotune.simulator.engine_model import StartError, build_engine_model
from autotune.simulator.long_run import LongRuns
from autotune.simulator.options import ConfigError
from autotune.spec import Arguments, Metric, Slo, StudySpec, Workload

GUESSED_CONCURRENCY_LIMIT = 256
GUESS_REQUESTS = 500
"""Requests of the virtual runs behind a guess: some tenths of a second of CPU time."""
GUESS_PRECISION = 0.05
_LIMITS_APART = 1.1
_LEAST_GROWTH = 0.004
"""Growth of the capacity that runs in virtual time can tell from none."""


def _decode_step_s(gpu: Gpu, model: ModelShape, concurrency: float, context: float) -> float:
    """Seconds of one decode step: weights and KV are read once, plus the host's share."""
    calibration = gpu.calibration
    bandwidth = gpu.memory_bandwidth_gbs * 1e9
    weights = model.weight_bytes() / (bandwidth * calibration.bandwidth_efficiency)
    kv_bandwidth = bandwidth * calibration.attention_bandwidth_efficiency
    cache = concurrency * context * model.kv_bytes_per_token() / kv_bandwidth
    return weights + cache + calibration.step_overhead_s + concurrency * calibration.sequence_overhead_s


def closed_form_rate(gpu: Gpu, model: ModelShape, workload: Workload, slo: Slo, arguments: Arguments) -> float:
    """Rate (req/s) at which requests in flight would take about two thirds of the objective on the latency.

    By Little's law from the largest concurrency whose decode steps are quick enough.
    """
    output = workload.output_tokens.mean
    context = workload.input_tokens.mean + output / 2
    limits = [
        t.limit_s / (1 if t.metric is Metric.TPOT else output)
        for t in slo.targets
        if t.metric in (Metric.LATENCY, Metric.TPOT)
    ]
    step_limit = 0.67 * min(limits) if limits else 0.05
    highest = int(arguments.get("max-num-seqs", GUESSED_CONCURRENCY_LIMIT))
    compute = 2e-12 * model.parameters * workload.input_tokens.mean / _prefill_tflops(gpu)
    best = 0.0
    for concurrency in range(1, highest + 1):
        step = _decode_step_s(gpu, model, concurrency, context)
        residence = output * step + compute * (1 + concurrency / 2)
        if residence / output > step_limit:
            break
        best = concurrency / residence
    return best or 0.2 / (output * _decode_step_s(gpu, model, 1, context))


def predicted_rate(gpu: Gpu, model: ModelShape, spec: StudySpec, arguments: Arguments) -> float | None:
    """Capacity (req/s) of short runs in virtual time; by the closed form where these say nothing.

    They say nothing when the engine would not start, and when the objective never holds: a real engine may be faster
    than its model.
    """
    guess = closed_form_rate(gpu, model, spec.workload, spec.slo, arguments)
    try:
        engine = build_engine_model(gpu, model, arguments)
    except (CommandLineError, ConfigError, StartError):
        return guess
    runs = LongRuns(spec.workload, spec.slo, requests=GUESS_REQUESTS, seed=spec.seed)
    return runs.capacity(engine, guess, precision=GUESS_PRECISION) or guess


def predicted_steepness(gpu: Gpu, model: ModelShape, spec: StudySpec, arguments: Arguments) -> float | None:
    """By how much the log of the percentile rises per unit of the log of the rate at the capacity; None if unknown.

    From the capacities at limits a tenth apart, of runs with the same requests: what the models say of one rate may be
    off by some tenths, but how soon latencies grow with the load is mostly the shape of the batch.
    """
    try:
        engine = build_engine_model(gpu, model, arguments)
    except (CommandLineError, ConfigError, StartError):
        return None
    guess = closed_form_rate(gpu, model, spec.workload, spec.slo, arguments)
    found: list[float] = []
    for factor in (1 / math.sqrt(_LIMITS_APART), math.sqrt(_LIMITS_APART)):
        limits = tuple(t.model_copy(update={"limit_s": factor * t.limit_s}) for t in spec.slo.targets)
        slo = spec.slo.model_copy(update={"targets": limits})
        runs = LongRuns(spec.workload, slo, requests=2 * GUESS_REQUESTS, seed=spec.seed)
        found.append(runs.capacity(engine, found[0] if found and found[0] else guess))
    if not all(found):
        return None
    return math.log(_LIMITS_APART) / max(math.log(found[1] / found[0]), _LEAST_GROWTH)


def _prefill_tflops(gpu: Gpu) -> float:
    peak = gpu.tflops.get("bf16") or gpu.tflops.get("fp16") or max(gpu.tflops.values())
    return peak * gpu.calibration.prefill_efficiency


def expected_tokens_per_s(gpu: Gpu, model: ModelShape, spec: StudySpec) -> float:
    """Output tok/s near the capacity, for choosing the simulated engine's speed."""
    return closed_form_rate(gpu, model, spec.workload, spec.slo, {}) * spec.workload.output_tokens.mean


def shortest_time_s(gpu: Gpu, model: ModelShape, spec: StudySpec) -> float:
    """The shortest time that is measured, s: the tightest limit, or an answer on an engine that is otherwise idle."""
    output = spec.workload.output_tokens.mean
    alone = output * _decode_step_s(gpu, model, 1, spec.workload.input_tokens.mean + output / 2)
    limits = (t.limit_s * (output if t.metric is Metric.TPOT else 1.0) for t in spec.slo.targets)
    return min(alone, *limits)
