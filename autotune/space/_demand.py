"""What a configuration asks of one GPU's memory, before any correction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.catalog import DTYPE_BYTES, Gpu, ModelShape
from autotune.space.resolve import AUTO_LENGTHS, max_model_len, parse_size
from autotune.spec import Arguments, ArgumentValue, Workload

GIB = float(2**30)

#: "Model loading took" over the parameters' bytes: 7.56 of 7.49 GiB (Qwen3-4B, vLLM 0.24), 14.29 of 14.18 GiB
#: (Qwen2.5-7B, vLLM 0.22), 14.99 of 14.96 GiB (Llama-3.1-8B, vLLM 0.10): norms, biases, rotary tables, rounding.
_LOADED_SHARE = 1.005
#: One captured graph of one layer. vLLM 0.24 on an H200, 36 layers: 0.24, 0.61 and 1.00 GiB for 30, 86 and 102
#: graphs; vLLM 0.22, 28 layers: 0.31 GiB for 54. So 2.0e-4 to 2.7e-4.
_GRAPH_GIB_PER_LAYER = 2.2e-4
#: Largest captured batch without a flag, by vLLM's ``_set_cudagraph_sizes``; the larger one from capability 10.0.
_LARGEST_CAPTURE = (512, 1024)


@dataclass(frozen=True, slots=True)
class Demand:
    """Memory of one GPU in GiB, and the figures it follows from."""

    utilization: float
    weights: float
    activation: float
    """Peak of the profile run."""
    loaded_activation: float
    """Peak that the workload can cause: its batches may be smaller than the profile run's."""
    graphs: float
    communication: float
    """Buffers between GPUs."""
    kv_bytes_per_token: float
    """Of long sequences; local layers count only their share."""
    needed_kv: float
    """KV cache of one sequence of ``max_model_len``, or of one block where the length is automatic."""
    fixed_kv: float | None
    """KV cache asked for in bytes; None: what is left."""
    max_model_len: int
    automatic_length: bool
    max_num_seqs: int
    max_num_batched_tokens: int


