"""What a study seeks, as figures: what trials are compared by, what Optuna is told, what people are shown."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from autotune.spec import Combine, Metric, Objective, Slo, StudySpec
from autotune.store.result import (
    BestDocument,
    FrontPoint,
    Outcome,
    Role,
    StudyDocument,
    TrialDocument,
    WorkloadFigures,
)

Measured = TrialDocument | BestDocument | WorkloadFigures


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a configuration that can be compared."""

    title: str
    unit: str
    attribute: str
    """Where a trial's document has it."""
    smaller_is_better: bool = False
    if_nothing: float | None = None
    """What Optuna is told where nothing is carried; None: 0 of what is to be large, infinitely much of a cost."""

    @property
    def heading(self) -> str:
        """``capacity, req/s``."""
        return f"{self.title}, {self.unit}"

    @property
    def direction(self) -> Literal["minimize", "maximize"]:
        """As Optuna calls it."""
        return "minimize" if self.smaller_is_better else "maximize"

    def of(self, document: Measured) -> float | None:
        """The figure of a trial, of one of its workloads, or of the best; None where the SLO was missed, or the
        quality check was failed."""
        checked = None if isinstance(document, WorkloadFigures) else document.quality
        if (checked is not None and checked.passed is False) or not document.output_tokens_per_s:
            return None
        value: float | None = getattr(document, self.attribute)
        return value or None

    def told(self, document: TrialDocument) -> float:
        """What Optuna is told: where nothing is carried, zero of what is to be large and infinitely much of a cost."""
        value = self.of(document)
        if value is None and self.if_nothing is not None:
            return self.if_nothing
        if value is None:
            return math.inf if self.smaller_is_better else 0.0
        return value

    def merit(self, document: Measured) -> float:
        """The larger the better, in proportion; 0 where the SLO was missed."""
        value = self.of(document)
        if value is None:
            return 0.0
        return 1 / value if self.smaller_is_better else value

    def improvement(self, merit_percent: float) -> float:
        """A change of the merit as a change of the figure in the wanted direction, both in percent.

        Half the latency is twice the merit (+100 %), and an improvement of 50 %.
        """
        if not self.smaller_is_better:
            return merit_percent
        return 100 * (1 - 1 / (1 + merit_percent / 100))

    @property
    def gain_heading(self) -> str:
        """Head of a column of improvements."""
        if self.smaller_is_better:
            return f"{self.title} lower by"
        return "gain" if self.attribute == "output_tokens_per_s" else f"gain in {self.title}"

    @property
    def change_words(self) -> str:
        """What a signed improvement is put after; empty for the output, of which it is understood."""
        if self.smaller_is_better:
            return f"{self.title} lower by "
        return "" if self.attribute == "output_tokens_per_s" else f"{self.title} "


OUTPUT = Figure("output tok/s at the SLO", "tok/s", "output_tokens_per_s")
COST = Figure("cost", "USD per million output tokens", "cost_per_million_tokens", smaller_is_better=True)
ENERGY = Figure("energy", "J per output token", "energy_per_token_j", smaller_is_better=True)
POWER = Figure("power", "output tok/s per second of latency", "power")
"""Throughput over delay; where it is largest is the knee of the curve (Kleinrock, ICC 1979)."""
RELATIVE = {
    Combine.WORST: Figure("worst of the workloads", "times the default", "relative"),
    Combine.WEIGHTED: Figure("mean of the workloads", "times the default", "relative"),
}
_METRICS = {Metric.LATENCY: "latency", Metric.TTFT: "TTFT", Metric.TPOT: "TPOT"}


