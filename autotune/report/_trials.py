"""Sections of the report about single trials: the table, their probes, the failures."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.report import figures, words
from autotune.report._html import Html, tag
from autotune.report._parts import Cell, flags, number_cell, section, table, text_cell
from autotune.report.failures import failure_groups
from autotune.report.lookup import common_arguments, configuration_key
from autotune.search.objective import aim_of_result
from autotune.spec import ArgumentValue
from autotune.store.result import Outcome, ProbeDocument, StudyDocument, TrialDocument

_HEADS = (
    ("trial", True),
    ("role", False),
    ("configuration", False),
    ("outcome", False),
    ("capacity, req/s", True),
    ("output tok/s", True),
    ("P99 latency", True),
    ("requests", True),
    ("engine time", True),
)


def trials_section(document: StudyDocument) -> Html:
    """Every trial in a table that can be sorted and filtered, and their probes."""
    common = common_arguments(document.trials)
    best_key = configuration_key(document.best.arguments) if document.best is not None else None
    beside = aim_of_result(document).beside_output
    heads = (*_HEADS, *((figure.heading, True) for figure in beside))
    rows = []
    for trial in document.trials:
        attributes = {"data_outcome": trial.outcome.value}
        if configuration_key(trial.arguments) == best_key:
            attributes["class_"] = "winner"
        sought = (number_cell(figure.of(trial)) for figure in beside)
        rows.append((attributes, [*_trial_cells(trial, common), *sought]))
    counts = words.outcome_counts(document)
    filters = tag(
        "fieldset",
        tag("legend", "Show"),
        (
            tag(
                "label",
                tag("input", type="checkbox", value=outcome.value, checked=True),
                f" {outcome.value} ({count})",
            )
            for outcome, count in counts.items()
            if count
        ),
        class_="filters",
        data_filters="trials-table",
        hidden=True,
    )
    shared = f"Flags that all of them share are left out below: {words.flags_words(common)}." if common else ""
    caption = f"{len(document.trials)} trials{'; SIMULATED' if document.simulated else ''}"
    return section(
        "trials",
        "Trials",
        tag("p", shared) if shared else None,
        filters,
        table(caption, heads, rows, identity="trials-table", sortable=True),
        tag("h3", "Probes of each trial"),
        (_probes(trial, document) for trial in document.trials if trial.probes),
    )


def _trial_cells(trial: TrialDocument, common: Mapping[str, ArgumentValue]) -> list[Cell]:
    own = {name: value for name, value in trial.arguments.items() if name not in common}
    given = flags(own) if own or not trial.arguments else "only the shared flags"
    shown = [trial.label, tag("small", given)] if trial.label else given
    remark = _remark(trial)
    capacity = figures.number(trial.capacity_rps)
    return [
        number_cell(float(trial.number), trial.number),
        text_cell(trial.role.value),
        text_cell(shown),
        text_cell(
            [
                tag("span", trial.outcome.value, class_=f"badge {trial.outcome}"),
                tag("small", remark) if remark else None,
            ]
        ),
        number_cell(trial.capacity_rps, f"≈ {capacity}" if trial.dominated and trial.capacity_rps else capacity),
        number_cell(trial.output_tokens_per_s or None),
        number_cell(
            trial.p99_latency_s,
            [figures.seconds(trial.p99_latency_s), tag("small", trial.p99_label) if trial.p99_label else None],
        ),
        number_cell(float(trial.requests) or None, f"{trial.requests:,}" if trial.requests else figures.MISSING),
        number_cell(trial.timings.total, figures.duration(trial.timings.total)),
    ]


def _remark(trial: TrialDocument) -> str:
    if trial.outcome is not Outcome.MEASURED:
        known = words.without_engine(trial)
        return words.cause_words(trial.reason) + (f", {known}" if known else "")
    if trial.dominated:
        return "dropped early: clearly below the best"
    if not trial.output_tokens_per_s:
        return "missed the objective at every load"
    if trial.changes_output:
        return "changes the output too much"
    return words.without_engine(trial)


_PROBE_HEADS = (
    ("probe", True),
    ("load", True),
    ("realised", True),
    ("decision", False),
    ("requests", True),
    ("failed", True),
    ("misses", True),
    ("lasted", True),
    ("output tok/s", True),
    ("P50 latency", True),
    ("P99 latency", True),
    ("P99 TTFT", True),
    ("P99 TPOT", True),
)


def _probes(trial: TrialDocument, document: StudyDocument) -> Html:
    rows = [(({} if probe.valid else {"class_": "invalid"}), _probe_cells(probe)) for probe in trial.probes]
    name = f"Trial {trial.number}: {words.configuration_words(trial)}"
    caption = f"Probes of trial {trial.number}{'; SIMULATED' if document.simulated else ''}"
    return tag("details", tag("summary", name), table(caption, _PROBE_HEADS, rows))


def _probe_cells(probe: ProbeDocument) -> list[Cell]:
    decision = probe.decision if probe.valid else f"invalid: {probe.invalid_reason}"
    bounds = figures.interval(probe.p99_interval_s, "s")
    errors = ", ".join(f"{count} {kind}" for kind, count in probe.errors.items())
    return [
        number_cell(float(probe.index), probe.index),
        number_cell(float(probe.concurrency or probe.rate or 0), words.probe_level(probe)),
        number_cell(probe.realised_rate, figures.rate(probe.realised_rate)),
        text_cell([decision, tag("small", probe.purpose)]),
        number_cell(float(probe.requests), f"{probe.requests:,}"),
        number_cell(float(probe.failed), [probe.failed, tag("small", errors) if errors else None]),
        number_cell(float(probe.misses), probe.misses),
        number_cell(probe.duration_s, figures.duration(probe.duration_s)),
        number_cell(probe.output_tokens_per_s),
        number_cell(probe.p50_latency_s, figures.seconds(probe.p50_latency_s)),
        number_cell(
            probe.p99_latency_s,
            [
                figures.seconds(probe.p99_latency_s),
                tag("small", "; ".join(part for part in (probe.p99_label, bounds) if part)),
            ],
        ),
        number_cell(probe.p99_ttft_s, figures.seconds(probe.p99_ttft_s)),
        number_cell(probe.p99_tpot_s, figures.seconds(probe.p99_tpot_s)),
    ]


def failures_section(document: StudyDocument) -> Html | None:
    """Failed trials by cause, with the deciding line and what to do."""
    groups = failure_groups(document)
    if not groups:
        return None
    blocks = []
    for group in groups:
        numbers = ", ".join(str(t.number) for t in group.trials)
        meaning = "cannot run here" if group.outcome is Outcome.INFEASIBLE else "not the configuration's doing"
        blocks.append(
            tag(
                "div",
                tag(
                    "h3",
                    tag("span", group.outcome.value, class_=f"badge {group.outcome}"),
                    f" {words.cause_words(group.reason)} ",
                    tag("code", group.reason),
                ),
                tag("p", f"Trial{'s' if len(group.trials) > 1 else ''} {numbers}: {meaning}."),
                tag("p", tag("strong", "What to do: "), group.advice) if group.advice else None,
                (
                    tag(
                        "pre",
                        f"trial {t.number} ({words.configuration_words(t)})\n{t.detail}",
                        class_="wrap",
                    )
                    for t in group.trials
                    if t.detail
                ),
                class_=f"failure {group.outcome}",
            )
        )
    return section("failures", "What failed, and why", blocks)
