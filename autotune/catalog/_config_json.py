"""Reading a Hugging Face ``config.json`` into a shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from autotune.base.errors import UsageError
from autotune.catalog._data import first_problem
from autotune.catalog.model import DTYPE_BYTES, ModelShape, Quantization

#: Keys that mark layers without a KV cache of keys and values (state space models, linear attention).
_STATEFUL_KEYS = ("mamba_d_state", "ssm_state_size", "state_size", "linear_num_key_heads", "rwkv_version")


def shape_from_folder(folder: Path, alias: str, repository: str) -> ModelShape:
    """The shape of the model in ``folder``.

    Raises:
        UsageError: no readable ``config.json``, or not that of a decoder.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(
            f"model: {folder} has no config.json.", "Give a folder in Hugging Face format or an alias."
        ) from error
    except (OSError, ValueError) as error:
        raise UsageError(f"model: {path} cannot be read: {error}.", "Download the model again.") from error
    if not isinstance(config, dict):
        raise UsageError(f"model: {path} is not a JSON object.", "Download the model again.")
    try:
        return _shape(config, alias, repository, path)
    except ValidationError as error:
        raise UsageError(f"model: {path}: {first_problem(error)}.", "Correct the file.") from error


class _Keys:
    """Typed access with an error that names the file and the key."""

    def __init__(self, values: Mapping[str, object], path: Path) -> None:
        self._values = values
        self._path = path

    def integer(self, *names: str, default: int | None = None) -> int:
        found = self.optional_integer(*names)
        if found is not None:
            return found
        if default is not None:
            return default
        raise UsageError(
            f"model: {self._path} has no '{names[0]}'.",
            "Give a decoder model (dense or mixture of experts) in Hugging Face format.",
        )

    def optional_integer(self, *names: str) -> int | None:
        for name in names:
            value = self._values.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise UsageError(f"model: {self._path}: '{name}' is {value!r}, not a count.", "Correct the file.")
            return value
        return None

    def text(self, *names: str) -> str | None:
        for name in names:
            value = self._values.get(name)
            if isinstance(value, str):
                return value
        return None

    def flag(self, name: str, default: bool) -> bool:
        value = self._values.get(name)
        return value if isinstance(value, bool) else default

    def strings(self, name: str) -> list[str]:
        value = self._values.get(name)
        return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _shape(config: dict[str, object], alias: str, repository: str, path: Path) -> ModelShape:
    top = _Keys(config, path)
    nested = config.get("text_config", config.get("llm_config"))
    merged = {**config, **nested} if isinstance(nested, dict) else config
    keys = _Keys(merged, path)
    stateful = [key for key in _STATEFUL_KEYS if key in merged]
    if stateful:
        raise UsageError(
            f"model: {path} describes layers without a KV cache ('{stateful[0]}').",
            "Only attention decoders are modelled; give another model.",
        )
    architectures = top.strings("architectures") or keys.strings("architectures")
    heads = keys.integer("num_attention_heads", "n_head", "n_heads")
    hidden = keys.integer("hidden_size", "n_embd", "d_model")
    layers = keys.integer("num_hidden_layers", "n_layer", "n_layers")
    experts = keys.optional_integer("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts") or None
    intermediate = keys.integer("intermediate_size", "ffn_dim", "n_inner", default=4 * hidden)
    expert_width = keys.optional_integer("moe_intermediate_size", "expert_intermediate_size") or intermediate
    shared = keys.optional_integer("shared_expert_intermediate_size")
    if shared is None:
        shared = (keys.optional_integer("n_shared_experts") or 0) * expert_width
    latent, attention = _latent_attention(keys, hidden, heads)
    window, full_layers = _windows(keys, merged, layers)
    dense = keys.optional_integer("first_k_dense_replace", "moe_layer_start_index") or 0
    return ModelShape(
        alias=alias,
        repository=repository,
        architecture=architectures[0] if architectures else "unknown",
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=keys.integer("num_key_value_heads", "num_kv_heads", "multi_query_group_num", default=heads),
        head_dim=keys.optional_integer("head_dim", "attention_head_dim") or max(1, hidden // max(1, heads)),
        vocabulary=keys.integer("vocab_size", "padded_vocab_size"),
        tied_embeddings=keys.flag("tie_word_embeddings", top.flag("tie_word_embeddings", default=False)),
        context_length=keys.integer("max_position_embeddings", "n_positions", "seq_length", "max_sequence_length"),
        dtype=_dtype(keys.text("torch_dtype", "dtype") or top.text("torch_dtype", "dtype")),
        gated_mlp=(keys.text("hidden_act", "activation_function") or "silu") not in ("relu", "gelu_new")
        and keys.optional_integer("n_embd") is None,
        experts=experts,
        experts_per_token=None
        if experts is None
        else min(experts, keys.integer("num_experts_per_tok", "experts_per_token", "moe_topk", "moe_k", default=1)),
        expert_intermediate=None if experts is None else expert_width,
        shared_expert_intermediate=0 if experts is None else shared,
        dense_layers=0 if experts is None else min(dense, layers),
        sliding_window=window,
        full_attention_layers=full_layers,
        latent_kv=latent,
        attention_parameters=attention,
        quantization=_quantization(merged),
    )


def _dtype(name: str | None) -> str:
    plain = (name or "bfloat16").removeprefix("torch.")
    return plain if plain in DTYPE_BYTES else "bfloat16"


def _latent_attention(keys: _Keys, hidden: int, heads: int) -> tuple[int | None, int | None]:
    """Values per token and parameters per layer of multi-head latent attention (DeepSeek), or None twice."""
    rank = keys.optional_integer("kv_lora_rank")
    if not rank:
        return None, None
    rotary = keys.integer("qk_rope_head_dim")
    plain = keys.integer("qk_nope_head_dim")
    value = keys.integer("v_head_dim")
    query_rank = keys.optional_integer("q_lora_rank")
    query = heads * (plain + rotary)
    queries = hidden * query_rank + query_rank * query if query_rank else hidden * query
    keys_values = hidden * (rank + rotary) + rank * heads * (plain + value)
    return rank + rotary, queries + keys_values + heads * value * hidden


def _windows(keys: _Keys, config: Mapping[str, object], layers: int) -> tuple[int | None, int | None]:
    """Sliding window and the number of layers without it; None twice where every layer sees everything."""
    window = keys.optional_integer("sliding_window")
    if not window or not keys.flag("use_sliding_window", default=True):
        return None, None
    kinds = keys.strings("layer_types")
    if kinds:
        full = sum(kind == "full_attention" for kind in kinds[:layers])
    elif isinstance(config.get("sliding_window_pattern"), int):
        full = layers // max(1, keys.integer("sliding_window_pattern"))
    else:
        full = 0
    return (None, None) if full == layers else (window, full)


def _quantization(config: Mapping[str, object]) -> Quantization | None:
    section = config.get("quantization_config", config.get("compression_config"))
    if not isinstance(section, dict):
        return None
    method = section.get("quant_method")
    if not isinstance(method, str):
        return None
    bits = section.get("bits", section.get("w_bit"))
    if bits is None and method == "bitsandbytes":
        bits = 4 if section.get("load_in_4bit") else 8
    if bits is None and isinstance(section.get("config_groups"), dict):
        bits = _group_bits(section["config_groups"])
    numeric = isinstance(bits, (int, float)) and not isinstance(bits, bool) and 0 < bits <= 16
    return Quantization(method=method, bits=float(bits) if numeric and bits is not None else None)


def _group_bits(groups: Mapping[str, object]) -> object:
    """Weight bits of the first group of a compressed-tensors configuration."""
    for group in groups.values():
        if isinstance(group, dict) and isinstance(group.get("weights"), dict):
            return group["weights"].get("num_bits")
    return None
