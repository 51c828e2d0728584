"""Compares ways to search for the best engine arguments, in virtual time, on systems whose optimum is known.

    python benchmarks/search.py [--seeds 2] [--systems t4-chat,l4-rag] [--policies ours,random] [--json]

Every policy meets the same simulated engines (whose physics differ from what the planner knows, and whose speed varies
from start to start) and is charged with the engine seconds of its starts, warm-ups and measurements. The optimum of
each system comes from ``benchmarks/search_optima.py``.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

sys.path.insert(0, __file__.rsplit("/", 1)[0])
from _search_policies import TRIALS, Point, Trace, auto_tune_sh, bisection, fixed_load_tpe, study, usual_concurrency
from _search_systems import SYSTEMS, Optimum, System, read_optima

from autotune.search.planning import PREDICTED_CONFIGURATIONS, PREDICTED_PROPOSALS, PlanRequest, leaders
from autotune.space import build_space
from autotune.spec import Arguments, SamplerChoice

GOOD = 0.98
MARKS = (10, 20, 30)
OURS = "ours"
OURS_TRIALS = 12
"""Proposals of our study: what it costs to be near the optimum with little hope of more."""
AA_TRIALS = 4
AA_SEEDS = 3
AA_SYSTEMS = ("rtx4090-chat", "a100-rag", "l40s-batch", "h200-chat")
AA_SPACE: dict[str, object] = {
    "gpu-memory-utilization": [0.9, 0.91, 0.92],
    "watermark": [0.0, 0.01],
    "max-num-seqs": None, "max-num-batched-tokens": None, "stream-interval": None, "async-scheduling": None,
    "api-server-count": None,
}  # fmt: skip
"""Arguments that decide nothing where memory is plenty: every configuration is the default."""


class Truth:
    """True capacities of one system, each found once."""

    def __init__(self, system: System, optimum: Optimum) -> None:
        self.system = system
        self.optimum = optimum
        self._known: dict[str, float] = {}
        self._long: dict[str, float] = {}

    def rate(self, arguments: Arguments | None) -> float:
        """The capacity of what a policy recommends, from the run that ranks; nothing for no recommendation."""
        return self._of(arguments, self._known, self.system.capacity)

    def long_rate(self, arguments: Arguments | None) -> float:
        """The same to about one percent."""
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

    def quality(self, point: Point | None) -> float:
        """Share of the optimum's capacity."""
        return 0.0 if point is None else min(1.0, self.rate(point.arguments) / self.optimum.rate)


def time_to(trace: Trace, truth: Truth, wanted: float) -> float:
    """Engine seconds after which every recommendation is at least this good; infinite if the last is not."""
    reached = math.inf
    for point in reversed(trace.points):
        if truth.quality(point) < wanted:
            break
        reached = point.gpu_s
    return reached


def quality_at(trace: Trace, truth: Truth, launches: int) -> float:
    """Quality of the recommendation after so many launches."""
    before = [point for point in trace.points if point.launches <= launches]
    return truth.quality(before[-1]) if before else 0.0


def policies(system: System, optimum: Optimum, first: Sequence[Arguments]) -> dict[str, Callable[[int], Trace]]:
    """Every way to search."""
    rate = optimum.default_rate or optimum.rate / 2
    return {
        OURS: lambda seed: study(system, seed, first=first, trials=OURS_TRIALS),
        "ours, random": lambda seed: study(system, seed, first=first, sampler=SamplerChoice.RANDOM, trials=OURS_TRIALS),
        "tpe without plan": lambda seed: study(system, seed, sampler=SamplerChoice.TPE),
        "random": lambda seed: study(system, seed, sampler=SamplerChoice.RANDOM),
        "auto_tune.sh": lambda seed: auto_tune_sh(system, seed),
        "fixed-load TPE": lambda seed: fixed_load_tpe(
            system, seed, usual_concurrency(system, rate), int(1500 * optimum.rate) + 400
        ),
        "bisection": lambda seed: bisection(system, seed, 2 * rate),
    }


