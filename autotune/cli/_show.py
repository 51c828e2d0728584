"""What ``autotune show`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.cli.console import Column, say, show_table
from autotune.report import figures, words
from autotune.report.comparison import Row, comparison, workload_rows
from autotune.report.failures import failure_groups
from autotune.report.limits import Limit, explain_limit
from autotune.report.lookup import common_arguments, configuration_key, yardstick
from autotune.search.objective import aim_of_result
from autotune.spec import Arguments
from autotune.store.result import (
    FrontPoint,
    Outcome,
    ProbeDocument,
    Role,
    StudyDocument,
    TrialDocument,
    WorkloadFigures,
)


def study(document: StudyDocument, top: int) -> None:
    """Verdict, winner, baselines, best trials, failures."""
    _head(document)
    say(f"{words.verdict_title(document)}. {words.verdict_sentence(document)}", style="bold")
    if document.verdict.text:
        say(document.verdict.text)
    if document.best is not None:
        say("")
        say(f"Best: {words.flags_words(document.best.arguments)}")
        _limit(document)
    mark = " (SIMULATED)" if document.simulated else ""
    rows = comparison(document)
    if rows:
        gain = aim_of_result(document).score.gain_heading
        columns = tuple(replace(c, title=gain) if c.title == "gain" else c for c in _COMPARISON)
        show_table(columns, [_comparison_cells(row) for row in rows], f"Against vLLM's own settings{mark}")
    parts = workload_rows(document)
    if parts:
        show_table(_WORKLOADS, [_workload_cells(*part) for part in parts], f"Workload by workload{mark}")
    if document.front:
        latency = aim_of_result(document).told[1]
        heads = (*_FRONT, Column(f"{latency.title} {words.front_load(document)}", numeric=True))
        show_table(heads, [_front_cells(document, point) for point in document.front], f"Front{mark}")
    ranked = _ranked(document)
    if ranked:
        common = common_arguments(document.trials)
        shared = f", all with {words.flags_words(common)}" if common else ""
        beside = aim_of_result(document).beside_output
        cells = [
            (*_trial_cells(document, trial, common), *(figures.number(f.of(trial)) for f in beside))
            for trial in ranked[:top]
        ]
        columns = (*_TRIALS, *(Column(f.heading, numeric=True) for f in beside))
        show_table(columns, cells, f"Best trials of the search{mark}{shared}")
    groups = failure_groups(document)
    if groups:
        failed = [
            (
                group.outcome.value,
                words.cause_words(group.reason),
                ", ".join(str(t.number) for t in group.trials),
                group.advice,
            )
            for group in groups
        ]
        show_table(_FAILURES, failed, "Failures")
    kind = "simulated engine time" if document.simulated else "engine time"
    say(
        f"{len(document.trials)} trials in {figures.duration(document.time.total)} of {kind}: starting"
        f" {figures.duration(document.time.start)}, measuring {figures.duration(document.time.measure)}."
    )


def trial(document: StudyDocument, chosen: TrialDocument) -> None:
    """One trial: its arguments, figures and probes."""
    _head(document)
    label = f" ({chosen.label})" if chosen.label else ""
    say(f"Trial {chosen.number}{label}, {chosen.role.value}: {chosen.outcome.value}", style="bold")
    say(f"Arguments: {words.flags_words(chosen.arguments)}")
    if chosen.outcome is not Outcome.MEASURED:
        say(f"Cause: {words.cause_words(chosen.reason)} ({chosen.reason})")
        if chosen.detail:
            say(f"Log: {chosen.detail}")
        if chosen.advice:
            say(f"What to do: {chosen.advice}")
    elif chosen.output_tokens_per_s:
        about = "about " if chosen.dominated else ""
        say(f"Carries {about}{words.carried_words(document, chosen)}, P99 latency {_p99(chosen)}.")
    else:
        say("It missed the objective at every load.")
    if chosen.quality is not None:
        say(f"Output against the default: {chosen.quality.text}.")
    t = chosen.timings
    say(
        f"Engine time: start {figures.duration(t.start)}, warm-up {figures.duration(t.warm_up)}, measuring"
        f" {figures.duration(t.measure)}, stop {figures.duration(t.stop)}, other {figures.duration(t.other)}."
    )
    if chosen.probes:
        mark = " (SIMULATED)" if document.simulated else ""
        show_table(_PROBES, [_probe_cells(probe) for probe in chosen.probes], f"Probes{mark}")


def _head(document: StudyDocument) -> None:
    say(
        f"{document.study}: {document.model_name} on {document.gpu_title}, {words.engine_words(document)},"
        f" {words.objective_words(document)}, {figures.moment(document.finished or document.created)}"
    )
    notice = words.simulated_notice(document)
    if notice:
        say(notice, style="yellow")


def _limit(document: StudyDocument) -> None:
    best = document.best
    assert best is not None
    found = next((t for t in document.trials if t.arguments == best.arguments and t.probes), None)
    if found is None:
        return
    explanation = explain_limit(document, found)
    if explanation.limit is not Limit.UNKNOWN:
        say(f"Limited by {explanation.limit.value}: {'; '.join(explanation.evidence)}. {explanation.next_step}")


def _ranked(document: StudyDocument) -> list[TrialDocument]:
    """Measured trials of the search, best first."""
    measure = yardstick(document)
    searched = [t for t in document.trials if t.role is Role.SEARCH and t.outcome is Outcome.MEASURED]
    return sorted(searched, key=measure.merit, reverse=True)


_COMPARISON = (
    Column("configuration", flexible=True),
    Column("capacity, req/s", numeric=True),
    Column("gain", numeric=True),
    Column("output tok/s", numeric=True),
    Column("P99 latency", numeric=True),
    Column("P99 TTFT", numeric=True, drop=3),
    Column("P99 TPOT", numeric=True, drop=2),
    Column("rests on", flexible=True, drop=4),
)


def _comparison_cells(row: Row) -> Sequence[str]:
    ran = row.outcome is Outcome.MEASURED
    footing = f"{row.footing}, {row.requests:,} requests" if ran else words.cause_words(row.reason)
    return (
        row.label,
        figures.number(row.capacity_rps),
        figures.percent(row.gain_percent, signed=True),
        figures.number(row.output_tokens_per_s),
        figures.seconds(row.p99_latency_s),
        figures.seconds(row.p99_ttft_s),
        figures.seconds(row.p99_tpot_s),
        footing,
    )


_WORKLOADS = (
    Column("configuration", flexible=True),
    Column("workload", flexible=True),
    Column("capacity, req/s", numeric=True),
    Column("output tok/s", numeric=True),
    Column("P99 latency", numeric=True),
    Column("against default", numeric=True),
)


def _workload_cells(row: Row, part: WorkloadFigures, ratio: float | None) -> Sequence[str]:
    return (
        row.label,
        part.workload,
        figures.number(part.capacity_rps),
        figures.number(part.output_tokens_per_s),
        figures.seconds(part.p99_latency_s),
        figures.number(ratio),
    )


_FRONT = (
    Column("trial", numeric=True),
    Column("configuration", flexible=True, least=28),
    Column("capacity, req/s", numeric=True),
    Column("output tok/s", numeric=True),
)


def _front_cells(document: StudyDocument, point: FrontPoint) -> Sequence[str]:
    knee = document.best is not None and document.best.number == point.number
    return (
        str(point.number),
        (point.label or words.flags_words(point.arguments)) + (" (best.yaml)" if knee else ""),
        figures.number(point.capacity_rps),
        figures.number(point.output_tokens_per_s),
        figures.seconds(point.target_latency_s),
    )


_TRIALS = (
    Column("trial", numeric=True),
    Column("configuration", flexible=True, least=28),
    Column("capacity, req/s", numeric=True),
    Column("output tok/s", numeric=True),
    Column("P99 latency", numeric=True),
    Column("requests", numeric=True, drop=1),
    Column(""),
)


def _trial_cells(document: StudyDocument, one: TrialDocument, common: Arguments) -> Sequence[str]:
    best = document.best
    own = {name: value for name, value in one.arguments.items() if name not in common}
    winner = best is not None and configuration_key(one.arguments) == configuration_key(best.arguments)
    return (
        str(one.number),
        words.flags_words(own) if own or not common else "only what all share",
        figures.number(one.capacity_rps),
        figures.number(one.output_tokens_per_s),
        figures.seconds(one.p99_latency_s),
        f"{one.requests:,}",
        "winner" if winner else "dropped" if one.dominated else "",
    )


_FAILURES = (
    Column("outcome", drop=1),
    Column("cause", flexible=True),
    Column("in trials"),
    Column("what to do", flexible=True),
)


def _p99(one: TrialDocument) -> str:
    bounds = figures.interval(one.p99_interval_s, "s")
    basis = "; ".join(part for part in (one.p99_label, f"95 % interval {bounds}" if bounds else "") if part)
    return f"{figures.seconds(one.p99_latency_s)}{f' ({basis})' if basis else ''}"


_PROBES = (
    Column("load", numeric=True),
    Column("realised", numeric=True, drop=3),
    Column("decision"),
    Column("requests", numeric=True),
    Column("failed", numeric=True, drop=5),
    Column("misses", numeric=True, drop=7),
    Column("lasted", numeric=True, drop=4),
    Column("output tok/s", numeric=True),
    Column("P50 latency", numeric=True, drop=6),
    Column("P99 latency", numeric=True),
    Column("basis", drop=1),
    Column("P99 TTFT", numeric=True, drop=3),
    Column("P99 TPOT", numeric=True, drop=2),
)


def _probe_cells(probe: ProbeDocument) -> Sequence[str]:
    return (
        words.probe_level(probe),
        figures.rate(probe.realised_rate),
        probe.decision if probe.valid else f"invalid: {probe.invalid_reason}",
        f"{probe.requests:,}",
        str(probe.failed),
        str(probe.misses),
        figures.duration(probe.duration_s),
        figures.number(probe.output_tokens_per_s),
        figures.seconds(probe.p50_latency_s),
        figures.seconds(probe.p99_latency_s),
        probe.p99_label,
        figures.seconds(probe.p99_ttft_s),
        figures.seconds(probe.p99_tpot_s),
    )
