"""Whether a configuration fits into a GPU's memory, predicted before the launch and corrected by every start.

The engine's memory is a linear function of eight unknowns: the total that CUDA sees, what the CUDA context
takes, factors on our estimates of weights, activations and graphs, what the engine sets aside for graphs
before it captures them, a fixed overhead, and what only load brings to light. They start from priors that are
as wide as the sources differ, and every figure that an engine prints while starting narrows them (a Kalman
update). So one calculation gives both the best guess and how sure it is: cautious in the first trial, tight
after a few.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.catalog import Gpu, ModelShape
from autotune.space._base import base_defaults
from autotune.space._demand import GIB, Demand, demand
from autotune.space.resolve import Resolver
from autotune.spec import Arguments, Workload

_TOTAL, _CONTEXT, _WEIGHTS, _ACTIVATION, _GRAPHS, _SET_ASIDE, _OVERHEAD, _RUNTIME = range(8)
_UNKNOWNS = 8
#: Standard deviations of the priors (GiB, or as a share for the four factors). Totals differ by driver and ECC
#: (14.56 to 14.74 GiB on a T4); activations by compiler and sampler; overhead from 0.1 to 0.9 GiB in logs.
_PRIOR_SD = (0.08, 0.08, 0.006, 0.25, 0.3, 0.35, 0.3, 0.2)
#: Wider where the checkpoint or the flag quantizes: formats differ in what they leave alone.
_QUANTIZED_WEIGHTS_SD = 0.05
#: Overhead beside libraries: sampling and attention workspaces.
_WORKSPACE_GIB = 0.25
#: What a printed figure says beyond rounding: other configurations do not follow our form exactly.
_FIGURE_SD = 0.03
_FORM_SHARE = 0.06
#: Standard deviations of doubt that a refusal must exceed: chosen by benchmarks/feasibility.py.
CERTAINTY = 2.0


@dataclass(frozen=True, slots=True)
class MemoryPrediction:
    """What a start would do. ``reason`` is a name of ``autotune.engine.failure.Cause``, empty when it fits."""

    fits: bool
    """The best guess; :attr:`hopeless` is the guess one may act upon."""
    hopeless: bool
    """It fails even if the estimates are wrong by :data:`CERTAINTY` standard deviations."""
    reason: str
    explanation: str
    """One sentence with the figures; empty when it fits."""
    weights_gib: float
    activation_gib: float
    graphs_gib: float
    overhead_gib: float
    kv_gib: float
    """Memory for the KV cache, never below zero."""
    kv_tokens: int
    max_model_len: int
    """The longest sequence served: what was asked for, or what fits where the length is automatic."""
    spare_gib: float
    """Memory left in the tightest phase; negative is what is missing."""
    doubt_gib: float
    """Standard deviation of ``spare_gib``."""


@dataclass(frozen=True, slots=True)
class _Phase:
    """A requirement of one phase: ``coefficients . unknowns + constant >= 0``."""

    cause: str
    coefficients: NDArray[np.float64]
    constant: float


class MemoryModel:
    """Predicts and learns the memory of one model on one GPU."""

    def __init__(
        self,
        gpu: Gpu,
        model: ModelShape,
        *,
        resolver: Resolver | None = None,
        total_gib: float | None = None,
        vllm_version: str | None = None,
    ) -> None:
        """Start from the catalogue's figures.

        Args:
            resolver: what unset arguments resolve to; the search space's, where there is one.
            total_gib: the GPU's total as CUDA reports it, where it was asked.
            vllm_version: graphs are counted inside gpu-memory-utilization since 0.21; None is the newest.
        """
        self.gpu = gpu
        self.model = model
        self._resolver = resolver or Resolver(gpu, model, {**base_defaults(), **gpu.defaults})
        calibration = gpu.calibration
        self._fragmentation = calibration.fragmentation_share
        self._graphs_counted = _counts_graphs(vllm_version)
        self._state = np.array(
            [
                total_gib or gpu.cuda_memory_gib,
                calibration.context_gib,
                *(1.0, 1.0, 1.0, 1.0),
                calibration.non_torch_gib + _WORKSPACE_GIB,
                calibration.runtime_gib,
            ]
        )
        deviations = np.array(_PRIOR_SD)
        if total_gib is not None:
            deviations[_TOTAL] = 0.01
        if model.quantization is not None:
            deviations[_WEIGHTS] = _QUANTIZED_WEIGHTS_SD
        self._covariance: NDArray[np.float64] = np.diag(deviations**2)
        self.observations = 0

    def predict(self, arguments: Arguments, workload: Workload | None = None) -> MemoryPrediction:
        """What starting these arguments, and serving the workload, would do."""
        asked = self._demand(arguments, workload)
        kv = self._kv_gib(asked)
        if self.gpu.kind == "cpu":
            return self._prediction(asked, kv, None, math.inf, 0.0, hopeless=False)
        spares = [(phase, *self._spare(phase)) for phase in self._phases(asked)]
        failing = next((entry for entry in spares if entry[1] < 0), None)
        hopeless = next((entry for entry in spares if entry[1] < -CERTAINTY * entry[2]), None)
        decisive = hopeless or failing
        tightest = decisive or min(spares, key=lambda entry: entry[1])
        prediction = self._prediction(
            asked, kv, None if decisive is None else decisive[0].cause, tightest[1], tightest[2], hopeless is not None
        )
        if workload is None or decisive is not None or prediction.max_model_len >= workload.longest_sequence:
            return prediction
        missing = (workload.longest_sequence - prediction.max_model_len) * asked.kv_bytes_per_token / GIB
        sure = asked.max_model_len < workload.longest_sequence and not asked.automatic_length
        kv_row = _vector(self._kv_row(asked))
        doubt = 0.0 if sure else math.sqrt(float(kv_row @ self._covariance @ kv_row) + _FIGURE_SD**2)
        return self._prediction(asked, kv, "invalid_config", -missing, doubt, sure or missing > CERTAINTY * doubt)

    def calibrate(
        self,
        arguments: Arguments,
        *,
        weights_gib: float | None = None,
        kv_gib: float | None = None,
        graphs_gib: float | None = None,
    ) -> None:
        """Learn from what an engine printed while it started with these arguments; None for what it did not say."""
        asked = self._demand(arguments, None)
        if weights_gib is not None and weights_gib > 0:
            self._update({_WEIGHTS: asked.weights}, weights_gib, 0.01)
        if graphs_gib is not None and asked.graphs > 0:
            self._update({_GRAPHS: asked.graphs}, graphs_gib, _FIGURE_SD + _FORM_SHARE * asked.graphs)
        if kv_gib is not None and asked.fixed_kv is None and self.gpu.kind != "cpu":
            row = self._kv_row(asked)
            noise = _FIGURE_SD + _FORM_SHARE * (asked.activation + asked.graphs)
            self._update(row, kv_gib + asked.communication, noise)
        self.observations += 1

    def _demand(self, arguments: Arguments, workload: Workload | None) -> Demand:
        return demand(self.gpu, self.model, self._resolver.resolve(arguments), arguments, workload)

    def _kv_row(self, asked: Demand) -> dict[int, float]:
        """The KV cache as coefficients of the unknowns (communication buffers come off as a constant)."""
        return {
            _TOTAL: asked.utilization,
            _WEIGHTS: -asked.weights,
            _ACTIVATION: -asked.activation,
            _SET_ASIDE: -asked.graphs if self._graphs_counted else 0.0,
            _OVERHEAD: -1.0,
        }

    def _kv_gib(self, asked: Demand) -> float:
        if asked.fixed_kv is not None:
            return asked.fixed_kv
        return float(_vector(self._kv_row(asked)) @ self._state) - asked.communication

    def _phases(self, asked: Demand) -> list[_Phase]:
        """The requirements in the order in which a start meets them."""
        free = {_TOTAL: 1.0, _CONTEXT: -1.0}
        loaded = {**free, _WEIGHTS: -asked.weights}
        profiled = {**loaded, _ACTIVATION: -asked.activation, _OVERHEAD: -1.0}
        # What is left beside weights, KV cache and graphs once all are there; the profile run's peak is given back.
        if asked.fixed_kv is None:
            captured = {_TOTAL: 1.0 - asked.utilization, _CONTEXT: -1.0, _ACTIVATION: asked.activation}
            captured |= {_GRAPHS: -asked.graphs, _SET_ASIDE: asked.graphs if self._graphs_counted else 0.0}
            beside = 0.0
        else:
            captured = {**loaded, _OVERHEAD: -1.0, _GRAPHS: -asked.graphs}
            beside = -asked.fixed_kv - asked.communication
        peak = asked.loaded_activation * (1 + self._fragmentation)
        serving = {**captured, _ACTIVATION: captured.get(_ACTIVATION, 0.0) - peak, _RUNTIME: -1.0}
        phases = []
        if asked.fixed_kv is None:
            busy = {_TOTAL: 1.0 - asked.utilization, _CONTEXT: -1.0}
            phases.append(_Phase("gpu_memory_busy", _vector(busy), 0.0))
        phases += [
            _Phase("oom_weights", _vector(loaded), -asked.communication),
            _Phase("oom_activation", _vector(profiled), -asked.communication),
        ]
        if asked.fixed_kv is None:
            needed = -asked.needed_kv - asked.communication
            phases.append(_Phase("oom_kv_cache", _vector(self._kv_row(asked)), needed))
        else:
            phases.append(_Phase("oom_kv_cache", np.zeros(_UNKNOWNS), asked.fixed_kv - asked.needed_kv))
        phases += [
            _Phase("oom_cudagraph", _vector(captured), beside),
            _Phase("oom_runtime", _vector(serving), beside),
        ]
        return phases

    def _spare(self, phase: _Phase) -> tuple[float, float]:
        """Memory left in a phase, and its standard deviation."""
        spare = float(phase.coefficients @ self._state) + phase.constant
        variance = float(phase.coefficients @ self._covariance @ phase.coefficients)
        form = _FORM_SHARE * (
            abs(float(phase.coefficients[_ACTIVATION])) * self._state[_ACTIVATION]
            + abs(float(phase.coefficients[_GRAPHS] + phase.coefficients[_SET_ASIDE]))
        )
        certain = not phase.coefficients.any()
        return spare, 0.0 if certain else math.sqrt(variance + _FIGURE_SD**2 + form**2)

    def _update(self, row: dict[int, float], figure: float, deviation: float) -> None:
        """Kalman update by one figure that is linear in the unknowns."""
        coefficients = _vector(row)
        spread = self._covariance @ coefficients
        gain = spread / (float(coefficients @ spread) + deviation**2)
        self._state = self._state + gain * (figure - float(coefficients @ self._state))
        self._covariance = self._covariance - np.outer(gain, spread)
        self._covariance = (self._covariance + self._covariance.T) / 2

    def _prediction(
        self, asked: Demand, kv: float, cause: str | None, spare: float, doubt: float, hopeless: bool
    ) -> MemoryPrediction:
        state = self._state
        kv = max(0.0, kv)
        tokens = int(kv * GIB / asked.kv_bytes_per_token)
        return MemoryPrediction(
            fits=cause is None,
            hopeless=hopeless,
            reason=cause or "",
            explanation="" if cause is None else self._explain(cause, asked, kv, spare),
            weights_gib=float(state[_WEIGHTS]) * asked.weights,
            activation_gib=float(state[_ACTIVATION]) * asked.activation,
            graphs_gib=float(state[_GRAPHS]) * asked.graphs,
            overhead_gib=float(state[_OVERHEAD]) + asked.communication,
            kv_gib=kv,
            kv_tokens=tokens,
            max_model_len=min(asked.max_model_len, tokens) if asked.automatic_length else asked.max_model_len,
            spare_gib=spare,
            doubt_gib=doubt,
        )

    def _explain(self, cause: str, asked: Demand, kv: float, spare: float) -> str:
        state = self._state
        total, free = float(state[_TOTAL]), float(state[_TOTAL] - state[_CONTEXT])
        weights = f"the weights take {state[_WEIGHTS] * asked.weights:.1f} GiB"
        peak = f"{state[_ACTIVATION] * asked.activation:.1f} GiB"
        if cause == "gpu_memory_busy":
            return (
                f"gpu-memory-utilization {asked.utilization:g} asks for {asked.utilization * total:.1f} GiB and "
                f"{free:.1f} GiB are free: lower it."
            )
        if cause == "oom_weights":
            return f"{weights} and {free:.1f} GiB are free: a smaller or quantized model is needed."
        if cause == "oom_activation":
            return (
                f"{weights} and a step of {asked.max_num_batched_tokens} tokens and {asked.max_num_seqs} sequences "
                f"{peak} of {free:.1f} GiB: lower max-num-batched-tokens or max-num-seqs."
            )
        if cause == "oom_kv_cache":
            return (
                f"one sequence of {asked.max_model_len} tokens needs {asked.needed_kv:.1f} GiB of KV cache and "
                f"{kv:.1f} GiB are left ({weights}): lower max-model-len or raise gpu-memory-utilization."
            )
        if cause == "invalid_config":
            return "the longest sequence of the workload is longer than the engine would serve: raise max-model-len."
        return (
            f"beside weights and KV cache {-spare:.1f} GiB are missing "
            f"{'for CUDA graphs' if cause == 'oom_cudagraph' else 'under load'}: lower gpu-memory-utilization."
        )


def _vector(row: dict[int, float]) -> NDArray[np.float64]:
    vector = np.zeros(_UNKNOWNS)
    for index, value in row.items():
        vector[index] = value
    return vector


def _counts_graphs(version: str | None) -> bool:
    """Since vLLM 0.21 the memory of CUDA graphs is part of gpu-memory-utilization."""
    match = re.match(r"v?(\d+)\.(\d+)", version or "")
    return match is None or (int(match.group(1)), int(match.group(2))) >= (0, 21)
