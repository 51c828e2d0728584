"""One run of one policy on one system of the search benchmark, as a row of a result file."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from _search_policies import Trace, auto_tune_sh, bisection, fixed_load_tpe, study, usual_concurrency
from _search_systems import SYSTEMS, Optimum, System, read_optima

from autotune.search.planning import PREDICTED_CONFIGURATIONS, PREDICTED_PROPOSALS, PlanRequest, leaders
from autotune.space import build_space
from autotune.spec import Arguments, SamplerChoice

Row = dict[str, Any]

OURS, AA = "ours", "A/A"
RANDOM, AUTO_TUNE, AUTO_TUNE_AGAIN, FIXED_LOAD = "random", "auto_tune.sh", "auto_tune.sh, then 0.92", "fixed-load TPE"
POLICIES = (
    OURS, "ours, random", "tpe without plan", RANDOM, AUTO_TUNE, AUTO_TUNE_AGAIN, FIXED_LOAD, "bisection",
)  # fmt: skip
OURS_TRIALS = 12
"""Proposals of our study: what it costs to be near the optimum with little hope of more."""
AA_TRIALS = 4
AA_SEEDS = 3
"""A/A studies of each of their systems for each seed of the benchmark."""
AA_SYSTEMS = ("rtx4090-chat", "a100-rag", "l40s-batch", "h200-chat")
AA_SPACE: dict[str, object] = {
    "gpu-memory-utilization": [0.9, 0.91, 0.92],
    "watermark": [0.0, 0.01],
    "max-num-seqs": None, "max-num-batched-tokens": None, "stream-interval": None, "async-scheduling": None,
    "api-server-count": None,
}  # fmt: skip
"""Arguments that decide nothing where memory is plenty: every configuration is the default."""


@dataclass(frozen=True, slots=True)
class Job:
    """One policy on one system with one seed."""

    system: str
    seed: int
    policy: str

    @property
    def key(self) -> tuple[str, int, str]:
        return self.system, self.seed, self.policy


class Truth:
    """True capacities of one system, each found once."""

    def __init__(self, system: System, optimum: Optimum) -> None:
        self.system = system
        self.optimum = optimum
        self._known: dict[str, float] = {}
        self._long: dict[str, float] = {}

    def quality(self, arguments: Arguments | None) -> float:
        """Share of the optimum's capacity, from the run that ranks; nothing for no recommendation."""
        return min(1.0, self._of(arguments, self._known, self.system.capacity) / self.optimum.rate)

    def long_rate(self, arguments: Arguments | None) -> float:
        """The capacity to about one percent, req/s."""
        return self._of(arguments, self._long, self.system.long_capacity)

    def _of(
        self, arguments: Arguments | None, known: dict[str, float], find: Callable[[Arguments, float], float]
    ) -> float:
        if arguments is None:
            return 0.0
        real = {name: value for name, value in arguments.items() if name != "load-format"}
        key = repr(sorted(real.items()))
        if key not in known:
            known[key] = find(real, self.optimum.rate)
        return known[key]


@cache
def _system(name: str) -> System:
    return next(system for system in SYSTEMS if system.name == name)


@cache
def _truth(name: str) -> Truth:
    return Truth(_system(name), read_optima()[name])


@cache
def _planned(name: str) -> Sequence[Arguments]:
    """What the plan ranks highest: the same for every seed."""
    system = _system(name)
    request = PlanRequest(
        system.planned_gpu, system.model, system.workload, system.slo, configurations=PREDICTED_CONFIGURATIONS
    )
    return leaders(request, system.space, PREDICTED_PROPOSALS)


def _searched(job: Job) -> Trace:
    system, seed = _system(job.system), job.seed
    optimum = _truth(job.system).optimum
    rate = optimum.default_rate or optimum.rate / 2
    policies: Mapping[str, Callable[[], Trace]] = {
        OURS: lambda: study(system, seed, first=_planned(job.system), trials=OURS_TRIALS),
        "ours, random": lambda: study(
            system, seed, first=_planned(job.system), sampler=SamplerChoice.RANDOM, trials=OURS_TRIALS
        ),
        "tpe without plan": lambda: study(system, seed, sampler=SamplerChoice.TPE),
        RANDOM: lambda: study(system, seed, sampler=SamplerChoice.RANDOM),
        AUTO_TUNE: lambda: auto_tune_sh(system, seed),
        AUTO_TUNE_AGAIN: lambda: auto_tune_sh(system, seed, again=True),
        FIXED_LOAD: lambda: fixed_load_tpe(
            system, seed, usual_concurrency(system, rate), int(1500 * optimum.rate) + 400
        ),
        "bisection": lambda: bisection(system, seed, 2 * rate),
    }
    return policies[job.policy]()


def run_job(job: Job) -> Row:
    """The row of one run. ``curve`` has engine seconds, launches and quality wherever the recommendation changed."""
    started = time.process_time()
    if job.policy == AA:
        return {**_head(job), "tuned": _claims_a_gain(job), "cpu_s": time.process_time() - started}
    trace = _searched(job)
    searched_s = time.process_time() - started
    truth = _truth(job.system)
    curve: list[tuple[float, int, float]] = []
    for point in trace.points:
        quality = truth.quality(point.arguments)
        if not curve or quality != curve[-1][2]:
            curve.append((point.gpu_s, point.launches, quality))
    final = trace.final
    true_rate = truth.long_rate(final.arguments) if final is not None else 0.0
    return {
        **_head(job),
        "default_quality": truth.optimum.default_rate / truth.optimum.rate,
        "curve": curve,
        "quality": truth.quality(final.arguments) if final is not None else 0.0,
        "search_s": trace.search_s,
        "total_s": trace.total_s,
        "launches": trace.launches,
        "failures": trace.failures,
        "error": final.reported / true_rate - 1 if true_rate and final is not None else None,
        "arguments": dict(final.arguments or {}) if final is not None else None,
        "tuned": trace.tuned,
        "spent_s": trace.spent_s,
        "cpu_s": searched_s,
    }


def _head(job: Job) -> Row:
    return {"system": job.system, "seed": job.seed, "policy": job.policy}


def _claims_a_gain(job: Job) -> bool:
    """A study of configurations that are all the default."""
    system = _system(job.system)
    space = build_space(system.planned_gpu, system.model, system.workload, overrides=AA_SPACE)
    return study(system, 1000 + job.seed, space=space, sampler=SamplerChoice.RANDOM, trials=AA_TRIALS).tuned


def time_to(row: Row, wanted: float) -> float:
    """Engine seconds after which every recommendation is at least this good; infinite if the last is not."""
    reached = math.inf
    for gpu_s, _, quality in reversed(row["curve"]):
        if quality < wanted:
            break
        reached = gpu_s
    return reached


def quality_at(row: Row, launches: int) -> float:
    """Quality of the recommendation after so many launches."""
    before = [quality for _, count, quality in row["curve"] if count <= launches]
    return before[-1] if before else 0.0
