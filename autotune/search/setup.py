"""What trials of a study are made of: the engine, the load generator, the devices that watch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from autotune.base.clock import WallClock
from autotune.catalog import ModelShape
from autotune.engine import EngineKind, Failure, RunningEngine, SimulatedEngine
from autotune.load.api import LoadGenerator, LoadPlan, LoadProgress, Target
from autotune.load.generator import HttpLoadGenerator
from autotune.search.context import StudyContext
from autotune.search.engines import EngineSelection
from autotune.search.events import ProbeProgress, StudyObserver
from autotune.store.result import ProbeDocument
from autotune.telemetry import Device, EngineMetricsDevice, HostDevice, NvmlDevice, process_tree
from autotune.trial import TrialOrder, TrialSetup
from autotune.trial.quality import QualityCheck
from autotune.trial.quality_prompts import quality_prompts

GPU_LOAD_PROCESSES = 4
REFERENCE_ANSWERS = "reference_answers.json"
"""File in a study's folder: what the default configuration answered to the prompts of the quality check."""
LOAD_PROCESSES = 1
"""One process sends some 25,000 chunks a second, beyond what one GPU answers."""


class Keeping(Protocol):
    """Keeps what trials produce."""

    def keep_probe(self, order: TrialOrder, probe: ProbeDocument) -> None:
        """A probe is finished."""
        ...

    def keep_failure(self, order: TrialOrder, failure: Failure) -> None:
        """An engine failed."""
        ...


def engine_devices(running: RunningEngine, selection: EngineSelection) -> Sequence[Device]:
    """What is watched while probes run."""
    devices: list[Device] = [EngineMetricsDevice(running.url), HostDevice((running.process_id,))]
    device = selection.device
    if device is not None:
        devices.insert(0, NvmlDevice(device.uuid or device.index, own_pids=lambda: process_tree(running.process_id)))
    return devices


def trial_setup(context: StudyContext, selection: EngineSelection, keep: Keeping | None = None) -> TrialSetup:
    """The setup of all trials of a study; ``keep`` is told of finished probes and of failures."""
    processes = LOAD_PROCESSES if selection.device is None else GPU_LOAD_PROCESSES
    clock = WallClock(selection.time_scale)

    def make_generator(target: Target) -> LoadGenerator:
        return HttpLoadGenerator(target, clock, processes=processes)

    return TrialSetup(
        engine=selection.engine,
        model=_served_model(context),
        vocabulary=usable_vocabulary(context.model),
        workload=context.spec.workload,
        slo=context.spec.slo,
        load=context.spec.load,
        objective=context.spec.objective,
        more_workloads=context.spec.workloads[1:],
        price_per_hour=context.spec.price_per_hour or context.gpu.price_per_hour,
        seed=context.spec.seed,
        make_generator=make_generator,
        make_devices=lambda running: engine_devices(running, selection),
        time_scale=selection.time_scale,
        on_probe=keep.keep_probe if keep is not None else lambda order, probe: None,
        on_failure=keep.keep_failure if keep is not None else lambda order, failure: None,
        slower=_slower(context, selection, keep),
        quality=_quality_check(context),
    )


def _quality_check(context: StudyContext) -> QualityCheck | None:
    lossy = frozenset(parameter.name for parameter in context.space.parameters if parameter.lossy)
    if not lossy:
        return None
    spec = context.spec
    return QualityCheck(quality_prompts(spec.workload), spec.quality, lossy, context.folder.path / REFERENCE_ANSWERS)


def _slower(context: StudyContext, selection: EngineSelection, keep: Keeping | None) -> Callable[[], TrialSetup] | None:
    if selection.time_scale <= 1.0 or context.engine.kind is not EngineKind.SIMULATED:
        return None
    scale = max(1.0, selection.time_scale / 2)
    engine = SimulatedEngine(context.gpu, clock=WallClock(scale), seed=context.spec.seed, study=context.spec.name)
    return lambda: trial_setup(context, replace(selection, engine=engine, time_scale=scale), keep)


def usable_vocabulary(model: ModelShape) -> int:
    """Token ids below which prompts are drawn: the last ids are often padding or control tokens."""
    return max(2, int(model.vocabulary * 0.95))


def _served_model(context: StudyContext) -> str:
    if context.engine.kind is EngineKind.SIMULATED:
        return context.spec.model
    return context.model.repository or context.spec.model


@dataclass
class TrialEvents:
    """Passes a trial's events on to the study's observer."""

    observer: StudyObserver

    def phase(self, text: str) -> None:
        self.observer.phase(text)

    def probe_moved(self, order: TrialOrder, index: int, plan: LoadPlan, progress: LoadProgress, misses: int) -> None:
        self.observer.probe(
            ProbeProgress(
                trial=order.number,
                index=index,
                level=str(plan.level),
                sent=progress.sent,
                planned=plan.max_requests,
                finished=len(progress.finished),
                misses=misses,
                elapsed=progress.now - progress.started,
            )
        )
