"""The shape of a model: what its memory and its speed follow from."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

#: Bytes of one value by the names that vLLM and config.json use for data types.
DTYPE_BYTES: dict[str, float] = {
    "float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2,
    "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1, "fp8_ds_mla": 1, "fp8_per_token_head": 1,
    "int8": 1, "int8_per_token_head": 1, "int4_per_token_head": 0.5, "nvfp4": 0.5625,
}  # fmt: skip

#: Bytes of one weight of a linear layer by quantization method, scales and zero points included (groups of 128 for
#: 4 bits: 16 bits of scale and 4 of zero point for each group; MXFP4 and NVFP4: 8 bits of scale for each 32 or 16).
QUANTIZED_BYTES: dict[str, float] = {
    "awq": 0.52, "auto_awq": 0.52, "awq_marlin": 0.52, "gptq": 0.52, "auto_gptq": 0.52, "gptq_marlin": 0.52,
    "moe_wna16": 0.52, "quark": 0.52, "mxfp4": 0.53125, "nvfp4": 0.5625, "modelopt_fp4": 0.5625, "humming": 0.52,
    "bitsandbytes": 0.53, "nvfp4_per_token": 0.5625,
    "fp8": 1.0, "fp8_per_tensor": 1.0, "fp8_per_block": 1.0005, "fp8_per_channel": 1.001, "modelopt": 1.0,
    "fbgemm_fp8": 1.0, "mxfp8": 1.03125, "int8_per_channel_weight_only": 1.001, "experts_int8": 1.0, "inc": 0.52,
    "compressed-tensors": 1.0, "torchao": 1.0,
}  # fmt: skip


class Quantization(BaseModel):
    """How a checkpoint stores its linear layers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    """vLLM's name: awq, gptq, fp8, compressed-tensors, ..."""
    bits: float | None = Field(default=None, gt=0, le=16)
    """Bits of one weight, without scales; None where the method implies it."""

    @property
    def bytes_per_weight(self) -> float:
        """Bytes of one weight of a linear layer, scales included; 2 for a method not known here."""
        if self.bits is None:
            return QUANTIZED_BYTES.get(self.method, 2.0)
        return self.bits / 8 * (1.04 if self.bits <= 4 else 1.0)


