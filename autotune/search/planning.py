"""What the models of memory and speed say of a GPU before any engine is started: fits, capacity, best settings."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from autotune.catalog import Gpu, ModelShape
from autotune.search.prediction import closed_form_rate
from autotune.simulator.arguments import CommandLineError
from autotune.simulator.engine_model import EngineModel, StartError, build_engine_model
from autotune.simulator.long_run import LongRuns
from autotune.simulator.options import ConfigError
from autotune.simulator.prediction import Prediction, predict
from autotune.space import Feasibility, SearchSpace, build_space
from autotune.spec import Arguments, ArgumentValue, LoadLevel, Slo, Workload

CONFIGURATIONS = 200
PREDICTED_CONFIGURATIONS = 60
PREDICTED_PROPOSALS = 2
"""Among how many configurations the models seek the best, and how many of those a study tries first."""
SCOUT_REQUESTS = 1000
"""Requests of the runs that compare configurations."""
FINAL_REQUESTS = 3000
"""Requests of the runs that the figures come from."""
AT_ONCE = 20
"""Configurations of one round: they compete against what the rounds before found."""
BETTER = 1.005
"""A configuration is looked at closely when it holds the objective at this multiple of the best rate so far."""
WITHIN = 0.99
"""A flag is left out when the capacity without it is at least this share."""
_OPENING_SHARE = 0.4
"""Share of the configurations that are spread over the space before the neighbours of the best are tried."""
_GOLDEN = 1.0 / 1.32471795724474602596
"""Inverse of the plastic number: powers of it give a sequence of low discrepancy (Roberts 2018)."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a plan is made for."""

    gpu: Gpu
    model: ModelShape
    workload: Workload
    slo: Slo
    fixed: Arguments = field(default_factory=dict)
    overrides: Mapping[str, object] = field(default_factory=dict)
    allow_lossy: bool = False
    configurations: int = CONFIGURATIONS
    seed: int = 0


@dataclass(frozen=True, slots=True)
class PlannedConfiguration:
    """One configuration at its capacity. ``capacity_rps`` is 0 where the objective holds at no rate."""

    prediction: Prediction
    capacity_rps: float | None


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """What is predicted of one GPU."""

    gpu: Gpu
    default: PlannedConfiguration
    """vLLM without flags (but with those that are fixed)."""
    fitted: PlannedConfiguration | None
    """The same with the context length that the workload needs, where the bare default does not start."""
    best: PlannedConfiguration
    """The settings to start with: the fewest flags within a hundredth of the best."""
    tried: int
    refused: int
    """Proposals that would not start, found without trying."""


@dataclass(frozen=True, slots=True)
class PlanProgress:
    """How far a plan is."""

    gpu: str
    done: int
    total: int
    best_rps: float


def predict_at_capacity(
    gpu: Gpu, model: ModelShape, workload: Workload, slo: Slo, arguments: Arguments, *, seed: int = 0
) -> PlannedConfiguration:
    """One configuration: whether it starts, its capacity, and what requests experience there."""
    engine = _engine(gpu, model, arguments)
    guess = closed_form_rate(gpu, model, workload, slo, arguments)
    if engine is None or engine.options.max_model_len < workload.longest_sequence:
        return PlannedConfiguration(predict(gpu, model, workload, arguments, LoadLevel.open(guess), slo=slo), None)
    scouted = LongRuns(workload, slo, requests=SCOUT_REQUESTS, seed=seed).capacity(engine, guess)
    runs = LongRuns(workload, slo, requests=FINAL_REQUESTS, seed=seed)
    capacity = runs.capacity(engine, scouted or guess)
    level = LoadLevel.open(capacity or guess)
    requests = runs.requests_at(capacity) if capacity else None
    found = predict(gpu, model, workload, arguments, level, slo=slo, requests=requests, seed=seed)
    return PlannedConfiguration(found, capacity if found.fits else None)


def _engine(gpu: Gpu, model: ModelShape, arguments: Arguments) -> EngineModel | None:
    try:
        return build_engine_model(gpu, model, arguments)
    except (CommandLineError, ConfigError, StartError):
        return None


