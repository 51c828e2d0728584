"""The report's pictures, each drawn for a wide and for a narrow screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.report import figures
from autotune.report._html import Html, tag
from autotune.report._svg import NARROW, WIDE, Axis, Drawing, Line, Mark, Size, shape_path
from autotune.report.lookup import Standing
from autotune.report.series import CapacityHistory, Curve, FrontPicture, HistoryPoint, LatencyPicture
from autotune.store.result import Outcome, Role, Timings

_SHAPES = {
    Standing.WINNER: "circle",
    Standing.DEFAULT: "square",
    Standing.BASELINE: "triangle",
    Standing.FINALIST: "diamond",
    Standing.OTHER: "circle",
}
_LOG_ABOVE = 8.0
"""Ratio of largest to smallest value above which an axis is logarithmic."""
_NAMED_BASELINES = 4


def latency_chart(picture: LatencyPicture) -> Html:
    """Latency against load: a line per configuration, the limit across."""
    points = [point for curve in picture.curves for point in curve.points]
    values = [point.value for point in points] + [picture.limit_s]
    logarithmic = max(values) / max(min(values), 1e-9) > _LOG_ABOVE
    high = max(values) * 1.08
    low = min(values) * 0.9 if logarithmic else 0.0
    styles = _styles(picture.curves)

    def draw(size: Size) -> Html:
        x = Axis(0.0, max(p.load for p in points) * 1.03, picture.load_title)
        title = picture.value_title + (" (logarithmic)" if logarithmic else "")
        drawing = Drawing(size, x, Axis(low, high, title, logarithmic), picture.title)
        drawing.limit(picture.limit_s, f"limit {figures.limit(picture.limit_s)}")
        for curve, style in reversed(list(zip(picture.curves, styles, strict=True))):
            drawing.line(Line([(p.load, p.value) for p in curve.points], style))
            drawing.marks(
                Mark(
                    p.load,
                    p.value,
                    _SHAPES[curve.standing],
                    style,
                    f"{curve.label}; trial {p.trial}: {figures.number(p.load)} {picture.load_title.split(', ')[1]},"
                    f" {figures.seconds(p.value)}, {p.decision}, {p.requests} requests",
                    hollow=p.decision != "pass",
                )
                for p in curve.points
            )
        return drawing.markup()

    entries = [
        (_SHAPES[curve.standing], style, curve.label)
        for curve, style in zip(picture.curves, styles, strict=True)
        if curve.standing is not Standing.OTHER
    ]
    if any(curve.standing is Standing.OTHER for curve in picture.curves):
        entries.append(("circle", "other", "other configurations of the search"))
    return _figure(draw, entries)


def front_chart(picture: FrontPicture) -> Html:
    """Latency against output: what nothing beats, in a line, among all that held the SLO."""
    points = [*picture.front, *picture.others]

    def draw(size: Size) -> Html:
        x = _around([p.output for p in points], picture.output_title)
        y = _around([p.latency_s for p in points], picture.latency_title)
        drawing = Drawing(size, x, y, "Latency against output of each configuration")
        drawing.line(Line([(p.output, p.latency_s) for p in picture.front], "winner"))
        for style, shown in (("other", picture.others), ("winner", picture.front)):
            drawing.marks(Mark(p.output, p.latency_s, "circle", style, p.words) for p in shown)
        return drawing.markup()

    entries = [("circle", "winner", "on the front")]
    entries += [("circle", "other", "beaten in both figures")] if picture.others else []
    return _figure(draw, entries)


def _around(values: Sequence[float], title: str) -> Axis:
    """An axis that shows differences: what is compared lies close together and far from zero."""
    return Axis(0.95 * min(values), 1.03 * max(values), title)


def _styles(curves: Sequence[Curve]) -> list[str]:
    styles = []
    seen: dict[Standing, int] = {}
    for curve in curves:
        index = seen.get(curve.standing, 0)
        seen[curve.standing] = index + 1
        numbered = curve.standing in (Standing.BASELINE, Standing.FINALIST)
        styles.append(f"{curve.standing}{index % _NAMED_BASELINES + 1}" if numbered else str(curve.standing))
    return styles


def history_chart(history: CapacityHistory) -> Html:
    """Capacity by trial with the best so far; what could not run lies on the axis."""
    measured = [p.value for p in history.points if p.value is not None]
    high = max(measured, default=1.0) * 1.12
    confirmation = [p.number for p in history.points if p.role is Role.CONFIRMATION]

    def draw(size: Size) -> Html:
        last = max(p.number for p in history.points)
        x = Axis(-0.6, last + 0.6, "trial")
        drawing = Drawing(
            size, x, Axis(0.0, high, history.measure.heading), f"{history.measure.title.capitalize()} of each trial"
        )
        if confirmation:
            drawing.band(min(confirmation) - 0.5, max(confirmation) + 0.5, "confirmation")
        drawing.line(Line(history.best_so_far, "winner", steps=True))
        drawing.marks(_history_mark(point) for point in history.points)
        return drawing.markup()

    entries = [
        ("circle", "winner", "measured"),
        ("square", "default", "measured, baseline"),
        ("diamond", "finalist1", "measured, confirmation"),
        ("circle", "other hollow", "dropped early as clearly below the best (a rough estimate)"),
        ("circle", "missed hollow", "ran, but missed the objective at every load"),
        ("cross", "infeasible", "infeasible: could not run"),
        ("triangle", "fault", "fault: not the configuration's doing"),
    ]
    present = {_history_style(point) for point in history.points}
    return _figure(draw, [entry for entry in entries if entry[1] in present])


def _history_style(point: HistoryPoint) -> str:
    if point.outcome is Outcome.INFEASIBLE:
        return "infeasible"
    if point.outcome is Outcome.FAULT:
        return "fault"
    if point.value is None:
        return "missed hollow"
    if point.dominated:
        return "other hollow"
    return {Role.BASELINE: "default", Role.CONFIRMATION: "finalist1", Role.SEARCH: "winner"}[point.role]


def _history_mark(point: HistoryPoint) -> Mark:
    style = _history_style(point)
    shape = {"infeasible": "cross", "fault": "triangle", "default": "square", "finalist1": "diamond"}
    return Mark(point.number, point.value or 0.0, shape.get(style, "circle"), style, point.words)


def time_bar(time: Timings) -> Html:
    """One bar split into what engine time was spent on, with its shares in words."""
    parts = [
        ("start", "starting engines", time.start),
        ("warm-up", "warming up", time.warm_up),
        ("measure", "measuring", time.measure),
        ("stop", "stopping", time.stop),
        ("other", "other", time.other),
    ]
    total = time.total
    if total <= 0:
        return tag("p", "No engine time was recorded.")
    bars = []
    at = 0.0
    for name, words, seconds in parts:
        width = 1000 * seconds / total
        label = f"{words}: {figures.duration(seconds)}"
        bars.append(
            tag(
                "rect",
                tag("title", label),
                x=f"{at:.1f}",
                y=0,
                width=f"{width:.1f}",
                height=30,
                class_=f"time-{name}",
            )
        )
        at += width
    drawing = tag(
        "svg",
        tag("title", "Engine time by activity"),
        bars,
        class_="time-bar",
        role="img",
        viewBox="0 0 1000 30",
        preserveAspectRatio="none",
    )
    legend = tag(
        "ul",
        (
            tag(
                "li",
                tag("span", class_=f"swatch time-{name}", aria_hidden="true"),
                f"{words}: {figures.duration(seconds)} ({figures.share(seconds / total)})",
            )
            for name, words, seconds in parts
            if seconds > 0
        ),
        class_="legend",
    )
    return tag("figure", drawing, legend)


def _figure(draw: Callable[[Size], Html], entries: Sequence[tuple[str, str, str]]) -> Html:
    legend = tag(
        "ul",
        (
            tag(
                "li",
                tag(
                    "svg",
                    tag("path", d=shape_path(shape, 8, 8), class_=f"mark {style}"),
                    class_="key",
                    viewBox="0 0 16 16",
                    aria_hidden="true",
                ),
                words,
            )
            for shape, style, words in entries
        ),
        class_="legend",
    )
    return tag("figure", draw(WIDE), draw(NARROW), legend)
