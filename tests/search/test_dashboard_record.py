from __future__ import annotations

import plotly.graph_objects as go
from optuna_dashboard._serializer import serialize_frozen_trial

from autotune.store.result import Outcome
from autotune.trial import TrialOrder


async def test_the_dashboard_sees_which_trials_are_feasible(bench, executor) -> None:
    """Fails loudly when the dashboard starts to read Optuna 5's own keys, so that the old list can go."""

    def answer(order: TrialOrder) -> float | tuple[Outcome, str]:
        return (Outcome.INFEASIBLE, "oom_runtime") if order.arguments.get("max-num-seqs") == 64 else 100.0

    bench.trials = 10
    run = bench.run(executor(answer))
    await run.run()
    study = run.record.study
    for trial in run.record.trials():
        attributes = study._storage.get_study_system_attrs(study._study_id)
        shown = serialize_frozen_trial(study._study_id, trial, attributes)
        infeasible = any(value > 0 for value in shown["constraints"])
        assert infeasible == (trial.user_attrs["outcome"] == "infeasible")


async def test_notes_and_pictures_are_kept_and_replaced(bench, executor) -> None:
    bench.trials = 2
    run = bench.run(executor(lambda order: 100.0))
    await run.run()
    study = run.record.study

    def write() -> dict[str, object]:
        run.record.note(0, "**a trial**")
        run.record.note(None, "## the study")
        run.record.picture("curve", go.Figure(go.Scatter(x=[1, 2], y=[3, 4])))
        return study._storage.get_study_system_attrs(study._study_id)

    before = write()
    assert "**a trial**" in str(before)
    assert "## the study" in str(before)
    assert set(write()) == set(before)
