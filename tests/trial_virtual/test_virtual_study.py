"""A whole study in virtual time: predicted configurations come first, and the same seed gives the same study."""

from __future__ import annotations

import asyncio
from pathlib import Path

from autotune.catalog import load_gpu, load_model, load_workload
from autotune.engine.virtual import VirtualEngine
from autotune.search.context import StudyContext
from autotune.search.events import SilentObserver
from autotune.search.feasibility import Judge
from autotune.search.folder import StudyFolder
from autotune.search.objective import aim_of
from autotune.search.record import IN_MEMORY, OptunaRecord
from autotune.search.sampler import sampler_factory
from autotune.search.study import PREDICTED_LABEL, StudyRun
from autotune.space import build_space
from autotune.spec import Budget, SamplerChoice, Slo, StudySpec
from autotune.store.result import Role, StudyDocument
from autotune.trial import TrialRunner, virtual_setup
from autotune.trial.virtual import SilentProbeEvents

PREDICTED = {"max-model-len": 1024, "max-num-batched-tokens": 512}


def run(folder: Path) -> StudyDocument:
    gpu, model, workload = load_gpu("l4"), load_model("qwen3-0.6b"), load_workload("chat")
    spec = StudySpec(
        name="s", gpu="l4", model="qwen3-0.6b", workload=workload, slo=Slo.from_mapping({"p99_latency": "4s"}),
        budget=Budget(trials=2),
    )  # fmt: skip
    engine = VirtualEngine(gpu, model, seed=1, instance_noise=0.01)
    space = build_space(gpu, model, workload)
    judge = Judge(spec, space, engine)
    study_folder = StudyFolder(folder / "s")
    study_folder.create()
    context = StudyContext(
        spec=spec, gpu=gpu, model=model, space=space, engine=engine, folder=study_folder, storage=IN_MEMORY,
        created="2026-01-01T00:00:00Z", knows_performance_modes=False, refuse=judge.refuse, learn=judge.learn,
        predicted_rate=lambda arguments: 5.0, first_proposals=lambda: [PREDICTED],
    )  # fmt: skip
    record = OptunaRecord(IN_MEMORY, "s", sampler_factory(SamplerChoice.TPE, 1), folder / "artifacts", aim_of(spec))
    runner = TrialRunner(virtual_setup(engine, workload, spec.slo), SilentProbeEvents())
    return asyncio.run(StudyRun(context, record, runner, SilentObserver(), lambda trial: None).run())


def test_predicted_configurations_are_tried_first_and_a_study_repeats_itself(tmp_path: Path) -> None:
    first = run(tmp_path / "a")
    proposals = [t for t in first.trials if t.role is Role.SEARCH]
    assert proposals[0].label == PREDICTED_LABEL
    assert proposals[0].arguments == PREDICTED
    assert proposals[1].label == ""
    assert first.time.total > 600
    second = run(tmp_path / "b")
    assert second.trials == first.trials
    assert second.verdict == first.verdict
