"""A study's conclusions in sentences. The word SIMULATED stands wherever no GPU gave the figures."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.engine.failure import Cause
from autotune.report import figures
from autotune.report.lookup import bare_default, best_so_far, default_trial
from autotune.search.objective import aim_of_result
from autotune.spec import ArgumentValue
from autotune.store.result import BestDocument, Decision, Outcome, ProbeDocument, StudyDocument, TrialDocument

_LEAST_FOR_P99 = 100
"""Requests below which a P99 is the largest value seen."""


def objective_words(document: StudyDocument) -> str:
    """All objectives: ``P99 latency ≤ 10 s and P99 TTFT ≤ 500 ms``."""
    return " and ".join(figures.objective(key, limit) for key, limit in document.slo.items())


def engine_words(document: StudyDocument) -> str:
    """``vLLM 0.24.0``, or that it was simulated and by which version of this program."""
    version = document.engine.version
    return f"engine SIMULATED by autotune {version}" if document.simulated else f"vLLM {version}"


def load_words(document: StudyDocument) -> str:
    """What load the study applied."""
    load = document.load or {}
    if load.get("concurrency") is not None:
        return f"{load['concurrency']} requests at once"
    if load.get("rate") is not None:
        return f"{figures.rate(float(load['rate']))} offered"
    return "the highest rate at which the objective holds"


def front_load(document: StudyDocument) -> str:
    """Where the latencies of a front were taken: the light load, or the fixed one."""
    light = next((point.light_rps for point in document.front), None)
    return f"at {load_words(document)}" if light is None else f"at {figures.rate(light)} (a light load)"


def flags_words(arguments: Mapping[str, ArgumentValue]) -> str:
    """Arguments in one line: ``max-num-seqs 24, enforce-eager``; ``no flags`` without any."""
    words = []
    for name, value in arguments.items():
        if value is True:
            words.append(name)
        elif value is False:
            words.append(f"no-{name}")
        else:
            words.append(f"{name} {value}")
    return ", ".join(words) or "no flags"


def configuration_words(trial: TrialDocument) -> str:
    """The label of a baseline, or the flags of a proposal."""
    return trial.label or flags_words(trial.arguments)


def verdict_title(document: StudyDocument) -> str:
    """The verdict in a few words."""
    match document.verdict.decision:
        case Decision.TUNED:
            return "Tuned"
        case Decision.KEEP_DEFAULT:
            return "Keep the default"
        case Decision.NO_FEASIBLE_CONFIGURATION:
            return "No feasible configuration"
        case Decision.UNFINISHED:
            return "Not finished"


def gain_words(document: StudyDocument) -> str:
    """``+39.5 % (95 % interval +32.4 to +44.9 %)``, and of what where less is better; empty without a gain."""
    verdict = document.verdict
    if verdict.gain_percent is None:
        return ""
    bounds = figures.interval(verdict.interval_95, "%", signed=True)
    change = aim_of_result(document).score.change_words + figures.percent(verdict.gain_percent, signed=True)
    return change + (f" (95 % interval {bounds})" if bounds else "")


def default_name(document: StudyDocument) -> str:
    """``vLLM's defaults``, or those with what had to be added before they ran."""
    return _default_and_why(document)[0]


def default_words(document: StudyDocument) -> str:
    """What the winner is compared with: vLLM's defaults, or what had to be added to them before they ran."""
    name, why = _default_and_why(document)
    return f"{name}; {why}" if why else name


def _default_and_why(document: StudyDocument) -> tuple[str, str]:
    default, bare = default_trial(document), bare_default(document)
    if default is None or bare is None or default is bare:
        return "vLLM's defaults", ""
    why = f"as they come they do not run: {cause_words(bare.reason)}" if bare.reason else ""
    return f"vLLM's defaults with {flags_words(default.arguments)}", why


def carried_words(document: StudyDocument, best: TrialDocument | BestDocument) -> str:
    """``1.49 req/s (149 tok/s out)``, or ``149 tok/s out at 5 requests at once``; empty when nothing was carried.

    With it come the figures that the study seeks beside the throughput.
    """
    if not best.output_tokens_per_s:
        return ""
    tokens = f"{figures.tokens_per_second(best.output_tokens_per_s)} out"
    carried = (
        f"{tokens} at {load_words(document)}" if document.load else f"{figures.rate(best.capacity_rps)} ({tokens})"
    )
    sought = [
        f"{figure.title} {figures.quantity(figure.of(best), figure.unit)}"
        for figure in aim_of_result(document).beside_output
    ]
    return ", ".join([carried, *sought])


