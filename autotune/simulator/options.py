"""Engine arguments resolved against a GPU and a model, refused where vLLM refuses them."""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from enum import StrEnum

from autotune.catalog import Gpu, ModelShape
from autotune.simulator.formats import DTYPE_ALIASES, QUANTIZATIONS, value_bytes


class ConfigError(ValueError):
    """Arguments that vLLM refuses while it builds its configuration (exit code 1)."""

    def __init__(self, message: str, model: str = "VllmConfig") -> None:
        self.model = model
        super().__init__(message)


class GraphMode(StrEnum):
    """Which steps replay CUDA graphs."""

    NONE = "NONE"
    PIECEWISE = "PIECEWISE"
    FULL = "FULL"
    FULL_DECODE_ONLY = "FULL_DECODE_ONLY"
    FULL_AND_PIECEWISE = "FULL_AND_PIECEWISE"

    @property
    def full_decode(self) -> bool:
        """True when pure decode steps replay one whole graph."""
        return self in {GraphMode.FULL, GraphMode.FULL_DECODE_ONLY, GraphMode.FULL_AND_PIECEWISE}

    @property
    def mixed(self) -> bool:
        """True when steps with prefill replay graphs too."""
        return self in {GraphMode.PIECEWISE, GraphMode.FULL, GraphMode.FULL_AND_PIECEWISE}


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the engine really runs with. ``max_model_len`` of 0 means: as much as the KV cache holds."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_scheduled_tokens: int
    max_num_active_seqs: int
    max_num_queued_reqs: int | None
    max_num_queued_tokens: int | None
    max_model_len: int
    gpu_memory_utilization: float
    kv_cache_memory_bytes: int | None
    num_gpu_blocks_override: int | None
    block_size: int
    chunked_prefill: bool
    long_prefill_token_threshold: int
    prefill_schedule_interval: int
    watermark: float
    reserve_full_prompt: bool
    async_scheduling: bool
    stream_interval: int
    api_server_count: int
    prefix_caching: bool
    dtype: str
    dtype_bytes: float
    quantization: str | None
    kv_dtype: str
    kv_dtype_bytes: float
    compiled: bool
    graph_mode: GraphMode
    capture_sizes: tuple[int, ...]
    optimization_level: int
    tensor_parallel: int
    load_format: str
    attention_backend: str
    warnings: tuple[str, ...] = ()

    @property
    def max_capture_size(self) -> int:
        """Largest batch with a captured graph, 0 without graphs."""
        return self.capture_sizes[-1] if self.capture_sizes else 0


def resolve_options(namespace: argparse.Namespace, gpu: Gpu, model: ModelShape, *, gpus: int = 1) -> EngineOptions:
    """Fill in what vLLM would choose and refuse what it would refuse.

    Raises:
        ConfigError: in vLLM's words.
    """
    warnings: list[str] = []
    dtype = _resolve_dtype(namespace.dtype, gpu, model, warnings)
    quantization = _resolve_quantization(namespace.quantization, gpu, model, dtype)
    max_model_len = _resolve_length(namespace.max_model_len, model)
    _check_parallel(namespace, model, gpus)
    batched, seqs = _resolve_batch(namespace, gpu, max_model_len or model.context_length)
    _check_numbers(namespace, batched, seqs, max_model_len or model.context_length)
    kv_bytes = _resolve_kv_dtype(namespace.kv_cache_dtype, gpu, dtype)
    compiled, mode = _resolve_graphs(namespace, gpu)
    chunked = namespace.enable_chunked_prefill is not False
    if not chunked:
        warnings.append(
            "This model does not officially support disabling chunked prefill. Disabling this manually may cause the "
            "engine to crash or produce incorrect outputs."
        )
        if batched < (max_model_len or model.context_length):
            raise ConfigError(
                f"max_num_batched_tokens ({batched}) is smaller than max_model_len "
                f"({max_model_len or model.context_length}). This effectively limits the maximum sequence length to "
                "max_num_batched_tokens and makes vLLM reject longer sequences. Please increase "
                "max_num_batched_tokens or decrease max_model_len.",
                "SchedulerConfig",
            )
    scheduled = namespace.max_num_scheduled_tokens or batched
    return EngineOptions(
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        max_num_scheduled_tokens=min(scheduled, batched),
        max_num_active_seqs=namespace.max_num_active_seqs or seqs,
        max_num_queued_reqs=namespace.max_num_queued_reqs,
        max_num_queued_tokens=namespace.max_num_queued_tokens,
        max_model_len=max_model_len,
        gpu_memory_utilization=namespace.gpu_memory_utilization,
        kv_cache_memory_bytes=namespace.kv_cache_memory_bytes,
        num_gpu_blocks_override=namespace.num_gpu_blocks_override,
        block_size=_resolve_block_size(namespace.block_size, gpu),
        chunked_prefill=chunked,
        long_prefill_token_threshold=namespace.long_prefill_token_threshold,
        prefill_schedule_interval=max(1, namespace.prefill_schedule_interval),
        watermark=namespace.watermark,
        reserve_full_prompt=namespace.scheduler_reserve_full_isl,
        async_scheduling=namespace.async_scheduling is not False,
        stream_interval=namespace.stream_interval,
        api_server_count=max(1, namespace.api_server_count),
        prefix_caching=namespace.enable_prefix_caching is not False,
        dtype=dtype,
        dtype_bytes=value_bytes(dtype),
        quantization=quantization,
        kv_dtype=namespace.kv_cache_dtype,
        kv_dtype_bytes=kv_bytes,
        compiled=compiled,
        graph_mode=mode,
        capture_sizes=_capture_sizes(namespace, gpu, mode, seqs, batched),
        optimization_level=0 if namespace.enforce_eager else namespace.optimization_level,
        tensor_parallel=namespace.tensor_parallel_size,
        load_format=namespace.load_format,
        attention_backend=_attention_backend(namespace.attention_backend, gpu),
        warnings=tuple(warnings),
    )


