"""``result.json`` and ``trial.json``: what a study found, as other programs read it.

Fields are only ever added; ``schema_version`` rises when the meaning of one changes. Rates are requests
per second, times seconds of engine time, memory GiB. A figure that was not measured is null.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autotune.base.errors import UsageError
from autotune.base.files import write_atomically
from autotune.spec import ArgumentValue

SCHEMA_VERSION = 1


class _Document(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Outcome(StrEnum):
    """How a trial ended."""

    MEASURED = "measured"
    INFEASIBLE = "infeasible"
    FAULT = "fault"


class Role(StrEnum):
    """Why a trial was run."""

    BASELINE = "baseline"
    SEARCH = "search"
    CONFIRMATION = "confirmation"


class Decision(StrEnum):
    """What a study concludes."""

    TUNED = "tuned"
    KEEP_DEFAULT = "keep-default"
    NO_FEASIBLE_CONFIGURATION = "no-feasible-configuration"
    UNFINISHED = "unfinished"


class AgreementDocument(_Document):
    """How far greedy answers to the same prompts agree."""

    first_tokens: float
    """Share of the prompts whose first token is the same."""
    prefix: float
    """Mean share of an answer before the first token that differs."""
    logprob_difference: float | None = None
    """Mean absolute difference of the log-probability of the reference's tokens, as far as the answers agree and at the
    first token that differs."""

    @property
    def text(self) -> str:
        """All three in a phrase."""
        difference = "unknown" if self.logprob_difference is None else f"{self.logprob_difference:.3f}"
        return (
            f"first tokens equal {self.first_tokens:.0%}, equal up to {self.prefix:.0%} of an answer, log-probabilities"
            f" {difference} apart"
        )


class QualityDocument(_Document):
    """Greedy answers to fixed prompts, compared with those of the reference: the default configuration."""

    prompts: int = 0
    """Prompts that both answered."""
    agreement: AgreementDocument | None = None
    repeat: AgreementDocument | None = None
    """The reference asked twice, with other requests beside it."""
    passed: bool | None = None
    """Null where nothing could be compared."""
    reason: str = ""
    """Which limit was broken, or why nothing could be compared."""

    @property
    def text(self) -> str:
        """What was found, in a phrase."""
        if self.agreement is None or self.repeat is None:
            return self.reason
        found, itself = self.agreement.text, self.repeat.text
        failed = f"; failed: {self.reason}" if self.reason else ""
        return f"{found}, over {self.prompts} prompts (the default with itself: {itself}){failed}"


class ProbeDocument(_Document):
    """One load level on a running engine."""

    index: int
    purpose: str
    loop: str
    rate: float | None = None
    concurrency: int | None = None
    realised_rate: float | None = None
    duration_s: float
    requests: int
    failed: int
    misses: int
    decision: str
    """pass, fail or undecided."""
    reason: str = ""
    valid: bool = True
    invalid_reason: str = ""
    output_tokens_per_s: float | None = None
    total_tokens_per_s: float | None = None
    p50_latency_s: float | None = None
    p90_latency_s: float | None = None
    p99_latency_s: float | None = None
    p99_interval_s: tuple[float | None, float | None] | None = None
    p99_label: str = ""
    p50_ttft_s: float | None = None
    p99_ttft_s: float | None = None
    p50_tpot_s: float | None = None
    p99_tpot_s: float | None = None
    prefix_hit_rate: float | None = None
    energy_per_token_j: float | None = None
    """Energy of the GPUs over the probe by the output tokens that came in it; null without their power."""
    workload: str = ""
    """Which of several workloads was sent."""
    planned_requests: int | None = None
    log_margin: float | None = None
    """Logarithm of the percentile over its limit, of the target that is nearest to it: below zero it holds."""
    smooth_margin: float | None = None
    """The same of the smooth percentile of a probe that was sent to its end to be compared."""
    errors: dict[str, int] = Field(default_factory=dict)
    client: dict[str, float] = Field(default_factory=dict)
    telemetry: dict[str, Any] = Field(default_factory=dict)


class Timings(_Document):
    """Where a trial's engine seconds went."""

    start: float = 0.0
    warm_up: float = 0.0
    measure: float = 0.0
    stop: float = 0.0
    other: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return self.start + self.warm_up + self.measure + self.stop + self.other

    def __add__(self, other: Timings) -> Timings:
        return Timings(**{name: getattr(self, name) + getattr(other, name) for name in Timings.model_fields})