def demand(
    gpu: Gpu,
    model: ModelShape,
    resolved: Mapping[str, ArgumentValue | None],
    given: Arguments,
    workload: Workload | None,
) -> Demand:
    """What the engine will ask for.

    Args:
        resolved: all arguments with vLLM's defaults filled in.
        given: those that the user or the search gave.
        workload: bounds what is used under load; None takes the largest batch.
    """
    ranks = max(1, _count(resolved, "tensor-parallel-size", 1)) * max(1, _count(resolved, "pipeline-parallel-size", 1))
    sequences = _count(resolved, "max-num-seqs", 256)
    tokens = _count(resolved, "max-num-batched-tokens", 2048)
    value_bytes = _value_bytes(resolved.get("dtype"), model.dtype)
    kv_bytes = _kv_value_bytes(resolved.get("kv-cache-dtype"), value_bytes, model)
    quantization = resolved.get("quantization")
    offload = _number(resolved, "cpu-offload-gb", 0.0)
    weights = model.weight_bytes(value_bytes, None if quantization in (None, "unset") else str(quantization))
    length = max_model_len(given, model)
    automatic = given.get("max-model-len") in AUTO_LENGTHS
    block = _count(resolved, "block-size", 16)
    kv_share = 1 / min(ranks, model.kv_heads) if model.latent_kv is None else 1.0
    sequence_kv = model.kv_bytes_of_sequence(-(-length // block) * block, kv_bytes, step_tokens=tokens) * kv_share
    fixed = resolved.get("kv-cache-memory-bytes")
    loaded_tokens = tokens if workload is None else min(tokens, sequences * workload.longest_sequence)
    return Demand(
        utilization=_number(resolved, "gpu-memory-utilization", 0.92),
        weights=max(0.0, weights * _LOADED_SHARE / ranks / GIB - offload),
        activation=_activation(model, value_bytes, ranks, tokens, sequences),
        loaded_activation=_activation(model, value_bytes, ranks, loaded_tokens, sequences),
        graphs=_graphs(gpu, model, resolved, sequences, tokens),
        communication=gpu.calibration.nccl_gib if ranks > 1 else 0.0,
        kv_bytes_per_token=sequence_kv / length,
        needed_kv=(model.kv_bytes_per_token(kv_bytes) * block * kv_share if automatic else sequence_kv) / GIB,
        fixed_kv=None if fixed is None else parse_size(fixed) / GIB,
        max_model_len=length,
        automatic_length=automatic,
        max_num_seqs=sequences,
        max_num_batched_tokens=tokens,
    )


def captured_graphs(
    gpu: Gpu, resolved: Mapping[str, ArgumentValue | None], sequences: int, tokens: int
) -> tuple[int, int]:
    """How many piecewise and how many whole graphs are captured.

    Sizes as vLLM's ``_set_cudagraph_sizes``: 1, 2, 4, then steps of 8 below 256 and of 16 from there; whole
    graphs (decode steps) only up to ``max-num-seqs``.
    """
    if gpu.kind == "cpu" or resolved.get("enforce-eager") is True or resolved.get("optimization-level") == 0:
        return 0, 0
    largest = _count(resolved, "max-cudagraph-capture-size", 0)
    if largest <= 0:
        largest = min(2 * sequences, _LARGEST_CAPTURE[10 <= gpu.compute_capability[0] < 12])
    largest = min(largest, tokens)
    small = range(1, min(largest, 32) + 1) if resolved.get("performance-mode") == "interactivity" else (1, 2, 4)
    sizes = {*small, *range(8, 256, 8), *range(256, largest + 1, 16), min(sequences, largest)}
    sizes = {size for size in sizes if size <= largest}
    whole = 0 if resolved.get("optimization-level") == 1 else sum(size <= sequences for size in sizes)
    return len(sizes), whole


def _graphs(
    gpu: Gpu, model: ModelShape, resolved: Mapping[str, ArgumentValue | None], sequences: int, tokens: int
) -> float:
    return sum(captured_graphs(gpu, resolved, sequences, tokens)) * _GRAPH_GIB_PER_LAYER * model.layers


def _activation(model: ModelShape, value_bytes: float, ranks: int, tokens: int, sequences: int) -> float:
    """Peak of a step: the widest layer over all tokens, or the logits of all sequences, whichever is larger.

    An H200 under vLLM 0.24 took 0.84, 0.48 and 1.17 GiB beside weights and KV cache for 8192 tokens and 64
    sequences, 2048 and 256, 8192 and 1024: this form and 0.28 GiB of overhead give 0.84, 0.50 and 1.15.
    Per token the residual twice, the normalised input and the gated MLP's two halves with their product; per
    sequence the logits in the model's type, in float32 and as probabilities.
    """
    width = model.intermediate
    if model.experts is not None and model.experts_per_token and model.expert_intermediate:
        routed = model.experts_per_token * model.expert_intermediate + model.shared_expert_intermediate
        width = max(routed, model.intermediate if model.dense_layers else 0)
    attention = model.head_dim * (2 * model.heads + 2 * model.kv_heads)
    per_token = (3 * model.hidden + max(3 * width, attention) / ranks) * value_bytes
    per_sequence = model.vocabulary * (value_bytes + 4.0)
    return max(tokens * per_token, min(sequences, tokens) * per_sequence) / GIB


def _value_bytes(dtype: ArgumentValue | None, model_dtype: str) -> float:
    name = model_dtype if dtype in (None, "auto", "unset") else str(dtype)
    return DTYPE_BYTES.get(name, 2.0)


def _kv_value_bytes(dtype: ArgumentValue | None, value_bytes: float, model: ModelShape) -> float:
    """Bytes of one cached value; those with a scale for each token and head carry 4 bytes for it."""
    if dtype in (None, "auto", "unset"):
        return value_bytes
    name = str(dtype)
    scale = 4.0 / model.head_dim if name.endswith("_per_token_head") else 0.0
    return DTYPE_BYTES.get(name, value_bytes) + scale


def _count(resolved: Mapping[str, ArgumentValue | None], name: str, otherwise: int) -> int:
    value = resolved.get(name)
    try:
        return otherwise if value is None else parse_size(value)
    except ValueError:
        return otherwise


def _number(resolved: Mapping[str, ArgumentValue | None], name: str, otherwise: float) -> float:
    value = resolved.get(name)
    return float(value) if isinstance(value, (int, float)) else otherwise
