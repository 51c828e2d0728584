"""The section of the report on what configurations do to the model's output."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.report import figures
from autotune.report._html import Html, tag
from autotune.report._parts import Cell, flags, number_cell, section, table, text_cell
from autotune.report.lookup import configuration_key, default_trial
from autotune.store.result import AgreementDocument, QualityDocument, StudyDocument

_HEADS = (
    ("configuration", False),
    ("prompts", True),
    ("first token equal", True),
    ("equal up to", True),
    ("log-probability apart", True),
    ("result", False),
)


_EXPLANATION = (
    "Greedy decoding does not repeat itself exactly when requests share a batch, so a configuration is held against"
    " how well the default agrees with itself. Equal up to: the mean share of an answer before the first token that"
    " differs. A configuration that failed is not named as the winner, whatever it carries."
)


def quality_section(document: StudyDocument) -> Html | None:
    """Each engine whose configuration may change the output, against the default; None where none was compared."""
    default = default_trial(document)
    same = None if default is None else configuration_key(default.arguments)
    found = [(trial, trial.quality) for trial in document.trials if trial.quality is not None]
    if not found:
        return None
    repeat = next((quality.repeat for _, quality in found if quality.repeat is not None), None)
    rows: list[tuple[dict[str, str], list[Cell]]] = []
    if repeat is not None:
        rows.append(({}, [text_cell("the default, asked twice"), *_cells(None, repeat), text_cell("the yardstick")]))
    for trial, quality in found:
        if configuration_key(trial.arguments) != same:
            name = text_cell([f"trial {trial.number}", tag("small", flags(trial.arguments))])
            rows.append(({}, [name, *_cells(quality.prompts, quality.agreement), text_cell(_result(quality))]))
    caption = "Greedy answers to fixed prompts, compared with those of vLLM's defaults"
    return section(
        "output",
        "What happens to the output",
        table(caption + ("; SIMULATED" if document.simulated else ""), _HEADS, rows),
        tag("p", _EXPLANATION),
    )


def _cells(prompts: int | None, agreement: AgreementDocument | None) -> Iterator[Cell]:
    yield number_cell(None if prompts is None else float(prompts), figures.MISSING if prompts is None else f"{prompts}")
    if agreement is None:
        yield from (number_cell(None) for _ in range(3))
        return
    yield number_cell(agreement.first_tokens, f"{agreement.first_tokens:.1%}")
    yield number_cell(agreement.prefix, f"{agreement.prefix:.1%}")
    difference = agreement.logprob_difference
    yield number_cell(difference, figures.MISSING if difference is None else f"{difference:.3f}")


def _result(quality: QualityDocument) -> str:
    if quality.passed is None:
        return quality.reason or "not checked"
    return "passed" if quality.passed else f"failed: {quality.reason}"