def make_plan(
    request: PlanRequest, *, workers: int = 2, progress: Callable[[PlanProgress], None] = lambda _: None
) -> GpuPlan:
    """Search the space of one GPU in virtual time. The same request gives the same plan, however many workers.

    Raises:
        UsageError: the space's wishes cannot be met.
    """
    space = build_space(
        request.gpu,
        request.model,
        request.workload,
        overrides=request.overrides,
        fixed=request.fixed,
        allow_lossy=request.allow_lossy,
    )
    default = _final(request, dict(request.fixed))
    start = space.arguments({})
    fitted = None if default.prediction.fits or start == dict(request.fixed) else _final(request, start)
    reference = max((default, fitted or default), key=lambda planned: planned.capacity_rps or 0.0)
    guess = reference.capacity_rps or closed_form_rate(
        request.gpu, request.model, request.workload, request.slo, reference.prediction.arguments
    )
    hunt = _Hunt(request, space, guess)
    with _Pool(request, workers) as pool:
        hunt.run(pool, progress)
    ranked = hunt.ranked()
    if not ranked:
        return GpuPlan(request.gpu, default, fitted, reference, len(hunt.rates), hunt.refused)
    planned = _final(request, _fewest_flags(request, space, ranked[0]))
    if (planned.capacity_rps or 0.0) * WITHIN <= (reference.capacity_rps or 0.0):
        planned = reference
    return GpuPlan(request.gpu, default, fitted, planned, len(hunt.rates), hunt.refused)


def leaders(request: PlanRequest, space: SearchSpace, count: int) -> list[Arguments]:
    """The configurations that a short hunt in virtual time ranks highest, best first: where a search begins."""
    guess = closed_form_rate(request.gpu, request.model, request.workload, request.slo, space.fixed)
    hunt = _Hunt(request, space, guess)
    with _Pool(request, 1) as pool:
        hunt.run(pool, lambda progress: None)
    found = hunt.ranked()[:count]
    if not found:
        return []
    plain = _fewest_flags(request, space, found[0])
    return [plain, *(arguments for arguments in found[1:] if arguments != plain)]


def _final(request: PlanRequest, arguments: Arguments) -> PlannedConfiguration:
    return predict_at_capacity(request.gpu, request.model, request.workload, request.slo, arguments, seed=request.seed)


def _fewest_flags(request: PlanRequest, space: SearchSpace, arguments: Arguments) -> Arguments:
    """Leave out each flag that does not earn its place."""
    runs = LongRuns(request.workload, request.slo, requests=2 * SCOUT_REQUESTS, seed=request.seed)
    engine = _engine(request.gpu, request.model, arguments)
    assert engine is not None
    needed = WITHIN * runs.capacity(engine, closed_form_rate(
        request.gpu, request.model, request.workload, request.slo, arguments
    ))  # fmt: skip
    feasibility = Feasibility(space, request.workload)
    kept = dict(arguments)
    for name in [name for name in arguments if name not in space.fixed]:
        without = {key: value for key, value in kept.items() if key != name}
        engine = None if feasibility.check(without) else _engine(request.gpu, request.model, without)
        if engine is not None and runs.holds(engine, needed):
            kept = without
    return kept


class _Hunt:
    """Rounds of configurations that compete for the highest capacity."""

    def __init__(self, request: PlanRequest, space: SearchSpace, guess: float) -> None:
        self.rates: dict[str, float] = {}
        """Capacity by configuration, 0 for one that did not beat the best of its time."""
        self.refused = 0
        self._request = request
        self._space = space
        self._guess = guess
        self._feasibility = Feasibility(space, request.workload)
        self._params: dict[str, dict[str, ArgumentValue]] = {}
        self._seen: set[str] = set()
        self._axes = [_axis(space, name) for name in space.distributions()]
        self._spread = self._spread_out()

    def run(self, pool: _Pool, progress: Callable[[PlanProgress], None]) -> None:
        total = self._request.configurations
        opening = max(1, int(_OPENING_SHARE * total))
        while len(self.rates) < total:
            # The first one alone: all others need then only be compared with it.
            room = min(AT_ONCE, total - len(self.rates)) if self.rates else 1
            chosen: list[dict[str, ArgumentValue]] = []
            if len(self.rates) >= opening:
                chosen = list(_first(self._neighbours(), room))
            chosen += list(_first(self._spread, room - len(chosen)))
            if not chosen:
                return
            best = max(self.rates.values(), default=0.0)
            orders = [(self._space.arguments(params), best, self._guess) for params in chosen]
            for params, rate in zip(chosen, pool.capacities(orders), strict=True):
                key = _key(self._space.arguments(params))
                self.rates[key], self._params[key] = rate, params
            progress(
                PlanProgress(self._request.gpu.name, len(self.rates), total, max(self.rates.values(), default=0.0))
            )

    def ranked(self) -> list[Arguments]:
        """The configurations that were the best of their time, highest capacity first."""
        held = [key for key in self.rates if self.rates[key]]
        return [self._space.arguments(self._params[key]) for key in sorted(held, key=lambda key: -self.rates[key])]

    def _spread_out(self) -> Iterator[dict[str, ArgumentValue]]:
        """The default first, then points of a sequence that fills the space evenly."""
        yield from self._new([self._space.params_of(self._space.fixed)])
        steps = np.array([_GOLDEN ** (k + 1) for k in range(len(self._axes))])
        for index in range(1, 40 * self._request.configurations):
            places = (0.5 + index * steps) % 1.0
            yield from self._new(
                [{name: values[int(at * len(values))] for (name, values), at in zip(self._axes, places, strict=True)}]
            )

    def _neighbours(self) -> Iterator[dict[str, ArgumentValue]]:
        """One and two steps from the best ones along each axis, then along two axes at once from the best."""
        ranked = sorted(self.rates, key=lambda key: -self.rates[key])
        leaders = [key for key in ranked[:3] if self.rates[key]]
        for distance in (1, 2):
            for key in leaders:
                yield from self._new(self._steps(self._params[key], distance))
        for key in leaders[:1]:
            for step in list(self._steps(self._params[key], 1)):
                yield from self._new(self._steps(step, 1))

    def _steps(self, params: Mapping[str, ArgumentValue], distance: int) -> Iterable[dict[str, ArgumentValue]]:
        for name, values in self._axes:
            at = values.index(params[name]) if params.get(name) in values else 0
            for to in (at - distance, at + distance):
                if 0 <= to < len(values):
                    yield {**params, name: values[to]}

    def _new(self, proposals: Iterable[dict[str, ArgumentValue]]) -> Iterator[dict[str, ArgumentValue]]:
        for params in proposals:
            arguments = self._space.arguments(params)
            key = _key(arguments)
            if key in self._seen:
                continue
            self._seen.add(key)
            if self._feasibility.check(arguments) is not None:
                self.refused += 1
                continue
            yield params


