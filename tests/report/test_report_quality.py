"""What a configuration does to the output, in the report, the notes and the exported file."""

from __future__ import annotations

import re

import pytest

from autotune.export import configuration_of
from autotune.export.provenance import comment_block, find_provenance
from autotune.report.notes import trial_note
from autotune.report.page import render_report
from autotune.report.series import capacity_history
from autotune.store.result import AgreementDocument, Decision, Outcome, QualityDocument, Role, StudyDocument

ITSELF = AgreementDocument(first_tokens=0.984, prefix=0.91, logprob_difference=0.004)
PASSED = QualityDocument(
    prompts=64,
    agreement=AgreementDocument(first_tokens=0.953, prefix=0.82, logprob_difference=0.021),
    repeat=ITSELF,
    passed=True,
)
FAILED = QualityDocument(
    prompts=64,
    agreement=AgreementDocument(first_tokens=0.703, prefix=0.33, logprob_difference=None),
    repeat=ITSELF,
    passed=False,
    reason="first tokens agree for 70.3% of the prompts, at least 88.6% are needed",
)
UNCHECKED = QualityDocument(reason="not checked: there are no answers of the default configuration to compare with")


@pytest.fixture
def checked(document: StudyDocument) -> StudyDocument:
    """The study with a default that was asked, the winner compared with it, and two others."""
    assert document.best is not None
    winner = document.best.number
    others = iter([FAILED, UNCHECKED])
    trials = []
    for trial in document.trials:
        quality = None
        if trial.role is Role.BASELINE and trial.outcome is Outcome.MEASURED and not trial.arguments:
            quality = QualityDocument(prompts=64, agreement=ITSELF, repeat=ITSELF, passed=True)
        elif trial.number == winner:
            quality = PASSED
        elif trial.role is Role.SEARCH and trial.outcome is Outcome.MEASURED:
            quality = next(others, None)
        trials.append(trial.model_copy(update={"quality": quality}))
    best = document.best.model_copy(update={"quality": PASSED})
    return document.model_copy(update={"trials": trials, "best": best})


def section(page: str) -> str:
    found = re.search(r'<section id="output".*?</section>', page, re.S)
    assert found
    return re.sub(r"<[^>]+>", " ", found.group(0))


def test_the_report_shows_each_comparison_with_its_result(checked: StudyDocument) -> None:
    text = section(render_report(checked))
    assert "SIMULATED" in text
    for figure in ("98.4%", "95.3%", "82.0%", "0.021", "70.3%"):
        assert figure in text
    assert text.count("passed") == 1
    assert "at least 88.6% are needed" in text
    assert "not checked" in text
    assert text.count("asked twice") == 1


def test_the_history_says_why_a_trial_counts_for_nothing(checked: StudyDocument) -> None:
    failed = next(t for t in checked.trials if t.quality == FAILED)
    point = next(p for p in capacity_history(checked).points if p.number == failed.number)
    assert point.value is None
    assert "changes the output too much" in point.words


def test_a_study_without_lossy_arguments_has_no_such_section(document: StudyDocument) -> None:
    assert 'id="output"' not in render_report(document)


def test_the_note_of_a_trial_says_it(checked: StudyDocument) -> None:
    failed = next(t for t in checked.trials if t.quality == FAILED)
    assert "at least 88.6% are needed" in trial_note(failed)


def test_the_exported_file_says_it_and_reads_back(checked: StudyDocument) -> None:
    assert checked.verdict.decision is Decision.TUNED
    block = comment_block(configuration_of(checked), "first")
    assert "simulated output against that of vLLM's defaults: first tokens equal 95%" in block
    provenance = find_provenance(block)
    assert provenance is not None
    assert provenance.quality == PASSED
