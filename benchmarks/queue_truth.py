"""Finds the true capacity of the simulated systems that the other benchmarks use, by long simulation.

    python benchmarks/queue_truth.py            # about a quarter of an hour on 2 cores; writes queue_truth.json
    python benchmarks/queue_truth.py --engines  # the simulated vLLM engines; writes engine_truth.json

For each system: the rates at which half, one and two percent of the requests miss, each by bisection over
two runs of 150,000 requests with different random numbers. The difference of the two is its uncertainty.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import multiprocessing
import sys

import numpy as np
from _engines import ENGINES, SimulatedEngine
from _queues import ENGINE_FILE, QUEUE_FILE, AnySystem, Law, System, Truth, miss_share

COUNT = 250
WITH_EDGES = 130
REQUESTS = 150_000


def sample(index: int) -> System:
    """A random system: an LLM-like batch engine in two cases of three, else k servers."""
    rng = np.random.default_rng((2026, index))
    target = math.exp(rng.uniform(math.log(0.03), math.log(300)))
    burst = float(rng.choice([1.0, 1.0, 1.0, 2.0]))
    if index % 3:
        system = System(
            f"batch-{index}",
            "batch",
            int(2 ** rng.integers(2, 10)),
            Law(str(rng.choice(["fixed", "uniform", "exponential", "lognormal"]))),
            burst=burst,
            batch_cost=math.exp(rng.uniform(math.log(0.3), math.log(8))),
            prompt_cost=math.exp(rng.uniform(math.log(0.001), math.log(0.03))),
        )
    else:
        system = System(
            f"servers-{index}", "servers", int(2 ** rng.integers(0, 6)), Law(str(rng.choice(list(Law)))), burst
        )
    tight = math.exp(rng.uniform(math.log(1.3), math.log(6)))
    system = dataclasses.replace(system, unit=system.bound / target)
    alone = system.run(0.01 * system.bound, 50_000, rng)
    slow = float(np.percentile(alone.ends - alone.arrivals, 99, method="inverted_cdf")) / system.unit
    return dataclasses.replace(system, limit=slow * tight)


def rate_at(system: AnySystem, share: float, seed: int, low: float, high: float, longest: int = REQUESTS) -> float:
    """The rate at which ``share`` misses, by bisection with the same random numbers at every rate.

    Bounds and steps are relative to the rate that the system cannot exceed. Short runs narrow it down first.
    """
    for requests, steps in ((longest // 8, 5), (longest, 5)):
        for _ in range(steps):
            middle = (low + high) / 2
            missed, _ = miss_share(system, middle * system.bound, requests, seed)
            low, high = (middle, high) if missed < share else (low, middle)
        if requests < longest:
            low, high = low - 2 * (high - low), high + 2 * (high - low)
    return (low + high) / 2 * system.bound


def solve_sample(index: int) -> Truth | None:
    """The truth about one random system."""
    return solve(sample(index), edges=index < WITH_EDGES)


def solve_engine(engine: SimulatedEngine) -> Truth | None:
    """The truth about one simulated engine."""
    return solve(engine, edges=True, longest=REQUESTS // 4)


def solve(system: AnySystem, *, edges: bool, longest: int = REQUESTS) -> Truth | None:
    """The truth about one system; None if it is of no interest (the limit is met nowhere or everywhere)."""
    found = []
    for seed in (11, 12):
        capacity = rate_at(system, 0.01, seed, 0.0, 1.2, longest)
        x = capacity / system.bound
        if not 0.05 < x < 1.0:
            return None
        at_edges = (math.nan, math.nan)
        if edges:
            at_edges = (
                rate_at(system, 0.005, seed, 0.5 * x, x, longest),
                rate_at(system, 0.02, seed, x, min(1.2, 2 * x), longest),
            )
        found.append((capacity, *at_edges, miss_share(system, capacity, longest, seed + 100)[1]))
    (c1, g1, b1, i1), (c2, g2, b2, i2) = found
    run = system.run((c1 + c2) / 2, longest // 4, np.random.default_rng(13))
    latency = run.ends - run.arrivals
    print(f"{system.name}: {(c1 + c2) / 2:.4g} req/s +- {abs(c1 - c2) / (c1 + c2):.2%}", file=sys.stderr, flush=True)
    return Truth(
        system=system,
        capacity=(c1 + c2) / 2,
        uncertainty=abs(c1 - c2) / (c1 + c2),
        good=(g1 + g2) / 2,
        bad=(b1 + b2) / 2,
        inflation=math.sqrt(i1 * i2),
        in_flight=float(latency.mean()) * (c1 + c2) / 2,
        median_latency=float(np.median(latency)),
    )


def main() -> None:
    """Solve all systems and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--engines", action="store_true", help="the simulated vLLM engines instead")
    options = parser.parse_args()
    with multiprocessing.Pool(2) as pool:
        if options.engines:
            solved = pool.imap(solve_engine, ENGINES, chunksize=1)
        else:
            solved = pool.imap(solve_sample, range(COUNT), chunksize=1)
        truths = [t for t in solved if t is not None]
    file = ENGINE_FILE if options.engines else QUEUE_FILE
    file.write_text(json.dumps([dataclasses.asdict(t) for t in truths], indent=1) + "\n")
    print(f"{len(truths)} systems", file=sys.stderr)


if __name__ == "__main__":
    main()