def run_system(job: tuple[System, int, tuple[str, ...]]) -> dict[str, Any]:
    """All policies on one system with one seed."""
    system, seed, chosen = job
    optimum = read_optima()[system.name]
    truth = Truth(system, optimum)
    request = PlanRequest(
        system.planned_gpu, system.model, system.workload, system.slo, configurations=PREDICTED_CONFIGURATIONS
    )
    first = leaders(request, system.space, PREDICTED_PROPOSALS)
    traces = {}
    found: dict[str, Any] = {}
    for name, policy in policies(system, optimum, first).items():
        if name not in chosen:
            continue
        started = time.process_time()
        trace = traces[name] = policy(seed)
        true_rate = truth.long_rate(trace.final.arguments) if trace.final is not None else 0.0
        found[name] = {
            "quality": truth.quality(trace.final),
            "quality_at": {str(mark): quality_at(trace, truth, mark) for mark in MARKS if mark <= TRIALS},
            "gpu_s_to_good": time_to(trace, truth, GOOD),
            "search_s": trace.search_s,
            "total_s": trace.total_s,
            "launches": trace.launches,
            "failures": trace.failures,
            "error": trace.final.reported / true_rate - 1 if true_rate and trace.final is not None else None,
            "arguments": dict(trace.final.arguments or {}) if trace.final is not None else None,
            "tuned": trace.tuned,
            "cpu_s": time.process_time() - started,
        }
    if OURS in traces:
        for name, trace in traces.items():
            if name != OURS and found[name]["quality"] > 0:
                wanted = min(GOOD, max(truth.quality(p) for p in trace.points[-1:]) if trace.points else 0.0)
                theirs = time_to(trace, truth, wanted)
                found[name]["time_ratio"] = time_to(traces[OURS], truth, wanted) / theirs if theirs else None
    print(f"{system.name}, seed {seed}:", *map(_in_short, found.items()), sep="\n  ", file=sys.stderr, flush=True)
    return {"system": system.name, "seed": seed, "default_quality": optimum.default_rate / optimum.rate,
            "policies": found}  # fmt: skip


def _in_short(entry: tuple[str, dict[str, Any]]) -> str:
    name, row = entry
    ratio = "" if row.get("time_ratio") is None else f", our time over its {row['time_ratio']:.2f}"
    error = "" if row["error"] is None else f", figure off by {row['error']:+.1%}"
    return (
        f"{name}: quality {row['quality']:.3f}, {row['gpu_s_to_good'] / 3600:.2f} GPU h to 98 %, "
        f"{row['total_s'] / 3600:.2f} in all, {row['failures']} failed{error}{ratio}; {row['cpu_s']:.0f} s of CPU"
    )


def run_aa(job: tuple[System, int]) -> bool:
    """A study of configurations that are all the default; True when it claims a gain."""
    system, seed = job
    space = build_space(system.planned_gpu, system.model, system.workload, overrides=AA_SPACE)
    return study(system, 1000 + seed, space=space, sampler=SamplerChoice.RANDOM, trials=AA_TRIALS).tuned


def median(values: Iterable[float | None]) -> float | None:
    """Median of what is known; infinite where most never got there."""
    known = [value for value in values if value is not None and not math.isnan(value)]
    return statistics.median(known) if known else None


def summarise(runs: Sequence[dict[str, Any]], wrong: Sequence[bool]) -> dict[str, Any]:
    """Medians over systems and seeds, and the goals."""
    names = list(dict.fromkeys(name for run in runs for name in run["policies"]))
    table = {}
    for name in names:
        rows = [run["policies"][name] for run in runs if name in run["policies"]]
        table[name] = {
            "quality": median(row["quality"] for row in rows),
            "worst_quality": min(row["quality"] for row in rows),
            **{f"quality_at_{mark}": median(row["quality_at"].get(str(mark)) for row in rows) for mark in MARKS},
            "gpu_h_to_good": median(row["gpu_s_to_good"] / 3600 for row in rows),
            "reached_good": sum(math.isfinite(row["gpu_s_to_good"]) for row in rows) / len(rows),
            "search_h": median(row["search_s"] / 3600 for row in rows),
            "total_h": median(row["total_s"] / 3600 for row in rows),
            "launches": median(row["launches"] for row in rows),
            "failures": statistics.fmean(row["failures"] for row in rows),
            "found_nothing": sum(row["quality"] == 0 for row in rows) / len(rows),
            "error": median(None if row["error"] is None else abs(row["error"]) for row in rows),
            "our_time_over_theirs": median(row.get("time_ratio") for row in rows),
        }
    return {"table": table, "goals": goals(table, wrong)}


