"""``autotune diagnose``: why an engine failed, from its log."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from autotune.base.errors import UsageError
from autotune.engine.diagnosis import Evidence
from autotune.engine.diagnosis import diagnose as find_cause
from autotune.engine.failure import Cause

_MOST_BYTES = 16 * 2**20
"""Of a larger log the first and the last half of this are read: causes stand at one of its ends."""


def diagnose(
    log: Annotated[str, typer.Argument(metavar="LOG", help="The engine's log; - reads standard input.")],
    exit_code: Annotated[
        int | None,
        typer.Option(help="How the process ended: a code, -9 or 137 for SIGKILL; leave it out while it lives."),
    ] = None,
    was_ready: Annotated[bool, typer.Option("--was-ready/--not-ready", help="It had answered before.")] = False,
    stop_requested: Annotated[
        bool, typer.Option("--stop-requested/--not-asked-to-stop", help="It was asked to stop.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Say why an engine failed: cause, phase, the deciding line, and what to do.

    Example: autotune diagnose studies/t4-qwen3-4b/trials/0003/engine.log --exit-code 1
    """
    evidence = Evidence(exit_code=exit_code, was_ready=was_ready, stop_requested=stop_requested)
    text = _read(log)
    failure = find_cause(text, evidence)
    if json_output:
        document = {
            "cause": failure.cause.value,
            "phase": failure.phase.value,
            "line": failure.line,
            "advice": failure.advice,
            "kind": failure.kind.value,
            "environment": failure.environment,
        }
        typer.echo(json.dumps(document, indent=1))
        return
    if failure.cause is Cause.NONE:
        empty = "the log is empty; tell how the engine ended with --exit-code."
        typer.echo(f"none: {'the log shows no failure.' if text.strip() else empty}")
        return
    typer.echo(f"cause   {failure.cause.value} ({_MEANING[failure.kind.value]})")
    typer.echo(f"phase   {failure.phase.value}")
    typer.echo(f"line    {failure.line}")
    typer.echo(f"advice  {failure.advice}")


_MEANING = {
    "infeasible": "this configuration cannot run here",
    "fault": "not the configuration's doing",
    "none": "no failure",
}


def _read(name: str) -> str:
    if name == "-":
        return sys.stdin.read()
    path = Path(name)
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if size <= _MOST_BYTES:
                return file.read().decode("utf-8", "replace")
            head = file.read(_MOST_BYTES // 2)
            file.seek(size - _MOST_BYTES // 2)
            return (head + b"\n" + file.read()).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror or error}.", "Give the path of an engine's log.") from error
