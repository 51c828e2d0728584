"""A configuration that can be exported: what to run, and what is known about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from autotune import __version__
from autotune.base.errors import NoFeasibleConfigurationError, UsageError
from autotune.base.secrets import is_secret_name, redacted
from autotune.search.objective import aim_of_result
from autotune.simulator import VERSION as SIMULATED_VERSION
from autotune.spec import Arguments, ArgumentValue
from autotune.store.result import (
    BestDocument,
    Decision,
    Outcome,
    QualityDocument,
    StudyDocument,
    TrialDocument,
    WorkloadFigures,
)

_WITHOUT_NO_FORM = frozenset(
    {"aggregate-engine-logging", "data-parallel-multi-port-external-lb", "disable-log-stats", "headless"}
)
"""Switches of vLLM that can only be given or left out (``store_true``); false is the same as unset."""

_PARALLELISM = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
_RELEASE = re.compile(r"(?<![\d.])(\d+\.\d+\.\d+(?:rc\d+)?)(?!\.?dev|[\d.])")


class Provenance(BaseModel):
    """Where a configuration comes from and what was measured with it; kept in every exported file.

    Rates are requests per second, times seconds of engine time. None: not measured.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    schema_version: int = 1
    program: str = f"autotune {__version__}"
    study: str
    trial: int
    label: str = ""
    created: str
    finished: str | None = None
    engine_kind: str
    engine_version: str
    gpu: str
    gpu_title: str
    model: str
    slo: dict[str, str]
    load: dict[str, Any] | None = None
    workload: dict[str, Any] = Field(default_factory=dict)
    definition: dict[str, Any] = Field(default_factory=dict)
    """The study's definition with secrets withheld: what is needed to measure the claim again."""
    decision: str
    gain_in: str = "capacity"
    """The figure that the gain is in."""
    gain_percent: float | None = None
    interval_95: tuple[float, float] | None = None
    confirmed: bool = False
    dominated: bool = False
    requests: int = 0
    capacity_rps: float | None = None
    output_tokens_per_s: float | None = None
    total_tokens_per_s: float | None = None
    p50_latency_s: float | None = None
    p99_latency_s: float | None = None
    p99_ttft_s: float | None = None
    p99_tpot_s: float | None = None
    target_latency_s: float | None = None
    light_rps: float | None = None
    cost_per_million_tokens: float | None = None
    energy_per_token_j: float | None = None
    quality: QualityDocument | None = None
    """Of a configuration that may change the output."""
    workloads: tuple[WorkloadFigures, ...] = ()
    """Figures of each of several workloads; those above are of the first."""
    start_s: float | None = None
    """Seconds that the engine took to get ready."""

    @property
    def simulated(self) -> bool:
        """True when no GPU gave these figures."""
        return self.engine_kind == "simulated"


@dataclass(frozen=True, slots=True)
class Configuration:
    """What to run: secrets are already left out, and switches that say nothing."""

    model: str
    """A repository id or a folder, as ``vllm serve`` takes it."""
    arguments: Arguments
    environment: Mapping[str, str]
    withheld: tuple[str, ...]
    """Arguments and variables whose values are secret and therefore not here."""
    provenance: Provenance

    @property
    def gpus(self) -> int:
        """How many GPUs the engine takes."""
        count = 1
        for name in _PARALLELISM:
            count *= int(self.arguments.get(name, 1))
        return count

    @property
    def local_model(self) -> bool:
        """True when the model is a folder of this machine rather than a repository."""
        return self.model.startswith(("/", ".", "~"))

    @property
    def release(self) -> str | None:
        """The vLLM release that was measured or simulated, e.g. ``0.24.0``; None for a build between releases."""
        version = SIMULATED_VERSION if self.provenance.simulated else self.provenance.engine_version
        match = _RELEASE.search(version)
        return match.group(1) if match else None


def configuration_of(document: StudyDocument, trial: int | None = None) -> Configuration:
    """The study's best configuration, or that of one measured trial.

    Raises:
        NoFeasibleConfigurationError: the study has no best configuration.
        UsageError: there is no such trial, or it was not measured.
    """
    best = document.best
    if trial is None and best is None:
        raise NoFeasibleConfigurationError(
            f"study {document.study}: it has no best configuration ({document.verdict.decision}).",
            "Name a measured trial with --trial, or run the search to its end.",
        )
    number = best.number if trial is None and best is not None else trial
    assert number is not None
    is_best = best is not None and best.number == number
    source: BestDocument | TrialDocument
    if is_best and best is not None:
        source = best
    else:
        source = document.trial(number)
        if source.outcome is not Outcome.MEASURED:
            raise UsageError(
                f"study {document.study}: trial {number} was not measured ({source.outcome}: {source.reason}).",
                "Name a measured trial; 'autotune show' lists them.",
            )
    environment = dict(best.environment) if best is not None else {}
    return _configuration(document, source, environment, is_best)


def _configuration(
    document: StudyDocument, source: BestDocument | TrialDocument, environment: Mapping[str, str], is_best: bool
) -> Configuration:
    withheld = [name for name in (*source.arguments, *environment) if is_secret_name(name)]
    verdict = document.verdict
    is_winner = is_best and verdict.decision is Decision.TUNED
    trials = {t.number: t for t in document.trials}
    trial = trials.get(source.number)
    aim = aim_of_result(document)
    provenance = Provenance(
        study=document.study,
        trial=source.number,
        label=source.label,
        created=document.created,
        finished=document.finished,
        engine_kind=document.engine.kind,
        engine_version=document.engine.version,
        gpu=document.gpu_name,
        gpu_title=document.gpu_title,
        model=document.model_name,
        slo=document.slo,
        load=document.load,
        workload=redacted(document.workload),
        definition=redacted(document.definition),
        decision=verdict.decision.value,
        gain_in=aim.score.change_words.strip() or aim.shown.title,
        gain_percent=verdict.gain_percent if is_winner else None,
        interval_95=verdict.interval_95 if is_winner else None,
        confirmed=isinstance(source, BestDocument) and source.confirmed,
        dominated=isinstance(source, TrialDocument) and source.dominated,
        requests=source.requests,
        capacity_rps=source.capacity_rps,
        output_tokens_per_s=source.output_tokens_per_s,
        total_tokens_per_s=source.total_tokens_per_s,
        p50_latency_s=source.p50_latency_s,
        p99_latency_s=source.p99_latency_s,
        p99_ttft_s=source.p99_ttft_s,
        p99_tpot_s=source.p99_tpot_s,
        quality=source.quality,
        target_latency_s=source.target_latency_s,
        light_rps=source.light_rps,
        cost_per_million_tokens=source.cost_per_million_tokens,
        energy_per_token_j=source.energy_per_token_j,
        workloads=tuple(source.workloads),
        start_s=trial.timings.start if trial is not None and trial.timings.start > 0 else None,
    )
    return Configuration(
        model=_model(document.model_source),
        arguments={name: value for name, value in source.arguments.items() if _says_something(name, value)},
        environment={name: value for name, value in environment.items() if not is_secret_name(name)},
        withheld=tuple(withheld),
        provenance=provenance,
    )


def _model(source: str) -> str:
    path = Path(source).expanduser()
    return str(path.resolve()) if (path / "config.json").is_file() else source


def _says_something(name: str, value: ArgumentValue) -> bool:
    return not is_secret_name(name) and name != "model" and not (value is False and name in _WITHOUT_NO_FORM)
