"""``autotune verify``: measure an exported configuration again, a gate for CI after an upgrade."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from autotune.base.errors import ExitCode, UsageError
from autotune.cli.console import print_json
from autotune.cli.progress import make_display
from autotune.export import read_best
from autotune.search import SearchOptions, prepare_study
from autotune.search.verify import claimed_level, verify_claim
from autotune.spec import EngineChoice, StudySpec
from autotune.spec.study import validated


def verify(
    file: Annotated[Path, typer.Argument(help="A best.yaml that a search left or 'autotune export' wrote.")],
    engine: Annotated[EngineChoice | None, typer.Option(help="Which engine. [default: as in the study]")] = None,
    vllm_command: Annotated[str | None, typer.Option(help="How to start vLLM, e.g. /env/bin/vllm.")] = None,
    time_scale: Annotated[float | None, typer.Option(min=0.01, help="Speed of the simulated engine's clock.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Measure a configuration again and say whether its claim still holds: exit 0, or 1 when it does not.

    Example: autotune verify studies/t4-qwen3-4b-chat/best.yaml
    """
    best = read_best(file)
    if best.provenance is None:
        raise UsageError(f"{file}: it does not say what was claimed.", "Export it again: autotune export STUDY.")
    spec = validated(StudySpec, best.provenance.definition)
    level = claimed_level(spec.load, best.provenance.capacity_rps)
    if level is None:
        raise UsageError(f"{file}: no capacity was claimed.", "Verify the best.yaml of a finished study.")
    if engine is not None:
        spec = spec.model_copy(update={"engine": engine})
    elif best.provenance.simulated:
        spec = spec.model_copy(update={"engine": EngineChoice.SIMULATED})
    prepared = prepare_study(spec, SearchOptions(vllm_command=vllm_command, time_scale=time_scale))
    simulated = " on the SIMULATED engine" if prepared.context.engine.kind.value == "simulated" else ""
    headline = f"Verifying {file}{simulated}: {spec.slo} at {level}."
    with tempfile.TemporaryDirectory(prefix="autotune-verify-") as folder, make_display(headline) as display:
        display.announce()
        found = verify_claim(prepared, best.arguments, level, Path(folder), display)
    if json_output:
        print_json(
            {
                "holds": found.holds,
                "text": found.text,
                "engine": {"kind": prepared.context.engine.kind.value, "version": prepared.context.engine.version},
                "trial": found.trial.model_dump(mode="json"),
            }
        )
    else:
        typer.echo(f"{'Holds' if found.holds else 'Does not hold'}{simulated}. {found.text}")
    if not found.holds:
        raise typer.Exit(ExitCode.CHECK_FAILED)
