from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from autotune.base.clock import Clock, WallClock
from autotune.catalog import load_gpu, load_model
from autotune.engine.api import EngineKind, LaunchRequest, RunningEngine
from autotune.search.context import Refusal, StudyContext
from autotune.search.events import SilentObserver
from autotune.search.folder import StudyFolder
from autotune.search.objective import aim_of
from autotune.search.record import OptunaRecord
from autotune.search.sampler import sampler_factory
from autotune.search.study import StudyRun
from autotune.space import build_space
from autotune.spec import Arguments, Budget, LengthSpec, SamplerChoice, Slo, StudySpec, Workload
from autotune.store.result import Outcome, TrialDocument
from autotune.trial import TrialOrder

SPACE = {
    "max-num-seqs": {"low": 4, "high": 64, "log": True},
    "max-num-batched-tokens": {"low": 512, "high": 4096, "log": True},
    "gpu-memory-utilization": None,
    "stream-interval": None,
    "async-scheduling": None,
}


WORKLOAD = Workload(input_tokens=LengthSpec.parse(512), output_tokens=LengthSpec.parse(256))


class NoEngine:
    """An engine that is never started: the tests' executor answers instead."""

    kind = EngineKind.SIMULATED
    version = "0"
    clock: Clock = WallClock()

    def check(self, arguments: Arguments) -> list[str]:
        return []

    async def start(self, request: LaunchRequest) -> RunningEngine:
        raise AssertionError("no engine is started here")


@dataclass
class TableExecutor:
    """Answers each order from a function of the arguments: output tok/s, fields, or an outcome with its reason."""

    answer: Callable[[TrialOrder], float | Mapping[str, float | None] | tuple[Outcome, str]]
    orders: list[TrialOrder] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    """Slower clocks that are left."""

    def slow_down(self) -> float | None:
        return self.scales.pop(0) if self.scales else None

    async def run(self, order: TrialOrder) -> TrialDocument:
        self.orders.append(order)
        answer = self.answer(order)
        document = TrialDocument(
            number=order.number,
            role=order.role,
            label=order.label,
            block=order.block,
            effort=order.effort,
            arguments=dict(order.arguments),
            outcome=Outcome.MEASURED,
            requests=300,
        )
        if isinstance(answer, tuple):
            outcome, reason = answer
            return document.model_copy(
                update={"outcome": outcome, "reason": reason, "detail": "said so", "advice": "Mend it."}
            )
        if isinstance(answer, Mapping):
            return document.model_copy(update=dict(answer))
        return document.model_copy(
            update={
                "output_tokens_per_s": answer,
                "capacity_rps": answer / 256 if answer else None,
                "p99_latency_s": 9.0,
                "slo_margin": -0.1 if answer else 0.4,
            }
        )


class Notices(SilentObserver):
    """Remembers what is worth knowing."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def notice(self, text: str) -> None:
        self.texts.append(text)


@dataclass
class Bench:
    """Builds runs of one study in one folder."""

    folder: Path
    trials: int = 6
    refuse: Callable[[Arguments], Refusal | None] = lambda arguments: None
    model: str = "qwen3-4b"
    workload: Workload = WORKLOAD
    space: Mapping[str, object] = field(default_factory=lambda: SPACE)
    asked: dict[str, object] = field(default_factory=dict)
    """What else the study asks for."""
    notices: Notices = field(default_factory=Notices)

    def run(self, executor: TableExecutor) -> StudyRun:
        spec = StudySpec(
            name="s",
            gpu="t4",
            model=self.model,
            workload=self.workload,
            slo=Slo.from_mapping({"p99_latency": "10s"}),
            space=dict(self.space),
            budget=Budget(trials=self.trials),
            **self.asked,
        )
        gpu, model = load_gpu(spec.gpu), load_model(spec.model)
        folder = StudyFolder(self.folder / "s")
        folder.create()
        url = f"sqlite:///{self.folder / 'autotune.db'}"
        context = StudyContext(
            spec=spec,
            gpu=gpu,
            model=model,
            space=build_space(gpu, model, spec.longest_workload, overrides=spec.space, fixed=spec.arguments),
            engine=NoEngine(),
            folder=folder,
            storage=url,
            created="2026-01-01T00:00:00Z",
            knows_performance_modes=True,
            refuse=self.refuse,
            learn=lambda document: [],
            predicted_rate=lambda arguments: 1.0,
        )
        record = OptunaRecord(url, "s", sampler_factory(SamplerChoice.TPE, 0), self.folder / "artifacts", aim_of(spec))
        return StudyRun(context, record, executor, self.notices, lambda document: None)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def executor() -> type[TableExecutor]:
    return TableExecutor
