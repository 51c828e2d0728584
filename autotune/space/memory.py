"""Whether a configuration fits into a GPU's memory, predicted before the launch and corrected by every start.

The engine's memory is a linear function of nine unknowns: the total that CUDA sees, what the CUDA context
takes, factors on our estimates of weights, activations and graphs, what the engine sets aside for graphs
before it captures them, a fixed overhead, and what only load brings to light. They start from priors that are
as wide as the sources differ. Every figure that an engine prints while starting narrows them, and so does
every outcome: a start that succeeded or ran out of memory says on which side of zero a phase's spare memory
lies. So one calculation gives both the best guess and how sure it is: cautious in the first trial, tight
after a few.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from autotune.catalog import Gpu, ModelShape
from autotune.space._base import base_defaults
from autotune.space._belief import Belief, normal_cdf
from autotune.space._demand import GIB, Demand, demand
from autotune.space._phases import OF_GPU, Phase, Unknown, kv_row, phases, vector
from autotune.space.resolve import Resolver
from autotune.spec import Arguments, Workload

#: Standard deviations of the priors (GiB, or as a share for the factors). Totals differ by driver and ECC
#: (14.56 to 14.74 GiB on a T4); activations by compiler and sampler; overhead from 0.1 to 0.9 GiB in logs.
_PRIOR_SD = {
    Unknown.TOTAL: 0.08,
    Unknown.CONTEXT: 0.08,
    Unknown.WEIGHTS: 0.006,
    Unknown.ACTIVATION: 0.2,
    Unknown.GRAPHS: 0.25,
    Unknown.SET_ASIDE: 0.3,
    Unknown.OVERHEAD: 0.3,
    Unknown.RUNTIME: 0.2,
    Unknown.KV: 0.01,
}
#: Wider where the checkpoint or the flag quantizes: formats differ in what they leave alone.
_QUANTIZED_WEIGHTS_SD = 0.05
#: Wider where layers keep different spans: how the engine groups them decides what is padded.
_MIXED_KV_SD = 0.25
#: Overhead beside libraries: sampling and attention workspaces.
_WORKSPACE_GIB = 0.25
#: What a printed figure says beyond rounding, in GiB and as a share of activations and graphs: other
#: configurations do not follow the form of our estimates exactly.
_FIGURE_SD = 0.03
_FORM_SHARE = 0.06
#: Standard deviations of doubt that a refusal must exceed. Both goals (at least 90 % of the failures refused, at
#: most 1 % of what runs) hold here for six seeds of benchmarks/feasibility.py; at 1.5 the first fails, at 1.2 the
#: second.
CERTAINTY = 1.3


@dataclass(frozen=True, slots=True)
class MemoryPrediction:
    """What a start would do. ``reason`` is a name of ``autotune.engine.failure.Cause``, empty when it fits."""

    fits: bool
    """The best guess; :attr:`hopeless` is the guess one may act upon."""
    hopeless: bool
    """It fails even if the estimates are wrong by :data:`CERTAINTY` standard deviations."""
    reason: str
    explanation: str
    """One sentence with the figures and the remedy; empty when it fits."""
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
    failure_probability: float
    """How likely a start or its load runs out of memory."""


@dataclass(frozen=True, slots=True)
class PhaseOutlook:
    """One phase's spare memory in GiB, its standard deviation, and whether even luck would not help."""

    cause: str
    spare: float
    doubt: float

    @property
    def hopeless(self) -> bool:
        """Fails by more than the doubt allows."""
        return self.spare < -CERTAINTY * self.doubt

    @property
    def failure_probability(self) -> float:
        """Probability that the phase fails."""
        if self.doubt == 0:
            return float(self.spare < 0)
        return normal_cdf(-self.spare / self.doubt)


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
        self._graphs_counted, set_aside, set_aside_sd = _graphs_set_aside(vllm_version)
        calibration = gpu.calibration
        mean = np.ones(len(Unknown))
        mean[Unknown.TOTAL] = total_gib or gpu.cuda_memory_gib
        mean[Unknown.CONTEXT] = calibration.context_gib
        mean[Unknown.SET_ASIDE] = set_aside
        mean[Unknown.OVERHEAD] = calibration.non_torch_gib + _WORKSPACE_GIB
        mean[Unknown.RUNTIME] = calibration.runtime_gib
        deviations = vector(_PRIOR_SD)
        deviations[Unknown.SET_ASIDE] = set_aside_sd
        if total_gib is not None:
            deviations[Unknown.TOTAL] = 0.01
        if model.quantization is not None:
            deviations[Unknown.WEIGHTS] = _QUANTIZED_WEIGHTS_SD
        if model.sliding_window is not None or model.stateful_layers:
            deviations[Unknown.KV] = _MIXED_KV_SD
        self._belief = Belief(mean, deviations)

    def inherit(self, other: MemoryModel) -> None:
        """Start from what another model's trials taught about the same GPU (total, context, overhead, load)."""
        block = np.ix_(OF_GPU, OF_GPU)
        self._belief.mean[list(OF_GPU)] = other._belief.mean[list(OF_GPU)]
        self._belief.covariance[block] = other._belief.covariance[block] * 2

    def predict(self, arguments: Arguments, workload: Workload | None = None) -> MemoryPrediction:
        """What starting these arguments, and serving the workload, would do."""
        asked = self.demand(arguments, workload)
        if self.gpu.kind == "cpu":
            return self._prediction(asked, None, hopeless=False)
        outlooks = self.outlooks(asked, workload)
        hopeless = next((outlook for outlook in outlooks if outlook.hopeless), None)
        failing = hopeless or next((outlook for outlook in outlooks if outlook.spare < 0), None)
        tightest = failing or max(outlooks, key=lambda outlook: outlook.failure_probability)
        return self._prediction(asked, tightest, hopeless=hopeless is not None)

    def demand(self, arguments: Arguments, workload: Workload | None) -> Demand:
        """What the arguments ask for, before any correction."""
        return demand(self.gpu, self.model, self._resolver.resolve(arguments), arguments, workload)

    def outlooks(self, asked: Demand, workload: Workload | None) -> list[PhaseOutlook]:
        """The spare memory of every phase in the order of a start, then whether the workload's sequences fit."""
        found = [
            PhaseOutlook(phase.cause, *self._spare(phase))
            for phase in phases(asked, self._graphs_counted, self.gpu.calibration.fragmentation_share)
        ]
        if workload is not None and workload.longest_sequence > asked.max_model_len:
            missing = (workload.longest_sequence - asked.max_model_len) * asked.kv_bytes_per_token / GIB
            found.append(PhaseOutlook("invalid_config", -missing, 0.0))
        elif workload is not None and asked.automatic_length and asked.fixed_kv is None:
            needed = workload.longest_sequence * asked.kv_bytes_per_token / GIB
            row = vector({**kv_row(asked, self._graphs_counted), Unknown.KV: -needed})
            phase = Phase("oom_kv_cache", row, -asked.communication)
            found.append(PhaseOutlook(phase.cause, *self._spare(phase)))
        return found

    def calibrate(
        self,
        arguments: Arguments,
        *,
        weights_gib: float | None = None,
        kv_gib: float | None = None,
        graphs_gib: float | None = None,
        kv_tokens: int | None = None,
    ) -> None:
        """Learn from what an engine printed while it started with these arguments; None for what it did not say."""
        asked = self.demand(arguments, None)
        if self.gpu.kind == "cpu":
            return
        if weights_gib is not None and weights_gib > 0:
            self._belief.observe(vector({Unknown.WEIGHTS: asked.weights}), weights_gib, 0.01)
        if graphs_gib is not None and asked.graphs > 0:
            noise = _FIGURE_SD + _FORM_SHARE * asked.graphs
            self._belief.observe(vector({Unknown.GRAPHS: asked.graphs}), graphs_gib, noise)
        if kv_gib is not None and kv_tokens:
            estimate = asked.kv_bytes_per_token * kv_tokens / GIB
            self._belief.observe(vector({Unknown.KV: estimate}), kv_gib, 0.01 * kv_gib)
        if kv_gib is not None and asked.fixed_kv is None:
            noise = _FIGURE_SD + _FORM_SHARE * (asked.activation + asked.graphs)
            self._belief.observe(vector(kv_row(asked, self._graphs_counted)), kv_gib + asked.communication, noise)

    def observe_outcome(
        self,
        arguments: Arguments,
        workload: Workload | None,
        cause: str | None,
        *,
        least_free_gib: float | None = None,
    ) -> None:
        """Learn from how a trial ended: ``cause`` of the failure, or None when it served its load.

        Causes that are not about the GPU's memory teach nothing. A failure says that its phase lacked memory
        and that the phases before had enough. ``least_free_gib`` is the least memory that was seen free on the
        GPU under load: the worst load leaves no more than that.
        """
        if self.gpu.kind == "cpu":
            return
        asked = self.demand(arguments, workload)
        requirements = phases(asked, self._graphs_counted, self.gpu.calibration.fragmentation_share)
        causes = [phase.cause for phase in requirements]
        if cause is not None and cause not in causes:
            return
        passed = len(causes) if cause is None else causes.index(cause)
        for index, phase in enumerate(requirements[: passed + 1]):
            if phase.coefficients.any():
                noise = math.hypot(_FIGURE_SD, self._form(phase))
                self._belief.observe_sign(phase.coefficients, phase.constant, index < passed, noise)
        if cause is None and least_free_gib is not None:
            load = requirements[-1]
            noise = math.hypot(_FIGURE_SD, self._form(load))
            self._belief.observe_sign(load.coefficients, load.constant - least_free_gib, False, noise)

    def _spare(self, phase: Phase) -> tuple[float, float]:
        """Memory left in a phase, and its standard deviation: small where only sizes of the cache decide."""
        spare, variance = self._belief.linear(phase.coefficients, phase.constant)
        measured = float(np.abs(np.delete(phase.coefficients, Unknown.KV)).max()) > 0
        return spare, math.sqrt(variance + (_FIGURE_SD**2 if measured else 0.0) + self._form(phase) ** 2)

    def _form(self, phase: Phase) -> float:
        graphs = phase.coefficients[Unknown.GRAPHS] + phase.coefficients[Unknown.SET_ASIDE]
        return _FORM_SHARE * float(abs(phase.coefficients[Unknown.ACTIVATION]) + abs(graphs))

    def _kv_gib(self, asked: Demand) -> float:
        if asked.fixed_kv is not None:
            return asked.fixed_kv
        return max(0.0, self._belief.linear(vector(kv_row(asked, self._graphs_counted)))[0] - asked.communication)

    def _prediction(self, asked: Demand, outlook: PhaseOutlook | None, *, hopeless: bool) -> MemoryPrediction:
        mean = self._belief.mean
        kv = self._kv_gib(asked)
        tokens = int(kv * GIB / (asked.kv_bytes_per_token * float(mean[Unknown.KV])))
        fails = outlook is not None and outlook.spare < 0
        return MemoryPrediction(
            fits=not fails,
            hopeless=hopeless,
            reason=outlook.cause if fails and outlook is not None else "",
            explanation=self.explain(asked, outlook) if fails and outlook is not None else "",
            weights_gib=float(mean[Unknown.WEIGHTS]) * asked.weights,
            activation_gib=float(mean[Unknown.ACTIVATION]) * asked.activation,
            graphs_gib=float(mean[Unknown.GRAPHS]) * asked.graphs,
            overhead_gib=float(mean[Unknown.OVERHEAD]) + asked.communication,
            kv_gib=kv,
            kv_tokens=tokens,
            max_model_len=min(asked.max_model_len, tokens) if asked.automatic_length else asked.max_model_len,
            spare_gib=math.inf if outlook is None else outlook.spare,
            doubt_gib=0.0 if outlook is None else outlook.doubt,
            failure_probability=0.0 if outlook is None else outlook.failure_probability,
        )

    def explain(self, asked: Demand, outlook: PhaseOutlook) -> str:
        """Why a phase fails, with its figures and what to do."""
        mean = self._belief.mean
        total, free = float(mean[Unknown.TOTAL]), float(mean[Unknown.TOTAL] - mean[Unknown.CONTEXT])
        weights = f"the weights take {mean[Unknown.WEIGHTS] * asked.weights:.1f} GiB"
        if outlook.cause == "gpu_memory_busy":
            return (
                f"gpu-memory-utilization {asked.utilization:g} asks for {asked.utilization * total:.1f} GiB and "
                f"{free:.1f} GiB are free: lower it."
            )
        if outlook.cause == "oom_weights":
            return f"{weights} and {free:.1f} GiB are free: a smaller or quantized model is needed."
        if outlook.cause == "oom_activation":
            return (
                f"{weights} and a step of {asked.max_num_batched_tokens} tokens and {asked.max_num_seqs} sequences "
                f"{mean[Unknown.ACTIVATION] * asked.activation:.1f} GiB of {free:.1f} GiB: "
                "lower max-num-batched-tokens or max-num-seqs."
            )
        if outlook.cause == "oom_kv_cache":
            return (
                f"one sequence of {asked.max_model_len} tokens needs "
                f"{mean[Unknown.KV] * asked.needed_kv:.1f} GiB of KV cache and "
                f"{self._kv_gib(asked):.1f} GiB are left ({weights}): "
                "lower max-model-len or raise gpu-memory-utilization."
            )
        if outlook.cause == "invalid_config":
            return f"the workload has sequences of more than max-model-len ({asked.max_model_len}) tokens: raise it."
        return (
            f"beside weights and KV cache {-outlook.spare:.1f} GiB are missing "
            f"{'for CUDA graphs' if outlook.cause == 'oom_cudagraph' else 'under load'}: lower gpu-memory-utilization."
        )


def _graphs_set_aside(version: str | None) -> tuple[bool, float, float]:
    """Whether memory for CUDA graphs is taken from gpu-memory-utilization, and which share of it, with its doubt.

    Off before 0.21. From there on vLLM's older model runner sets it aside (0.37 GiB for the 0.31 used, 0.64 for
    0.55: vLLM 0.22); its newer one did not in 0.24 (the KV cache on an H200 was the same with and without graphs)
    and does in 0.32. Which runner is used depends on the model.
    """
    match = re.match(r"v?(\d+)\.(\d+)", version or "")
    number = (int(match.group(1)), int(match.group(2))) if match else (999, 0)
    if number < (0, 21):
        return False, 0.0, 0.0
    return (True, 0.5, 0.5) if number < (0, 32) else (True, 1.1, _PRIOR_SD[Unknown.SET_ASIDE])
