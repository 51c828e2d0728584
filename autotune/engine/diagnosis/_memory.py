"""Out of GPU memory: whether a statement says so, at which stage, and who held the memory."""

from __future__ import annotations

import re
from collections.abc import Iterable

from autotune.engine.diagnosis._statements import Frame, Statement
from autotune.engine.failure import Cause, Phase

_OUT_OF_MEMORY = re.compile(
    r"(?:^|Error: |Error in model execution: |: )(?:CUDA|HIP|XPU|GPU) (?:error: )?out of memory"
    r"|^CUDA driver error: out of memory|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED"
    r"|Cuda failure 2 'out of memory'"
    r"|Failed to load model - not enough GPU memory|CUDA_ERROR_OUT_OF_MEMORY",
    re.IGNORECASE,
)
_STAGES: tuple[tuple[Cause, re.Pattern[str]], ...] = (
    (Cause.OOM_CUDAGRAPH, re.compile(r"capture_model|graph_runner|cuda_?graph|\bcapture\b|_capture", re.IGNORECASE)),
    (
        Cause.OOM_KV_CACHE,
        re.compile(
            r"allocate_kv_cache|initialize_kv_cache|initialize_from_config|CacheEngine|cache_engine|allocate_gpu_cache"
        ),
    ),
    (
        Cause.OOM_ACTIVATION,
        re.compile(
            r"profile_run|determine_available_memory|determine_num_available_blocks|_dummy_\w*run|warming_up|warm_?up"
            r"|compile_or_warm_up_model|profile_\w*memory|kernel_warmup|autotune|logits\.sort|sampler"
        ),
    ),
    (
        Cause.OOM_WEIGHTS,
        re.compile(
            r"load_model|make_layers|load_weights|create_weights|initialize_model|model_loader|weight_utils|_get_model"
            r"|process_weights_after_loading|weight_loader"
        ),
    ),
    (
        Cause.OOM_RUNTIME,
        re.compile(
            r"run_engine_loop|engine_step|run_busy_loop|step_fn|step_with_batch_queue|sample_tokens|execute_model"
        ),
    ),
)
_SAYS_STAGE: tuple[tuple[Cause, re.Pattern[str]], ...] = (
    (Cause.OOM_WEIGHTS, re.compile(r"Failed to load model - not enough GPU memory")),
    (Cause.OOM_ACTIVATION, re.compile(r"occurred when warming up (?:sampler|pooler)")),
)
_STAGE_OF_PHASE: dict[Phase, Cause] = {
    Phase.LOAD_WEIGHTS: Cause.OOM_WEIGHTS,
    Phase.PROFILE: Cause.OOM_ACTIVATION,
    Phase.KV_CACHE: Cause.OOM_CUDAGRAPH,
    Phase.CUDA_GRAPHS: Cause.OOM_CUDAGRAPH,
    Phase.WARM_UP: Cause.OOM_RUNTIME,
    Phase.SERVING: Cause.OOM_RUNTIME,
    Phase.STOPPING: Cause.OOM_RUNTIME,
}
PHASE_OF_STAGE: dict[Cause, Phase] = {
    Cause.OOM_WEIGHTS: Phase.LOAD_WEIGHTS,
    Cause.OOM_ACTIVATION: Phase.PROFILE,
    Cause.OOM_KV_CACHE: Phase.KV_CACHE,
    Cause.OOM_CUDAGRAPH: Phase.CUDA_GRAPHS,
    Cause.OOM_RUNTIME: Phase.SERVING,
}
_ADVICE: dict[Cause, str] = {
    Cause.OOM_WEIGHTS: "The weights do not fit: use a smaller or quantized model, or more GPUs; other settings do"
    " not help.",
    Cause.OOM_ACTIVATION: "The largest batch does not fit: lower max-num-batched-tokens or max-num-seqs.",
    Cause.OOM_KV_CACHE: "The KV cache does not fit: lower gpu-memory-utilization, or free GPU memory that others hold.",
    Cause.OOM_CUDAGRAPH: "Nothing is left for CUDA graphs: lower gpu-memory-utilization, max-num-seqs or"
    " max-cudagraph-capture-size.",
    Cause.OOM_RUNTIME: "It fits when idle but not under load: lower gpu-memory-utilization or max-num-seqs.",
}
_TRIED = re.compile(r"Tried to allocate (?P<tried>(?P<size>[\d.]+) (?P<unit>[KMG])iB)")
_ALLOWED = re.compile(r"(?P<allowed>[\d.]+) GiB allowed")
_TOTAL = re.compile(r"total capacity of (?P<total>[\d.]+) GiB of which (?P<free>[\d.]+) (?P<unit>[MG])iB is free")
_OWN = (
    re.compile(r"this process has (?P<own>[\d.]+) (?P<unit>[MG])iB memory in use"),
    re.compile(r"Of the allocated memory (?P<own>[\d.]+) (?P<unit>[MG])iB is allocated by PyTorch"),
)
_OTHERS_SHARE = 0.25
"""Share of the GPU's memory in other hands from which the shortage is laid at their door."""


