"""Accuracy and cost of the capacity search, over systems whose capacity is known.

    python benchmarks/capacity_search.py [--quick] [--json]

Each system of ``engine_truth.json`` and ``queue_truth.json`` is searched once, from a guess that is wrong by a factor
of 1.65 (one standard deviation). The cost is told in fixed-size probes: one that decides with five percent errors on
that very system at its capacity, and lasts ten median latencies. Beside it: bisection with probes of a fixed number of
requests, as other tools do; a contender 15 % better than the incumbent, which must not be dropped; and a loser 25 %
worse.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from _engines import load_engine_truths
from _probing import objective, probe
from _queues import Truth, load_truths

from autotune.stats import CapacityEstimate, CapacitySearch, ProbeJudge, ProbeResult, SloTest
from autotune.stats.probe import LATENCIES_A_PROBE

GUESS_DEVIATION = 0.5
MOST_REQUESTS = 60_000
"""Of one probe: systems with thousands of requests at a time would take the benchmark too long."""


@dataclass(frozen=True, slots=True)
class Row:
    """One system."""

    system: str
    capacity: float
    fixed_size: float
    plain_size: float
    """The same for independent requests."""
    error: float
    """log(estimate / truth)."""
    probes: int
    requests: int
    covered: bool
    errors_by_probe: tuple[float, ...]
    bisection_error: float
    bisection_requests: int
    contender_dropped: bool
    contender_error: float
    loser_dropped: bool
    loser_requests: int
    loser_probes: int


def search(
    truth: Truth, seed: Sequence[int], incumbent: float | None = None
) -> tuple[CapacityEstimate, int, tuple[float, ...]]:
    """Run one search; the estimate, the requests sent and the error after each probe."""
    rng = np.random.default_rng(seed)
    slo = objective(truth.system)
    guess = truth.capacity * math.exp(rng.normal(0, GUESS_DEVIATION))
    found = CapacitySearch(slo, guess, uncertainty=2.0, incumbent=incumbent)
    sent = 0
    errors: list[float] = []
    while (plan := found.next()) is not None:
        done = probe(
            truth.system,
            plan.rate,
            ProbeJudge(slo, error=plan.error),
            rng,
            max_requests=min(plan.max_requests, MOST_REQUESTS),
            max_duration=plan.max_duration,
        )
        sent += done.sent
        found.tell(ProbeResult.of(plan, done.verdict))
        errors.append(math.log(found.estimate().rate / truth.capacity))
    return found.estimate(), sent, tuple(errors)


def bisect(truth: Truth, seed: Sequence[int], size: int) -> tuple[float, int]:
    """Double or halve until the verdict changes, then bisect to 5 %; a probe counts the misses of ``size`` requests."""
    rng = np.random.default_rng(seed)
    rate = truth.capacity * math.exp(rng.normal(0, GUESS_DEVIATION))
    low, high, sent = 0.0, math.inf, 0
    limit = truth.system.limit * truth.system.unit
    while not low or math.isinf(high) or high > 1.05 * low:
        run = truth.system.run(rate, size, rng)
        sent += size
        if float(np.mean(run.ends - run.arrivals > limit)) <= 0.01:
            low = rate
        else:
            high = rate
        rate = low * 2 if math.isinf(high) else high / 2 if not low else math.sqrt(low * high)
        if sent > 40 * size:
            break
    return math.log(math.sqrt(max(low, high / 2) * min(high, low * 2 or high)) / truth.capacity), sent


def examine(job: tuple[int, Truth]) -> Row:
    """All searches of one system."""
    index, truth = job
    plain = max(SloTest(0.01).fixed_size, LATENCIES_A_PROBE * truth.median_latency * truth.capacity)
    estimate, sent, errors = search(truth, (1, index))
    bisected, bisection_sent = bisect(truth, (2, index), SloTest(0.01).fixed_size)
    contender, _, _ = search(truth, (3, index), incumbent=truth.capacity / 1.15)
    loser, loser_sent, _ = search(truth, (4, index), incumbent=truth.capacity / 0.75)
    return Row(
        system=truth.system.name,
        capacity=truth.capacity,
        fixed_size=max(plain, SloTest(0.01).fixed_size * max(1.0, truth.inflation)),
        plain_size=plain,
        error=errors[-1],
        probes=estimate.probes,
        requests=sent,
        covered=estimate.low <= truth.capacity <= estimate.high,
        errors_by_probe=errors,
        bisection_error=bisected,
        bisection_requests=bisection_sent,
        contender_dropped=contender.dominated,
        contender_error=math.log(contender.rate / truth.capacity),
        loser_dropped=loser.dominated,
        loser_requests=loser_sent,
        loser_probes=loser.probes,
    )


def report(rows: list[Row], seconds: float, *, quick: bool) -> dict[str, object]:
    """Figures and goals."""
    slow = [r for r in rows if r.capacity < 1]

    def median(values: Sequence[float]) -> float:
        return float(np.median(np.asarray(values, dtype=np.float64)))

    def goal(name: str, value: float, bound: float) -> dict[str, object]:
        return {"name": name, "value": value, "goal": bound, "met": value <= bound}

    longest = max(len(r.errors_by_probe) for r in rows)
    return {
        "systems": len(rows),
        "seconds": round(seconds, 1),
        "median_requests": median([r.requests for r in rows]),
        "within_5_percent": float(np.mean([abs(r.error) < 0.05 for r in rows])),
        "within_10_percent": float(np.mean([abs(r.error) < 0.10 for r in rows])),
        "within_20_percent": float(np.mean([abs(r.error) < 0.20 for r in rows])),
        "median_bias": median([r.error for r in rows]),
        "interval_covers": float(np.mean([r.covered for r in rows])),
        "requests_over_fixed_probe_of_independent_requests": median([r.requests / r.plain_size for r in rows]),
        "error_after_probes": [
            median([abs(r.errors_by_probe[min(k, len(r.errors_by_probe) - 1)]) for r in rows]) for k in range(longest)
        ],
        "bisection": {
            "median_error": median([abs(r.bisection_error) for r in rows]),
            "median_requests": median([r.bisection_requests for r in rows]),
        },
        "contender_15_percent_better": {
            "dropped": float(np.mean([r.contender_dropped for r in rows])),
            "median_error": median([abs(r.contender_error) for r in rows]),
        },
        "loser_25_percent_worse": {
            "dropped": float(np.mean([r.loser_dropped for r in rows])),
            "median_requests": median([r.loser_requests for r in rows]),
            "median_probes": median([r.loser_probes for r in rows]),
        },
        "goals": [
            *([] if quick else [{"name": "systems", "value": len(rows), "goal": 200, "met": len(rows) >= 200}]),
            goal("error of the capacity, median", median([abs(r.error) for r in rows]), 0.05),
            goal("error of the capacity below 1 req/s, median", median([abs(r.error) for r in slow]), 0.05),
            goal("probes, median", median([r.probes for r in rows]), 6),
            goal(
                "requests over those of one fixed-size probe, median",
                median([r.requests / r.fixed_size for r in rows]),
                2.5,
            ),
            goal(
                "the same below 1 req/s",
                median([r.requests / r.fixed_size for r in slow]),
                2.5,
            ),
        ],
        "rows": [asdict(r) for r in rows],
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="every third system, less than a minute")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    started = time.monotonic()
    jobs = list(enumerate(load_engine_truths() + load_truths()))[:: 3 if options.quick else 1]
    rows: list[Row] = []
    with multiprocessing.Pool(2) as pool:
        for row in pool.imap(examine, jobs, chunksize=2):
            rows.append(row)
            print(
                f"{row.system:13} capacity {row.capacity:8.3g}  error {row.error:+6.1%}  probes {row.probes}  requests "
                f"{row.requests:6}  fixed-size probe {row.fixed_size:7.0f}",
                file=sys.stderr,
                flush=True,
            )
    result = report(rows, time.monotonic() - started, quick=options.quick)
    if options.json:
        print(json.dumps(result, indent=1))
        return
    for key, value in result.items():
        if key not in {"goals", "rows"}:
            print(f"{key}: {value}")
    for goal in result["goals"]:  # type: ignore[attr-defined]
        print(f"{'met' if goal['met'] else 'NOT MET':8} {goal['name']}: {goal['value']:.3g} (goal {goal['goal']})")


if __name__ == "__main__":
    main()
