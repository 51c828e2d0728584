"""One trial: start an engine, warm it up, measure it, stop it. Whatever happens, the engine is stopped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from autotune.engine.api import Engine, EngineFacts, EngineStartError, LaunchRequest, RunningEngine
from autotune.engine.failure import Failure, FailureKind
from autotune.load.api import LoadGenerator, Target
from autotune.spec import Arguments, LoadLevel, Objective, Slo, Workload
from autotune.store.result import Outcome, ProbeDocument, QualityDocument, Timings, TrialDocument
from autotune.telemetry import Device
from autotune.trial.capacity import (
    Measured,
    combined_fields,
    measure_capacity,
    measure_compared,
    measure_front,
    measure_level,
)
from autotune.trial.order import TrialOrder
from autotune.trial.prober import EngineFailedError, ProbeEvents, Prober, RequestsFailedError, wait_until_idle
from autotune.trial.quality import QualityCheck

_LONGEST_DETAIL = 300
"""Characters of the deciding line that a trial keeps; its log has the rest."""


@dataclass(frozen=True, slots=True)
class TrialSetup:
    """What all trials of a study share. Durations are engine seconds."""

    engine: Engine
    model: str
    """What the engine is told to serve."""
    vocabulary: int
    workload: Workload
    slo: Slo
    load: LoadLevel | None
    """A fixed load, or None to search for the capacity."""
    seed: int
    make_generator: Callable[[Target], LoadGenerator]
    make_devices: Callable[[RunningEngine], Sequence[Device]]
    objective: Objective = Objective.CAPACITY
    """What the figures are for: it decides which are taken where."""
    price_per_hour: float | None = None
    """US dollars an hour of what the engine runs on."""
    more_workloads: tuple[Workload, ...] = ()
    """Workloads that are served as well; each is measured by itself, on the same engine."""
    time_scale: float = 1.0
    """Engine seconds per wall second."""
    environment: dict[str, str] = field(default_factory=dict)
    start_deadline: float = 1200.0
    first_start_deadline: float = 1800.0
    """The first start also fills caches: weights from the disk, compiled kernels."""
    on_probe: Callable[[TrialOrder, ProbeDocument], None] = lambda order, probe: None
    """Called when a probe is finished, before the next begins."""
    on_failure: Callable[[TrialOrder, Failure], None] = lambda order, failure: None
    settle: Callable[[RunningEngine], Awaitable[None]] = wait_until_idle
    """Waits until the requests of the probe before are gone."""
    quality: QualityCheck | None = None
    """Compares the output with the reference's, where arguments that may change it vary."""
    keep_files: bool = True
    """Whether requests and telemetry are written into the trial's folder."""
    slower: Callable[[], TrialSetup] | None = None
    """The same with a slower clock, where the engine has one and it is not at real time yet."""