class ModelShape(BaseModel):
    """A decoder (dense or mixture of experts), by the quantities of its ``config.json``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    alias: str
    repository: str
    """Hugging Face id, or the folder it was read from: what ``vllm serve`` is given."""
    aliases: tuple[str, ...] = ()
    architecture: str
    layers: int = Field(ge=1)
    hidden: int = Field(ge=1)
    intermediate: int = Field(ge=1)
    """Width of a dense layer's MLP."""
    heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    vocabulary: int = Field(ge=1)
    tied_embeddings: bool
    context_length: int = Field(ge=1)
    dtype: str = "bfloat16"
    gated_mlp: bool = True
    """Whether the MLP has a gate (three matrices) or not (two)."""
    experts: int | None = Field(default=None, ge=1)
    experts_per_token: int | None = Field(default=None, ge=1)
    expert_intermediate: int | None = Field(default=None, ge=1)
    shared_expert_intermediate: int = Field(default=0, ge=0)
    """Total width of experts that every token passes."""
    dense_layers: int = Field(default=0, ge=0)
    """Layers of a mixture of experts that have a dense MLP instead."""
    sliding_window: int | None = Field(default=None, ge=1)
    """Window of the local layers, tokens."""
    full_attention_layers: int | None = Field(default=None, ge=0)
    """Layers that see the whole context where others are local; None: all."""
    stateful_layers: int = Field(default=0, ge=0)
    """Layers that keep a state of fixed size for each sequence instead of a KV cache (linear attention, Mamba)."""
    stateful_parameters: int = Field(default=0, ge=0)
    """Parameters of one such layer in place of attention."""
    state_bytes: int = Field(default=0, ge=0)
    """Bytes of one sequence's state in all such layers."""
    latent_kv: int | None = Field(default=None, ge=1)
    """Values per token and layer of a latent KV cache (MLA: rank and rotary part); None: keys and values of heads."""
    attention_parameters: int | None = Field(default=None, ge=1)
    """Parameters of one layer's attention where it is not the usual four projections (MLA)."""
    other_parameters: int = Field(default=0, ge=0)
    """Parameters loaded beside the decoder, e.g. a vision tower."""
    quantization: Quantization | None = None
    checkpoint_bytes: int | None = Field(default=None, ge=1)
    """Size of the weights on disk, where they are here: better than any estimate from the shape."""

    @model_validator(mode="after")
    def _consistent(self) -> ModelShape:
        if (self.experts is None) != (self.experts_per_token is None) or (
            (self.experts is None) != (self.expert_intermediate is None)
        ):
            raise ValueError("experts, experts_per_token and expert_intermediate belong together")
        if self.experts is not None and self.experts_per_token is not None and self.experts_per_token > self.experts:
            raise ValueError("experts_per_token is more than experts")
        attention = self.layers - self.stateful_layers
        if self.dense_layers > self.layers or attention < max(1, self.full_attention_layers or 0):
            raise ValueError("more special layers than layers, or none with a KV cache")
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"dtype '{self.dtype}' is not known")
        return self

    @property
    def dtype_bytes(self) -> float:
        """Bytes of one value in the checkpoint's data type."""
        return DTYPE_BYTES[self.dtype]

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the token embedding and, where it is not tied, the output head."""
        return self.vocabulary * self.hidden * (1 if self.tied_embeddings else 2)

    @property
    def attention_layer_parameters(self) -> int:
        """Parameters of one layer's attention projections."""
        if self.attention_parameters is not None:
            return self.attention_parameters
        return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)

    def mlp_parameters(self, width: int) -> int:
        """Parameters of an MLP of that width."""
        return (3 if self.gated_mlp else 2) * self.hidden * width

    @property
    def kv_layers(self) -> int:
        """Layers with a KV cache."""
        return self.layers - self.stateful_layers

    @property
    def local_layers(self) -> int:
        """Layers that keep a window beside others that see the whole context; 0 where all layers are alike."""
        if self.sliding_window is None or not self.full_attention_layers:
            return 0
        return self.kv_layers - self.full_attention_layers

    @property
    def mixing_parameters(self) -> int:
        """Parameters of what mixes tokens in all layers: attention, or what stands in its place."""
        return self.kv_layers * self.attention_layer_parameters + self.stateful_layers * self.stateful_parameters

    @property
    def linear_parameters(self) -> int:
        """Parameters of all layers' linear weights: what quantization makes smaller."""
        mixing = self.mixing_parameters
        if self.experts is None or self.expert_intermediate is None:
            return mixing + self.layers * self.mlp_parameters(self.intermediate)
        expert_layer = (
            self.experts * self.mlp_parameters(self.expert_intermediate)
            + self.mlp_parameters(self.shared_expert_intermediate)
            + self.hidden * self.experts
        )
        sparse = self.layers - self.dense_layers
        return mixing + self.dense_layers * self.mlp_parameters(self.intermediate) + sparse * expert_layer

    @property
    def parameters(self) -> int:
        """All parameters that are loaded (norms and biases, a few thousandths, are left out)."""
        return self.embedding_parameters + self.linear_parameters + self.other_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token passes through: all of them without experts; the output head counts once."""
        head = self.vocabulary * self.hidden
        if self.experts is None or self.expert_intermediate is None or self.experts_per_token is None:
            return head + self.linear_parameters
        active_layer = (
            self.experts_per_token * self.mlp_parameters(self.expert_intermediate)
            + self.mlp_parameters(self.shared_expert_intermediate)
            + self.hidden * self.experts
        )
        return (
            head
            + self.mixing_parameters
            + self.dense_layers * self.mlp_parameters(self.intermediate)
            + (self.layers - self.dense_layers) * active_layer
        )

    def weight_bytes(self, dtype_bytes: float | None = None, quantization: str | None = None) -> float:
        """Bytes of the loaded weights.

        Args:
            dtype_bytes: bytes of one unquantized value; None is the checkpoint's.
            quantization: vLLM's method name; None is the checkpoint's own, if any. Embeddings, output head
                and whatever is loaded beside the decoder stay unquantized.
        """
        estimate = self._estimated_bytes(self.dtype_bytes if dtype_bytes is None else dtype_bytes, quantization)
        if self.checkpoint_bytes is None:
            return estimate
        return estimate * self.checkpoint_bytes / self._estimated_bytes(self.dtype_bytes, None)

    def _estimated_bytes(self, plain: float, quantization: str | None) -> float:
        if quantization is None:
            linear = plain if self.quantization is None else self.quantization.bytes_per_weight
        elif self.quantization is not None and self.quantization.method == quantization:
            linear = self.quantization.bytes_per_weight
        else:
            linear = Quantization(method=quantization).bytes_per_weight
        return (self.embedding_parameters + self.other_parameters) * plain + self.linear_parameters * min(linear, plain)

    def kv_values_per_layer(self) -> int:
        """Values that one token leaves in the KV cache of one layer that has one."""
        return self.latent_kv if self.latent_kv is not None else 2 * self.kv_heads * self.head_dim

    def kv_bytes_per_token(self, kv_dtype_bytes: float | None = None) -> float:
        """KV cache bytes of one token in all layers; None is the checkpoint's data type."""
        size = self.dtype_bytes if kv_dtype_bytes is None else kv_dtype_bytes
        return self.kv_layers * self.kv_values_per_layer() * size

    def kv_bytes_of_sequence(self, tokens: int, kv_dtype_bytes: float | None = None, *, step_tokens: int = 1) -> float:
        """KV cache bytes of one sequence: local layers keep no more than their window, stateful ones their state.

        ``step_tokens``: tokens of it that are computed at once, which a local layer holds besides what it sees.
        """
        per_layer = self.kv_bytes_per_token(kv_dtype_bytes) / self.kv_layers
        if self.sliding_window is None or self.full_attention_layers is None:
            return self.state_bytes + self.kv_layers * per_layer * tokens
        local = min(tokens, self.sliding_window - 1 + step_tokens) * (self.kv_layers - self.full_attention_layers)
        return self.state_bytes + per_layer * (self.full_attention_layers * tokens + local)