def verdict_sentence(document: StudyDocument) -> str:
    """The conclusion in one sentence."""
    place = f"{'the SIMULATED ' if document.simulated else 'the '}{document.gpu_title}"
    slo = objective_words(document)
    best = document.best
    carried = "" if best is None else carried_words(document, best)
    gain = gain_words(document)
    match document.verdict.decision:
        case Decision.TUNED:
            against = f": {gain} against {default_words(document)}" if gain else ""
            return f"On {place}, {document.model_name} carries {carried or 'more'} with {slo}{against}."
        case Decision.KEEP_DEFAULT:
            noise = document.verdict.noise_percent
            margin = "the noise" if noise is None else f"the noise of {figures.percent(noise)}"
            holds = f" It carries {carried} with {slo}." if carried else ""
            name, why = _default_and_why(document)
            remark = f" ({why})" if why else ""
            return f"On {place}, nothing beat {document.model_name} on {name}{remark} by more than {margin}.{holds}"
        case Decision.NO_FEASIBLE_CONFIGURATION:
            counts = outcome_counts(document)
            return (
                f"On {place}, no configuration of {document.model_name} ran and kept {slo}:"
                f" {counts[Outcome.INFEASIBLE]} could not run, {counts[Outcome.MEASURED]} ran and missed it."
            )
        case Decision.UNFINISHED:
            so_far = best_so_far(document)
            held = ""
            if so_far is not None:
                held = (
                    f" So far the best is trial {so_far.number} ({configuration_words(so_far)}):"
                    f" {carried_words(document, so_far)} with {slo}, not confirmed."
                )
            return f"On {place}, {len(document.trials)} trials of {document.model_name} are done.{held}"


def outcome_counts(document: StudyDocument) -> dict[Outcome, int]:
    """How many trials ended in which way."""
    return {outcome: sum(t.outcome is outcome for t in document.trials) for outcome in Outcome}


def simulated_notice(document: StudyDocument) -> str:
    """What must be said before any simulated figure; empty for a real engine."""
    if not document.simulated:
        return ""
    return (
        "SIMULATED: every figure here comes from the simulated engine, not from a GPU."
        " Measure the configuration on the real one before relying on it."
    )


def p99_basis(requests: int, bounds: tuple[float | None, float | None] | None, label: str) -> str:
    """What a P99 rests on: its number of requests and its interval; said plainly when it is only the maximum."""
    parts = [label or f"p99 of {requests}"]
    words = figures.interval(bounds, "s")
    if words:
        parts.append(f"95 % interval {words}")
    if is_maximum(requests, label):
        parts.append("too few requests for a P99: this is the largest value")
    return ", ".join(parts)


def is_maximum(requests: int, label: str) -> bool:
    """Is a so-called P99 only the largest value seen?"""
    return label.startswith("max") or (not label and requests < _LEAST_FOR_P99)


def probe_level(probe: ProbeDocument) -> str:
    """The load of a probe: ``1.49 req/s``, or ``16 at once``."""
    if probe.concurrency is not None:
        return f"{probe.concurrency} at once"
    return figures.rate(probe.rate)


_CAUSES: dict[str, str] = {
    Cause.OOM_WEIGHTS: "out of GPU memory while loading the weights",
    Cause.OOM_KV_CACHE: "no room for the KV cache",
    Cause.OOM_ACTIVATION: "out of GPU memory for activations",
    Cause.OOM_CUDAGRAPH: "out of GPU memory while capturing CUDA graphs",
    Cause.OOM_RUNTIME: "out of GPU memory under load",
    Cause.HOST_OOM: "out of host memory",
    Cause.GPU_MEMORY_BUSY: "GPU memory taken by another process",
    Cause.INVALID_CONFIG: "arguments that vLLM refuses",
    Cause.UNSUPPORTED_HARDWARE: "not supported by this GPU",
    Cause.UNSUPPORTED_MODEL: "not supported for this model",
    Cause.MODEL_NOT_FOUND: "model not found",
    Cause.MODEL_CORRUPT: "model files damaged",
    Cause.PORT_IN_USE: "port in use",
    Cause.STARTUP_TIMEOUT: "not ready in time",
    Cause.ENGINE_HANG: "engine hung",
    Cause.ENGINE_CRASH: "engine crashed",
    Cause.DEPENDENCY_ERROR: "broken installation",
    Cause.DRIVER_ERROR: "GPU driver error",
    Cause.NCCL_DISTRIBUTED: "communication between GPUs failed",
    Cause.DISK_FULL: "disk full",
    Cause.UNKNOWN: "cause unknown",
}


def without_engine(trial: TrialDocument) -> str:
    """Why no engine was started for a trial; empty when one was."""
    if trial.launched:
        return ""
    if trial.reused_from:
        study, _, number = trial.reused_from.rpartition("/")
        return f"measured before, as trial {number} of study {study}"
    return "measured before, and reused" if trial.outcome is Outcome.MEASURED else "refused before launch"


def cause_words(reason: str) -> str:
    """A cause for people: ``oom_kv_cache`` becomes ``no room for the KV cache``."""
    return _CAUSES.get(reason, reason.replace("_", " ")) or "no reason recorded"
