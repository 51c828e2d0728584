"""Error rates and cost of the sequential test of the objective, on queues whose truth is known.

    python benchmarks/slo_test.py [--quick] [--json]

Every system is loaded so that half a percent of its requests miss a P99 objective (failing it is wrong), so that two
percent miss (passing it is wrong), and clearly below and above its capacity. Probes start with an empty system and
are judged while they run, as in a trial. The fixed-size test to compare with has five percent errors on that very
system: the binomial test's size times the variance inflation of its misses, which in practice nobody knows.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import time
from dataclasses import asdict, dataclass

import numpy as np
from _engines import SimulatedEngine, load_engine_truths
from _probing import objective, probe
from _queues import Truth, load_truths, miss_share

from autotune.stats import ProbeJudge, SloTest, Verdict
from autotune.stats.probe import LATENCIES_A_PROBE

ERROR = 0.05
LARGEST_INFLATION = 60.0
"""Beyond this even the fixed-size test takes more than 30,000 requests."""
LARGEST_ENGINE_INFLATION = 15.0
"""The same for simulated engines, whose steps are simulated one by one."""
REPEATS, ENGINE_REPEATS, QUICK_REPEATS = 60, 40, 8
LOOK_GROWTH = 1.12


@dataclass(frozen=True, slots=True)
class Load:
    """What the test did at one load of one system."""

    name: str
    rate: float
    passed: float
    failed: float
    requests: float


@dataclass(frozen=True, slots=True)
class Row:
    """One system."""

    system: str
    inflation: float
    fixed_size: float
    wrong_passes: float
    wrong_fails: float
    undecided: float
    ratio_at_edges: float
    ratio_over_loads: float
    loads: list[Load]


def examine(job: tuple[Truth, int]) -> Row | None:
    """All loads of one system; None where the truth at the edges is not known well enough."""
    truth, repeats = job
    system = truth.system
    if isinstance(system, SimulatedEngine):
        repeats = min(repeats, ENGINE_REPEATS)
    judge = ProbeJudge(objective(system), error=ERROR)
    long = 60_000 if isinstance(system, SimulatedEngine) else 200_000
    (good, below), (bad, above) = (miss_share(system, rate, long, 21) for rate in (truth.good, truth.bad))
    inflation = math.sqrt(below * above)
    slack = 1.4 if isinstance(system, SimulatedEngine) else 1.25
    known = all(share / slack <= seen <= share * slack for seen, share in ((good, 0.005), (bad, 0.02)))
    if not known or inflation > LARGEST_INFLATION:
        return None
    settled = LATENCIES_A_PROBE * truth.median_latency * truth.capacity
    fixed = max(SloTest(0.01, error=ERROR).fixed_size * inflation, settled)
    longest = math.ceil(3 * fixed)
    loads = []
    for number, (name, rate) in enumerate(
        (
            ("clear pass", 0.7 * truth.capacity),
            ("good", truth.good),
            ("bad", truth.bad),
            ("clear fail", 1.4 * truth.capacity),
        )
    ):
        decisions, requests = [], []
        for repeat in range(repeats):
            rng = np.random.default_rng((31, number, repeat))
            done = probe(system, rate, judge, rng, max_requests=longest, look_growth=LOOK_GROWTH)
            decisions.append(done.verdict.decision)
            requests.append(done.sent)
        loads.append(
            Load(
                name,
                rate,
                decisions.count(Verdict.PASS) / repeats,
                decisions.count(Verdict.FAIL) / repeats,
                float(np.mean(requests)),
            )
        )
    edges = loads[1:3]
    return Row(
        system=system.name,
        inflation=inflation,
        fixed_size=fixed,
        wrong_passes=loads[2].passed,
        wrong_fails=loads[1].failed,
        undecided=1 - float(np.mean([e.passed + e.failed for e in edges])),
        ratio_at_edges=float(np.mean([e.requests for e in edges])) / fixed,
        ratio_over_loads=float(np.mean([x.requests for x in loads])) / fixed,
        loads=loads,
    )


def report(rows: list[Row], seconds: float) -> dict[str, object]:
    """Figures and goals."""
    wrong_passes = float(np.mean([r.wrong_passes for r in rows]))
    wrong_fails = float(np.mean([r.wrong_fails for r in rows]))
    edges = float(np.median([r.ratio_at_edges for r in rows]))
    loads = float(np.median([r.ratio_over_loads for r in rows]))
    return {
        "systems": len(rows),
        "seconds": round(seconds, 1),
        "undecided_share": float(np.mean([r.undecided for r in rows])),
        "requests_over_fixed_size_by_load": {
            load.name: float(np.median([r.loads[i].requests / r.fixed_size for r in rows]))
            for i, load in enumerate(rows[0].loads)
        },
        "goals": [
            {
                "name": "wrong passes, mean over systems",
                "value": wrong_passes,
                "goal": ERROR,
                "met": wrong_passes <= ERROR,
            },
            {
                "name": "wrong fails, mean over systems",
                "value": wrong_fails,
                "goal": ERROR,
                "met": wrong_fails <= ERROR,
            },
            {
                "name": "requests over the fixed-size test's, four loads, median over systems",
                "value": loads,
                "goal": 0.6,
                "met": loads <= 0.6,
            },
            {
                "name": "requests over the fixed-size test's, at the edges only, median over systems",
                "value": edges,
                "goal": 0.6,
                "met": edges <= 0.6,
            },
        ],
        "rows": [asdict(r) for r in rows],
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--quick", action="store_true", help="few repeats and no engines, less than a minute; error rates are rough"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    started = time.monotonic()
    queues = [t for t in load_truths() if not math.isnan(t.good) and t.inflation <= LARGEST_INFLATION]
    engines = [t for t in load_engine_truths() if t.inflation <= LARGEST_ENGINE_INFLATION]
    truths, repeats = (queues, QUICK_REPEATS) if options.quick else (engines + queues, REPEATS)
    with multiprocessing.Pool(2) as pool:
        rows = []
        for row in pool.imap(examine, [(t, repeats) for t in truths]):
            if row is None:
                continue
            rows.append(row)
            print(
                f"{row.system:13} inflation {row.inflation:5.1f}  fixed {row.fixed_size:6.0f}  wrong passes "
                f"{row.wrong_passes:4.0%}  wrong fails {row.wrong_fails:4.0%}  undecided {row.undecided:4.0%}  "
                + "  ".join(f"{x.name} {x.requests:5.0f}" for x in row.loads),
                file=sys.stderr,
                flush=True,
            )
    result = report(rows, time.monotonic() - started)
    if options.json:
        print(json.dumps(result, indent=1))
        return
    for goal in result["goals"]:  # type: ignore[attr-defined]
        print(f"{'met' if goal['met'] else 'NOT MET':8} {goal['name']}: {goal['value']:.3g} (goal {goal['goal']})")


if __name__ == "__main__":
    main()
