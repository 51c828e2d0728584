"""``autotune gpus``, ``models`` and ``spaces``: what the catalogue knows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from autotune.catalog import (
    DEFAULT_WORKLOAD,
    Gpu,
    ModelShape,
    list_gpus,
    list_models,
    load_gpu,
    load_model,
    load_workload,
)
from autotune.cli._check_file import check_file
from autotune.cli.console import Column, print_json, say, show_table
from autotune.report import figures
from autotune.space import SearchSpace, build_space

_GIB = 2**30
_KIB = 2**10
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
_ANY_MODEL = "qwen3-4b"


def gpus(
    name: Annotated[str | None, typer.Argument(help="Show one GPU; all without it.")] = None, as_json: AsJson = False
) -> None:
    """List the GPUs of the catalogue, as --gpu takes them, with the facts that predictions follow from.

    Example: autotune gpus t4 --json
    """
    found = [load_gpu(name)] if name is not None else list_gpus()
    if as_json:
        print_json({"gpus": [gpu.model_dump(mode="json") for gpu in found]})
        return
    show_table(_GPU_COLUMNS, [_gpu_row(gpu) for gpu in found])


_GPU_COLUMNS = (
    Column("name"),
    Column("GPU", flexible=True),
    Column("memory, GiB", numeric=True),
    Column("bandwidth, GB/s", numeric=True),
    Column("16-bit, TFLOP/s", numeric=True),
    Column("FP8, TFLOP/s", numeric=True, drop=3),
    Column("compute capability", numeric=True, drop=1),
    Column("power, W", numeric=True, drop=2),
    Column("USD/h", numeric=True, drop=4),
)


def _gpu_row(gpu: Gpu) -> list[str]:
    capability = ".".join(str(part) for part in gpu.compute_capability) if gpu.kind == "cuda" else figures.MISSING
    price = figures.MISSING if gpu.price_per_hour is None else f"{gpu.price_per_hour:.2f}"
    return [
        gpu.name,
        gpu.title,
        f"{gpu.memory_gib:.1f}",
        figures.number(gpu.memory_bandwidth_gbs),
        figures.number(gpu.tflops.get("bf16") or gpu.tflops.get("fp16")),
        figures.number(gpu.tflops.get("fp8")),
        capability,
        f"{gpu.power_w:.0f}",
        price,
    ]


def models(
    name: Annotated[
        str | None, typer.Argument(help="Show one model: an alias, a Hugging Face id, or a folder with config.json.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the models of the catalogue, as --model takes them; any Hugging Face id or folder works as well.

    Example: autotune models qwen3-4b --json
    """
    found = [load_model(name)] if name is not None else list_models()
    if as_json:
        print_json({"models": [_model_facts(model) for model in found]})
        return
    show_table(_MODEL_COLUMNS, [_model_row(model) for model in found])


_MODEL_COLUMNS = (
    Column("alias"),
    Column("repository or folder", flexible=True, drop=1),
    Column("parameters, B", numeric=True),
    Column("weights, GiB", numeric=True),
    Column("KV cache, KiB/token", numeric=True),
    Column("context, tokens", numeric=True),
    Column("dtype", drop=2),
)


def _model_row(model: ModelShape) -> list[str]:
    dtype = model.dtype if model.quantization is None else f"{model.dtype}, {model.quantization.method}"
    return [
        model.alias,
        model.repository,
        f"{model.parameters / 1e9:.2f}",
        f"{model.weight_bytes() / _GIB:.2f}",
        figures.number(model.kv_bytes_per_token() / _KIB),
        f"{model.context_length:,}",
        dtype,
    ]


def _model_facts(model: ModelShape) -> dict[str, Any]:
    return {
        **model.model_dump(mode="json"),
        "parameters": model.parameters,
        "weight_bytes": model.weight_bytes(),
        "kv_bytes_per_token": model.kv_bytes_per_token(),
    }


spaces_app = typer.Typer(
    help="Show search spaces, and check study and space files.\n\nExample: autotune spaces check studies/mine.yaml",
    invoke_without_command=True,
)


@spaces_app.callback()
def spaces(context: typer.Context, as_json: AsJson = False) -> None:
    """List what varies on each GPU; 'spaces show' has one in full, 'spaces check' validates a file.

    Example: autotune spaces
    """
    if context.invoked_subcommand is not None:
        return
    model, workload = load_model(_ANY_MODEL), load_workload(DEFAULT_WORKLOAD)
    found = [(gpu, build_space(gpu, model, workload)) for gpu in list_gpus()]
    if as_json:
        print_json({"spaces": [{**space.describe(), "size": space.size()} for _, space in found]})
        return
    rows = [
        (gpu.name, ", ".join(parameter.name for parameter in space.parameters), _size(space)) for gpu, space in found
    ]
    show_table(
        (Column("GPU"), Column("engine arguments that vary", flexible=True), Column("configurations", numeric=True)),
        rows,
    )


@spaces_app.command("show")
def show_space(
    gpu: Annotated[str, typer.Argument(help="GPU by its name in 'autotune gpus'.")],
    model: Annotated[str, typer.Option(help="Model by its alias, id or folder.")] = _ANY_MODEL,
    workload: Annotated[str, typer.Option(help="Named workload.")] = DEFAULT_WORKLOAD,
    allow_lossy: Annotated[bool, typer.Option(help="Also what changes the model's output.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the search space of a GPU, a model and a workload: ranges, defaults, what is fixed.

    Example: autotune spaces show t4 --model qwen3-4b
    """
    space = build_space(load_gpu(gpu), load_model(model), load_workload(workload), allow_lossy=allow_lossy)
    if as_json:
        print_json({**space.describe(), "size": space.size()})
        return
    columns = (Column("engine argument"), Column("values", flexible=True), Column("unset means", numeric=True))
    rows = [
        (
            parameter.name,
            _values(parameter.describe()),
            figures.MISSING if parameter.default is None else parameter.default,
        )
        for parameter in space.parameters
    ]
    show_table(columns, rows, f"{gpu}, {model}, {workload}: {_size(space)} configurations")
    if space.fixed:
        say("Fixed: " + ", ".join(f"{name} {value}" for name, value in space.fixed.items()))


@spaces_app.command("check")
def check(
    file: Annotated[Path, typer.Argument(help="A study definition, a search space, or a GPU file, in YAML.")],
    gpu: Annotated[str | None, typer.Option(help="GPU against which a search space is checked. [default: t4]")] = None,
    model: Annotated[str, typer.Option(help="Model against which a search space is checked.")] = _ANY_MODEL,
    as_json: AsJson = False,
) -> None:
    """Validate a file: exit code 0 when it is right, 2 with the line when it is not.

    Example: autotune spaces check studies/t4-qwen3-4b-thinking-2507.yaml
    """
    checked = check_file(file, gpu=gpu, model=model)
    if as_json:
        print_json({"file": str(file), "kind": checked.kind, "valid": True, "summary": checked.summary})
    else:
        say(f"{file}: a valid {checked.kind}; {checked.summary}.")


def _size(space: SearchSpace) -> str:
    size = space.size()
    return "a continuum" if size is None else f"{size:,}"


def _values(described: dict[str, object]) -> str:
    values = described.get("values")
    if isinstance(values, list):
        return ", ".join(str(value) for value in values)
    scale = " (logarithmic)" if described.get("log") else ""
    return f"{described.get('low')} to {described.get('high')}{scale}"
