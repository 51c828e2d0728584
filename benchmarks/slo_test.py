"""Error rates and cost of the sequential test of the objective, on queues whose truth is known.

    python benchmarks/slo_test.py [--quick] [--json]

Every system is loaded so that half a percent of its requests miss a P99 objective (failing it is wrong), so that two
percent miss (passing it is wrong), and clearly below and above its capacity. Probes start with an empty system and
are judged while they run, as in a trial. The fixed-size test to compare with has five percent errors on that very
system: `fixed_size.py` found its size by simulation, which in practice nobody can.
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
from _engines import SimulatedEngine
from _probing import objective, probe
from _queues import Truth
from fixed_size import ERROR, candidates, load_sizes, system_seed

from autotune.stats import ProbeJudge, Verdict
from autotune.stats.probe import LATENCIES_A_PROBE

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
    """Requests of the fixed-size test that has five percent errors on this system."""
    size_in_theory: float
    """The same if bursts were told by their variance: the binomial test's size times the inflation."""
    wrong_passes: float
    wrong_fails: float
    undecided: float
    ratio_at_edges: float
    """Requests over the fixed size."""
    ratio_at_edges_in_theory: float
    ratio_over_loads: float
    loads: list[Load]


def examine(job: tuple[Truth, int]) -> Row:
    """All loads of one system."""
    truth, repeats = job
    system = truth.system
    if isinstance(system, SimulatedEngine):
        repeats = min(repeats, ENGINE_REPEATS)
    judge = ProbeJudge(objective(system), error=ERROR)
    size = load_sizes()[system.name]
    settled = LATENCIES_A_PROBE * truth.median_latency * truth.capacity
    fixed, in_theory = max(size.simulated, settled), max(size.in_theory, settled)
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
            rng = np.random.default_rng((31, system_seed(truth), number, repeat))
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
    at_edges = float(np.mean([e.requests for e in loads[1:3]]))
    return Row(
        system=system.name,
        inflation=size.inflation,
        fixed_size=fixed,
        size_in_theory=in_theory,
        wrong_passes=loads[2].passed,
        wrong_fails=loads[1].failed,
        undecided=1 - float(np.mean([e.passed + e.failed for e in loads[1:3]])),
        ratio_at_edges=at_edges / fixed,
        ratio_at_edges_in_theory=at_edges / in_theory,
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
        "requests_at_edges_over_size_in_theory": float(np.median([r.ratio_at_edges_in_theory for r in rows])),
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
    sizes = load_sizes()
    truths = [t for t in candidates() if t.system.name in sizes]
    if options.quick:
        truths = [t for t in truths if not isinstance(t.system, SimulatedEngine)]
    repeats = QUICK_REPEATS if options.quick else REPEATS
    with multiprocessing.Pool(2) as pool:
        rows = []
        for row in pool.imap(examine, [(t, repeats) for t in truths]):
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
