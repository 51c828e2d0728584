"""Finds the optimum of each system of the search benchmark by an exhaustive run, and stores it.

Every second value of each grid of the search space (the two highest memory shares: more KV cache is never slower), all
combinations, then the neighbours on the full grid of the best one until none is better. A configuration is compared
with the best so far in one long run at a rate half a percent above it (the same requests for all), so that most are
done after a few hundred requests.

    python benchmarks/search_optima.py [--systems t4-chat,l4-rag] [--workers 2]

Each system takes 20 to 200 s of one core; what is found is merged into ``benchmarks/data/search_optima.json``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

sys.path.insert(0, __file__.rsplit("/", 1)[0])
from _search_systems import OPTIMA, SYSTEMS, System

from autotune.search.planning import PlanRequest, leaders
from autotune.search.prediction import closed_form_rate
from autotune.spec import ArgumentValue

_STEP = 1.005


def axes(system: System) -> list[tuple[str, list[ArgumentValue]]]:
    """All values of each parameter."""
    found = []
    for parameter in system.space.parameters:
        values = parameter.values if hasattr(parameter, "values") else parameter.grid
        assert values is not None, parameter.name
        found.append((parameter.name, list(values)))
    return found


def coarse(system: System) -> Iterator[dict[str, ArgumentValue]]:
    """Every second value of each grid, all combinations."""
    thinned = []
    for name, values in axes(system):
        few = values if len(values) <= 3 else values[::2]
        thinned.append((name, values[-2:] if name == "gpu-memory-utilization" else few))
    for point in itertools.product(*(values for _, values in thinned)):
        yield dict(zip((name for name, _ in thinned), point, strict=True))


def neighbours(system: System, params: dict[str, ArgumentValue]) -> Iterator[dict[str, ArgumentValue]]:
    """One step along each axis and along each pair of axes."""
    steps: list[list[ArgumentValue]] = []
    names = [name for name, _ in axes(system)]
    for name, values in axes(system):
        at = values.index(params[name])
        steps.append(values[max(0, at - 1) : at + 2])
    for point in itertools.product(*steps):
        other = dict(zip(names, point, strict=True))
        if 0 < sum(other[name] != params[name] for name in names) <= 2:
            yield other


def find(system: System) -> dict[str, Any]:
    """The exhaustive run of one system."""
    started = time.monotonic()
    space = system.space
    default: dict[str, ArgumentValue] = {}
    if system.engine(default) is None:
        default = dict(space.fixed)
    guess = closed_form_rate(system.gpu, system.model, system.workload, system.slo, default)
    default_rate = system.capacity(default, guess)
    best, rate = space.params_of(default), default_rate
    request = PlanRequest(system.gpu, system.model, system.workload, system.slo, configurations=60)
    first = [space.params_of(arguments) for arguments in leaders(request, space, 2)]
    tried: set[str] = set()

    def challenge(points: Iterator[dict[str, ArgumentValue]] | Sequence[dict[str, ArgumentValue]]) -> bool:
        nonlocal best, rate
        improved = False
        for params in points:
            arguments = space.arguments(params)
            key = repr(sorted(arguments.items()))
            if key in tried or space.violations(arguments):
                continue
            tried.add(key)
            if system.holds(arguments, rate * _STEP if rate else guess / 50):
                rate = system.capacity(arguments, rate * _STEP if rate else guess)
                best, improved = params, True
        return improved

    challenge(first)
    challenge(coarse(system))
    while challenge(list(neighbours(system, best))):
        pass
    print(f"{system.name}: {rate:.4g} req/s, default {default_rate:.4g}, {len(tried)} configurations, "
          f"{time.monotonic() - started:.0f} s: {space.arguments(best)}", file=sys.stderr, flush=True)  # fmt: skip
    return {
        "arguments": space.arguments(best),
        "rate": rate,
        "default_rate": default_rate,
        "default_arguments": default,
        "tried": len(tried),
    }


def store(name: str, entry: dict[str, Any]) -> None:
    """Merge one system's optimum into the data file, in the order of the systems."""
    stored = json.loads(OPTIMA.read_text()) if OPTIMA.exists() else {"systems": {}}
    found = stored["systems"] | {name: entry}
    stored["systems"] = {system.name: found[system.name] for system in SYSTEMS if system.name in found}
    OPTIMA.parent.mkdir(exist_ok=True)
    OPTIMA.write_text(json.dumps(stored, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default="", help="names, separated by commas; all by default")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    options = parser.parse_args()
    wanted = set(filter(None, options.systems.split(",")))
    unknown = wanted - {system.name for system in SYSTEMS}
    if unknown:
        parser.error(f"no such system: {', '.join(sorted(unknown))}")
    with ProcessPoolExecutor(options.workers) as pool:
        jobs = {pool.submit(find, system): system for system in SYSTEMS if not wanted or system.name in wanted}
        for job in as_completed(jobs):
            store(jobs[job].name, job.result())


if __name__ == "__main__":
    main()
