"""Ways to search, each charged with the engine seconds that it takes: starts (cold or warm), warm-ups, measurements."""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import optuna
from _search_systems import System

from autotune.engine.api import EngineStartError, LaunchRequest
from autotune.engine.virtual import VirtualEngine, VirtualRunningEngine
from autotune.load.api import LoadPlan, LoadRun
from autotune.load.virtual import VirtualLoadGenerator
from autotune.search.context import StudyContext
from autotune.search.events import SilentObserver
from autotune.search.feasibility import Judge
from autotune.search.folder import StudyFolder
from autotune.search.objective import OUTPUT, aim_of
from autotune.search.prediction import predicted_rate, predicted_steepness
from autotune.search.record import IN_MEMORY, OptunaRecord
from autotune.search.sampler import sampler_factory
from autotune.search.standing import standing_best
from autotune.search.study import PREDICTED_LABEL, StudyRun
from autotune.space import SearchSpace
from autotune.spec import Arguments, Budget, LoadLevel, Metric, SamplerChoice, StudySpec
from autotune.stats.percentile import percentile
from autotune.store.result import Decision, Outcome, Role, StudyDocument, TrialDocument
from autotune.trial import TrialOrder, TrialRunner, virtual_setup
from autotune.trial.virtual import SilentProbeEvents

INSTANCE_NOISE = 0.01
"""Standard deviation of the speed from start to start."""
TRIALS = 30
DEFAULT_SHARE = 0.92
"""vLLM's default of ``gpu-memory-utilization``."""
_NOWHERE = Path("nowhere")


@dataclass(frozen=True, slots=True)
class Point:
    """What a policy would recommend after so many engine seconds and launches."""

    gpu_s: float
    launches: int
    arguments: Arguments | None
    reported: float


@dataclass
class Trace:
    """One run of a policy."""

    points: list[Point] = field(default_factory=list)
    launches: int = 0
    failures: int = 0
    search_s: float = 0.0
    total_s: float = 0.0
    tuned: bool = False
    final: Point | None = None
    spent_s: dict[str, float] = field(default_factory=dict)
    """Engine seconds by what they were spent on; empty where a policy does one thing only."""

    def note(self, gpu_s: float, arguments: Arguments | None, reported: float) -> None:
        """The recommendation of this moment."""
        self.points.append(Point(gpu_s, self.launches, arguments, reported))
        self.search_s = self.total_s = gpu_s
        self.final = self.points[-1]


def new_engine(system: System, seed: int) -> VirtualEngine:
    """The engine under test."""
    return VirtualEngine(
        system.gpu, system.model, seed=seed, instance_noise=INSTANCE_NOISE, perturbation=system.perturbation
    )


# -- ours -------------------------------------------------------------------------------------------


@dataclass
class _Watched:
    """Runs trials and notes the best so far."""

    runner: TrialRunner
    engine: VirtualEngine
    trace: Trace
    documents: list[TrialDocument] = field(default_factory=list)

    def slow_down(self) -> float | None:
        return None

    async def run(self, order: TrialOrder) -> TrialDocument:
        before = self.engine.clock.now()
        document = await self.runner.run(order)
        kind = order.label if order.label == PREDICTED_LABEL else order.role.value
        self.trace.spent_s[kind] = self.trace.spent_s.get(kind, 0.0) + self.engine.clock.now() - before
        self.trace.launches += order.role is not Role.CONFIRMATION
        self.trace.failures += document.outcome is Outcome.INFEASIBLE
        if order.role is not Role.CONFIRMATION:
            self.documents.append(document)
            best = standing_best(self.documents, OUTPUT)
            self.trace.note(
                self.engine.clock.now(),
                None if best is None else best.arguments,
                0.0 if best is None else best.capacity_rps or 0.0,
            )
        return document


