from __future__ import annotations

import pytest

from autotune.report.comparison import comparison, confirmation
from autotune.report.lookup import Standing, bare_default, configuration_key, default_trial, standings
from autotune.report.series import capacity_history, latency_pictures
from autotune.store.result import Decision, Outcome, Role, StudyDocument, VerdictDocument


def test_the_default_is_the_first_that_runs(document: StudyDocument) -> None:
    default, bare = default_trial(document), bare_default(document)
    assert default is not None
    assert bare is not None
    assert (default.number, bare.number) == (1, 0)


def test_rows_compare_on_the_same_footing(document: StudyDocument) -> None:
    rows = comparison(document)
    assert [row.standing for row in rows] == [
        Standing.BASELINE,
        Standing.DEFAULT,
        Standing.BASELINE,
        Standing.BASELINE,
        Standing.WINNER,
    ]
    default, throughput, winner = rows[1], rows[2], rows[-1]
    confirmed = [t for t in document.trials if t.role is Role.CONFIRMATION and t.label.startswith("vllm-default")]
    assert default.capacity_rps == pytest.approx(sum(t.capacity_rps or 0 for t in confirmed) / 3)
    assert default.footing == "confirmed in 3 runs"
    # A mode that ran once is compared with the default's single run, not with its confirmation.
    one_run = document.trials[1].output_tokens_per_s or 0
    assert throughput.gain_percent == pytest.approx(100 * ((throughput.output_tokens_per_s or 0) / one_run - 1))
    assert winner.gain_percent == document.verdict.gain_percent


def test_a_winning_baseline_is_named_once(document: StudyDocument) -> None:
    assert document.best is not None
    best = document.best.model_copy(update={"number": 3, "arguments": document.trials[3].arguments})
    kept = document.model_copy(
        update={"best": best, "verdict": VerdictDocument(decision=Decision.TUNED, gain_percent=5.0)}
    )
    rows = comparison(kept)
    assert [r.standing for r in rows].count(Standing.WINNER) == 1
    assert len(rows) == 4


def test_confirmation_rounds_are_grouped_by_configuration(document: StudyDocument) -> None:
    groups = confirmation(document)
    assert [g.standing for g in groups] == [Standing.WINNER, Standing.DEFAULT, Standing.FINALIST]
    assert all([block for block, _ in g.values] == [0, 1, 2] for g in groups)
    assert document.best is not None
    assert groups[0].mean == pytest.approx(document.best.capacity_rps)


def test_configurations_are_equal_whatever_the_order_but_not_the_type() -> None:
    assert configuration_key({"a": 1, "b": True}) == configuration_key({"b": True, "a": 1})
    assert configuration_key({"a": 1}) != configuration_key({"a": True})


def test_curves_hold_every_valid_probe_in_order_of_load(document: StudyDocument) -> None:
    (picture,) = latency_pictures(document)
    assert picture.limit_s == 10
    points = [p for curve in picture.curves for p in curve.points]
    assert len(points) == sum(len(t.probes) for t in document.trials)
    for curve in picture.curves:
        loads = [p.load for p in curve.points]
        assert loads == sorted(loads)
    assert picture.curves[0].standing is Standing.WINNER
    assert len(standings(document)) == 6


def test_history_keeps_confirmation_out_of_the_best_so_far(document: StudyDocument) -> None:
    history = capacity_history(document)
    assert len(history.points) == len(document.trials)
    searched = [t.capacity_rps or 0 for t in document.trials if t.role is not Role.CONFIRMATION]
    assert history.best_so_far[-1] == (24, max(searched))
    assert all(p.value is None for p in history.points if p.outcome is not Outcome.MEASURED)