def with_model_length(options: EngineOptions, max_model_len: int) -> EngineOptions:
    """The options once ``max-model-len auto`` is known."""
    return dataclasses.replace(options, max_model_len=max_model_len)


def _dotted(gpu: Gpu) -> str:
    return f"{gpu.compute_capability[0]}.{gpu.compute_capability[1]}"


def _device_name(gpu: Gpu) -> str:
    return gpu.nvml_names[0] if gpu.nvml_names else gpu.title


def _resolve_dtype(asked: str, gpu: Gpu, model: ModelShape, warnings: list[str]) -> str:
    dtype = DTYPE_ALIASES.get(asked, asked)
    too_old = gpu.kind == "cuda" and gpu.capability < 80
    if dtype == "auto":
        dtype = "bfloat16" if model.dtype == "float32" else model.dtype
        if dtype == "bfloat16" and too_old:
            warnings.append(
                f"Your device '{_device_name(gpu)}' (with compute capability {_dotted(gpu)}) doesn't support "
                "torch.bfloat16. Falling back to torch.float16 for compatibility."
            )
            dtype = "float16"
    elif dtype == "bfloat16" and too_old:
        raise ConfigError(
            "Bfloat16 is only supported on GPUs with compute capability of at least 8.0. "
            f"Your {_device_name(gpu)} GPU has compute capability {_dotted(gpu)}. You can use float16 instead by "
            "explicitly setting the `dtype` flag in CLI, for example: --dtype=half.",
            "",
        )
    if dtype not in {model.dtype, "float32"}:
        warnings.append(f"Casting torch.{model.dtype} to torch.{dtype}.")
    if dtype == "float16" and model.architecture.lower().startswith(("gemma2", "gemma3", "gemma4")):
        family = model.architecture.lower()[:6]
        raise ConfigError(
            f"The model type '{family}' does not support float16. Reason: Numerical instability. "
            "Please use bfloat16 or float32 instead.",
            "ModelConfig",
        )
    return dtype


def _resolve_quantization(asked: str | None, gpu: Gpu, model: ModelShape, dtype: str) -> str | None:
    stored = model.quantization.method if model.quantization else None
    method = asked or stored
    if method is None:
        return None
    if method not in QUANTIZATIONS:
        raise ConfigError(
            f"Unknown quantization method: {method}. Must be one of {sorted(QUANTIZATIONS)}.", "ModelConfig"
        )
    described = QUANTIZATIONS[method]
    if asked and stored and _family(asked) != _family(stored):
        raise ConfigError(
            f"Quantization method specified in the model config ({stored}) does not match the "
            f"quantization method specified in the `quantization` argument ({asked}).",
            "ModelConfig",
        )
    if described.needs_checkpoint and stored is None:
        raise ConfigError(f"Cannot find the config file for {method}", "VllmConfig")
    capability = gpu.capability
    if capability < described.minimum_capability:
        raise ConfigError(
            f"The quantization method {method} is not supported for the current GPU. "
            f"Minimum capability: {described.minimum_capability}. Current capability: {capability}."
        )
    if method == "gptq" and dtype == "bfloat16":
        raise ConfigError(
            f"torch.bfloat16 is not supported for quantization method {method}. Supported dtypes: [torch.float16]"
        )
    return method


