"""What failures of an engine mean for a whole study: learned, run again, or the end of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from autotune.base.errors import EnvironmentProblemError
from autotune.catalog import load_gpu, load_model, load_workload
from autotune.engine import Cause, EngineStartError, Failure, FailureKind, LaunchRequest, Phase
from autotune.engine.virtual import VirtualEngine, VirtualRunningEngine
from autotune.search.context import StudyContext
from autotune.search.events import SilentObserver
from autotune.search.feasibility import Judge
from autotune.search.folder import StudyFolder
from autotune.search.record import IN_MEMORY, OptunaRecord
from autotune.search.sampler import sampler_factory
from autotune.search.study import StudyRun
from autotune.space import build_space
from autotune.spec import Arguments, Budget, SamplerChoice, Slo, StudySpec
from autotune.store.result import Outcome, Role, StudyDocument
from autotune.trial import TrialRunner, virtual_setup
from autotune.trial.virtual import SilentProbeEvents

BACKENDS = ["FLASH_ATTN", "FLASHINFER", "TRITON_ATTN"]


@dataclass
class FlakyEngine(VirtualEngine):
    """Some starts fail, as the test says; it remembers what was launched."""

    fails: Callable[[Arguments], Failure | None] = lambda arguments: None
    launched: list[dict[str, object]] = field(default_factory=list)

    async def start(self, request: LaunchRequest) -> VirtualRunningEngine:
        self.launched.append(dict(request.arguments))
        failure = self.fails(request.arguments)
        if failure is not None:
            raise EngineStartError(failure)
        return await super().start(request)


class Notices(SilentObserver):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def notice(self, text: str) -> None:
        self.texts.append(text)


@dataclass
class Study:
    """One study of a small model in which the attention back end varies."""

    folder: Path
    trials: int = 12
    notices: Notices = field(default_factory=Notices)

    def run(self, fails: Callable[[Arguments], Failure | None]) -> tuple[StudyDocument, FlakyEngine]:
        gpu, model, workload = load_gpu("l4"), load_model("qwen3-0.6b"), load_workload("chat")
        spec = StudySpec(
            name="s", gpu="l4", model="qwen3-0.6b", workload=workload, slo=Slo.from_mapping({"p99_latency": "4s"}),
            space={"attention-backend": {"values": ["unset", *BACKENDS]}},
            budget=Budget(trials=self.trials),
        )  # fmt: skip
        self.engine = FlakyEngine(gpu, model, seed=1, fails=fails)
        space = build_space(gpu, model, workload, overrides=spec.space)
        judge = Judge(spec, space, self.engine)
        folder = StudyFolder(self.folder / "s")
        folder.create()
        context = StudyContext(
            spec=spec, gpu=gpu, model=model, space=space, engine=self.engine, folder=folder, storage=IN_MEMORY,
            created="2026-01-01T00:00:00Z", knows_performance_modes=False, refuse=judge.refuse, learn=judge.learn,
            predicted_rate=lambda arguments: 5.0,
        )  # fmt: skip
        record = OptunaRecord(IN_MEMORY, "s", sampler_factory(SamplerChoice.RANDOM, 1), self.folder / "artifacts")
        runner = TrialRunner(virtual_setup(self.engine, workload, spec.slo), SilentProbeEvents())
        run = StudyRun(context, record, runner, self.notices, lambda trial: None)
        return asyncio.run(run.run()), self.engine


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study(tmp_path)


def measured(document: StudyDocument) -> list[dict[str, object]]:
    return [dict(t.arguments) for t in document.trials if t.role is Role.SEARCH and t.outcome is Outcome.MEASURED]


def unsupported(line: str) -> Failure:
    return Failure(Cause.UNSUPPORTED_HARDWARE, FailureKind.INFEASIBLE, Phase.CONFIG, line, "Choose another one.")


def test_a_value_that_is_not_supported_is_tried_twice_and_then_left_out(study: Study) -> None:
    def fails(arguments: Arguments) -> Failure | None:
        backend = arguments.get("attention-backend")
        return unsupported("no kernel for this GPU") if backend == "FLASHINFER" else None

    result, engine = study.run(fails)
    failed = [a for a in engine.launched if a.get("attention-backend") == "FLASHINFER"]
    assert len(failed) == 2
    assert failed[0] != failed[1]
    refused = [
        t for t in result.trials
        if t.arguments.get("attention-backend") == "FLASHINFER" and not t.launched
    ]  # fmt: skip
    assert refused, "it was proposed again, and no engine was started for it"
    assert {t.reason for t in refused} == {"unsupported_hardware"}
    told = [text for text in study.notices.texts if "left out from now on" in text]
    assert len(told) == 1
    assert "attention-backend FLASHINFER" in told[0]
    assert any(a.get("attention-backend") == "TRITON_ATTN" for a in engine.launched), "the others are still tried"


def test_the_number_that_is_not_supported_is_left_out_and_its_neighbours_are_not(study: Study) -> None:
    """Block sizes, graph sizes: values that an engine refuses need not be words."""

    def fails(arguments: Arguments) -> Failure | None:
        return unsupported("no such interval") if arguments.get("stream-interval") == 4 else None

    _, engine = study.run(fails)
    tried = [a.get("stream-interval") for a in engine.launched]
    assert tried.count(4) == 2
    assert 2 in tried or 8 in tried


def test_transient_faults_are_run_again_and_the_study_ends_as_if_there_were_none(study: Study, tmp_path: Path) -> None:
    calm, undisturbed = Study(tmp_path / "calm", trials=4).run(lambda arguments: None)
    seen: set[str] = set()

    def fails(arguments: Arguments) -> Failure | None:
        """Every configuration of the search fails at its first start."""
        key = str(sorted(arguments.items()))
        if not arguments or key in seen:
            return None
        seen.add(key)
        return Failure(Cause.ENGINE_CRASH, FailureKind.FAULT, Phase.PROFILE, "died", "Start it again.")

    study.trials = 4
    result, engine = study.run(fails)
    assert measured(result) == measured(calm)
    assert len(engine.launched) == len(undisturbed.launched) + len(seen)


def test_a_full_disk_stops_the_study_before_a_second_launch(study: Study) -> None:
    full = Failure(Cause.DISK_FULL, FailureKind.FAULT, Phase.LAUNCH, "no space left", "Free space.", environment=True)
    with pytest.raises(EnvironmentProblemError, match="no space left") as caught:
        study.run(lambda arguments: full)
    assert caught.value.remedy == "Free space."
    assert len(study.engine.launched) == 1
