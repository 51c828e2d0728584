"""What keeps a configuration from carrying more, judged from telemetry; and what would help next.

The judgement is made where the configuration begins to miss its objective: at the lowest load that failed,
or else at the highest that was tried. Each limit is a plain rule on a few figures, which are shown with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from autotune.base.errors import UsageError
from autotune.catalog import Gpu, load_gpu
from autotune.report import figures
from autotune.report.telemetry import probe_load, statistic
from autotune.store.result import ProbeDocument, StudyDocument, TrialDocument

_KV_FULL = 0.97
_SLIP_SHARE = 0.05
"""Share of the latency limit by which a client may be late before it counts as what limits."""
_HOST_BUSY = 0.95
_AT_SEQUENCE_LIMIT = 0.97
_NEAR_LIMIT = 0.6
_ROOFLINE_SHARE = 0.45
"""Share of a step's time that a roofline term must explain to be named."""
_GIB = 2**30


class Limit(StrEnum):
    """What runs out first."""

    CLIENT = "client"
    KV_SPACE = "KV space"
    HOST = "host CPU or API server"
    SEQUENCES = "max-num-seqs"
    LATENCY = "latency of a single request"
    MEMORY_BANDWIDTH = "memory bandwidth"
    COMPUTE = "compute"
    UNKNOWN = "unknown"