def is_out_of_memory(statement: Statement) -> bool:
    """True when the statement itself (not a quotation in it) says that GPU memory ran out."""
    if statement.type == "OutOfMemoryError":
        return True
    return _OUT_OF_MEMORY.search(statement.texts[0]) is not None


def stage_of(statements: Iterable[Statement], phase: Phase, *, ready: bool) -> Cause:
    """The stage at which memory ran out: by what was said, by the stack, then by the phase."""
    found = list(statements)
    for statement in found:
        for cause, said in _SAYS_STAGE:
            if said.search(statement.message):
                return cause
    frames = next((statement.frames for statement in found if statement.frames), [])
    stage = _stage_of_frames(frames)
    if stage is not None and not (ready and stage is Cause.OOM_WEIGHTS):
        return Cause.OOM_RUNTIME if ready else _before_ready(stage, phase)
    if ready:
        return Cause.OOM_RUNTIME
    return _STAGE_OF_PHASE.get(phase, Cause.OOM_WEIGHTS)


def _before_ready(stage: Cause, phase: Phase) -> Cause:
    """An ordinary step before readiness is a profile or warm-up run."""
    if stage is not Cause.OOM_RUNTIME:
        return stage
    by_phase = _STAGE_OF_PHASE.get(phase, Cause.OOM_ACTIVATION)
    return Cause.OOM_ACTIVATION if by_phase is Cause.OOM_WEIGHTS else by_phase


def _stage_of_frames(frames: Iterable[Frame]) -> Cause | None:
    text = "\n".join(f"{frame.path} {frame.function} {frame.code}" for frame in frames)
    for cause, pattern in _STAGES:
        if pattern.search(text):
            return cause
    return None


def held_by_others(message: str) -> float | None:
    """GiB that other processes held according to PyTorch's message; None when it is no reason or not said."""
    total = _TOTAL.search(message)
    own_figures = [match for match in (pattern.search(message) for pattern in _OWN) if match is not None]
    if total is None or not own_figures:
        return None
    own = max(_gib(match["own"], match["unit"]) for match in own_figures)
    capacity = float(total["total"])
    free = _gib(total["free"], total["unit"])
    tried = _TRIED.search(message)
    if tried is not None and free > _gib(tried["size"], tried["unit"]):
        # vLLM caps itself by gpu-memory-utilization: there was room, and it was not allowed to take it.
        return None
    others = capacity - own - free
    return others if others > _OTHERS_SHARE * capacity else None


def advise(stage: Cause, message: str) -> str:
    """One sentence for the stage, with the size that could not be had."""
    tried = _TRIED.search(message)
    allowed = _ALLOWED.search(message)
    if allowed is not None and stage is Cause.OOM_WEIGHTS:
        return (
            f"The weights do not fit into the {allowed['allowed']} GiB that gpu-memory-utilization allows: raise it,"
            " or use a"
            " smaller or quantized model."
        )
    return f"{_ADVICE[stage]} ({tried['tried']} more were asked for.)" if tried is not None else _ADVICE[stage]


def _gib(figure: str, unit: str) -> float:
    return float(figure) / {"K": 2**20, "M": 2**10, "G": 1}[unit]