def goals(table: dict[str, dict[str, Any]], wrong: Sequence[bool]) -> list[dict[str, Any]]:
    """What the search is held to."""
    found = []

    def goal(name: str, value: float | None, most: float | None = None, least: float | None = None) -> None:
        if value is None:
            return
        met = value <= most if most is not None else value >= (least or 0.0)
        limit = f"<= {most:g}" if most is not None else f">= {least:g}"
        found.append({"name": name, "value": None if math.isinf(value) else round(value, 4), "goal": limit, "met": met})

    ours = table.get(OURS, {})
    goal("quality of the confirmed winner (median)", ours.get("quality"), least=0.98)
    for rival, most in (("auto_tune.sh", 0.25), ("fixed-load TPE", 1 / 3), ("random", 0.5)):
        goal(f"GPU time over {rival}'s for the same quality (median)",
             table.get(rival, {}).get("our_time_over_theirs"), most=most)  # fmt: skip
    goal("error of the reported capacity (median)", ours.get("error"), most=0.03)
    if wrong:
        goal("wrong verdicts on A/A systems", sum(wrong) / len(wrong), most=0.05)
    return found


_COLUMNS = (
    ("quality", "final quality", "{:.3f}"), ("quality_at_10", "after 10", "{:.3f}"),
    ("quality_at_20", "after 20", "{:.3f}"), ("quality_at_30", "after 30", "{:.3f}"),
    ("found_nothing", "found nothing", "{:.0%}"), ("gpu_h_to_good", "GPU h to 98 %", "{:.2f}"),
    ("reached_good", "reached", "{:.0%}"),
    ("total_h", "GPU h in all", "{:.2f}"), ("failures", "failed launches", "{:.1f}"),
    ("error", "error of figure", "{:.1%}"), ("our_time_over_theirs", "our time / theirs", "{:.2f}"),
)  # fmt: skip


def show(summary: dict[str, Any]) -> None:
    """A markdown table, and the goals."""
    print("| policy | " + " | ".join(title for _, title, _ in _COLUMNS) + " |")
    print("| --- |" + " ---: |" * len(_COLUMNS))
    for name, row in summary["table"].items():
        cells = (
            "–" if row[key] is None or math.isinf(row[key]) else form.format(row[key]) for key, _, form in _COLUMNS
        )
        print(f"| {name} | " + " | ".join(cells) + " |")
    for goal in summary["goals"]:
        print(f"{'met' if goal['met'] else 'MISSED'}: {goal['name']}: {goal['value']} ({goal['goal']})")


def _finite(value: Any) -> Any:
    """JSON has no infinity: what was never reached is null."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="runs of each policy on each system")
    parser.add_argument("--systems", default="", help="names, separated by commas; all by default")
    parser.add_argument("--policies", default="", help="names, separated by commas; all by default")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    known = read_optima()
    wanted = set(filter(None, options.systems.split(","))) or {system.name for system in SYSTEMS}
    systems = [system for system in SYSTEMS if system.name in wanted and system.name in known]
    missing = sorted(wanted - known.keys())
    if missing:
        print(
            f"No optimum is stored for {', '.join(missing)}: left out. Run benchmarks/search_optima.py.",
            file=sys.stderr,
        )
    chosen = tuple(filter(None, options.policies.split(","))) or (
        OURS, "ours, random", "tpe without plan", "random", "auto_tune.sh", "fixed-load TPE", "bisection",
    )  # fmt: skip
    started = time.monotonic()
    jobs = [(system, seed, chosen) for seed in range(options.seeds) for system in systems]
    trials = [
        (system, seed) for seed in range(AA_SEEDS * options.seeds) for system in systems if system.name in AA_SYSTEMS
    ]
    with ProcessPoolExecutor(options.workers, max_tasks_per_child=None) as pool:
        runs = list(pool.map(run_system, jobs))
        wrong = list(pool.map(run_aa, trials)) if OURS in chosen else []
    summary = summarise(runs, wrong)
    if options.json:
        print(json.dumps(_finite({**summary, "runs": runs, "aa": {"studies": len(wrong), "claimed": sum(wrong)},
                                  "seconds": time.monotonic() - started}), indent=1))  # fmt: skip
    else:
        show(summary)


if __name__ == "__main__":
    main()
