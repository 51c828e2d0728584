"""How long the phases of a start take, in engine seconds."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.catalog import Gpu, ModelShape
from autotune.simulator.memory import GIB
from autotune.simulator.options import EngineOptions

DEVICE_S = 1.0
"""Creating the CUDA context."""
PROFILE_S = 1.5
KV_PLAN_S = 0.5
WARM_KERNELS_SHARE = 0.05
"""Share of the kernel warm-up that a later start with the same kernels needs: 0.6 of 15 s on an H200."""


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Engine seconds of each phase, in order."""

    imports: float
    weights: float
    compile: float
    graphs: float
    kernels: float

    @property
    def total(self) -> float:
        """From launch to readiness."""
        return (
            self.imports + DEVICE_S + self.weights + self.compile + PROFILE_S + KV_PLAN_S + self.graphs + self.kernels
        )


def start_times(gpu: Gpu, model: ModelShape, options: EngineOptions, weights_gib: float, *, warm: bool) -> StartTimes:
    """The phases of one start. ``warm``: vLLM's compile cache holds this configuration already."""
    calibration = gpu.calibration
    layers = model.layers / 36
    loading = 2.0 if options.load_format == "dummy" else weights_gib * GIB / 1e9 / calibration.load_gbs + 1.0
    compiling = (calibration.compile_warm_s if warm else calibration.compile_cold_s) * layers
    return StartTimes(
        imports=calibration.import_s,
        weights=loading,
        compile=compiling if options.compiled else 0.0,
        graphs=calibration.graphs_s * len(options.capture_sizes) / 51 * layers,
        kernels=calibration.kernel_warm_up_s * (WARM_KERNELS_SHARE if warm else 1.0) if options.compiled else 0.0,
    )


def compile_key(gpu: Gpu, model: ModelShape, options: EngineOptions) -> tuple[object, ...]:
    """What vLLM's compile cache is keyed by: configurations with equal keys start warm after one another."""
    return (
        gpu.name, model.repository, options.max_model_len, options.dtype, options.quantization, options.block_size,
        options.kv_dtype, options.tensor_parallel, options.max_num_batched_tokens, options.max_num_seqs,
        options.capture_sizes, options.optimization_level,
    )  # fmt: skip
