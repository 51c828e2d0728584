"""What a started engine says of itself: from its log, and from the configuration that it resolved."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from autotune.engine.api import EngineFacts
from autotune.spec import ArgumentValue

_KV_TOKENS = re.compile(r"(?:GPU|CPU) KV cache size: (?P<value>[\d,]+) tokens")
_KV_GIB = (
    re.compile(r"Available KV cache memory: (?P<value>[\d.]+) GiB"),
    re.compile(r"(?:Explicitly|Auto) set \((?P<value>[\d.]+)/[\d.]+\)? GiB\)? for KV cache"),
)
_WEIGHTS = re.compile(
    r"Model loading took (?P<value>[\d.]+) (?P<unit>GiB|GB)(?: memory)?(?: and (?P<seconds>[\d.]+) seconds)?"
)
_GRAPHS = re.compile(r"Graph capturing finished in (?P<seconds>[\d.]+) secs?, took (?P<value>[\d.]+) GiB")
_COMPILE = (
    re.compile(r"torch\.compile (?:and initial profiling/warmup run together )?t(?:ook|akes) (?P<value>[\d.]+) s\b"),
    re.compile(r"\(compilation: (?P<value>[\d.]+) s\)"),
)
_INIT = re.compile(r"init engine \(profile, create kv cache, warmup model\) took (?P<value>[\d.]+) s(?:econds)?")
_BATCHED = re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(?P<value>\d+)")
_MAX_LEN = re.compile(r"Using max model len (?P<value>\d+)|max_seq_len=(?P<other>\d+)")
_RESOLVED: tuple[tuple[str, str, str], ...] = (
    ("max-num-seqs", "scheduler_config", "max_num_seqs"),
    ("max-num-batched-tokens", "scheduler_config", "max_num_batched_tokens"),
    ("max-model-len", "model_config", "max_model_len"),
    ("dtype", "model_config", "dtype"),
    ("quantization", "model_config", "quantization"),
    ("enforce-eager", "model_config", "enforce_eager"),
    ("enable-chunked-prefill", "scheduler_config", "enable_chunked_prefill"),
    ("async-scheduling", "scheduler_config", "async_scheduling"),
    ("stream-interval", "scheduler_config", "stream_interval"),
    ("block-size", "cache_config", "block_size"),
    ("gpu-memory-utilization", "cache_config", "gpu_memory_utilization"),
    ("kv-cache-dtype", "cache_config", "cache_dtype"),
    ("enable-prefix-caching", "cache_config", "enable_prefix_caching"),
    ("max-cudagraph-capture-size", "compilation_config", "max_cudagraph_capture_size"),
    ("performance-mode", "", "performance_mode"),
    ("tensor-parallel-size", "parallel_config", "tensor_parallel_size"),
)


def read_facts(log: str, server_info: Mapping[str, Any], total_seconds: float) -> EngineFacts:
    """Facts of one start.

    Args:
        log: what the engine printed until it was ready.
        server_info: answer of ``/server_info?config_format=json``, or empty.
        total_seconds: engine seconds from launch to readiness.
    """
    config = server_info.get("vllm_config")
    resolved = _resolved(config if isinstance(config, Mapping) else {}, log)
    tokens = _first(log, _KV_TOKENS)
    weights = _WEIGHTS.search(log)
    graphs = _GRAPHS.search(log)
    return EngineFacts(
        kv_cache_tokens=None if tokens is None else int(tokens.replace(",", "")),
        kv_cache_gib=_number(log, *_KV_GIB),
        weights_gib=None if weights is None else _gib(float(weights["value"]), weights["unit"]),
        graphs_gib=None if graphs is None else float(graphs["value"]),
        start_seconds=_start_seconds(log, total_seconds),
        resolved=resolved,
    )


def _start_seconds(log: str, total: float) -> dict[str, float]:
    weights = _WEIGHTS.search(log)
    graphs = _GRAPHS.search(log)
    phases: dict[str, float | None] = {
        "weights": float(weights["seconds"]) if weights is not None and weights["seconds"] else None,
        "compile": _number(log, *_COMPILE),
        "graphs": float(graphs["seconds"]) if graphs is not None else None,
        "engine": _number(log, _INIT),
    }
    seconds = {name: value for name, value in phases.items() if value is not None}
    return seconds | {"total": total}


def _resolved(config: Mapping[str, Any], log: str) -> dict[str, ArgumentValue]:
    resolved: dict[str, ArgumentValue] = {}
    for name, section, key in _RESOLVED:
        holder = config.get(section) if section else config
        value = holder.get(key) if isinstance(holder, Mapping) else None
        if isinstance(value, (bool, int, float, str)):
            resolved[name] = value.removeprefix("torch.") if isinstance(value, str) else value
    if "max-num-batched-tokens" not in resolved and (batched := _first(log, _BATCHED)) is not None:
        resolved["max-num-batched-tokens"] = int(batched)
    if "max-model-len" not in resolved and (length := _MAX_LEN.search(log)) is not None:
        resolved["max-model-len"] = int(length["value"] or length["other"])
    return resolved


def _first(log: str, *patterns: re.Pattern[str]) -> str | None:
    for pattern in patterns:
        match = pattern.search(log)
        if match is not None:
            return match["value"]
    return None


def _number(log: str, *patterns: re.Pattern[str]) -> float | None:
    found = _first(log, *patterns)
    return None if found is None else float(found)


def _gib(value: float, unit: str) -> float:
    return value if unit == "GiB" else value * 1e9 / 2**30
