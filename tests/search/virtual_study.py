"""A whole study in virtual time in the folder that is named, a line on stdout for each event. Run again, it resumes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from autotune.catalog import load_gpu, load_model
from autotune.engine import SimulatedEngine
from autotune.engine.api import LaunchRequest
from autotune.engine.virtual import VirtualEngine, VirtualRunningEngine
from autotune.load.api import LoadPlan, LoadProgress
from autotune.report import study_note, trial_note
from autotune.report.plots import study_figures
from autotune.search.context import StudyContext
from autotune.search.earlier import circumstances_of
from autotune.search.engines import EngineSelection
from autotune.search.events import SilentObserver, TrialStarted
from autotune.search.feasibility import Judge
from autotune.search.folder import StudyFolder
from autotune.search.keeper import Keeper
from autotune.search.objective import aim_of
from autotune.search.record import OptunaRecord
from autotune.search.sampler import sampler_factory
from autotune.search.study import StudyRun
from autotune.space import build_space
from autotune.spec import Budget, LengthSpec, Slo, StudySpec, Workload
from autotune.store import Store
from autotune.store.result import StudyDocument, TrialDocument
from autotune.trial import TrialOrder, TrialRunner, virtual_setup

SPEC = StudySpec(
    name="killed",
    gpu="t4",
    model="qwen3-0.6b",
    workload=Workload(input_tokens=LengthSpec.parse(64), output_tokens=LengthSpec.parse(32)),
    slo=Slo.from_mapping({"p90_latency": "2s"}),
    budget=Budget(trials=3),
)


def say(event: str) -> None:
    sys.stdout.write(f"{event}\n")
    sys.stdout.flush()


class Telling(SilentObserver):
    def trial_started(self, event: TrialStarted) -> None:
        say(f"trial {event.number}")

    def phase(self, text: str) -> None:
        say(text)

    def trial_finished(self, trial: TrialDocument, best: TrialDocument | None) -> None:
        say(f"told {trial.number}")

    def probe_moved(self, order: TrialOrder, index: int, plan: LoadPlan, progress: LoadProgress, misses: int) -> None:
        """Nothing to tell."""


class SteadyEngine(VirtualEngine):
    """Every start is as noisy as the first, however many a killed run made before."""

    async def start(self, request: LaunchRequest) -> VirtualRunningEngine:
        self._starts = 0
        return await super().start(request)


class Pages:
    """What the command shows in the dashboard."""

    def trial_note(self, trial: TrialDocument) -> str:
        return trial_note(trial)

    def study_note(self, study: StudyDocument) -> str:
        return study_note(study)

    def pictures(self, study: StudyDocument) -> Mapping[str, object]:
        return dict(study_figures(study))


def main(path: Path) -> None:
    gpu, model = load_gpu(SPEC.gpu), load_model(SPEC.model)
    space = build_space(gpu, model, SPEC.workload)
    engine = SteadyEngine(gpu, model)
    judge = Judge(SPEC, space, engine)
    folder = StudyFolder(path / SPEC.name)
    folder.create()
    url = f"sqlite:///{path / 'autotune.db'}"
    context = StudyContext(
        spec=SPEC,
        gpu=gpu,
        model=model,
        space=space,
        engine=engine,
        folder=folder,
        storage=url,
        created="2026-01-01T00:00:00Z",
        knows_performance_modes=True,
        refuse=judge.refuse,
        learn=judge.learn,
        predicted_rate=lambda arguments: None,
    )
    with contextlib.closing(Store.open(url)) as store:
        record = OptunaRecord(url, SPEC.name, sampler_factory(SPEC.sampler, 0), path / "artifacts", aim_of(SPEC))
        selection = EngineSelection(cast("SimulatedEngine", engine), None, 1.0, "virtual")
        keeper = Keeper(store, context, record, circumstances_of(context, selection), Pages())
        setup = dataclasses.replace(
            virtual_setup(engine, SPEC.workload, SPEC.slo, keep_files=True),
            on_probe=keeper.keep_probe,
            on_failure=keeper.keep_failure,
        )
        run = StudyRun(context, record, TrialRunner(setup, Telling()), Telling(), keeper.keep_trial)
        keeper.keep_study(asyncio.run(run.run()))
    say("done")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