def study(
    system: System,
    seed: int,
    *,
    sampler: SamplerChoice = SamplerChoice.AUTO,
    first: Sequence[Arguments] = (),
    space: SearchSpace | None = None,
    trials: int = TRIALS,
) -> Trace:
    """A study as ``autotune search`` runs it, with confirmation and verdict."""
    engine = new_engine(system, seed)
    trace = Trace()
    space = space or system.space
    spec = StudySpec(
        name="s",
        gpu=system.gpu_name,
        model=system.model_name,
        workload=system.workload,
        slo=system.slo,
        budget=Budget(trials=trials),
        sampler=sampler,
        seed=seed,
    )
    judge = Judge(spec, space, engine)
    setup = virtual_setup(engine, system.workload, system.slo, seed=seed)
    watched = _Watched(TrialRunner(setup, SilentProbeEvents()), engine, trace)
    with tempfile.TemporaryDirectory(prefix="search-benchmark-") as name:
        folder = StudyFolder(Path(name) / "s")
        folder.create()
        context = StudyContext(
            spec=spec,
            gpu=system.planned_gpu,
            model=system.model,
            space=space,
            engine=engine,
            folder=folder,
            storage=IN_MEMORY,
            created="2026-01-01T00:00:00Z",
            knows_performance_modes=True,
            refuse=judge.refuse,
            learn=judge.learn,
            predicted_rate=lambda arguments: predicted_rate(system.planned_gpu, system.model, spec, arguments),
            steepness=cache(lambda: predicted_steepness(system.planned_gpu, system.model, spec, system.space.fixed)),
            first_proposals=lambda: first,
        )
        record = OptunaRecord(IN_MEMORY, "s", sampler_factory(sampler, seed), Path(name) / "artifacts", aim_of(spec))
        document = asyncio.run(StudyRun(context, record, watched, SilentObserver(), lambda trial: None).run())
    return _concluded(trace, document, engine)


def _concluded(trace: Trace, document: StudyDocument, engine: VirtualEngine) -> Trace:
    best = document.best
    trace.total_s = engine.clock.now()
    trace.tuned = document.verdict.decision is Decision.TUNED
    if best is not None:
        trace.final = Point(trace.total_s, trace.launches, best.arguments, best.capacity_rps or 0.0)
        trace.points.append(trace.final)
    return trace


# -- the others -------------------------------------------------------------------------------------


@dataclass
class _Bench:
    """Starts engines and sends load to them, as the other tools' scripts do."""

    system: System
    seed: int
    trace: Trace = field(default_factory=Trace)
    _streams: int = 0

    def __post_init__(self) -> None:
        self.engine = new_engine(self.system, self.seed)

    @property
    def now(self) -> float:
        return self.engine.clock.now()

    async def start(self, arguments: Arguments) -> VirtualRunningEngine | None:
        self.trace.launches += 1
        try:
            return await self.engine.start(LaunchRequest("m", arguments, _NOWHERE, math.inf))
        except EngineStartError:
            self.trace.failures += 1
            return None

    async def load(
        self, running: VirtualRunningEngine, level: LoadLevel, requests: int, duration: float = math.inf
    ) -> LoadRun:
        self._streams += 1
        plan = LoadPlan(
            level, self.system.workload, self.seed, f"bench-{self._streams}", requests, duration, request_timeout=1e9
        )
        run = await VirtualLoadGenerator(running, self.engine.clock).run(plan)
        if running.exited():
            self.trace.failures += 1
        return run

    def meets(self, run: LoadRun) -> bool:
        """The plain percentiles of the run lie within the limits."""
        done = [record for record in run.records if record.succeeded]
        if not done:
            return False
        for target in self.system.slo.targets:
            values = [v for record in done if (v := record.value(target.metric)) is not None]
            if percentile(np.asarray(values), target.percentile) > target.limit_s:
                return False
        return True


def _throughput(run: LoadRun) -> float:
    return sum(record.succeeded for record in run.records) / max(run.ended - run.started, 1e-9)


def auto_tune_sh(system: System, seed: int, *, again: bool = False) -> Trace:
    """vLLM's benchmarks/auto_tune/auto_tune.sh with its own lists.

    128 and 256 sequences, 512 to 4096 tokens, the highest memory share from 0.98 down to 0.90 that starts; each
    combination with 1000 prompts at once, then 100 prompts at whole rates downwards from the throughput seen until the
    P99 holds. It waits for a server in steps of 10 s, 5 s before each run and 10 s after each server.

    A share that starts may die under load; then all combinations die and the script ends with nothing. ``again``: its
    user reads the logs and runs it once more with vLLM's default share.
    """
    return asyncio.run(_auto_tune_sh(_Bench(system, seed), again))


async def _auto_tune_sh(bench: _Bench, again: bool) -> Trace:
    for highest in (0.98, DEFAULT_SHARE) if again else (0.98,):
        await _one_auto_tune_sh(bench, highest)
        if bench.trace.final is not None and bench.trace.final.arguments is not None:
            break
    return bench.trace


