"""The data of the report's pictures, apart from how they are drawn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from autotune.base.units import parse_duration
from autotune.report import figures
from autotune.report.lookup import Standing, configuration_key, standings, yardstick
from autotune.report.words import cause_words, configuration_words, flags_words, front_load
from autotune.search.objective import Figure, aim_of_result
from autotune.store.result import Outcome, ProbeDocument, Role, StudyDocument, TrialDocument

_KEPT_PERCENTILES = ("p50", "p90", "p99")


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One probe: ``load`` in req/s (open loop) or requests at once (closed), ``value`` in seconds."""

    load: float
    value: float
    decision: str
    requests: int
    trial: int


@dataclass(frozen=True, slots=True)
class Curve:
    """All probes of one configuration, in order of load."""

    label: str
    standing: Standing
    points: tuple[CurvePoint, ...]


@dataclass(frozen=True, slots=True)
class LatencyPicture:
    """Latency against load for one objective and one kind of loop."""

    title: str
    value_title: str
    load_title: str
    limit_s: float
    curves: tuple[Curve, ...]
    left_out: int
    """Probes that were invalid, and are not shown."""


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """One trial; ``value`` None where it has no capacity."""

    number: int
    value: float | None
    outcome: Outcome
    role: Role
    dominated: bool
    words: str


@dataclass(frozen=True, slots=True)
class CapacityHistory:
    """The study's figure (capacity, or what else it seeks) by trial, and the best so far over baselines and search."""

    measure: Figure
    points: tuple[HistoryPoint, ...]
    best_so_far: tuple[tuple[int, float], ...] = field(default=())


@dataclass(frozen=True, slots=True)
class FrontMark:
    """One configuration by its two figures: output tok/s and seconds of latency."""

    output: float
    latency_s: float
    words: str


@dataclass(frozen=True, slots=True)
class FrontPicture:
    """Where a front was sought: its configurations, most output first, and the others that held the SLO."""

    output_title: str
    latency_title: str
    front: tuple[FrontMark, ...]
    others: tuple[FrontMark, ...]


def front_picture(document: StudyDocument) -> FrontPicture:
    """The configurations of the search by the two figures of a front."""
    output, latency = aim_of_result(document).told
    numbers = {point.number for point in document.front}

    def marks(trials: Iterable[TrialDocument]) -> tuple[FrontMark, ...]:
        return tuple(
            FrontMark(
                x,
                y,
                f"trial {t.number}, {configuration_words(t)}: {figures.tokens_per_second(x)}, {figures.seconds(y)}",
            )
            for t in trials
            if (x := output.of(t)) is not None and (y := latency.of(t)) is not None
        )

    searched = [t for t in document.trials if t.role is not Role.CONFIRMATION]
    return FrontPicture(
        output_title="output tok/s",
        latency_title=f"{latency.heading}, {front_load(document)}",
        front=marks(sorted((t for t in searched if t.number in numbers), key=output.merit, reverse=True)),
        others=marks(t for t in searched if t.number not in numbers),
    )


def latency_pictures(document: StudyDocument) -> list[LatencyPicture]:
    """One picture for each objective and each kind of loop that has probes."""
    pictures = []
    for key, limit in document.slo.items():
        percentile, _, metric = key.partition("_")
        kept = percentile if percentile in _KEPT_PERCENTILES else "p99"
        name = f"{kept.upper()} {metric if metric == 'latency' else metric.upper()}"
        for loop, load_title in (("open", "load, req/s"), ("closed", "load, requests at once")):
            curves, left_out = _curves(document, f"{kept}_{metric}_s", loop)
            if curves:
                pictures.append(
                    LatencyPicture(
                        title=f"{name} against {'rate' if loop == 'open' else 'concurrency'}",
                        value_title=f"{name}, s",
                        load_title=load_title,
                        limit_s=parse_duration(limit, key),
                        curves=tuple(curves),
                        left_out=left_out,
                    )
                )
    return pictures


def _curves(document: StudyDocument, attribute: str, loop: str) -> tuple[list[Curve], int]:
    by_configuration: dict[tuple[tuple[str, str], ...], list[tuple[TrialDocument, ProbeDocument]]] = {}
    left_out = 0
    for trial in document.trials:
        for probe in trial.probes:
            if probe.loop != loop:
                continue
            if not probe.valid:
                left_out += 1
                continue
            by_configuration.setdefault(configuration_key(trial.arguments), []).append((trial, probe))
    known = standings(document)
    curves = []
    for key, pairs in by_configuration.items():
        points = [point for trial, probe in pairs if (point := _point(trial, probe, attribute)) is not None]
        if points:
            standing = known.get(key, Standing.OTHER)
            curves.append(
                Curve(_curve_label(pairs[0][0], standing), standing, tuple(sorted(points, key=lambda p: p.load)))
            )
    order = list(Standing)
    return sorted(curves, key=lambda c: order.index(c.standing)), left_out


def _curve_label(trial: TrialDocument, standing: Standing) -> str:
    if standing is Standing.WINNER:
        return f"winner: {flags_words(trial.arguments)}"
    if standing is Standing.OTHER:
        return f"trial {trial.number}: {flags_words(trial.arguments)}"
    return configuration_words(trial)


def _point(trial: TrialDocument, probe: ProbeDocument, attribute: str) -> CurvePoint | None:
    value = getattr(probe, attribute, None)
    load = float(probe.concurrency) if probe.concurrency is not None else probe.realised_rate or probe.rate
    if value is None or load is None:
        return None
    return CurvePoint(load, value, probe.decision, probe.requests, trial.number)


def capacity_history(document: StudyDocument) -> CapacityHistory:
    """Every trial in order of number."""
    points = []
    measure = yardstick(document)
    best: float | None = None
    line: list[tuple[int, float]] = []
    for trial in sorted(document.trials, key=lambda t: t.number):
        value = measure.of(trial) if trial.outcome is Outcome.MEASURED else None
        points.append(
            HistoryPoint(
                trial.number, value, trial.outcome, trial.role, trial.dominated, _history_words(trial, value, measure)
            )
        )
        if value is None or trial.role is Role.CONFIRMATION:
            continue
        if best is None or (value < best if measure.smaller_is_better else value > best):
            best = value
            line.append((trial.number, value))
    if line and points[-1].number > line[-1][0]:
        line.append((points[-1].number, line[-1][1]))
    return CapacityHistory(measure, tuple(points), tuple(line))


def _history_words(trial: TrialDocument, value: float | None, measure: Figure) -> str:
    head = f"trial {trial.number}, {configuration_words(trial)}: "
    if trial.outcome is not Outcome.MEASURED:
        return f"{head}{trial.outcome.value}, {cause_words(trial.reason)}"
    if trial.changes_output:
        return f"{head}changes the output too much"
    shown = "missed the objective at every load" if value is None else f"{figures.number(value)} {measure.unit}"
    return f"{head}{shown}{', dropped early' if trial.dominated else ''}"