class WorkloadFigures(_Document):
    """What a configuration does with one of several workloads; fields as those of a trial."""

    workload: str
    capacity_rps: float | None = None
    capacity_interval: tuple[float, float] | None = None
    dominated: bool = False
    output_tokens_per_s: float | None = None
    total_tokens_per_s: float | None = None
    p50_latency_s: float | None = None
    p99_latency_s: float | None = None
    p99_interval_s: tuple[float | None, float | None] | None = None
    p99_label: str = ""
    p99_ttft_s: float | None = None
    p99_tpot_s: float | None = None
    target_latency_s: float | None = None
    cost_per_million_tokens: float | None = None
    energy_per_token_j: float | None = None
    slo_margin: float | None = None


class TrialDocument(_Document):
    """One configuration on a started engine."""

    number: int
    role: Role
    label: str = ""
    """``vllm-default``, ``performance-mode throughput``, ...; empty for a proposal of the sampler."""
    arguments: dict[str, ArgumentValue]
    params: dict[str, ArgumentValue] = Field(default_factory=dict)
    """The sampler's coordinates of it; empty in files of earlier versions."""
    outcome: Outcome
    reason: str = ""
    """The cause, e.g. ``oom_kv_cache``, where the outcome is not ``measured``."""
    detail: str = ""
    advice: str = ""
    environment: bool = False
    """True when every other configuration would fail alike, so that the study stopped."""
    launched: bool = True
    """False when it was refused before any engine was started, or when its figures were known already."""
    reused_from: str = ""
    """``STUDY/NUMBER`` of the trial of an earlier study whose figures these are."""
    effort: float | None = None
    """Length of the probes relative to those behind a figure that is quoted; null in files of earlier versions."""
    capacity_rps: float | None = None
    capacity_interval: tuple[float, float] | None = None
    dominated: bool = False
    """True when it was dropped as soon as it clearly could not beat the incumbent."""
    output_tokens_per_s: float | None = None
    total_tokens_per_s: float | None = None
    p50_latency_s: float | None = None
    p99_latency_s: float | None = None
    p99_interval_s: tuple[float | None, float | None] | None = None
    p99_label: str = ""
    p99_ttft_s: float | None = None
    p99_tpot_s: float | None = None
    target_latency_s: float | None = None
    """The percentile that the first SLO limits: at the fixed load, or at ``light_rps``."""
    light_rps: float | None = None
    """The light load of a front of throughput and latency, the same for all configurations, req/s."""
    power: float | None = None
    """Throughput over delay: ``output_tokens_per_s`` by ``target_latency_s``."""
    cost_per_million_tokens: float | None = None
    """US dollars per million output tokens at the reported load; null where no price is known."""
    energy_per_token_j: float | None = None
    """Energy per output token in the probe nearest to the reported load."""
    slo_margin: float | None = None
    """log of the worst ratio of a percentile to its limit at the reported load; above 0 the SLO is missed."""
    workloads: list[WorkloadFigures] = Field(default_factory=list)
    """Where several workloads are served, the figures of each that was measured; those above are of the first, with
    ``output_tokens_per_s`` 0 and the worst ``slo_margin`` where any of them missed the SLO."""
    relative: float | None = None
    """Where several workloads are served: their figures combined, as a multiple of the reference's."""
    requests: int = 0
    timings: Timings = Timings()
    probes: list[ProbeDocument] = Field(default_factory=list)
    engine_facts: dict[str, Any] = Field(default_factory=dict)
    block: int | None = None
    """Number of the confirmation round."""
    quality: QualityDocument | None = None
    """Of a configuration that may change the output, and of the reference itself; null where it was not checked."""

    @property
    def changes_output(self) -> bool:
        """True when it failed the quality check, so that it cannot win."""
        return self.quality is not None and self.quality.passed is False


class VerdictDocument(_Document):
    """The study's conclusion, from confirmation runs alone."""

    decision: Decision
    gain_percent: float | None = None
    """By how much the winner's figure is better than the default's: larger, or, of a latency or a cost, smaller."""
    interval_95: tuple[float, float] | None = None
    requests: int = 0
    text: str = ""
    noise_percent: float | None = None
    """Spread of repeats of the default (A/A): gains below it are not gains."""
    winners_curse_percent: float | None = None
    """By how much the search's best figure exceeded its confirmed one."""
    default_capacity_rps: float | None = None
    best_capacity_rps: float | None = None


