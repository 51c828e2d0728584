"""Trials in virtual time: the same runner, prober, statistics and capacity search, as fast as the machine computes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from autotune.catalog import Gpu, ModelShape
from autotune.engine.api import RunningEngine
from autotune.engine.virtual import VirtualEngine
from autotune.load.api import LoadPlan, LoadProgress
from autotune.load.virtual import VirtualLoadGenerator
from autotune.spec import Arguments, LoadLevel, Objective, Slo, Workload
from autotune.store.result import Role, TrialDocument
from autotune.trial.order import TrialOrder
from autotune.trial.runner import TrialRunner, TrialSetup

NO_FOLDER = Path("no-folder")
"""Nothing is written in virtual time unless asked."""


class SilentProbeEvents:
    """Shows nothing."""

    def phase(self, text: str) -> None:
        """Ignored."""

    def probe_moved(self, order: TrialOrder, index: int, plan: LoadPlan, progress: LoadProgress, misses: int) -> None:
        """Ignored."""


async def _idle(running: RunningEngine) -> None:
    """A virtual engine is idle after each load."""


def virtual_setup(
    engine: VirtualEngine,
    workload: Workload,
    slo: Slo,
    *,
    load: LoadLevel | None = None,
    objective: Objective = Objective.CAPACITY,
    price_per_hour: float | None = None,
    more_workloads: tuple[Workload, ...] = (),
    seed: int = 0,
    keep_files: bool = False,
) -> TrialSetup:
    """The setup of trials in virtual time: no HTTP, no threads, no sleeping.

    Args:
        engine: starts the engines; its clock carries the engine seconds.
        workload: what is sent.
        slo: the objective.
        load: a fixed load, or None to search for the capacity.
        objective: what the figures are for.
        price_per_hour: US dollars an hour of the engine.
        more_workloads: sent as well, each by itself.
        seed: of prompts' lengths and arrivals, the same streams as over HTTP.
        keep_files: write each trial's requests into its folder.
    """
    return TrialSetup(
        engine=engine,
        model=engine.model.repository,
        vocabulary=engine.model.vocabulary,
        workload=workload,
        slo=slo,
        load=load,
        seed=seed,
        make_generator=lambda target: VirtualLoadGenerator(engine.at(target.base_url), engine.clock),
        make_devices=lambda running: (),
        objective=objective,
        price_per_hour=price_per_hour,
        more_workloads=more_workloads,
        settle=_idle,
        keep_files=keep_files,
    )


@dataclass
class VirtualTrial:
    """One configuration at a time on a fresh virtual engine: the same inputs give the same document."""

    gpu: Gpu
    model: ModelShape
    workload: Workload
    slo: Slo
    load: LoadLevel | None = None
    seed: int = 0
    events: SilentProbeEvents = field(default_factory=SilentProbeEvents)

    def measure(
        self, arguments: Arguments, *, incumbent_rate: float | None = None, guess_rate: float | None = None
    ) -> TrialDocument:
        """Start an engine with these arguments and measure it, in a few tenths of a second of CPU time.

        Args:
            arguments: of the engine.
            incumbent_rate: the capacity to beat, req/s; a configuration that clearly cannot is dropped.
            guess_rate: where the capacity search begins without one.
        """
        engine = VirtualEngine(self.gpu, self.model, seed=self.seed)
        setup = virtual_setup(engine, self.workload, self.slo, load=self.load, seed=self.seed)
        order = TrialOrder(
            number=0,
            role=Role.BASELINE if incumbent_rate is None else Role.SEARCH,
            arguments=arguments,
            folder=NO_FOLDER,
            incumbent_rate=incumbent_rate,
            guess_rate=guess_rate,
        )
        return asyncio.run(TrialRunner(setup, self.events).run(order))
