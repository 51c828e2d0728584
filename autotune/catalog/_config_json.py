"""Reading a Hugging Face ``config.json`` into a shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from autotune.base.errors import UsageError
from autotune.catalog._data import first_problem
from autotune.catalog._keys import Keys
from autotune.catalog._layers import LayerKind, layer_kinds, state_values, stateful_parameters
from autotune.catalog.model import DTYPE_BYTES, ModelShape, Quantization


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


def _shape(config: dict[str, object], alias: str, repository: str, path: Path) -> ModelShape:
    top = Keys(config, path)
    nested = config.get("text_config", config.get("llm_config"))
    merged = {**config, **nested} if isinstance(nested, dict) else config
    keys = Keys(merged, path)
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
    kinds = layer_kinds(keys, layers)
    window, full_layers = _windows(keys, kinds)
    stateful = kinds.count(LayerKind.STATEFUL)
    if stateful == layers:
        raise UsageError(f"model: {path} has no layer with a KV cache.", "Give a model with attention layers.")
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
        stateful_layers=stateful,
        stateful_parameters=stateful_parameters(keys, hidden) if stateful else 0,
        state_bytes=stateful * state_values(keys) * 2,
        latent_kv=latent,
        attention_parameters=attention,
        quantization=_quantization(merged),
        checkpoint_bytes=_checkpoint_bytes(path.parent),
    )


def _checkpoint_bytes(folder: Path) -> int | None:
    """Size of the safetensors weights: the index says it, or the files; None where there are none."""
    index = folder / "model.safetensors.index.json"
    try:
        total = json.loads(index.read_text(encoding="utf-8"))["metadata"]["total_size"]
        return int(total) if total > 0 else None
    except (OSError, ValueError, KeyError, TypeError):
        return sum(path.stat().st_size for path in folder.glob("model*.safetensors")) or None


def _dtype(name: str | None) -> str:
    plain = (name or "bfloat16").removeprefix("torch.")
    return plain if plain in DTYPE_BYTES else "bfloat16"


def _latent_attention(keys: Keys, hidden: int, heads: int) -> tuple[int | None, int | None]:
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


def _windows(keys: Keys, kinds: list[LayerKind]) -> tuple[int | None, int | None]:
    """Sliding window and the number of layers that see everything; None twice where all of them do."""
    window = keys.optional_integer("sliding_window")
    if not window or LayerKind.LOCAL not in kinds:
        return None, None
    return window, kinds.count(LayerKind.FULL)


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