_NEXT = {
    Limit.CLIENT: "Run the load generator on more or faster CPU cores and measure again.",
    Limit.KV_SPACE: "A larger gpu-memory-utilization where it fits, a GPU with more memory, or (if quality allows)"
    " a quantized model or KV cache would carry more.",
    Limit.HOST: "More CPU cores for the engine, or several API servers (api-server-count), would carry more.",
    Limit.SEQUENCES: "A larger max-num-seqs would admit more at once, if the latency allows it.",
    Limit.LATENCY: "No scheduling can help much: a faster GPU, tensor parallelism, a quantized model or speculative"
    " decoding shortens a single answer.",
    Limit.MEMORY_BANDWIDTH: "A GPU with more memory bandwidth, tensor parallelism, or (if quality allows) quantized"
    " weights would carry more.",
    Limit.COMPUTE: "A GPU with a higher matrix rate or tensor parallelism would carry more; so would shorter or"
    " cached prompts.",
    Limit.UNKNOWN: "",
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """What limits a configuration, the figures that say so, and what would help."""

    limit: Limit
    evidence: tuple[str, ...]
    next_step: str
    probe: int | None = None
    """Index of the probe that was looked at."""


def explain_limit(document: StudyDocument, trial: TrialDocument) -> Explanation:
    """Judge one measured trial."""
    probe = deciding_probe(trial)
    if probe is None:
        return Explanation(Limit.UNKNOWN, ("no valid probe was recorded",), "")
    for rule in _RULES:
        found = rule(document, trial, probe)
        if found is not None:
            limit, evidence = found
            return Explanation(limit, evidence, _NEXT[limit], probe.index)
    return Explanation(Limit.UNKNOWN, ("the recorded figures point at nothing in particular",), "", probe.index)


def deciding_probe(trial: TrialDocument) -> ProbeDocument | None:
    """The lowest load that failed, or else the highest that was tried."""
    valid = [probe for probe in trial.probes if probe.valid]
    failed = [probe for probe in valid if probe.decision == "fail"]
    return min(failed, key=probe_load) if failed else max(valid, key=probe_load, default=None)


_Finding = tuple[Limit, tuple[str, ...]]
_Rule = Callable[[StudyDocument, TrialDocument, ProbeDocument], _Finding | None]


def _client(document: StudyDocument, trial: TrialDocument, probe: ProbeDocument) -> _Finding | None:
    slip, latency = probe.client.get("slip_p99_s"), probe.p99_latency_s
    if slip is None or not latency or slip < _SLIP_SHARE * latency:
        return None
    return Limit.CLIENT, (
        f"the client was late by {figures.seconds(slip)} (P99) at {figures.seconds(latency)} latency",
    )


def _kv_space(document: StudyDocument, trial: TrialDocument, probe: ProbeDocument) -> _Finding | None:
    usage = statistic(probe, "engine.kv_cache_usage", "max")
    preemptions = statistic(probe, "engine.preemptions", "delta")
    if usage is None or usage < _KV_FULL:
        return None
    evidence = [f"KV cache {figures.share(usage)} full"]
    if preemptions:
        evidence.append(f"{figures.count(preemptions)} preemptions")
    waiting = statistic(probe, "engine.waiting", "mean")
    if waiting:
        evidence.append(f"{figures.count(waiting)} requests waiting on average")
    return Limit.KV_SPACE, tuple(evidence)


def _host(document: StudyDocument, trial: TrialDocument, probe: ProbeDocument) -> _Finding | None:
    busy = statistic(probe, "host.cpu", "mean")
    if busy is None or busy < _HOST_BUSY or document.simulated:
        return None
    return Limit.HOST, (f"the host's CPU was {figures.share(busy)} busy",)


def _latency(document: StudyDocument, trial: TrialDocument, probe: ProbeDocument) -> _Finding | None:
    margin = trial.slo_margin
    lightest = min((p for p in trial.probes if p.valid), key=probe_load, default=None)
    if lightest is None or lightest is probe or lightest.p99_latency_s is None or probe.p99_latency_s is None:
        return None
    if margin is None or lightest.p99_latency_s < _NEAR_LIMIT * probe.p99_latency_s:
        return None
    if probe_load(lightest) > 0.7 * probe_load(probe):
        return None
    return Limit.LATENCY, (
        f"P99 latency is {figures.seconds(lightest.p99_latency_s)} already at"
        f" {figures.share(probe_load(lightest) / probe_load(probe))} of the load that misses the objective",
    )


def _sequences(document: StudyDocument, trial: TrialDocument, probe: ProbeDocument) -> _Finding | None:
    resolved = trial.engine_facts.get("resolved") or {}
    allowed = trial.arguments.get("max-num-seqs", resolved.get("max-num-seqs"))
    running = statistic(probe, "engine.running", "max")
    waiting = statistic(probe, "engine.waiting", "mean")
    if not isinstance(allowed, int) or running is None or not waiting or waiting < 1:
        return None
    if running < _AT_SEQUENCE_LIMIT * allowed:
        return None
    return Limit.SEQUENCES, (
        f"{figures.count(running)} of at most {allowed} requests ran at once",
        f"{figures.count(waiting)} waited on average",
    )


def _roofline(document: StudyDocument, trial: TrialDocument, probe: ProbeDocument) -> _Finding | None:
    steps = statistic(probe, "engine.iterations", "delta")
    tokens = statistic(probe, "engine.iteration_tokens", "delta")
    weights = trial.engine_facts.get("weights_gib")
    gpu = _catalogue_gpu(document.gpu_name)
    if not steps or not tokens or not weights or gpu is None:
        return None
    step_s = probe.duration_s / steps
    memory = weights * _GIB / (gpu.memory_bandwidth_gbs * 1e9) / step_s
    matrix_rate = gpu.tflops.get("bf16") or gpu.tflops.get("fp16")
    # Half-precision weights: two bytes and two floating-point operations per parameter and token.
    compute = weights * _GIB * tokens / steps / (matrix_rate * 1e12) / step_s if matrix_rate else 0.0
    if max(memory, compute) < _ROOFLINE_SHARE:
        return None
    evidence = (
        f"a step takes {figures.seconds(step_s)} with {figures.count(tokens / steps)} tokens",
        f"reading the weights explains {figures.share(min(1.0, memory))} of it,"
        f" the matrix products {figures.share(min(1.0, compute))} (at the data sheet's rates)",
    )
    return (Limit.MEMORY_BANDWIDTH if memory >= compute else Limit.COMPUTE), evidence


def _catalogue_gpu(name: str) -> Gpu | None:
    try:
        return load_gpu(name)
    except UsageError:
        return None


_RULES: tuple[_Rule, ...] = (_client, _kv_space, _host, _latency, _sequences, _roofline)