async def _one_auto_tune_sh(bench: _Bench, utilization: float) -> None:
    length = dict(bench.system.space.fixed)
    common: dict[str, bool | int | float | str] = {"max-model-len": bench.system.workload.longest_sequence, **length}
    clock = bench.engine.clock

    async def start(arguments: Arguments) -> VirtualRunningEngine | None:
        before = clock.now()
        running = await bench.start({**arguments, "load-format": "dummy"})
        spent = clock.now() - before
        await clock.sleep(-spent % 10.0)
        return running

    while utilization >= 0.895:
        running = await start({**common, "max-num-seqs": 256, "max-num-batched-tokens": 4096,
                               "gpu-memory-utilization": round(utilization, 2)})  # fmt: skip
        if running is not None:
            await running.stop()
            break
        utilization -= 0.01
    else:
        bench.trace.note(bench.now, None, 0.0)
        return
    best: Arguments | None = None
    best_rate = 0.0
    for seqs in (128, 256):
        for tokens in (512, 1024, 2048, 4096):
            arguments: Arguments = {**common, "max-num-seqs": seqs, "max-num-batched-tokens": tokens,
                                    "gpu-memory-utilization": round(utilization, 2)}  # fmt: skip
            running = await start(arguments)
            if running is not None:
                run = await bench.load(running, LoadLevel.open(1e6), 1000)
                rate, held = _throughput(run), bench.meets(run)
                step = int(rate) + 1
                while not held and step > 0 and not running.exited():
                    await clock.sleep(5.0)
                    run = await bench.load(running, LoadLevel.open(float(step)), 100)
                    rate, held = _throughput(run), bench.meets(run)
                    step -= 1
                if held and rate > best_rate:
                    best, best_rate = arguments, rate
                await running.stop()
            await clock.sleep(10.0)
            bench.trace.note(bench.now, best, best_rate)


def random_params(system: System, random: np.random.Generator) -> Arguments:
    """A configuration drawn evenly from the grids."""
    params = {}
    for parameter in system.space.parameters:
        values = getattr(parameter, "values", None) or getattr(parameter, "grid", None)
        assert values is not None
        params[parameter.name] = values[int(random.integers(len(values)))]
    return system.space.arguments(params)


def fixed_load_tpe(system: System, seed: int, concurrency: int, most: int) -> Trace:
    """A fixed load of ``concurrency`` for 300 s on each trial, Optuna's TPE, as auto-tune-vllm does.

    The objective is the throughput where the plain percentiles hold, else nothing. Who uses it chooses the load: here
    it is the concurrency at the default's true capacity. ``most`` requests are enough for 300 s.
    """
    return asyncio.run(_fixed_load_tpe(_Bench(system, seed), concurrency, most))


async def _fixed_load_tpe(bench: _Bench, concurrency: int, most: int) -> Trace:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = bench.system.space
    sampler = optuna.samplers.TPESampler(seed=bench.seed)
    record = optuna.create_study(direction="maximize", sampler=sampler)
    best: Arguments | None = None
    best_rate = 0.0
    for _ in range(TRIALS):
        trial = record.ask(space.distributions())
        arguments = space.arguments(trial.params)
        running = await bench.start(arguments)
        rate = 0.0
        if running is not None:
            run = await bench.load(running, LoadLevel.closed(concurrency), most, 300.0)
            if bench.meets(run) and not running.exited():
                rate = _throughput(run)
            await running.stop()
        record.tell(trial, rate)
        if rate > best_rate:
            best, best_rate = arguments, rate
        bench.trace.note(bench.now, best, best_rate)
    return bench.trace


def bisection(system: System, seed: int, highest: float) -> Trace:
    """Bisection of the rate with a fresh server for each probe, as SGLang's search does, over random configurations.

    Six probes of 200 prompts between nothing and ``highest`` req/s, judged by plain percentiles.
    """
    return asyncio.run(_bisection(_Bench(system, seed), highest))


async def _bisection(bench: _Bench, highest: float) -> Trace:
    random = np.random.default_rng(bench.seed)
    best: Arguments | None = None
    best_rate = 0.0
    for _ in range(TRIALS):
        arguments = random_params(bench.system, random)
        low, high = 0.0, highest
        for _ in range(6):
            middle = (low + high) / 2
            running = await bench.start(arguments)
            if running is None:
                break
            run = await bench.load(running, LoadLevel.open(middle), 200)
            held = bench.meets(run) and not running.exited()
            low, high = (middle, high) if held else (low, middle)
            await running.stop()
        if low > best_rate:
            best, best_rate = arguments, low
        bench.trace.note(bench.now, best, best_rate)
    return bench.trace


def usual_concurrency(system: System, rate: float) -> int:
    """Requests in the engine at this rate when answers take half of what the objective allows (Little's law)."""
    output = system.workload.output_tokens.mean
    spans = [
        target.limit_s * (output if target.metric is Metric.TPOT else 1.0)
        for target in system.slo.targets
        if target.metric is not Metric.TTFT
    ]
    return max(1, round(rate * 0.5 * min(spans, default=output * 0.03)))
