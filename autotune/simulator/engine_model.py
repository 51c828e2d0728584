"""A simulated engine as a whole: what starting it does, and the engine core that a start leaves behind."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from enum import StrEnum

from autotune.catalog import Gpu, ModelShape
from autotune.simulator.api_server import ApiServerQueue
from autotune.simulator.arguments import parse_arguments, to_words
from autotune.simulator.core import EngineCore, StepNoise
from autotune.simulator.memory import GIB, MemoryModel, Perturbation, build_memory_model
from autotune.simulator.options import EngineOptions, resolve_options, with_model_length
from autotune.simulator.physics import StepPhysics, build_physics
from autotune.simulator.scheduler import Scheduler
from autotune.spec import Arguments


class StartPhase(StrEnum):
    """Where a start can fail, in order."""

    INIT_DEVICE = "init_device"
    LOAD_WEIGHTS = "load_weights"
    PROFILE = "profile"
    KV_CACHE = "kv_cache"
    KV_ALLOCATION = "kv_allocation"
    CAPTURE = "capture"


class StartError(Exception):
    """The engine core fails to start. ``str(error)`` is the exception's text; ``out_of_memory`` its type."""

    def __init__(self, phase: StartPhase, message: str, *, out_of_memory: bool = False) -> None:
        self.phase = phase
        self.out_of_memory = out_of_memory
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class EngineModel:
    """A started engine. Build it with :func:`build_engine_model`."""

    gpu: Gpu
    model: ModelShape
    options: EngineOptions
    """``max_model_len`` is resolved."""
    memory: MemoryModel
    physics: StepPhysics
    kv_gib: float
    blocks: int

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds, in sequences of the longest length where that makes a difference."""
        if self.memory.kv.grows_only:
            return self.blocks * self.options.block_size
        return int(self.max_concurrency * self.options.max_model_len)

    @property
    def max_concurrency(self) -> float:
        """How many sequences of the longest length fit, as vLLM prints it."""
        return self.blocks / self.memory.kv.longest_blocks(self.options.max_model_len)

    @property
    def used_gib(self) -> float:
        """Memory that the engine holds on its GPU once it is ready."""
        memory = self.memory
        return memory.context + memory.weights + memory.non_torch + self.kv_gib + memory.graphs + memory.activation

    def new_core(self, *, seed: int = 0, noise: float = 1.0) -> EngineCore:
        """An idle engine core. The same seed gives the same step times; ``noise`` scales their spread."""
        options = self.options
        calibration = self.gpu.calibration
        return EngineCore(
            Scheduler(options, self.blocks, options.max_model_len, self.memory.kv.fixed_blocks),
            self.physics,
            ApiServerQueue.build(calibration, count=options.api_server_count, stream_interval=options.stream_interval),
            StepNoise(seed, calibration.step_noise * noise),
            self.memory,
            self.kv_gib,
        )


def build_engine_model(
    gpu: Gpu,
    model: ModelShape,
    arguments: Arguments,
    *,
    perturbation: Perturbation | None = None,
    busy_gib: float = 0.0,
    gpus: int = 1,
) -> EngineModel:
    """Start an engine on paper.

    Args:
        gpu: the GPU, of which the host has ``gpus``.
        model: what is served.
        arguments: engine arguments; what is unset takes vLLM's default for this GPU.
        perturbation: factors on the memory model.
        busy_gib: memory that others hold on the GPU.
        gpus: number of GPUs in the host.

    Raises:
        CommandLineError: a flag or value that argparse refuses.
        ConfigError: arguments that vLLM refuses while configuring.
        StartError: the engine does not fit, with vLLM's text.
    """
    namespace = parse_arguments([model.repository, *to_words(arguments)])
    return start_engine(namespace, gpu, model, perturbation=perturbation, busy_gib=busy_gib, gpus=gpus)


def start_engine(
    namespace: argparse.Namespace,
    gpu: Gpu,
    model: ModelShape,
    *,
    perturbation: Perturbation | None = None,
    busy_gib: float = 0.0,
    gpus: int = 1,
) -> EngineModel:
    """:func:`build_engine_model` for a parsed command line."""
    options = resolve_options(namespace, gpu, model, gpus=gpus)
    memory = build_memory_model(gpu, model, options, perturbation)
    kv_gib = _memory_for_kv(gpu, options, memory, busy_gib)
    blocks = int(kv_gib * GIB / memory.kv.block_bytes)
    if options.num_gpu_blocks_override is not None:
        blocks = options.num_gpu_blocks_override
    options = _fit_length(options, model, memory, kv_gib, blocks)
    free = memory.spare(kv_gib) - busy_gib
    if free + memory.graphs < 0:
        raise StartError(StartPhase.KV_ALLOCATION, _oom_text(memory, kv_gib, free + memory.graphs), out_of_memory=True)
    if free < 0:
        raise StartError(StartPhase.CAPTURE, _oom_text(memory, memory.graphs / 8, free), out_of_memory=True)
    physics = build_physics(gpu, model, options)
    return EngineModel(gpu, model, options, memory, physics, kv_gib, blocks)


def _memory_for_kv(gpu: Gpu, options: EngineOptions, memory: MemoryModel, busy_gib: float) -> float:
    """KV cache memory in GiB, after all checks up to the end of the profile run."""
    utilization = options.gpu_memory_utilization
    free = memory.total - memory.context - busy_gib
    if free < utilization * memory.total:
        raise StartError(
            StartPhase.INIT_DEVICE,
            f"Free memory on device {'cuda:0' if gpu.kind == 'cuda' else 'cpu'} ({free:.2f}/{memory.total:.2f} GiB) on "
            f"startup is less than desired GPU memory utilization ({utilization}, {utilization * memory.total:.2f} "
            "GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
        )
    free -= memory.weights + memory.non_torch
    if free < 0:
        raise StartError(StartPhase.LOAD_WEIGHTS, _oom_text(memory, memory.weights / 36, 0.02), out_of_memory=True)
    if free < memory.activation:
        raise StartError(StartPhase.PROFILE, _oom_text(memory, memory.activation / 3, free), out_of_memory=True)
    if options.kv_cache_memory_bytes is not None:
        return options.kv_cache_memory_bytes / GIB
    available = memory.available_for_kv(utilization)
    if available <= 0:
        raise StartError(
            StartPhase.KV_CACHE,
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the "
            "engine. See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details.",
        )
    return available


def _fit_length(
    options: EngineOptions, model: ModelShape, memory: MemoryModel, kv_gib: float, blocks: int
) -> EngineOptions:
    """Check that one sequence of the longest length fits, or find that length for ``auto``."""
    layout = memory.kv
    fits = layout.longest_fitting(blocks, options.max_model_len or model.context_length)
    if options.max_model_len == 0:
        if fits < 1:
            raise StartError(
                StartPhase.KV_CACHE,
                "Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token. Try "
                "increasing `gpu_memory_utilization`.",
            )
        return with_model_length(options, fits)
    needed_blocks = layout.longest_blocks(options.max_model_len)
    if needed_blocks > blocks:
        needed = needed_blocks * layout.block_bytes / GIB
        raise StartError(
            StartPhase.KV_CACHE,
            f"To serve at least one request with the models's max seq len ({options.max_model_len}), ({needed:.2f} GiB "
            f"KV cache is needed, which is larger than the available KV cache memory ({kv_gib:.2f} GiB). Based on the "
            f"available memory, the estimated maximum model length is {fits}. Try increasing "
            "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine. See "
            "https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details.",
        )
    return options


def _oom_text(memory: MemoryModel, wanted_gib: float, free_gib: float) -> str:
    free = max(0.01, free_gib)
    wanted = max(wanted_gib, free + 0.02)
    return oom_text(wanted, free, memory.total)


def oom_text(wanted_gib: float, free_gib: float, total_gib: float) -> str:
    """PyTorch's message for an allocation that failed."""
    return (
        f"CUDA out of memory. Tried to allocate {_amount(wanted_gib)}. GPU 0 has a total capacity of "
        f"{total_gib:.2f} GiB of which {_amount(free_gib)} is free. Including non-PyTorch memory, this process has "
        f"{max(0.0, total_gib - free_gib):.2f} GiB memory in use. If reserved but unallocated memory is large try "
        "setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    )


def _amount(gib: float) -> str:
    return f"{gib:.2f} GiB" if gib >= 1 else f"{gib * 1024:.2f} MiB"
