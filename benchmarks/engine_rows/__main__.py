"""Command line: ``python -m benchmarks.engine_rows PLAN --out FOLDER``."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from autotune.base.errors import AutotuneError

from . import __doc__ as description
from .plan import read_plan
from .run import Run


def main() -> None:
    """Run a plan."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine_rows",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for rows.csv, details.json and a folder per engine"
    )
    parser.add_argument("--deadline-s", type=float, default=1e9, help="skip loads that would end later than this")
    arguments = parser.parse_args()
    try:
        plan = read_plan(arguments.plan)
    except AutotuneError as error:
        parser.exit(error.exit_code, f"{error}\n")
    # As an exception, so that the engines are ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    Run(plan, arguments.out, arguments.deadline_s).run()


if __name__ == "__main__":
    main()
