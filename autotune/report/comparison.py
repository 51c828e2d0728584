"""The default, vLLM's own modes and the winner side by side, each on the best footing there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from autotune.report.lookup import Standing, configuration_key, default_trial, yardstick
from autotune.report.words import configuration_words
from autotune.search.confirmation import choose_finalists, first_round
from autotune.search.mix import mean_parts
from autotune.search.objective import aim_of_result
from autotune.spec import ArgumentValue
from autotune.store.result import BestDocument, Decision, Outcome, Role, StudyDocument, TrialDocument, WorkloadFigures

_FIGURES = (
    "capacity_rps",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "p50_latency_s",
    "p99_latency_s",
    "p99_ttft_s",
    "p99_tpot_s",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One configuration with its figures at the load that it carries under the objective."""

    label: str
    standing: Standing
    arguments: Mapping[str, ArgumentValue]
    outcome: Outcome
    reason: str
    footing: str
    """What the figures rest on: ``confirmed in 3 runs``, ``one run``, ``1 of 2 runs held the objective``."""
    requests: int
    capacity_rps: float | None = None
    output_tokens_per_s: float | None = None
    total_tokens_per_s: float | None = None
    p50_latency_s: float | None = None
    p99_latency_s: float | None = None
    p99_ttft_s: float | None = None
    p99_tpot_s: float | None = None
    gain_percent: float | None = None
    """By how much the study's figure is better than the default's, on the same footing."""
    trial: int | None = None


@dataclass(frozen=True, slots=True)
class ConfirmedConfiguration:
    """One configuration's confirmation runs, round and yardstick's figure; None: the objective was missed."""

    label: str
    standing: Standing
    values: tuple[tuple[int, float | None], ...]
    mean: float | None
    requests: int


def confirmation_trials(document: StudyDocument) -> list[TrialDocument]:
    """The trials of the confirmation that the verdict rests on: the last one, where a study was extended."""
    start = first_round(choose_finalists(document.trials, aim_of_result(document).score), document.trials)
    return [t for t in document.trials if t.role is Role.CONFIRMATION and (t.block or 0) >= start]


def confirmation_runs(document: StudyDocument, arguments: Mapping[str, ArgumentValue]) -> list[TrialDocument]:
    """The measured confirmation trials of a configuration."""
    key = configuration_key(arguments)
    return [
        trial
        for trial in confirmation_trials(document)
        if trial.outcome is Outcome.MEASURED and configuration_key(trial.arguments) == key
    ]


def comparison(document: StudyDocument) -> list[Row]:
    """Baselines in order of number, then the winner unless it is one of them."""
    default = default_trial(document)
    best_key = configuration_key(document.best.arguments) if document.best is not None else None
    rows = []
    baselines = [t for t in document.trials if t.role is Role.BASELINE]
    for trial in baselines:
        key = configuration_key(trial.arguments)
        if key == best_key and document.best is not None:
            rows.append(_best_row(document, document.best, trial.label or "default", default))
        else:
            standing = Standing.DEFAULT if default is trial else Standing.BASELINE
            rows.append(_trial_row(document, trial, standing, default))
    if document.best is not None and all(configuration_key(t.arguments) != best_key for t in baselines):
        rows.append(_best_row(document, document.best, "winner", default))
    return rows


def _trial_row(document: StudyDocument, trial: TrialDocument, standing: Standing, default: TrialDocument | None) -> Row:
    confirmed = confirmation_runs(document, trial.arguments)
    measured = confirmed or ([trial] if trial.outcome is Outcome.MEASURED else [])
    held = [run for run in measured if run.output_tokens_per_s]
    figures = {name: _mean(held, name) for name in _FIGURES}
    return Row(
        label=trial.label or f"trial {trial.number}",
        standing=standing,
        arguments=trial.arguments,
        outcome=trial.outcome,
        reason=trial.reason,
        footing=_footing(len(measured), len(held), bool(confirmed)),
        requests=sum(t.requests for t in measured),
        gain_percent=None
        if standing is Standing.DEFAULT
        else _gain(document, held, _reference(document, default, bool(confirmed))),
        trial=trial.number,
        **figures,
    )