@dataclass(frozen=True, slots=True)
class Aim:
    """An objective as figures."""

    objective: Objective
    score: Figure
    """What finalists are chosen, confirmed and judged by."""
    told: tuple[Figure, ...]
    """What Optuna optimises; several make a front."""
    shown: Figure
    """What people are shown of each trial."""
    part: Figure = OUTPUT
    """What each of several workloads is compared by before their ratios are combined."""

    @property
    def ranks_by_capacity(self) -> bool:
        """A configuration that carries less than the best cannot be better: its trial may end there."""
        return self.objective in (Objective.CAPACITY, Objective.COST)

    @property
    def beside_output(self) -> tuple[Figure, ...]:
        """The figures sought other than the output, which is shown of every study."""
        return tuple(figure for figure in self.told if figure != OUTPUT)

    @property
    def metric_names(self) -> list[str]:
        """Names of Optuna's values."""
        return [OUTPUT.title if figure == OUTPUT else figure.heading for figure in self.told]


CAPACITY_AIM = Aim(Objective.CAPACITY, OUTPUT, (OUTPUT,), Figure("capacity", "req/s", "capacity_rps"))
"""What a study seeks unless it says otherwise."""


def latency_figure(slo: Slo) -> Figure:
    """The percentile that the first target of the SLO limits."""
    target = slo.targets[0]
    title = f"P{target.percentile:g} {_METRICS[target.metric]}"
    return Figure(title, "s", "target_latency_s", smaller_is_better=True)


def make_aim(objective: Objective, slo: Slo) -> Aim:
    """The figures of an objective."""
    match objective:
        case Objective.CAPACITY:
            return CAPACITY_AIM
        case Objective.THROUGHPUT:
            return Aim(objective, OUTPUT, (OUTPUT,), Figure("output", "tok/s", "output_tokens_per_s"))
        case Objective.LATENCY:
            score = latency_figure(slo)
        case Objective.COST:
            score = COST
        case Objective.ENERGY:
            score = ENERGY
        case Objective.PARETO:
            # The dashboard's front has no place for infinity; whatever holds the limit beats it and no output.
            latency = replace(latency_figure(slo), if_nothing=slo.targets[0].limit_s)
            return Aim(objective, POWER, (OUTPUT, latency), POWER)
    return Aim(objective, score, (score,), score)


def over_workloads(aim: Aim, combine: Combine) -> Aim:
    """The same sought over several workloads at once."""
    figure = RELATIVE[combine]
    return Aim(aim.objective, figure, (figure,), figure, aim.score)


def aim_of(study: StudySpec) -> Aim:
    """The figures of a study that is asked for."""
    aim = make_aim(study.objective, study.slo)
    return over_workloads(aim, study.combine) if study.mix else aim


def aim_of_result(document: StudyDocument) -> Aim:
    """The figures of a study that was run; results from before there were objectives do not name theirs."""
    named = document.definition.get("objective") or Objective.implied_by(document.load)
    aim = make_aim(Objective(named), Slo.from_mapping(document.slo))
    combine = document.definition.get("combine")
    return over_workloads(aim, Combine(combine)) if combine and document.definition.get("mix") else aim


def front(trials: Iterable[TrialDocument], aim: Aim) -> list[FrontPoint]:
    """The configurations that no other one beats in one figure without losing in another, most output first.

    Figures are those of the search, each from the configuration's first trial; the SLO held in all of them.
    """
    if len(aim.told) < 2:
        return []
    first: dict[str, TrialDocument] = {}
    for trial in trials:
        if trial.outcome is Outcome.MEASURED and trial.role is not Role.CONFIRMATION:
            first.setdefault(repr(sorted(trial.arguments.items())), trial)
    held = [t for t in first.values() if all(figure.of(t) is not None for figure in aim.told)]
    best = [t for t in held if not any(_beats(other, t, aim) for other in held)]
    return [
        FrontPoint(
            number=t.number,
            label=t.label,
            arguments=dict(t.arguments),
            capacity_rps=t.capacity_rps,
            output_tokens_per_s=t.output_tokens_per_s,
            target_latency_s=t.target_latency_s,
            light_rps=t.light_rps,
        )
        for t in sorted(best, key=OUTPUT.merit, reverse=True)
    ]


def _beats(one: TrialDocument, other: TrialDocument, aim: Aim) -> bool:
    merits = [(figure.merit(one), figure.merit(other)) for figure in aim.told]
    return all(a >= b for a, b in merits) and any(a > b for a, b in merits)