def _family(method: str) -> str:
    return method.removeprefix("auto_").removesuffix("_marlin")


def _resolve_length(asked: int | None, model: ModelShape) -> int:
    if asked is None:
        return model.context_length
    if asked == -1:
        return 0
    if asked < 1:
        raise ConfigError(f"max_model_len must be a positive integer, -1 or 'auto', got {asked}.", "ModelConfig")
    if asked > model.context_length:
        raise ConfigError(
            f"User-specified max_model_len ({asked}) is greater than the derived max_model_len "
            f"(max_position_embeddings={model.context_length} or model_max_length=None in model's config.json). To "
            "allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1.",
            "ModelConfig",
        )
    return asked


def _check_parallel(namespace: argparse.Namespace, model: ModelShape, gpus: int) -> None:
    tensor = namespace.tensor_parallel_size
    world = tensor * namespace.pipeline_parallel_size * namespace.data_parallel_size
    if tensor < 1 or model.heads % tensor:
        raise ConfigError(
            f"Total number of attention heads ({model.heads}) must be divisible by tensor parallel size ({tensor})."
        )
    if world > gpus:
        raise ConfigError(
            f"World size ({world}) is larger than the number of available GPUs ({gpus}) in this node. If this is "
            "intentional and you are using multiple nodes, set the distributed executor backend accordingly.",
            "ParallelConfig",
        )
    if world != tensor:
        raise ConfigError("The simulated engine runs tensor parallelism only.", "ParallelConfig")


def _device_defaults(gpu: Gpu, world: int) -> tuple[int, int]:
    """Default (max-num-batched-tokens, max-num-seqs) of ``vllm serve`` by device (0.29 to 0.33)."""
    if gpu.kind == "cpu":
        return 2048 * world, 128 * world
    if gpu.cuda_memory_gib >= 160:
        return 16384, 1024
    if gpu.cuda_memory_gib >= 70 and "a100" not in gpu.title.lower():
        return 8192, 1024
    return 2048, 256


def _resolve_batch(namespace: argparse.Namespace, gpu: Gpu, length: int) -> tuple[int, int]:
    batched_default, seqs_default = _device_defaults(gpu, namespace.tensor_parallel_size)
    if namespace.performance_mode == "throughput":
        batched_default, seqs_default = 2 * batched_default, 2 * seqs_default
    batched, seqs = namespace.max_num_batched_tokens, namespace.max_num_seqs
    chosen_seqs = seqs if seqs is not None else seqs_default
    if batched is None:
        batched = batched_default
        if namespace.enable_chunked_prefill is False:
            batched = max(length, batched)
        batched = min(batched, max(1, chosen_seqs) * length)
    if seqs is None:
        chosen_seqs = min(chosen_seqs, batched)
    return batched, chosen_seqs


def _check_numbers(namespace: argparse.Namespace, batched: int, seqs: int, length: int) -> None:
    scheduler = "SchedulerConfig"
    if seqs < 1 or batched < 1:
        name, value = ("max_num_seqs", seqs) if seqs < 1 else ("max_num_batched_tokens", batched)
        raise ConfigError(f"{name}\n  Input should be greater than or equal to 1, input_value={value}", scheduler)
    if batched < seqs:
        raise ConfigError(
            f"max_num_batched_tokens ({batched}) must be greater than or equal to max_num_seqs ({seqs}).",
            scheduler,
        )
    active = namespace.max_num_active_seqs
    if active is not None and active > seqs:
        raise ConfigError(f"max_num_active_seqs ({active}) cannot be greater than max_num_seqs ({seqs}).", scheduler)
    threshold = namespace.long_prefill_token_threshold
    if threshold > length:
        raise ConfigError(
            f"long_prefill_token_threshold ({threshold}) cannot be greater than the max_model_len ({length}).",
            scheduler,
        )
    if namespace.stream_interval < 1:
        raise ConfigError(
            f"stream_interval\n  Input should be greater than or equal to 1, input_value={namespace.stream_interval}",
            scheduler,
        )
    utilization = namespace.gpu_memory_utilization
    if not 0 < utilization <= 1:
        raise ConfigError(
            f"gpu_memory_utilization\n  Input should be greater than 0 and less than or equal to 1, "
            f"input_value={utilization}",
            "CacheConfig",
        )
    if not 0 <= namespace.watermark < 1:
        raise ConfigError(f"watermark\n  Input should be less than 1, input_value={namespace.watermark}", scheduler)