@dataclass
class TrialRunner:
    """Runs trials one after the other."""

    setup: TrialSetup
    events: ProbeEvents
    _started_any: bool = False

    def slow_down(self) -> float | None:
        """Run the next trials on a slower clock, because this machine does not keep up; its scale, or None."""
        if self.setup.slower is None:
            return None
        self.setup = self.setup.slower()
        return self.setup.time_scale

    async def run(self, order: TrialOrder) -> TrialDocument:
        """Run a trial to its end; a failure of the engine becomes the trial's outcome."""
        clock = self.setup.engine.clock
        began = clock.now()
        spent: dict[str, float] = {}
        prober: Prober | None = None
        facts = EngineFacts()
        measured: list[tuple[str, Measured]] = []
        quality: QualityDocument | None = None
        failure: Failure | None = None
        try:
            async with self._engine(order, spent) as running:
                facts = running.facts
                target = Target(running.url, running.served_model, self.setup.vocabulary)
                async with self._generator(target) as generator:
                    prober = self._prober(order, running, generator)
                    for workload in (self.setup.workload, *self.setup.more_workloads):
                        measured.append((workload.name, await self._serve(order, prober, workload, spent)))
                        if not (measured[-1][1].carries or order.must_resolve):
                            break
                    carries = all(each.carries for _, each in measured)
                    quality = await self._check_output(order, running, carries=carries)
        except EngineStartError as error:
            failure = error.failure
        except EngineFailedError as error:
            failure = error.failure
        except RequestsFailedError as error:
            failure = error.failure
        probes = prober.probes if prober is not None else []
        if failure is not None:
            self.setup.on_failure(order, failure)
        other = max(0.0, clock.now() - began - sum(spent.values()))
        document = _document(order, probes, facts, Timings(**spent, other=other))
        if failure is not None:
            return document.model_copy(update=_failed(failure))
        fields = [(name, each.fields(self.setup.price_per_hour)) for name, each in measured]
        found = combined_fields(fields) if self.setup.more_workloads else fields[0][1]
        return document.model_copy(update=found | {"quality": quality})

    @contextlib.asynccontextmanager
    async def _engine(self, order: TrialOrder, spent: dict[str, float]) -> AsyncIterator[RunningEngine]:
        clock = self.setup.engine.clock
        deadline = self.setup.start_deadline if self._started_any else self.setup.first_start_deadline
        self.events.phase("starting the engine")
        at = clock.now()
        try:
            running = await self.setup.engine.start(
                LaunchRequest(self.setup.model, order.arguments, order.folder, deadline, self.setup.environment)
            )
        finally:
            spent["start"] = clock.now() - at
        self._started_any = True
        try:
            yield running
        finally:
            self.events.phase("stopping the engine")
            at = clock.now()
            await asyncio.shield(running.stop())
            spent["stop"] = clock.now() - at

    @contextlib.asynccontextmanager
    async def _generator(self, target: Target) -> AsyncIterator[LoadGenerator]:
        generator = self.setup.make_generator(target)
        try:
            await generator.open()
            yield generator
        finally:
            await generator.close()

    def _prober(self, order: TrialOrder, running: RunningEngine, generator: LoadGenerator) -> Prober:
        return Prober(
            order=order,
            running=running,
            generator=generator,
            devices=self.setup.make_devices(running),
            clock=self.setup.engine.clock,
            workload=self.setup.workload,
            slo=self.setup.slo,
            seed=self.setup.seed,
            events=self.events,
            on_probe=self.setup.on_probe,
            time_scale=self.setup.time_scale,
            keep_files=self.setup.keep_files,
            settle=self.setup.settle,
            several=bool(self.setup.more_workloads),
        )

    async def _serve(self, order: TrialOrder, prober: Prober, workload: Workload, spent: dict[str, float]) -> Measured:
        """Warm the engine up for a workload, then measure it."""
        clock = self.setup.engine.clock
        prober.workload = workload
        self.events.phase("warming up")
        at = clock.now()
        await prober.warm_up()
        spent["warm_up"] = spent.get("warm_up", 0.0) + clock.now() - at
        at = clock.now()
        try:
            return await self._measure(order.of(workload.name), prober)
        finally:
            spent["measure"] = spent.get("measure", 0.0) + clock.now() - at

    async def _measure(self, order: TrialOrder, prober: Prober) -> Measured:
        objective = self.setup.objective
        if self.setup.load is not None:
            whole = objective in (Objective.LATENCY, Objective.PARETO)
            return await measure_level(prober, self.setup.load, whole=whole)
        if objective is Objective.PARETO:
            return await measure_front(prober, order)
        if order.comparison is not None:
            return await measure_compared(prober, order, order.comparison)
        return await measure_capacity(prober, order)

    async def _check_output(
        self, order: TrialOrder, running: RunningEngine, *, carries: bool
    ) -> QualityDocument | None:
        check = self.setup.quality
        if check is None or not (order.is_reference or carries):
            return None
        self.events.phase("checking the output")
        await self.setup.settle(running)
        quality = await check.examine(order, running)
        if running.exited():
            raise EngineFailedError(await running.diagnose())
        return quality


def _document(
    order: TrialOrder, probes: Sequence[ProbeDocument], facts: EngineFacts, timings: Timings
) -> TrialDocument:
    return TrialDocument(
        number=order.number,
        role=order.role,
        label=order.label,
        arguments=_plain(order.arguments),
        outcome=Outcome.MEASURED,
        block=order.block,
        effort=order.effort,
        probes=list(probes),
        requests=sum(p.requests for p in probes),
        timings=timings,
        engine_facts={
            "kv_cache_tokens": facts.kv_cache_tokens,
            "kv_cache_gib": facts.kv_cache_gib,
            "weights_gib": facts.weights_gib,
            "graphs_gib": facts.graphs_gib,
            "start_seconds": dict(facts.start_seconds),
            "resolved": dict(facts.resolved),
        },
    )


def _failed(failure: Failure) -> dict[str, object]:
    """A failure as fields of a trial's document."""
    infeasible = failure.kind is FailureKind.INFEASIBLE
    return {
        "outcome": Outcome.INFEASIBLE if infeasible else Outcome.FAULT,
        "reason": failure.cause.value,
        "detail": _shortened(failure.line.strip()),
        "advice": failure.advice,
        "environment": failure.environment,
    }


def _shortened(line: str) -> str:
    """A log line that may be pages long; that something was cut shows."""
    return line if len(line) <= _LONGEST_DETAIL else line[: _LONGEST_DETAIL - 3] + "..."


def _plain(arguments: Arguments) -> dict[str, bool | int | float | str]:
    return dict(arguments)
