"""The report: one HTML file that needs nothing else, online or offline."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from autotune.base.errors import EnvironmentProblemError
from autotune.base.files import write_atomically
from autotune.base.secrets import redacted
from autotune.report import figures, words
from autotune.report._background import definition_section, reading_section, telemetry_section, time_section
from autotune.report._charts import history_chart, latency_chart
from autotune.report._findings import (
    comparison_section,
    confirmation_section,
    explanation_section,
    importance_section,
    verdict_box,
    winner_section,
)
from autotune.report._html import Html, tag
from autotune.report._parts import section
from autotune.report._quality import quality_section
from autotune.report._several import front_section, workloads_section
from autotune.report._trials import failures_section, trials_section
from autotune.report.series import capacity_history, latency_pictures
from autotune.store.result import StudyDocument

FILE_NAME = "report.html"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""Nothing may be loaded from anywhere: a report is mailed about and opened on machines without a network."""


def write_report(document: StudyDocument, path: Path) -> Path:
    """Write the report; atomic.

    Raises:
        EnvironmentProblemError: the file cannot be written.
    """
    try:
        write_atomically(path, render_report(document))
    except OSError as error:
        raise EnvironmentProblemError(
            f"report {path}: cannot be written ({error.strerror or error}).", "Choose another file with --output."
        ) from error
    return path


def render_report(document: StudyDocument) -> str:
    """The whole page. Values of secret settings are not in it."""
    document = StudyDocument.model_validate(redacted(document.model_dump(mode="json")))
    sections = [
        ("winner", "Start it", winner_section(document)),
        ("front", "Front", front_section(document)),
        ("comparison", "Comparison", comparison_section(document)),
        ("workloads", "Workloads", workloads_section(document)),
        ("confirmation", "Confirmation", confirmation_section(document)),
        ("output", "Output", quality_section(document)),
        ("limits", "Limits", explanation_section(document)),
        ("arguments", "Arguments", importance_section(document)),
        ("latency", "Latency", _latency_section(document)),
        ("history", "History", _history_section(document)),
        ("trials", "Trials", trials_section(document)),
        ("failures", "Failures", failures_section(document)),
        ("telemetry", "Telemetry", telemetry_section(document)),
        ("time", "Time", time_section(document)),
        ("reading", "How to read", reading_section(document)),
        ("definition", "Study", definition_section(document)),
    ]
    shown = [(anchor, name, part) for anchor, name, part in sections if part is not None]
    title = f"{document.study}: {words.verdict_title(document)}{' (SIMULATED)' if document.simulated else ''}"
    body = [
        tag("a", "Skip to the content", href="#content", class_="skip"),
        _header(document, [(anchor, name) for anchor, name, _ in shown]),
        tag("main", verdict_box(document), [part for _, _, part in shown], id="content"),
        tag("footer", tag("p", f"Made by autotune from the study's result.json, schema {document.schema_version}.")),
        tag("script", _asset("report.js")),
    ]
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", _asset("report.css")),
    ]
    return f"<!DOCTYPE html>\n{tag('html', tag('head', head), tag('body', body), lang='en')}\n"


def _asset(name: str) -> Html:
    return Html(files("autotune.report").joinpath("assets", name).read_text(encoding="utf-8"))


def _header(document: StudyDocument, anchors: list[tuple[str, str]]) -> Html:
    badge = tag("span", "SIMULATED", class_="badge simulated") if document.simulated else None
    return tag(
        "header",
        tag("h1", f"{document.model_name} on {document.gpu_title} ", badge),
        tag(
            "p",
            f"Study {document.study}, {figures.moment(document.finished or document.created)};"
            f" {words.engine_words(document)}; objective {words.objective_words(document)}",
            class_="under",
        ),
        tag(
            "nav",
            tag("ul", (tag("li", tag("a", name, href=f"#{anchor}")) for anchor, name in anchors)),
            aria_label="Sections",
        ),
    )


def _latency_section(document: StudyDocument) -> Html | None:
    pictures = latency_pictures(document)
    if not pictures:
        return None
    parts = []
    for picture in pictures:
        note = "Filled points held the objective, hollow ones did not or stayed undecided."
        if picture.left_out:
            note += f" Invalid probes, left out: {picture.left_out}."
        title = picture.title + (", SIMULATED" if document.simulated else "")
        parts.append([tag("h3", title), latency_chart(picture), tag("p", note, class_="under")])
    return section("latency", "Latency against load", parts)


def _history_section(document: StudyDocument) -> Html | None:
    history = capacity_history(document)
    if not history.points:
        return None
    title = f"{history.measure.title.capitalize()} of each trial" + (", SIMULATED" if document.simulated else "")
    return section("history", title, history_chart(history))