def _resolve_block_size(asked: int | None, gpu: Gpu) -> int:
    if asked is None:
        return 128 if gpu.kind == "cpu" else 16
    if asked < 1 or asked % 16:
        raise ConfigError(
            f"No valid attention backend found for {gpu.kind} with block_size={asked}. "
            "Reasons: {FLASH_ATTN: [block_size not supported], TRITON_ATTN: [block_size not supported]}.",
            "",
        )
    return asked


def _resolve_kv_dtype(asked: str, gpu: Gpu, dtype: str) -> float:
    if asked == "auto":
        return value_bytes(dtype)
    if asked.startswith("fp8") and gpu.kind == "cuda" and gpu.capability < 80:
        raise ConfigError(
            f"Triton reshape-and-cache cannot store kv_cache_dtype={asked} on this device: an FP8 KV cache needs "
            "native fp8e4nv (SM89+). Use --kv-cache-dtype bfloat16 (or float16 on SM75).",
            "profile_run",
        )
    if asked in {"float16", "bfloat16"} and asked != dtype:
        raise ConfigError(
            f'kv_cache_dtype="{asked}" is incompatible with dtype="{dtype}". Please set `--kv-cache-dtype` to auto.'
        )
    return value_bytes(asked)


def _resolve_graphs(namespace: argparse.Namespace, gpu: Gpu) -> tuple[bool, GraphMode]:
    level = namespace.optimization_level
    if namespace.enforce_eager or level == 0:
        return False, GraphMode.NONE
    given = namespace.compilation_config or {}
    compiled = given.get("mode", 3) not in {0, "NONE"}
    mode = GraphMode.PIECEWISE if level == 1 else GraphMode.FULL_AND_PIECEWISE
    if gpu.kind == "cpu":
        return compiled, GraphMode.NONE
    asked = given.get("cudagraph_mode")
    if asked is not None:
        if str(asked) not in GraphMode.__members__:
            raise ConfigError(f"cudagraph_mode\n  Invalid cudagraph mode: {asked}", "CompilationConfig")
        mode = GraphMode(str(asked))
    return compiled, mode


def _capture_sizes(
    namespace: argparse.Namespace, gpu: Gpu, mode: GraphMode, seqs: int, batched: int
) -> tuple[int, ...]:
    if mode is GraphMode.NONE:
        return ()
    given: dict[str, object] = namespace.compilation_config or {}
    explicit = namespace.cudagraph_capture_sizes or given.get("cudagraph_capture_sizes")
    largest = namespace.max_cudagraph_capture_size or given.get("max_cudagraph_capture_size")
    if explicit is not None and isinstance(explicit, list):
        sizes = sorted({int(size) for size in explicit if int(size) <= batched})
        if isinstance(largest, int) and sizes and largest != sizes[-1]:
            raise ConfigError(
                f"customized max_cudagraph_capture_size(={largest}) should be consistent with the max value of "
                f"cudagraph_capture_sizes(={sizes[-1]})"
            )
        return tuple(sizes)
    ceiling = 1024 if gpu.compute_capability[0] == 10 else 512
    top = min(2 * seqs, ceiling) if not isinstance(largest, int) else largest
    top = min(top, batched)
    small = range(1, 33) if namespace.performance_mode == "interactivity" else (1, 2, 4)
    candidates = {*small, *range(8, 257, 8), *range(272, top + 1, 16)}
    return tuple(sorted(size for size in candidates if size <= top))


def _attention_backend(asked: str | None, gpu: Gpu) -> str:
    capability = gpu.capability
    if gpu.kind == "cpu":
        return "CPU_ATTN"
    if asked is not None:
        if capability < 80 and asked in {"FLASH_ATTN", "FLASHINFER"}:
            raise ConfigError(
                f"Selected backend AttentionBackendEnum.{asked} is not valid for this configuration. "
                "Reason: ['compute capability not supported']",
                "",
            )
        return asked
    if capability < 80:
        return "TRITON_ATTN"
    return "FLASHINFER" if 100 <= capability < 120 else "FLASH_ATTN"
