"""Number formats: names as vLLM takes them, bytes per value, what a GPU computes with them."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.catalog import DTYPE_BYTES, Gpu

DTYPE_ALIASES = {"half": "float16", "float": "float32"}
DTYPE_CHOICES = ("auto", "half", "float16", "bfloat16", "float", "float32")
KV_DTYPE_CHOICES = (
    "auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_per_token_head", "int8_per_token_head",
    "int4_per_token_head", "nvfp4",
)  # fmt: skip
_COMPUTE_KEYS = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


@dataclass(frozen=True, slots=True)
class QuantizationSupport:
    """What a method needs. Capabilities as vLLM compares them (75 for 7.5)."""

    minimum_capability: int
    computes_in: str | None = None
    """Key of the GPU's compute table; None for weight-only methods, which compute in the model's dtype."""
    compute_capability: int = 0
    """Below this capability the method works weight-only."""
    needs_checkpoint: bool = True


_ONLINE_FP8 = QuantizationSupport(75, "fp8", 89, needs_checkpoint=False)
_FOUR_BIT = QuantizationSupport(75)

QUANTIZATIONS = {
    "fp8": _ONLINE_FP8,
    "fp8_per_tensor": _ONLINE_FP8,
    "fp8_per_block": _ONLINE_FP8,
    "fp8_per_channel": _ONLINE_FP8,
    "int8_per_channel_weight_only": QuantizationSupport(75, needs_checkpoint=False),
    "awq": _FOUR_BIT,
    "auto_awq": _FOUR_BIT,
    "awq_marlin": _FOUR_BIT,
    "gptq": QuantizationSupport(60),
    "auto_gptq": QuantizationSupport(60),
    "gptq_marlin": _FOUR_BIT,
    "compressed-tensors": QuantizationSupport(75, "int8", 75),
    "modelopt": QuantizationSupport(75, "fp8", 89),
    "mxfp4": QuantizationSupport(80),
    "moe_wna16": QuantizationSupport(75),
}
"""Quantization methods that the simulated engine serves, as in vLLM 0.33."""


def compute_rate(gpu: Gpu, dtype: str, quantization: str | None) -> float:
    """Dense matrix rate in FLOP/s (the data sheet's) for weights of that kind."""
    key = _COMPUTE_KEYS[dtype]
    method = QUANTIZATIONS.get(quantization) if quantization else None
    if method is not None and method.computes_in is not None and gpu.capability >= method.compute_capability:
        key = method.computes_in if gpu.supports(method.computes_in) else key
    if key in gpu.tflops:
        return gpu.tflops[key] * 1e12
    plain = gpu.tflops.get("fp16") or gpu.tflops.get("bf16") or max(gpu.tflops.values())
    return plain * 1e12 / (8 if key == "fp32" and gpu.kind == "cuda" else 1)


def value_bytes(dtype: str) -> float:
    """Bytes of one value of a resolved dtype."""
    return DTYPE_BYTES[dtype]
