"""How many requests the fixed-size test needs on each queue, by simulation; `slo_test.py` compares itself with that.

    python benchmarks/fixed_size.py    # about half an hour on 2 cores; writes fixed_size.json

The fixed-size test sends n requests into the empty system and passes it if at most c of them miss. Its size is the
smallest n at which some c fails a system with half a percent of misses, and passes one with two percent, in at most
five percent of the runs each. Both n and c are chosen with the truth at hand, on the very runs they are held against,
which nobody can do in practice: it is as good as a fixed-size test gets.

The size that theory gives, the binomial test's times the variance inflation of the misses, is too small on most queues:
bursts have more than a variance, and a few big ones spoil a run.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _engines import SimulatedEngine, load_engine_truths
from _queues import FloatArray, Truth, load_truths, miss_share
from numpy.typing import NDArray

from autotune.stats import SloTest

ERROR = 0.05
RUNS, ENGINE_RUNS = 300, 150
LARGEST_INFLATION = 60.0
"""Beyond this even the fixed-size test takes more than 30,000 requests."""
LARGEST_ENGINE_INFLATION = 15.0
"""The same for simulated engines, whose steps are simulated one by one."""
STEP = 1.04
SOUGHT = (1.6, 3.2, 6.4)
"""Sizes are sought up to the first times what theory gives, where none is found up to the second, and so on."""
FILE = Path(__file__).with_name("fixed_size.json")


@dataclass(frozen=True, slots=True)
class Size:
    """Requests of the fixed-size test with five percent errors on one system."""

    inflation: float
    """Variance of the share of misses relative to independent requests, geometric mean of both edges."""
    in_theory: float
    """The binomial test's size times the inflation."""
    simulated: int


def load_sizes() -> dict[str, Size]:
    """The sizes of ``fixed_size.json`` by the name of the system."""
    rows: dict[str, dict[str, Any]] = json.loads(FILE.read_text())
    return {name: Size(**row) for name, row in rows.items()}


def candidates() -> list[Truth]:
    """Systems whose edges can be told apart in runs of a bearable length."""
    engines = [t for t in load_engine_truths() if t.inflation <= LARGEST_ENGINE_INFLATION]
    return engines + [t for t in load_truths() if not math.isnan(t.good) and t.inflation <= LARGEST_INFLATION]


def system_seed(truth: Truth) -> int:
    """Random numbers of their own for each system, so that the errors of the systems do not move together."""
    return zlib.crc32(truth.system.name.encode())


def edge_inflation(truth: Truth) -> float | None:
    """Variance inflation of the misses (geometric mean of the edges); None where the edges are not known well."""
    engine = isinstance(truth.system, SimulatedEngine)
    (good, below), (bad, above) = (
        miss_share(truth.system, rate, 60_000 if engine else 200_000, 21) for rate in (truth.good, truth.bad)
    )
    slack = 1.4 if engine else 1.25
    known = all(share / slack <= seen <= share * slack for seen, share in ((good, 0.005), (bad, 0.02)))
    inflation = math.sqrt(below * above)
    return inflation if known and inflation <= LARGEST_INFLATION else None


def simulated_size(truth: Truth, longest: float) -> int | None:
    """The size of the test with both error rates; None if it is above ``longest``."""
    steps = math.floor(math.log(longest / 50) / math.log(STEP))
    sizes = np.unique(np.ceil(50 * STEP ** np.arange(steps + 1)).astype(np.int64))
    good, bad = (_misses(truth, rate, sizes, edge) for edge, rate in enumerate((truth.good, truth.bad)))
    errors = np.array([_least_error(np.sort(g), np.sort(b)) for g, b in zip(good.T, bad.T, strict=True)])
    # One lucky size among many is no size: its neighbours must do as well.
    smooth = np.array([np.median(errors[max(0, i - 3) : i + 4]) for i in range(len(errors))])
    enough = np.flatnonzero(smooth <= ERROR)
    return int(sizes[enough[0]]) if len(enough) else None


def _misses(truth: Truth, rate: float, sizes: NDArray[np.int64], edge: int) -> FloatArray:
    """Misses among the first requests of each run, shape (runs, sizes)."""
    runs = ENGINE_RUNS if isinstance(truth.system, SimulatedEngine) else RUNS
    counts = np.empty((runs, len(sizes)))
    limit = truth.system.limit * truth.system.unit
    for number in range(runs):
        run = truth.system.run(rate, int(sizes[-1]), np.random.default_rng((41, system_seed(truth), edge, number)))
        counts[number] = np.cumsum(run.ends - run.arrivals > limit)[sizes - 1]
    return counts


def _least_error(good: FloatArray, bad: FloatArray) -> float:
    """The larger of both error rates at the number of misses that makes it smallest; sorted counts."""
    most = np.unique(np.concatenate((good, bad)))
    wrong_fails = 1 - np.searchsorted(good, most, side="right") / len(good)
    wrong_passes = np.searchsorted(bad, most, side="right") / len(bad)
    return float(np.maximum(wrong_fails, wrong_passes).min())


def solve(truth: Truth) -> tuple[str, Size] | None:
    """Name and size of one system; None if it cannot be known."""
    inflation = edge_inflation(truth)
    if inflation is None:
        return None
    theory = SloTest(0.01, error=ERROR).fixed_size * inflation
    size = next((n for reach in SOUGHT if (n := simulated_size(truth, reach * theory)) is not None), None)
    if size is None:
        return None
    print(f"{truth.system.name:13} in theory {theory:6.0f}  simulated {size:6}", file=sys.stderr, flush=True)
    return truth.system.name, Size(inflation, theory, size)


def main() -> None:
    """Size all systems and write the file."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None).parse_args()
    with multiprocessing.Pool(2) as pool:
        solved = [row for row in pool.imap(solve, candidates()) if row is not None]
    FILE.write_text(json.dumps({name: asdict(size) for name, size in solved}, indent=1) + "\n")
    ratio = np.median([size.simulated / size.in_theory for _, size in solved])
    print(f"{len(solved)} systems; simulated over theory, median: {ratio:.2f}", file=sys.stderr)


if __name__ == "__main__":
    main()
