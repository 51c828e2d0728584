"""``autotune report``: a study as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli._study_folder import read_study
from autotune.report import write_report


def report(
    study: Annotated[str, typer.Argument(help="Name of a study under studies/, or the path of its folder.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write. [default: report.html in the study's folder]")
    ] = None,
) -> None:
    """Write one self-contained HTML file: verdict, winner, trials, curves, failures. It works offline.

    Example: autotune report t4-qwen3-4b --output report.html
    """
    folder, document = read_study(study)
    typer.echo(write_report(document, output or folder / "report.html"))
