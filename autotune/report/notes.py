"""Markdown notes of a trial and of a study, for optuna-dashboard."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from autotune.base.secrets import WITHHELD, is_secret_name
from autotune.report import figures, words
from autotune.report.comparison import Row, comparison
from autotune.report.lookup import Standing
from autotune.spec import ArgumentValue
from autotune.store.result import Outcome, ProbeDocument, StudyDocument, TrialDocument

_SIMULATED = "**SIMULATED**: no GPU gave these figures."
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def trial_note(trial: TrialDocument, slo: Mapping[str, str] | None = None, *, simulated: bool = False) -> str:
    """What a trial did, for the dashboard's page of it.

    Args:
        trial: the finished trial.
        slo: the study's objectives as in ``result.json``; named in the note when given.
        simulated: whether the simulated engine ran it.
    """
    parts = [_SIMULATED] if simulated else []
    parts.append(f"**{_text(_headline(trial))}**")
    if slo:
        parts.append("Objective: " + " and ".join(figures.objective(key, limit) for key, limit in slo.items()))
    parts.append("Arguments: " + (_arguments(trial.arguments) or "none (vLLM's defaults)"))
    if trial.outcome is not Outcome.MEASURED:
        if trial.advice:
            parts.append(f"What to do: {_text(trial.advice)}")
        if trial.detail:
            parts.append(_code(trial.detail))
    if trial.quality is not None:
        parts.append(f"Output against the default: {_text(trial.quality.text)}")
    if trial.probes:
        parts.append(_table(_PROBE_HEADS, (_probe_cells(probe) for probe in trial.probes)))
    t = trial.timings
    parts.append(
        f"Engine time: start {figures.duration(t.start)}, warm-up {figures.duration(t.warm_up)}, measuring"
        f" {figures.duration(t.measure)}, stop {figures.duration(t.stop)}, other {figures.duration(t.other)}"
    )
    return "\n\n".join(parts) + "\n"


def study_note(document: StudyDocument) -> str:
    """The state of a study: verdict, comparison, failures."""
    parts = [_SIMULATED] if document.simulated else []
    parts.append(f"## {words.verdict_title(document)}")
    parts.append(_text(words.verdict_sentence(document)))
    if document.verdict.text:
        parts.append(_text(document.verdict.text))
    if document.best is not None:
        parts.append("Arguments: " + (_arguments(document.best.arguments) or "none (vLLM's defaults)"))
    rows = comparison(document)
    if rows:
        parts.append(_table(_ROW_HEADS, (_row_cells(row) for row in rows)))
    counts = words.outcome_counts(document)
    parts.append(", ".join(f"{count} {outcome.value}" for outcome, count in counts.items()) + " trials")
    reasons: dict[str, int] = {}
    for trial in document.trials:
        if trial.outcome is not Outcome.MEASURED:
            reasons[trial.reason] = reasons.get(trial.reason, 0) + 1
    if reasons:
        parts.append("\n".join(f"- {count} × {_text(words.cause_words(r))}" for r, count in reasons.items()))
    return "\n\n".join(parts) + "\n"


_PROBE_HEADS = ("load", "decision", "requests", "misses", "output tok/s", "P50 latency", "P99 latency", "P99 TTFT")
_ROW_HEADS = ("configuration", "capacity, req/s", "gain", "output tok/s", "P99 latency", "rests on")


def _headline(trial: TrialDocument) -> str:
    known = words.without_engine(trial)
    if trial.outcome is not Outcome.MEASURED:
        return f"{trial.outcome.value}: {words.cause_words(trial.reason)}" + (f", {known}" if known else "")
    if not trial.output_tokens_per_s:
        return "missed the objective at every load"
    about = "about " if trial.dominated else ""
    rate = "" if trial.capacity_rps is None else f"{figures.rate(trial.capacity_rps)}, "
    tokens = figures.tokens_per_second(trial.output_tokens_per_s)
    dropped = "; dropped early: clearly below the best" if trial.dominated else ""
    reused = f"; {known}" if known else ""
    return f"carries {about}{rate}{tokens} out{dropped}{reused}"


def _probe_cells(probe: ProbeDocument) -> list[str]:
    label = f" ({probe.p99_label})" if probe.p99_label else ""
    return [
        words.probe_level(probe),
        probe.decision if probe.valid else f"invalid: {probe.invalid_reason}",
        f"{probe.requests:,}",
        str(probe.misses),
        figures.number(probe.output_tokens_per_s),
        figures.seconds(probe.p50_latency_s),
        figures.seconds(probe.p99_latency_s) + label,
        figures.seconds(probe.p99_ttft_s),
    ]


def _row_cells(row: Row) -> list[str]:
    footing = row.footing if row.outcome is Outcome.MEASURED else words.cause_words(row.reason)
    return [
        f"**{_text(row.label)}**" if row.standing is Standing.WINNER else _text(row.label),
        figures.number(row.capacity_rps),
        figures.percent(row.gain_percent, signed=True),
        figures.number(row.output_tokens_per_s),
        figures.seconds(row.p99_latency_s),
        footing,
    ]


def _arguments(arguments: Mapping[str, ArgumentValue]) -> str:
    shown = {name: WITHHELD if is_secret_name(name) else value for name, value in arguments.items()}
    return ", ".join(f"`{words.flags_words({name: value}).replace('`', ' ')}`" for name, value in shown.items())


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    lines += ["| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _text(text: str) -> str:
    """Text from outside as markdown that shows exactly it."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _code(text: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"
