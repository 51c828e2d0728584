"""Compares ways to search for the best engine arguments, in virtual time, on systems whose optimum is known.

    python benchmarks/search.py [--seeds 2] [--systems t4-chat,l4-rag] [--policies ours,random] [--json]
    python benchmarks/search.py --seeds 10 --workers 16 --out runs.jsonl      # goes on where it was stopped
    python benchmarks/search.py --table runs.jsonl [more.jsonl]               # the documentation's table

Every policy meets the same simulated engines (whose physics differ from what the planner knows, and whose speed varies
from start to start) and is charged with the engine seconds of its starts, warm-ups and measurements. The optimum of
each system comes from ``benchmarks/search_optima.py``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

sys.path.insert(0, __file__.rsplit("/", 1)[0])
from _search_runs import AA, AA_SEEDS, AA_SYSTEMS, OURS, POLICIES, Job, Row, run_job
from _search_systems import SYSTEMS, read_optima
from _search_table import in_short, markdown, summarise


def jobs_of(systems: Sequence[str], seeds: Sequence[int], policies: Sequence[str]) -> list[Job]:
    """Every run that is asked for; the A/A studies belong to ours."""
    found = [Job(system, seed, policy) for seed in seeds for system in systems for policy in policies]
    if OURS in policies:
        for seed in seeds:
            studies = range(AA_SEEDS * seed, AA_SEEDS * (seed + 1))
            found += [Job(system, study, AA) for study in studies for system in systems if system in AA_SYSTEMS]
    return found


def read_rows(files: Iterable[Path]) -> list[Row]:
    """Finished runs; of one that is there twice the last. A line that was cut off by a kill is left out."""
    rows: dict[tuple[str, int, str], Row] = {}
    for file in files:
        for line in file.read_text().splitlines():
            try:
                row: Row = json.loads(line)
            except json.JSONDecodeError:
                continue
            rows[Job(row["system"], row["seed"], row["policy"]).key] = row
    return list(rows.values())


def run(jobs: Sequence[Job], workers: int, out: Path | None) -> list[Row]:
    """Run what is not in the file yet, and write each finished run into it."""
    rows = read_rows([out]) if out is not None and out.exists() else []
    known = {Job(row["system"], row["seed"], row["policy"]).key for row in rows}
    wanted = {job.key for job in jobs}
    rows = [row for row in rows if (row["system"], row["seed"], row["policy"]) in wanted]
    with ProcessPoolExecutor(workers) as pool:
        waiting = [pool.submit(run_job, job) for job in jobs if job.key not in known]
        for done in as_completed(waiting):
            row = done.result()
            rows.append(row)
            print(in_short(row), file=sys.stderr, flush=True)
            if out is not None:
                with out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    return rows


def _finite(value: Any) -> Any:
    """JSON has no infinity: what was never reached is null."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _names(text: str, known: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    chosen = [name.strip() for name in text.split(";" if ";" in text else ",") if name.strip()]
    # Names of policies may hold a comma: "ours, random" given alone is one name.
    chosen = [text] if text in known else chosen
    unknown = [name for name in chosen if name not in known]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}. Known, separated by ';' or ',': {'; '.join(known)}")
    return chosen or list(known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="runs of each policy on each system")
    parser.add_argument("--first-seed", type=int, default=0, help="number of the first of them")
    parser.add_argument("--systems", default="", help="names, separated by commas; all by default")
    parser.add_argument("--policies", default="", help="names, separated by semicolons; all by default")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, help="file that gets each finished run; what is in it is not run again")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="only print the table of such files")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    started = time.monotonic()
    if options.table:
        rows = read_rows(options.table)
    else:
        known = read_optima()
        wanted = _names(options.systems, [system.name for system in SYSTEMS], parser)
        missing = [name for name in wanted if name not in known]
        if missing:
            print(f"No optimum is stored for {', '.join(missing)}: left out. Run benchmarks/search_optima.py.",
                  file=sys.stderr)  # fmt: skip
        systems = [name for name in wanted if name in known]
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        jobs = jobs_of(systems, seeds, _names(options.policies, POLICIES, parser))
        rows = run(jobs, options.workers, options.out)
    if options.json:
        print(json.dumps(_finite({**summarise(rows), "runs": rows, "seconds": time.monotonic() - started}), indent=1))
    else:
        print(markdown(rows))


if __name__ == "__main__":
    main()
