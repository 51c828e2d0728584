"""Sections of the report about the study itself: time, telemetry, how P99 is read, definition, provenance."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import yaml

from autotune import __version__
from autotune.report import figures, words
from autotune.report._charts import time_bar
from autotune.report._html import Html, tag
from autotune.report._parts import Cell, facts, number_cell, section, table, text_cell
from autotune.report.comparison import comparison
from autotune.report.lookup import Standing
from autotune.report.telemetry import QUANTITIES, loaded_probe, statistic
from autotune.store.result import ProbeDocument, StudyDocument


def time_section(document: StudyDocument) -> Html:
    """Where the time went, and what it cost where the price is known."""
    total = document.time.total
    price = document.gpu.get("price_per_hour")
    cost = ""
    if isinstance(price, (int, float)) and not document.simulated:
        cost = f" At {price:.2f} USD an hour for this GPU that is {price * total / 3600:.2f} USD."
    kind = "of simulated engine time" if document.simulated else "of engine time"
    launched = sum(t.launched for t in document.trials)
    return section(
        "time",
        "Where the time went",
        tag("p", f"{figures.duration(total)} {kind} in {launched} engine starts.{cost}"),
        time_bar(document.time),
    )


def telemetry_section(document: StudyDocument) -> Html | None:
    """GPU, engine and host at the highest load that each configuration carried."""
    columns: list[tuple[str, ProbeDocument]] = []
    for row in comparison(document):
        if row.trial is None:
            continue
        trial = next((t for t in document.trials if t.number == row.trial), None)
        probe = loaded_probe(trial) if trial is not None else None
        if probe is not None and probe.telemetry:
            name = "winner" if row.standing is Standing.WINNER else row.label
            columns.append((f"{name}, {words.probe_level(probe)}", probe))
    if not columns:
        return None
    rows: list[tuple[dict[str, str], list[Cell]]] = []
    for quantity in QUANTITIES:
        values = [statistic(probe, quantity.column, quantity.statistic) for _, probe in columns]
        if any(value is not None for value in values):
            cells = [text_cell(quantity.title), *(number_cell(v, quantity.show(v)) for v in values)]
            rows.append(({}, cells))
    if not rows:
        return None
    caption = "During the probe at the highest load that each carried, or else at the lowest tried" + (
        "; SIMULATED" if document.simulated else ""
    )
    return section(
        "telemetry",
        "Telemetry",
        table(caption, [("quantity", False), *((name, True) for name, _ in columns)], rows),
    )


def reading_section(document: StudyDocument) -> Html:
    """What a P99 here rests on, and how latencies are counted."""
    return section("reading", "How to read the figures", tag("ul", (tag("li", s) for s in _reading_notes(document))))


def _reading_notes(document: StudyDocument) -> Iterator[str]:
    yield (
        "Capacity is the highest request rate at which the objective held; throughputs and percentiles are those"
        " at that rate."
        if not document.load
        else f"The load was fixed: {words.load_words(document)}."
    )
    best = document.best
    if best is not None and best.p99_latency_s is not None:
        trial = next((t for t in document.trials if t.number == best.number and t.launched), None)
        basis = words.p99_basis(trial.requests, trial.p99_interval_s, trial.p99_label) if trial is not None else ""
        yield (
            f"The winner's P99 latency of {figures.seconds(best.p99_latency_s)} rests on {best.requests:,} requests"
            f"{' of its confirmation runs' if best.confirmed else ''}"
            + (f"; in the search's own probe: {basis}." if basis else ".")
        )
    yield (
        "A P99 of fewer than 100 requests is the largest value seen, and is labelled so (“max of 80”)."
        " Intervals take into account that latencies of one run are correlated."
    )
    yield (
        "In an open loop latencies start at the scheduled arrival, so that a late client cannot flatter the engine."
        " A failed request misses every objective. TTFT counts the first output token of any kind, TPOT the mean"
        " time per further token."
    )
    yield "Prompts are drawn anew for each probe, and the prefix cache is reset between probes."
    if document.simulated:
        yield "SIMULATED figures follow from a model of the GPU's memory and speed; a real GPU will differ."


def definition_section(document: StudyDocument) -> Html:
    """What was asked, which versions answered."""
    space = document.space
    engine = document.engine
    return section(
        "definition",
        "Study and provenance",
        facts(
            (
                ("study", document.study),
                ("GPU", _gpu_words(document.gpu, document.gpu_title)),
                ("model", _model_words(document)),
                ("objective", words.objective_words(document)),
                ("load", words.load_words(document)),
                ("engine", words.engine_words(document)),
                ("engine command", shlex.join(engine.command) if engine.command else ""),
                ("time scale", f"{engine.time_scale:g} engine seconds in one second" if document.simulated else ""),
                ("begun", figures.moment(document.created)),
                ("ended", figures.moment(document.finished) if document.finished else "not ended"),
                ("storage", document.storage),
                ("report made by", f"autotune {__version__}"),
            )
        ),
        tag("h3", "Definition"),
        tag("pre", _yaml(_without_empty(document.definition))),
        tag("details", tag("summary", "Search space"), tag("pre", _yaml(space))) if space else None,
    )


def _gpu_words(gpu: dict[str, Any], title: str) -> str:
    parts = [title]
    if gpu.get("memory_gib"):
        parts.append(f"{gpu['memory_gib']:g} GiB")
    parts += [f"{key} {gpu[key]}" for key in ("driver", "uuid") if gpu.get(key)]
    return ", ".join(parts)


def _model_words(document: StudyDocument) -> str:
    parts = [document.model_name]
    if document.model_source != document.model_name:
        parts.append(document.model_source)
    parts += [
        f"{key} {document.model[key]}" for key in ("revision", "dtype", "quantization") if document.model.get(key)
    ]
    return ", ".join(parts)


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in (None, {}, [], "")}
    return value


def _yaml(value: Any) -> str:
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100))
