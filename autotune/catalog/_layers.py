"""What each layer of a decoder keeps of the past: everything, a window, or a state of fixed size."""

from __future__ import annotations

from enum import StrEnum

from autotune.base.errors import UsageError
from autotune.catalog._keys import Keys


class LayerKind(StrEnum):
    """What a layer keeps."""

    FULL = "full"
    LOCAL = "local"
    STATEFUL = "stateful"
    """A state of fixed size (linear attention, Mamba), or nothing."""


def layer_kinds(keys: Keys, layers: int) -> list[LayerKind]:
    """The kind of each layer, by whichever of the usual keys the configuration has.

    Raises:
        UsageError: there are stateful layers and no key that tells which.
    """
    named = keys.strings("layer_types") or keys.strings("layers_block_type")
    if named:
        return [_kind_of(name) for name in named[:layers]]
    pattern = keys.text("hybrid_override_pattern")
    if pattern is not None:
        return [LayerKind.FULL if letter == "*" else LayerKind.STATEFUL for letter in pattern[:layers]]
    interval = keys.optional_integer("full_attention_interval")
    if interval:
        return [_full_if((layer + 1) % interval == 0, LayerKind.STATEFUL) for layer in range(layers)]
    period = keys.optional_integer("attn_layer_period")
    if period:
        offset = keys.optional_integer("attn_layer_offset") or 0
        return [_full_if(layer % period == offset, LayerKind.STATEFUL) for layer in range(layers)]
    if keys.has("mamba_d_state", "ssm_state_size", "state_size", "linear_num_key_heads"):
        raise UsageError(
            "model: its config.json has layers without a KV cache and does not say which.",
            "Give a model whose config.json has 'layer_types'.",
        )
    return _windowed(keys, layers)


def _windowed(keys: Keys, layers: int) -> list[LayerKind]:
    if not keys.optional_integer("sliding_window") or not keys.flag("use_sliding_window", default=True):
        return [LayerKind.FULL] * layers
    pattern = keys.optional_integer("sliding_window_pattern")
    if pattern:
        return [_full_if((layer + 1) % pattern == 0, LayerKind.LOCAL) for layer in range(layers)]
    first_local = keys.optional_integer("max_window_layers") or 0
    return [_full_if(layer < first_local, LayerKind.LOCAL) for layer in range(layers)]


def state_values(keys: Keys) -> int:
    """Values of one sequence's state in one stateful layer."""
    if keys.has("linear_num_value_heads"):
        key_width, value_heads, value_width = _linear_attention(keys)
        convolved = (2 * key_width + value_heads * value_width) * 3
        return value_heads * value_width * keys.integer("linear_key_head_dim") + convolved
    states = keys.optional_integer("mamba_d_state", "ssm_state_size", "state_size") or 0
    return _mamba_width(keys) * (states + 3)


def stateful_parameters(keys: Keys, hidden: int) -> int:
    """Parameters of one stateful layer in place of attention: its projections in and out."""
    if keys.has("linear_num_value_heads"):
        key_width, value_heads, value_width = _linear_attention(keys)
        return hidden * (2 * key_width + 3 * value_heads * value_width)
    return 3 * hidden * _mamba_width(keys)


def _linear_attention(keys: Keys) -> tuple[int, int, int]:
    key_width = keys.integer("linear_num_key_heads") * keys.integer("linear_key_head_dim")
    return key_width, keys.integer("linear_num_value_heads"), keys.integer("linear_value_head_dim")


def _mamba_width(keys: Keys) -> int:
    heads = keys.optional_integer("mamba_n_heads", "mamba_num_heads")
    width = keys.optional_integer("mamba_d_head", "mamba_head_dim")
    if heads and width:
        return heads * width
    return (keys.optional_integer("mamba_expand", "expand") or 2) * keys.integer("hidden_size")


def _kind_of(name: str) -> LayerKind:
    if "full" in name or name == "attention":
        return LayerKind.FULL
    if any(word in name for word in ("sliding", "local", "chunked")):
        return LayerKind.LOCAL
    return LayerKind.STATEFUL


def _full_if(condition: bool, otherwise: LayerKind) -> LayerKind:
    return LayerKind.FULL if condition else otherwise
