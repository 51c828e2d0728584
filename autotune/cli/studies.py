"""``autotune studies``, ``show`` and ``compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from autotune.base.errors import AutotuneError
from autotune.base.secrets import redacted
from autotune.cli import _show
from autotune.cli._compare import compare_studies
from autotune.cli._study_folder import STUDIES, read_study, study_folders
from autotune.cli.console import Column, print_json, remark, say, show_table
from autotune.report import figures, words
from autotune.store.result import Decision, StudyDocument

Study = Annotated[str, typer.Argument(help="Name of a study under studies/, or the path of its folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


def studies(
    folder: Annotated[Path, typer.Option(help="Folder that holds the studies.")] = STUDIES, as_json: AsJson = False
) -> None:
    """List the studies of this folder, the newest first.

    Example: autotune studies --json
    """
    documents, broken = _read_all(folder)
    if as_json:
        print_json({"studies": [_summary(path, document) for path, document in documents]})
    elif documents:
        show_table(_COLUMNS, [_row(document) for _, document in documents])
    else:
        say(f"There is no study under {folder}/. Start one: autotune search --gpu t4 --model qwen3-4b --slo-p99 10s")
    for message in broken:
        remark(message, style="yellow")


_COLUMNS = (
    Column("study", flexible=True),
    Column("GPU", drop=4),
    Column("model", flexible=True, drop=3),
    Column("engine"),
    Column("trials", numeric=True, drop=2),
    Column("verdict"),
    Column("gain", numeric=True),
    Column("when", drop=1),
)


def _read_all(folder: Path) -> tuple[list[tuple[Path, StudyDocument]], list[str]]:
    documents, broken = [], []
    for path in study_folders(folder):
        try:
            documents.append((path, StudyDocument.read(path)))
        except AutotuneError as error:
            broken.append(str(error))
    documents.sort(key=lambda pair: pair[1].finished or pair[1].created, reverse=True)
    return documents, broken


def _row(document: StudyDocument) -> list[str]:
    engine = "SIMULATED" if document.simulated else f"{document.engine.kind} {document.engine.version}"
    return [
        document.study,
        document.gpu_name,
        document.model_name,
        engine,
        str(len(document.trials)),
        document.verdict.decision.value,
        figures.percent(_gain(document), signed=True),
        figures.moment(document.finished or document.created),
    ]


def _gain(document: StudyDocument) -> float | None:
    """The winner's gain; what a challenger of a kept default missed by is not one."""
    return document.verdict.gain_percent if document.verdict.decision is Decision.TUNED else None


def _summary(path: Path, document: StudyDocument) -> dict[str, Any]:
    best = document.best
    return {
        "study": document.study,
        "folder": str(path),
        "gpu": document.gpu_name,
        "model": document.model_name,
        "engine": {"kind": document.engine.kind, "version": document.engine.version},
        "trials": len(document.trials),
        "decision": document.verdict.decision.value,
        "gain_percent": _gain(document),
        "interval_95": document.verdict.interval_95,
        "capacity_rps": best.capacity_rps if best is not None else None,
        "output_tokens_per_s": best.output_tokens_per_s if best is not None else None,
        "created": document.created,
        "finished": document.finished,
    }


def show(
    study: Study,
    trial: Annotated[int | None, typer.Option(help="Show one trial with its probes.")] = None,
    top: Annotated[int, typer.Option(min=1, help="How many of the best trials to list.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show a study: verdict, winner, baselines, best trials, failures; or one trial with its probes.

    Example: autotune show t4-qwen3-4b --trial 11
    """
    _, document = read_study(study)
    document = StudyDocument.model_validate(redacted(document.model_dump(mode="json")))
    if trial is not None:
        chosen = document.trial(trial)
        if as_json:
            print_json({"study": document.study, "engine": _engine(document), "trial": chosen.model_dump(mode="json")})
        else:
            _show.trial(document, chosen)
    elif as_json:
        print_json(document.model_dump(mode="json"))
    else:
        _show.study(document, top)


def _engine(document: StudyDocument) -> dict[str, str]:
    return {"kind": document.engine.kind, "version": document.engine.version}


def compare(first: Study, second: Study, as_json: AsJson = False) -> None:
    """Show what differs between two studies: definition, best configuration, figures.

    Example: autotune compare t4-qwen3-4b studies/t4-qwen3-4b-new
    """
    a, b = read_study(first)[1], read_study(second)[1]
    difference = compare_studies(a, b)
    if as_json:
        print_json(difference.to_json())
        return
    names = (a.study, b.study) if a.study != b.study else (first, second)
    for document, name in zip((a, b), names, strict=True):
        say(f"{name}: {words.verdict_title(document)}. {words.verdict_sentence(document)}")
    for caution in difference.cautions:
        say(f"Caution: {caution}", style="yellow")
    heads = (Column("", flexible=True), Column(names[0], flexible=True), Column(names[1], flexible=True))
    for title, rows in (
        ("Definition: what differs", difference.definition),
        ("Best configuration: what differs", difference.arguments),
    ):
        if rows:
            show_table(heads, [(key, _shown(x), _shown(y)) for key, x, y in rows], title)
        else:
            say(f"{title.split(':')[0]}: no difference.")
    show_table(
        (
            Column("figure of the best"),
            Column(names[0], numeric=True),
            Column(names[1], numeric=True),
            Column("change", numeric=True),
        ),
        [
            (f.title, f.show(f.first), f.show(f.second), figures.percent(f.change, signed=True))
            for f in difference.figures
        ],
        "Figures",
    )


def _shown(value: object) -> str:
    return "unset" if value is None else str(value)