def _first(items: Iterator[dict[str, ArgumentValue]], count: int) -> Iterator[dict[str, ArgumentValue]]:
    for _ in range(count):
        item = next(items, None)
        if item is None:
            return
        yield item


def _key(arguments: Arguments) -> str:
    return repr(sorted(arguments.items()))


_CONTINUOUS_STEPS = 12


def _axis(space: SearchSpace, name: str) -> tuple[str, list[ArgumentValue]]:
    """The values of a parameter to choose from, in order."""
    parameter = next(p for p in space.parameters if p.name == name)
    values = getattr(parameter, "values", None) or getattr(parameter, "grid", None)
    if values is not None:
        return name, list(values)
    low, high = float(getattr(parameter, "low", 0)), float(getattr(parameter, "high", 1))
    log = bool(getattr(parameter, "log", False)) and low > 0
    points = np.geomspace(low, high, _CONTINUOUS_STEPS) if log else np.linspace(low, high, _CONTINUOUS_STEPS)
    return name, list(dict.fromkeys(parameter.snap(float(point)) for point in points))


Order = tuple[Arguments, float, float]
"""A configuration, the rate to beat (0: none yet) and a guess."""


class _Pool:
    """Evaluates configurations in a few processes; with one worker, in this one."""

    def __init__(self, request: PlanRequest, workers: int) -> None:
        self._scout = _Scout(request)
        self._executor: ProcessPoolExecutor | None = None
        if workers > 1:
            methods = multiprocessing.get_all_start_methods()
            context = multiprocessing.get_context("fork" if "fork" in methods else "spawn")
            self._executor = ProcessPoolExecutor(workers, context, _become_scout, (request,))

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def capacities(self, orders: Sequence[Order]) -> Sequence[float]:
        """Capacity of each, 0 for those that do not start, do not hold, or do not beat the rate to beat."""
        if self._executor is None:
            return [self._scout.capacity(order) for order in orders]
        return list(self._executor.map(_scout_capacity, orders, chunksize=2))


class _Scout:
    def __init__(self, request: PlanRequest) -> None:
        self._request = request
        self._runs = LongRuns(request.workload, request.slo, requests=SCOUT_REQUESTS, seed=request.seed)

    def capacity(self, order: Order) -> float:
        arguments, best, guess = order
        engine = _engine(self._request.gpu, self._request.model, arguments)
        if engine is None:
            return 0.0
        if best and not self._runs.holds(engine, best * BETTER):
            return 0.0
        return self._runs.capacity(engine, best * math.sqrt(BETTER) if best else guess)


_scouts: list[_Scout] = []


def _become_scout(request: PlanRequest) -> None:
    _scouts[:] = [_Scout(request)]


def _scout_capacity(order: Order) -> float:
    return _scouts[0].capacity(order)