class BestDocument(_Document):
    """The configuration to use, with its confirmed figures."""

    number: int
    label: str = ""
    arguments: dict[str, ArgumentValue]
    environment: dict[str, str] = Field(default_factory=dict)
    capacity_rps: float | None = None
    output_tokens_per_s: float | None = None
    total_tokens_per_s: float | None = None
    p50_latency_s: float | None = None
    p99_latency_s: float | None = None
    p99_ttft_s: float | None = None
    p99_tpot_s: float | None = None
    target_latency_s: float | None = None
    light_rps: float | None = None
    power: float | None = None
    cost_per_million_tokens: float | None = None
    energy_per_token_j: float | None = None
    workloads: list[WorkloadFigures] = Field(default_factory=list)
    relative: float | None = None
    requests: int = 0
    confirmed: bool = False
    quality: QualityDocument | None = None
    """The least agreement seen, where the configuration may change the output."""


class FrontPoint(_Document):
    """A configuration of the front of throughput and latency, with the figures of its trial in the search."""

    number: int
    label: str = ""
    arguments: dict[str, ArgumentValue]
    capacity_rps: float | None = None
    output_tokens_per_s: float | None = None
    """At the capacity, or at the fixed load."""
    target_latency_s: float | None = None
    """At ``light_rps``, or at the fixed load."""
    light_rps: float | None = None


class EngineDocument(_Document):
    """Which engine gave the figures."""

    kind: str
    version: str
    time_scale: float = 1.0
    command: list[str] = Field(default_factory=list)


class StudyDocument(_Document):
    """``result.json``."""

    schema_version: int = SCHEMA_VERSION
    study: str
    created: str
    finished: str | None = None
    engine: EngineDocument
    gpu: dict[str, Any]
    model: dict[str, Any]
    slo: dict[str, str]
    workload: dict[str, Any]
    load: dict[str, Any] | None = None
    definition: dict[str, Any]
    space: dict[str, Any]
    trials: list[TrialDocument] = Field(default_factory=list)
    baselines: list[int] = Field(default_factory=list)
    """Numbers of the baseline trials."""
    best: BestDocument | None = None
    front: list[FrontPoint] = Field(default_factory=list)
    """Where a front is sought: what no other configuration beats in throughput and in latency, most output first."""
    verdict: VerdictDocument = VerdictDocument(decision=Decision.UNFINISHED)
    time: Timings = Timings()
    storage: str = ""

    @property
    def simulated(self) -> bool:
        """True when the figures come from the simulated engine and must be called so."""
        return self.engine.kind == "simulated"

    @property
    def gpu_name(self) -> str:
        """The catalogue's name of the GPU, e.g. ``t4``."""
        return str(self.gpu.get("name") or self.definition.get("gpu") or "unknown")

    @property
    def gpu_title(self) -> str:
        """The GPU's name for people, e.g. ``NVIDIA T4``."""
        return str(self.gpu.get("title") or self.gpu_name)

    @property
    def model_name(self) -> str:
        """The model as the study calls it: an alias, a repository or a folder."""
        return str(self.model.get("alias") or self.definition.get("model") or self.model_source)

    @property
    def model_source(self) -> str:
        """What ``vllm serve`` is given: a folder or a repository id."""
        found = (self.model.get(key) for key in ("source", "path", "repository", "alias"))
        return next((str(name) for name in found if name), str(self.definition.get("model") or "unknown"))

    def trial(self, number: int) -> TrialDocument:
        """One trial by its number.

        Raises:
            UsageError: the study has no such trial.
        """
        for trial in self.trials:
            if trial.number == number:
                return trial
        known = f"It has {self.trials[0].number} to {self.trials[-1].number}." if self.trials else "It has none yet."
        raise UsageError(f"study {self.study}: no trial {number}.", known)

    def write(self, folder: Path) -> Path:
        """Write ``result.json`` into the study's folder; atomic."""
        path = folder / "result.json"
        write_atomically(path, self.model_dump_json(indent=1) + "\n")
        return path

    @classmethod
    def read(cls, folder: Path) -> StudyDocument:
        """Read a study's ``result.json``.

        Raises:
            UsageError: there is none, or it is not one of ours.
        """
        path = folder / "result.json"
        try:
            return cls.model_validate_json(path.read_text())
        except OSError as error:
            raise UsageError(
                f"{path}: {error.strerror or error}.", "Name a study's folder; 'autotune studies' lists them."
            ) from error
        except ValidationError as error:
            raise UsageError(
                f"{path}: not a result of this program.", "Run the search again, or name another folder."
            ) from error
