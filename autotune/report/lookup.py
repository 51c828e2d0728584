"""Which configuration is which in a study: the winner, the default, a baseline, a finalist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from autotune.search.objective import Figure, aim_of_result
from autotune.spec import ArgumentValue
from autotune.store.result import Outcome, Role, StudyDocument, TrialDocument

DEFAULT_LABEL = "vllm-default"
"""Label of vLLM without any flag; with the context fitted it begins so."""


class Standing(StrEnum):
    """What a configuration is to the study."""

    WINNER = "winner"
    DEFAULT = "default"
    BASELINE = "baseline"
    FINALIST = "finalist"
    OTHER = "other"


def yardstick(document: StudyDocument) -> Figure:
    """The figure that people are shown of each trial: capacity in req/s, or what else the study seeks."""
    return aim_of_result(document).shown


def configuration_key(arguments: Mapping[str, ArgumentValue]) -> tuple[tuple[str, str], ...]:
    """Equal for equal configurations, whatever the order of their arguments."""
    return tuple(sorted((name, repr(value)) for name, value in arguments.items()))


def default_trial(document: StudyDocument) -> TrialDocument | None:
    """The baseline that stands for vLLM's defaults: the first that was measured, else the first of all."""
    plain = [t for t in document.trials if t.role is Role.BASELINE and t.label.startswith(DEFAULT_LABEL)]
    measured = [t for t in plain if t.outcome is Outcome.MEASURED]
    return next(iter(measured or plain), None)


def standings(document: StudyDocument) -> dict[tuple[tuple[str, str], ...], Standing]:
    """What each configuration is to the study; the first that applies counts."""
    found: dict[tuple[tuple[str, str], ...], Standing] = {}
    if document.best is not None:
        found[configuration_key(document.best.arguments)] = Standing.WINNER
    default = default_trial(document)
    if default is not None:
        found.setdefault(configuration_key(default.arguments), Standing.DEFAULT)
    for trial in document.trials:
        if trial.role is Role.BASELINE:
            found.setdefault(configuration_key(trial.arguments), Standing.BASELINE)
        elif trial.role is Role.CONFIRMATION:
            found.setdefault(configuration_key(trial.arguments), Standing.FINALIST)
    return found


def best_so_far(document: StudyDocument) -> TrialDocument | None:
    """The best trial of baselines and search, confirmed or not; None when none held the objective."""
    measure = yardstick(document)
    held = [
        t
        for t in document.trials
        if t.role is not Role.CONFIRMATION and t.outcome is Outcome.MEASURED and measure.of(t)
    ]
    return max(held, key=measure.merit, default=None)


def bare_default(document: StudyDocument) -> TrialDocument | None:
    """The trial of vLLM without any flag, where there is one."""
    return next((t for t in document.trials if t.role is Role.BASELINE and t.label == DEFAULT_LABEL), None)


def common_arguments(trials: Sequence[TrialDocument]) -> dict[str, ArgumentValue]:
    """Arguments that all trials but the bare default share."""
    with_flags = [t.arguments for t in trials if t.arguments]
    if len(with_flags) < 2:
        return {}
    return {name: value for name, value in with_flags[0].items() if all(a.get(name) == value for a in with_flags)}
