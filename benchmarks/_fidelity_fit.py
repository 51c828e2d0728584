"""Fits the constants of the step model to measured rows: least squares on logarithms, several starts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from _fidelity_rows import MeasuredRow, simulate
from numpy.typing import NDArray
from scipy.optimize import least_squares

from autotune.catalog import Gpu, ModelShape

START = {
    "prefill_efficiency": 0.74,
    "bandwidth_efficiency": 0.8,
    "attention_bandwidth_efficiency": 0.6,
    "fp8_attention_share": 0.7,
    "graph_overhead_per_layer_s": 4.2e-5,
    "piecewise_overhead_per_layer_s": 1.2e-4,
    "compiled_overhead_per_layer_s": 4.2e-4,
    "eager_overhead_per_layer_s": 7.5e-4,
    "step_overhead_s": 1.5e-3,
    "sequence_overhead_s": 1e-5,
    "chunk_contention_s": 1e-5,
    "request_overhead_s": 2e-3,
    "token_overhead_s": 3e-5,
    "output_overhead_s": 4e-5,
    "handover_s": 8e-3,
}
"""Guesses from single rows: e.g. 3.6 ms a token for one stream, 29 ms a step eager whether 64 or 256 run."""
_BOUNDS = {
    "prefill_efficiency": (0.5, 0.79),
    "bandwidth_efficiency": (0.4, 0.95),
    "attention_bandwidth_efficiency": (0.3, 0.95),
    "fp8_attention_share": (0.5, 1.0),
}
_WEIGHTS = {"output_tok_s": 1.5, "latency_p50": 0.7, "latency_p99": 1.5, "tpot_p50": 0.7, "ttft_p50": 0.15}
_PRIOR = {"prefill_efficiency": 0.1, "bandwidth_efficiency": 0.15, "attention_bandwidth_efficiency": 0.3}
_PRIOR_WEIGHT = 0.045


def calibrated(gpu: Gpu, constants: dict[str, float]) -> Gpu:
    """The GPU with other constants."""
    return gpu.model_copy(update={"calibration": gpu.calibration.model_copy(update=constants)})


def fit(rows: Sequence[MeasuredRow], gpu: Gpu, model: ModelShape, starts: int) -> dict[str, float]:
    """The constants that explain the rows best; robust, since single rows of a real engine are off by 10 % and more."""
    names = list(START)

    def constants(x: NDArray[np.float64]) -> dict[str, float]:
        values = {name: START[name] * float(np.exp(step)) for name, step in zip(names, x, strict=True)}
        return {name: float(np.clip(value, *_BOUNDS.get(name, (0, np.inf)))) for name, value in values.items()}

    def residuals(x: NDArray[np.float64]) -> NDArray[np.float64]:
        candidate = calibrated(gpu, constants(x))
        out = [_PRIOR_WEIGHT * step / _PRIOR.get(name, 1.0) for name, step in zip(names, x, strict=True)]
        for row in rows:
            simulated = simulate(row, candidate, model, noise=0.5, seeds=(3,))
            for figure, weight in _WEIGHTS.items():
                if figure != "output_tok_s" or row.loop == "closed":
                    out.append(weight * float(np.log(getattr(simulated, figure) / getattr(row, figure))))
        return np.asarray(np.nan_to_num(np.array(out), nan=2.0, posinf=2.0, neginf=-2.0))

    best, best_cost = np.zeros(len(names)), np.inf
    for seed in range(starts):
        x = np.random.default_rng(seed).normal(0, 0.3, len(names)) if seed else np.zeros(len(names))
        result = least_squares(
            residuals, x, loss="soft_l1", f_scale=0.08, diff_step=0.03, bounds=(-1.8, 1.8), max_nfev=14
        )
        if result.cost < best_cost:
            best, best_cost = result.x, float(result.cost)
    return constants(best)
