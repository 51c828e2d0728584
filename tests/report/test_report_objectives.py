"""Reports of studies that sought something else than the capacity."""

from __future__ import annotations

import pytest

from autotune.export.configuration import configuration_of
from autotune.export.provenance import provenance_lines
from autotune.report import render_report, words
from autotune.report.comparison import comparison, workload_rows
from autotune.report.lookup import Standing, best_so_far, yardstick
from autotune.report.series import capacity_history, front_picture
from autotune.search.objective import aim_of_result, front
from autotune.store.result import Outcome, Role, StudyDocument, WorkloadFigures


def sought(document: StudyDocument, objective: str) -> StudyDocument:
    """The study as if it had sought this: latency at the light load grows with max-num-seqs."""

    def figures(of: object) -> dict[str, float]:
        output = getattr(of, "output_tokens_per_s", None)
        if not output:
            return {}
        latency = 2 + 0.05 * int(getattr(of, "arguments").get("max-num-seqs", 256))  # noqa: B009
        return {
            "target_latency_s": latency,
            "light_rps": 0.5,
            "power": output / latency,
            "cost_per_million_tokens": 146.0 / output,
        }

    assert document.best is not None
    found = document.model_copy(
        update={
            "definition": document.definition | {"objective": objective},
            "trials": [trial.model_copy(update=figures(trial)) for trial in document.trials],
            "best": document.best.model_copy(update=figures(document.best)),
        }
    )
    return found.model_copy(update={"front": front(found.trials, aim_of_result(found))})


def test_a_result_from_before_there_were_objectives_is_shown_by_its_capacity(document: StudyDocument) -> None:
    assert "objective" not in document.definition
    assert yardstick(document).heading == "capacity, req/s"
    fixed = document.model_copy(update={"load": {"concurrency": 5}})
    assert yardstick(fixed).heading == "output, tok/s"
    assert "The front" not in render_report(document)


def test_the_best_of_a_cost_is_the_least(document: StudyDocument) -> None:
    cheap = sought(document, "cost")
    history = capacity_history(cheap)
    line = [value for _, value in history.best_so_far]
    assert line == sorted(line, reverse=True)
    best = best_so_far(cheap)
    assert best is not None
    assert best.cost_per_million_tokens == min(line)
    page = render_report(cheap)
    assert "USD per million output tokens" in page
    assert "cost lower by +39.5 %" in words.verdict_sentence(cheap)


def test_gains_of_a_latency_are_by_how_much_less_it_is(document: StudyDocument) -> None:
    quick = sought(document, "latency")
    rows = {row.standing: row for row in comparison(quick)}
    default = rows[Standing.DEFAULT]
    reference = 2 + 0.05 * int(default.arguments.get("max-num-seqs", 256))
    for row in comparison(quick):
        if row.standing is Standing.BASELINE and row.outcome is Outcome.MEASURED:
            own = 2 + 0.05 * int(row.arguments.get("max-num-seqs", 256))
            assert row.gain_percent == pytest.approx(100 * (reference - own) / reference)


def test_a_front_is_shown_with_its_knee_marked(document: StudyDocument) -> None:
    many = sought(document, "pareto")
    assert len(many.front) > 1
    outputs = [point.output_tokens_per_s for point in many.front]
    latencies = [point.target_latency_s for point in many.front]
    assert outputs == sorted(outputs, reverse=True)
    assert latencies == sorted(latencies, reverse=True)
    page = render_report(many)
    assert "The front" in page
    assert "P99 latency at 0.500 req/s (a light load)" in page


def test_an_exported_file_says_what_the_gain_is_in(document: StudyDocument) -> None:
    def verdict(shown: StudyDocument) -> str:
        return next(line for line in provenance_lines(configuration_of(shown)) if line.startswith("Verdict"))

    assert "capacity +39.5 %" in verdict(document)
    assert "P99 latency lower by +39.5 %" in verdict(sought(document, "latency"))


def test_several_workloads_are_shown_one_by_one_against_the_default(document: StudyDocument) -> None:
    def parts(of: object) -> dict[str, object]:
        rate = getattr(of, "capacity_rps", None)
        if not rate:
            return {}
        seqs = int(getattr(of, "arguments").get("max-num-seqs", 256))  # noqa: B009
        rates = {"chat": rate, "rag": seqs / 512}
        shown = [WorkloadFigures(workload=n, capacity_rps=r, output_tokens_per_s=100 * r) for n, r in rates.items()]
        return {"workloads": shown, "relative": 1.25}

    assert document.best is not None
    several = document.model_copy(
        update={
            "definition": document.definition | {"combine": "worst", "mix": [{}, {}]},
            "trials": [trial.model_copy(update=parts(trial)) for trial in document.trials],
            "best": document.best.model_copy(update=parts(document.best)),
        }
    )
    default = next(row for row in comparison(several) if row.standing is Standing.DEFAULT)
    usual = int(default.arguments.get("max-num-seqs", 256))
    seen = 0
    for row, part, ratio in workload_rows(several):
        if part.workload == "rag":
            assert ratio == pytest.approx(int(row.arguments.get("max-num-seqs", 256)) / usual)
            seen += 1
    assert seen > 1
    assert "worst of the workloads 1.25 times the default" in words.verdict_sentence(several)
    assert "Workload by workload" in render_report(several)
    assert workload_rows(document) == []


def test_the_picture_of_a_front_has_all_that_held_the_slo(document: StudyDocument) -> None:
    many = sought(document, "pareto")
    picture = front_picture(many)
    assert [mark.output for mark in picture.front] == [point.output_tokens_per_s for point in many.front]
    beaten = {(mark.output, mark.latency_s) for mark in picture.others}
    for output, latency in beaten:
        assert any(mark.output >= output and mark.latency_s <= latency for mark in picture.front)
    held = [t for t in many.trials if t.role is not Role.CONFIRMATION and t.output_tokens_per_s]
    assert len(picture.front) + len(picture.others) == len(held)
