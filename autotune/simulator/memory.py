"""Where the memory of a GPU goes while an engine starts and serves, in GiB."""

from __future__ import annotations

from dataclasses import dataclass, fields

from autotune.catalog import Gpu, ModelShape
from autotune.simulator.formats import value_bytes
from autotune.simulator.kv_layout import KvLayout, kv_layout
from autotune.simulator.options import EngineOptions, GraphMode

GIB = float(2**30)
_WORKSPACE_GIB = 0.07
"""What an H200 under vLLM 0.24 held beside weights, activations and libraries."""
_LOADED_SHARE = 1.009
"""Weights as loaded over the parameters' bytes: 7.56 of 7.49 GiB for Qwen3-4B (rotary tables, padding, buffers)."""


@dataclass(frozen=True, slots=True)
class Perturbation:
    """Factors on parts of the memory model, so that a predictor is tested against something else than itself."""

    weights: float = 1.0
    activation: float = 1.0
    graphs: float = 1.0
    overhead: float = 1.0
    kv: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Perturbation:
        """Read ``weights=1.02,activation=1.1``; a single number scales activations, graphs and overhead.

        Raises:
            ValueError: an unknown part or not a positive number.
        """
        if not text:
            return cls()
        names = {field.name for field in fields(cls)}
        given: dict[str, float] = {}
        for part in text.split(","):
            name, equals, value = part.partition("=")
            if not equals:
                given.update(dict.fromkeys(("activation", "graphs", "overhead"), float(name)))
            elif name.strip() in names:
                given[name.strip()] = float(value)
            else:
                raise ValueError(f"memory perturbation: unknown part '{name}', known: {', '.join(sorted(names))}")
        if any(not factor > 0 for factor in given.values()):
            raise ValueError("memory perturbation: factors must be positive")
        return cls(**given)


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """Memory of one GPU of the engine, in GiB unless named otherwise."""

    total: float
    """As CUDA reports it."""
    context: float
    """Taken before the engine looks at what is free, so outside its budget."""
    weights: float
    non_torch: float
    activation: float
    """Peak of the profile run: the largest batch, prefill or logits."""
    graphs: float
    graphs_estimated: float
    """What the engine sets aside for graphs before it captures them."""
    kv: KvLayout
    runtime_extra: float
    """Taken under load on top of what the profile run saw, at the largest batch."""
    activation_per_token: float
    activation_per_sequence: float

    def available_for_kv(self, utilization: float) -> float:
        """KV cache memory that the engine finds after its profile run; may be negative."""
        return utilization * self.total - self.weights - self.non_torch - self.activation - self.graphs_estimated

    def spare(self, kv: float) -> float:
        """Memory left on the GPU once everything that stays has been taken."""
        return self.total - self.context - self.weights - self.non_torch - kv - self.graphs

    def step_peak(self, tokens: int, sampled: int, largest_tokens: int) -> float:
        """Transient memory of one step of so many tokens, of which so many are sampled from."""
        transient = max(tokens * self.activation_per_token, sampled * self.activation_per_sequence)
        return transient + self.runtime_extra * tokens / max(1, largest_tokens)


def build_memory_model(
    gpu: Gpu, model: ModelShape, options: EngineOptions, perturbation: Perturbation | None = None
) -> MemoryModel:
    """Memory of an engine with these options, before anything is known of other processes."""
    factor = perturbation or Perturbation()
    calibration = gpu.calibration
    ranks = options.tensor_parallel
    weights = weights_gib(model, options.dtype, options.quantization, ranks) * factor.weights
    per_token, per_sequence = _activation_gib(model, options)
    graphs = _graphs_gib(gpu, model, options, per_token) * factor.graphs
    per_token *= calibration.activation_factor * factor.activation
    per_sequence *= calibration.activation_factor * factor.activation
    activation = max(per_token * options.max_num_batched_tokens, per_sequence * options.max_num_seqs)
    return MemoryModel(
        total=gpu.cuda_memory_gib,
        context=calibration.context_gib * factor.overhead,
        weights=weights,
        non_torch=(_WORKSPACE_GIB + calibration.non_torch_gib + (calibration.nccl_gib if ranks > 1 else 0.0))
        * factor.overhead,
        activation=activation,
        graphs=graphs,
        graphs_estimated=graphs,
        kv=kv_layout(
            model,
            block_size=options.block_size,
            value_bytes=options.kv_dtype_bytes,
            ranks=ranks,
            step_tokens=options.max_num_batched_tokens,
            factor=factor.kv,
        ),
        runtime_extra=(calibration.runtime_gib + calibration.fragmentation_share * activation) * factor.overhead,
        activation_per_token=per_token,
        activation_per_sequence=per_sequence,
    )


def weights_gib(model: ModelShape, dtype: str, quantization: str | None, ranks: int = 1) -> float:
    """Weights on one GPU. Vocabulary matrices stay in the model's dtype when the layers are quantized."""
    return model.weight_bytes(value_bytes(dtype), quantization) / ranks * _LOADED_SHARE / GIB


def _activation_gib(model: ModelShape, options: EngineOptions) -> tuple[float, float]:
    """GiB per token of the batch, and per sequence whose logits are computed; one GPU.

    Per token: the residual stream and two working copies, and the wider of the gated MLP's two halves with their
    product and the attention's projections. Per sequence: logits in the model's dtype and in float32. The two peaks
    do not coincide: the layers' buffers are free again when the logits are computed.
    """
    ranks = options.tensor_parallel
    width = options.dtype_bytes
    experts = model.experts_per_token or 0
    expert_width = experts * (model.expert_intermediate or 0) + model.shared_expert_intermediate
    mlp = 3 * max(expert_width, model.intermediate if model.dense_layers or not experts else 0) / ranks
    attention = model.head_dim * (2 * model.heads + 2 * model.kv_heads) / ranks
    per_token = (3 * model.hidden + max(mlp, attention)) * width
    per_sequence = model.vocabulary / ranks * (width + 4.0)
    return per_token / GIB, per_sequence / GIB


def _graphs_gib(gpu: Gpu, model: ModelShape, options: EngineOptions, activation_per_token: float) -> float:
    """Memory of all captured graphs: a little for each, and static buffers for the tokens of whole decode graphs."""
    if options.graph_mode is GraphMode.NONE:
        return 0.0
    calibration = gpu.calibration
    whole = [size for size in options.capture_sizes if size <= options.max_num_seqs and options.graph_mode.full_decode]
    pieces = len(options.capture_sizes) if options.graph_mode.mixed else 0
    captures = (pieces + len(whole)) * calibration.graph_gib_per_capture * model.layers / 36
    return (
        calibration.graph_base_gib + captures + sum(whole) * activation_per_token * calibration.graph_activation_share
    )
