"""``autotune export``: the winner as a file that other tools take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.base.errors import EnvironmentProblemError
from autotune.base.files import write_atomically
from autotune.cli._study_folder import read_study
from autotune.cli.console import remark
from autotune.export import FORMATS, Configuration, ExportOptions, configuration_of

_FORMATS_HELP = "; ".join(f"{name}: {FORMATS.get(name).summary}" for name in FORMATS.names())


def export(
    study: Annotated[str, typer.Argument(help="Name of a study under studies/, or the path of its folder.")],
    format_name: Annotated[str, typer.Option("--format", "-f", help=f"{_FORMATS_HELP}.")] = "vllm",
    trial: Annotated[int | None, typer.Option(help="Export this trial rather than the best.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write. [default: stdout]")] = None,
    image: Annotated[
        str | None, typer.Option(help="Container image. [default: vllm/vllm-openai of the measured release]")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the service, for compose and k8s.")] = 8000,
) -> None:
    """Write the best configuration of a study for vLLM, Docker Compose, Kubernetes or a shell.

    Where it comes from and what was measured stand in comments; secrets are never written.

    Example: autotune export t4-qwen3-4b --format compose --output compose.yaml
    """
    export_format = FORMATS.get(format_name)
    _, document = read_study(study)
    configuration = configuration_of(document, trial)
    text = export_format.render(configuration, ExportOptions(image=image, port=port))
    if configuration.provenance.simulated:
        remark("SIMULATED: the figures in it come from the simulated engine, not from a GPU.", style="yellow")
    if output is None:
        typer.echo(text, nl=False)
        return
    _write(output, text)
    remark(f"Wrote {output}.")
    if export_format.name == "vllm" and configuration.environment:
        _write_environment(output.with_suffix(".env"), configuration)


def _write_environment(path: Path, configuration: Configuration) -> None:
    _write(path, FORMATS.get("env").render(configuration, ExportOptions()))
    remark(f"Wrote {path}: set these variables before starting the engine.")


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, text)
    except OSError as error:
        raise EnvironmentProblemError(
            f"{path}: cannot be written ({error.strerror or error}).", "Choose another file with --output."
        ) from error
