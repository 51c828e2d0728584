"""The pictures as Plotly figures, for optuna-dashboard and for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go

from autotune.report import figures
from autotune.report.lookup import Standing
from autotune.report.series import LatencyPicture, capacity_history, latency_pictures
from autotune.store.result import Outcome, Role, StudyDocument

if TYPE_CHECKING:
    from autotune.report.series import HistoryPoint

_COLOURS = {
    Standing.WINNER: "#0a7d4b",
    Standing.DEFAULT: "#1f5fbf",
    Standing.BASELINE: "#a05a00",
    Standing.FINALIST: "#b3266e",
    Standing.OTHER: "#9aa2ad",
}
_SYMBOLS = {
    Standing.WINNER: "circle",
    Standing.DEFAULT: "square",
    Standing.BASELINE: "triangle-up",
    Standing.FINALIST: "diamond",
    Standing.OTHER: "circle",
}
_MOST_NAMED = 8
"""Configurations beyond these are drawn without a line in the legend."""


def study_figures(document: StudyDocument) -> dict[str, go.Figure]:
    """Every picture of a study by a short, stable identity."""
    found = {}
    for picture in latency_pictures(document):
        identity = "-".join(picture.title.casefold().replace("against", "").split())
        found[identity] = latency_figure(picture, simulated=document.simulated)
    if document.trials:
        found["capacity-history"] = history_figure(document)
    return found


def latency_figure(picture: LatencyPicture, *, simulated: bool = False) -> go.Figure:
    """Latency against load, one line a configuration; hollow points did not hold the objective."""
    figure = go.Figure()
    for index, curve in enumerate(picture.curves):
        colour = _COLOURS[curve.standing]
        symbol = _SYMBOLS[curve.standing]
        figure.add_trace(
            go.Scatter(
                x=[point.load for point in curve.points],
                y=[point.value for point in curve.points],
                mode="lines+markers",
                name=curve.label,
                showlegend=index < _MOST_NAMED,
                opacity=0.5 if curve.standing is Standing.OTHER else 1.0,
                line={"color": colour, "width": 3 if curve.standing is Standing.WINNER else 1.5},
                marker={
                    "color": colour,
                    "size": 9,
                    "symbol": [symbol if p.decision == "pass" else f"{symbol}-open" for p in curve.points],
                },
                text=[f"trial {p.trial}: {p.decision}, {p.requests} requests" for p in curve.points],
            )
        )
    figure.add_hline(
        y=picture.limit_s,
        line_dash="dash",
        line_color="#c22f2f",
        annotation_text=f"limit {figures.limit(picture.limit_s)}",
    )
    figure.update_layout(
        title=picture.title + _mark(simulated),
        xaxis={"title": picture.load_title, "rangemode": "tozero"},
        yaxis={"title": picture.value_title, "rangemode": "tozero"},
        legend={"orientation": "h", "y": -0.25},
    )
    return figure


def history_figure(document: StudyDocument) -> go.Figure:
    """Capacity by trial with the best so far; trials without a capacity lie at zero."""
    history = capacity_history(document)
    groups: dict[str, list[HistoryPoint]] = {}
    for point in history.points:
        groups.setdefault(_group(point), []).append(point)
    figure = go.Figure()
    for name, points in groups.items():
        colour, symbol = _GROUPS[name]
        figure.add_trace(
            go.Scatter(
                x=[point.number for point in points],
                y=[point.value or 0.0 for point in points],
                mode="markers",
                name=name,
                marker={"color": colour, "symbol": symbol, "size": 10},
                text=[point.words for point in points],
            )
        )
    figure.add_trace(
        go.Scatter(
            x=[number for number, _ in history.best_so_far],
            y=[value for _, value in history.best_so_far],
            mode="lines",
            name="best so far",
            line={"color": "#0a7d4b", "shape": "hv", "width": 2},
        )
    )
    figure.update_layout(
        title=f"{history.measure.title.capitalize()} of each trial" + _mark(document.simulated),
        xaxis={"title": "trial"},
        yaxis={"title": history.measure.heading, "rangemode": "tozero"},
        legend={"orientation": "h", "y": -0.25},
    )
    return figure


_GROUPS = {
    "measured": ("#0a7d4b", "circle"),
    "measured, baseline": ("#1f5fbf", "square"),
    "measured, confirmation": ("#b3266e", "diamond"),
    "dropped early (a rough estimate)": ("#9aa2ad", "circle-open"),
    "missed the objective": ("#c22f2f", "circle-open"),
    "infeasible": ("#c22f2f", "x"),
    "fault": ("#8a6d00", "triangle-up"),
}


def _group(point: HistoryPoint) -> str:
    if point.outcome is not Outcome.MEASURED:
        return point.outcome.value
    if point.value is None:
        return "missed the objective"
    if point.dominated:
        return "dropped early (a rough estimate)"
    return {
        Role.SEARCH: "measured",
        Role.BASELINE: "measured, baseline",
        Role.CONFIRMATION: "measured, confirmation",
    }[point.role]


def _mark(simulated: bool) -> str:
    return " (SIMULATED)" if simulated else ""
