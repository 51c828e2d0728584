"""``autotune doctor``: what is wrong on this machine and what to do."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from autotune.base.errors import ExitCode
from autotune.catalog import load_gpu
from autotune.cli._checks import Finding, Request, State, examine
from autotune.spec import EngineChoice

_COLOURS = {State.OK: typer.colors.GREEN, State.WARN: typer.colors.YELLOW, State.PROBLEM: typer.colors.RED}


def doctor(
    gpu: Annotated[
        str | None, typer.Option(help="Ask for this GPU, by its name in 'autotune gpus', or 'auto' for any.")
    ] = None,
    engine: Annotated[EngineChoice, typer.Option(help="Ask for this engine.")] = EngineChoice.AUTO,
    vllm_command: Annotated[str | None, typer.Option(help="How to start vLLM, where it is not on the PATH.")] = None,
    end_orphans: Annotated[
        bool, typer.Option("--end-orphans", help="End the engines that a killed autotune left behind.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Look at GPU, driver, vLLM, ports, disk and engines left behind, and say what to do.

    Exit code 0: usable for what was asked (without options: for the simulated engine); 4: a problem is in the way.

    Example: autotune doctor --gpu auto --engine vllm
    """
    request = Request(
        gpu=None if gpu in (None, "auto") else load_gpu(str(gpu)),
        wants_any_gpu=gpu == "auto",
        engine=engine,
        vllm_command=vllm_command,
        end_orphans=end_orphans,
    )
    findings = examine(request)
    usable = all(finding.state is not State.PROBLEM for finding in findings)
    if json_output:
        typer.echo(json.dumps({"usable": usable, "findings": [asdict(finding) for finding in findings]}, indent=1))
    else:
        for finding in findings:
            typer.echo(_line(finding))
    if not usable:
        raise typer.Exit(ExitCode.ENVIRONMENT)


def _line(finding: Finding) -> str:
    state = typer.style(f"{finding.state.value:<8}", fg=_COLOURS[finding.state])
    return f"{state}{finding.check}: {finding.text} {finding.remedy}".rstrip()
