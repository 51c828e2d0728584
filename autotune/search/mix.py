"""Several workloads at once: their figures combined into one, relative to the default's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from autotune.search.confirmation import reference_trial
from autotune.search.objective import Aim
from autotune.spec import Combine, StudySpec
from autotune.store.result import Outcome, Role, TrialDocument, WorkloadFigures


def part_of(trial: TrialDocument, workload: str) -> WorkloadFigures | None:
    """A trial's figures of one workload; None where it was not measured."""
    return next((part for part in trial.workloads if part.workload == workload), None)


def reference_of(trials: Iterable[TrialDocument]) -> TrialDocument | None:
    """The trial whose figures are 1: the default's, or, where that does not hold the SLO, the first that does."""
    documents = list(trials)
    default = reference_trial(documents)
    if default is not None and default.output_tokens_per_s:
        return default
    held = (t for t in documents if t.outcome is Outcome.MEASURED and t.role is not Role.CONFIRMATION)
    return next((t for t in held if t.output_tokens_per_s and not t.dominated), None)


def with_relative(trial: TrialDocument, reference: TrialDocument | None, spec: StudySpec, aim: Aim) -> TrialDocument:
    """The trial with its figures combined; unchanged where one workload is served.

    Of a trial that was dropped early only some workloads are known: their worst ratio is more than the whole one.
    """
    if not spec.mix or trial.outcome is not Outcome.MEASURED:
        return trial
    if not trial.output_tokens_per_s:
        return trial.model_copy(update={"relative": None})
    weights = {share.workload.name: share.weight for share in spec.mix}
    ratios = []
    for part in trial.workloads:
        usual = part if reference is None else part_of(reference, part.workload)
        if usual is None or not aim.part.merit(usual):
            continue
        ratios.append((aim.part.merit(part) / aim.part.merit(usual), weights[part.workload]))
    return trial.model_copy(update={"relative": combined(ratios, spec.combine) if ratios else None})


def in_rounds(trials: Iterable[TrialDocument], spec: StudySpec, aim: Aim) -> list[TrialDocument]:
    """The trials, those of the confirmation relative to the default of their own round, where it held the SLO.

    What a round has in common cancels, and so does the luck of the default's first trial. The worst of several noisy
    ratios is a little too low on average, never too high: a gain is claimed too seldom rather than too often.
    """
    documents = list(trials)
    default = reference_of(documents) if spec.mix else None
    if default is None:
        return documents
    usual = {
        t.block: t
        for t in documents
        if t.role is Role.CONFIRMATION and t.arguments == default.arguments and t.output_tokens_per_s
    }
    return [
        with_relative(t, usual[t.block], spec, aim) if t.role is Role.CONFIRMATION and t.block in usual else t
        for t in documents
    ]


def combined(ratios: Sequence[tuple[float, float]], combine: Combine) -> float:
    """One figure of ratios and their weights: the least ratio, or the geometric mean by weight."""
    if combine is Combine.WORST:
        return min(ratio for ratio, _ in ratios)
    if any(ratio <= 0 for ratio, _ in ratios):
        return 0.0
    total = sum(weight for _, weight in ratios)
    return math.exp(sum(weight * math.log(ratio) for ratio, weight in ratios) / total)


def mean_parts(trials: Sequence[TrialDocument]) -> list[WorkloadFigures]:
    """Each workload's figures, averaged over repeats of one configuration."""
    names = dict.fromkeys(part.workload for trial in trials for part in trial.workloads)
    found = []
    for name in names:
        parts = [part for trial in trials if (part := part_of(trial, name)) is not None]
        means = {
            field: statistics.fmean(values)
            for field, info in WorkloadFigures.model_fields.items()
            if info.annotation == (float | None)
            and (values := [value for part in parts if (value := getattr(part, field)) is not None])
        }
        found.append(WorkloadFigures(workload=name, **means))
    return found