def _footing(runs: int, held: int, confirmed: bool) -> str:
    if runs == 0:
        return "could not run"
    if held < runs:
        return "one run, which missed the objective" if runs == 1 else f"{held} of {runs} runs held the objective"
    return f"confirmed in {runs} run{'s' if runs > 1 else ''}" if confirmed else "one run"


def _best_row(document: StudyDocument, best: BestDocument, label: str, default: TrialDocument | None) -> Row:
    runs = len(confirmation_runs(document, best.arguments))
    gain = document.verdict.gain_percent if document.verdict.decision is Decision.TUNED else None
    is_default = default is not None and configuration_key(default.arguments) == configuration_key(best.arguments)
    if gain is None and not is_default:
        gain = _gain(document, [best], _reference(document, default, best.confirmed))
    return Row(
        label=label,
        standing=Standing.WINNER,
        arguments=best.arguments,
        outcome=Outcome.MEASURED,
        reason="",
        footing=f"confirmed in {runs} runs" if best.confirmed else "from the search, not confirmed",
        requests=best.requests,
        gain_percent=gain,
        trial=best.number,
        **{name: getattr(best, name) for name in _FIGURES},
    )


Measured = Sequence[TrialDocument | BestDocument]


def _reference(document: StudyDocument, default: TrialDocument | None, confirmed: bool) -> Measured:
    if default is None:
        return []
    runs = [r for r in confirmation_runs(document, default.arguments) if r.output_tokens_per_s] if confirmed else []
    return runs or [default]


def _gain(document: StudyDocument, runs: Measured, reference: Measured) -> float | None:
    score = aim_of_result(document).score
    value, usual = _mean(runs, score.attribute), _mean(reference, score.attribute)
    if not value or not usual:
        return None
    return 100 * ((1 - value / usual) if score.smaller_is_better else (value / usual - 1))


def _mean(trials: Measured, name: str) -> float | None:
    values = [value for trial in trials if (value := getattr(trial, name)) is not None]
    return fmean(values) if values else None


def workload_rows(document: StudyDocument) -> list[tuple[Row, WorkloadFigures, float | None]]:
    """Each configuration of the comparison with its figures of each of several workloads, and their ratio to the
    default's (above 1 is better)."""
    part_figure = aim_of_result(document).part
    default = default_trial(document)
    usual = {part.workload: part_figure.merit(part) for part in _parts(document, default.arguments)} if default else {}
    found = []
    for row in comparison(document):
        for part in _parts(document, row.arguments):
            reference = usual.get(part.workload)
            found.append((row, part, part_figure.merit(part) / reference if reference else None))
    return found


def _parts(document: StudyDocument, arguments: Mapping[str, ArgumentValue]) -> list[WorkloadFigures]:
    """Confirmed figures of each workload, or those of the search where nothing was confirmed."""
    key = configuration_key(arguments)
    own = [t for t in document.trials if configuration_key(t.arguments) == key and t.outcome is Outcome.MEASURED]
    return mean_parts(confirmation_runs(document, arguments) or own[:1])


def confirmation(document: StudyDocument) -> list[ConfirmedConfiguration]:
    """Every configuration that was confirmed: the winner first, then the default, then the other finalists."""
    trials = confirmation_trials(document)
    best_key = configuration_key(document.best.arguments) if document.best is not None else None
    groups: dict[tuple[tuple[str, str], ...], list[TrialDocument]] = {}
    for trial in trials:
        groups.setdefault(configuration_key(trial.arguments), []).append(trial)
    default = default_trial(document)
    default_key = configuration_key(default.arguments) if default is not None else None
    measure = yardstick(document)
    found = []
    for key, runs in groups.items():
        standing = Standing.WINNER if key == best_key else Standing.DEFAULT if key == default_key else Standing.FINALIST
        found.append(
            ConfirmedConfiguration(
                label=_confirmed_label(runs[0], standing),
                standing=standing,
                values=tuple((run.block if run.block is not None else 0, measure.of(run)) for run in runs),
                mean=_mean([run for run in runs if measure.of(run)], measure.attribute),
                requests=sum(run.requests for run in runs),
            )
        )
    order = list(Standing)
    return sorted(found, key=lambda c: order.index(c.standing))


def _confirmed_label(trial: TrialDocument, standing: Standing) -> str:
    words = configuration_words(trial)
    return f"{standing.value}: {words}" if standing is Standing.WINNER else words
