"""``autotune plan``: what the models of memory and speed predict, with no engine."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from autotune.base.errors import UsageError
from autotune.base.units import format_duration, parse_price
from autotune.catalog import DEFAULT_WORKLOAD, Gpu, list_gpus, load_gpu, load_model
from autotune.cli.console import Column, print_json, say, show_table
from autotune.cli.definition import StudyOptions, build_spec
from autotune.engine.failure import Cause
from autotune.report import figures
from autotune.search.engines import detect_gpu_name
from autotune.search.planning import (
    GpuPlan,
    PlannedConfiguration,
    PlanProgress,
    PlanRequest,
    make_plan,
    predict_at_capacity,
)
from autotune.simulator.arguments import build_parser
from autotune.simulator.prediction import predict
from autotune.space import build_space, explain_argument, to_argv
from autotune.spec import Arguments, StudySpec

EXAMPLES = """
Examples:

  autotune plan --gpu t4 --model qwen3-4b --slo-p99 10s

  autotune plan --gpu t4 --gpu l4 --gpu a10g --model qwen3-4b --workload rag --slo-p99 30s --price 0.53/h

  autotune plan --gpu all --model qwen3-8b --slo-ttft-p99 500ms --json

  autotune plan --gpu l4 --model qwen3-4b --set max-num-seqs=64 --concurrency 16

Every figure is simulated: the models of memory and speed give it, no engine runs.
"""
_TOKENS = 1e6
_LEAST_SHARE = 0.01
"""Of the work done, from which the rest can be told: what is done first takes longer than the rest."""


def plan(
    gpu: Annotated[
        list[str] | None, typer.Option(help="GPU by its name in 'autotune gpus', 'auto' or 'all' (repeatable).")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Alias from 'autotune models', Hugging Face id, or a folder.")
    ] = None,
    slo_p99: Annotated[str | None, typer.Option("--slo-p99", help="Limit on the P99 latency, e.g. 10s.")] = None,
    slo_ttft_p99: Annotated[
        str | None, typer.Option("--slo-ttft-p99", help="Limit on the P99 time to first token, e.g. 500ms.")
    ] = None,
    slo_tpot_p99: Annotated[
        str | None, typer.Option("--slo-tpot-p99", help="Limit on the P99 time per output token, e.g. 25ms.")
    ] = None,
    workload: Annotated[
        str | None, typer.Option(help=f"Named workload or a YAML file. [default: {DEFAULT_WORKLOAD}]")
    ] = None,
    input_tokens: Annotated[str | None, typer.Option(help="Prompt length: 512, or 256:768 for uniform.")] = None,
    output_tokens: Annotated[str | None, typer.Option(help="Answer length: 256, or 128:384 for uniform.")] = None,
    argument: Annotated[
        list[str] | None,
        typer.Option("--set", help="Predict this one configuration, e.g. --set max-num-seqs=64 (repeatable)."),
    ] = None,
    concurrency: Annotated[int | None, typer.Option(help="Predict one configuration at this many at once.")] = None,
    rate: Annotated[str | None, typer.Option(help="Predict one configuration at this rate, req/s.")] = None,
    price: Annotated[
        str | None, typer.Option(help="Price of one GPU, e.g. 0.53/h. [default: the catalogue's, where known]")
    ] = None,
    configurations: Annotated[int, typer.Option(min=1, max=5000, help="Configurations to try per GPU.")] = 200,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes that try them.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Seed of lengths, arrivals and step times.")] = 0,
    allow_lossy: Annotated[bool, typer.Option(help="Also vary arguments that change the model's output.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Predict which GPUs fit, what they carry and the settings to start with; nothing is started."""
    gpus = _gpus(gpu)
    fixed_load = concurrency is not None or rate is not None
    objective = any((slo_p99, slo_ttft_p99, slo_tpot_p99))
    if not objective and not fixed_load:
        raise UsageError("no objective is given.", "Add one, e.g. --slo-p99 10s, or a load: --concurrency or --rate.")
    hourly = None if price is None else parse_price(price)
    spec = build_spec(
        StudyOptions(
            gpu=gpus[0].name,
            model=model,
            slo_p99=slo_p99 if objective else "1h",
            slo_ttft_p99=slo_ttft_p99,
            slo_tpot_p99=slo_tpot_p99,
            workload=workload,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            concurrency=concurrency,
            rate=rate,
            arguments=tuple(argument or ()),
            allow_lossy=allow_lossy,
            seed=seed,
        )
    )
    _check_arguments(spec.arguments)
    load_model(spec.model)
    if spec.arguments or fixed_load:
        predictions = [_one(each, spec, hourly, with_capacity=not fixed_load, judged=objective) for each in gpus]
    else:
        shown = _Progress(len(gpus))
        predictions = [
            _searched(
                make_plan(_request(each, spec, configurations), workers=workers, progress=shown.moved), spec, hourly
            )
            for each in gpus
        ]
    if json_output:
        print_json({"simulated": True, "model": spec.model, "slo": spec.slo.to_mapping() if objective else {},
                    "workload": spec.workload.model_dump(mode="json"), "predictions": predictions})  # fmt: skip
        return
    _show(predictions, spec, objective, searched=not (spec.arguments or fixed_load))


def _gpus(names: Sequence[str] | None) -> list[Gpu]:
    if not names:
        raise UsageError("--gpu is missing.", "Name the GPU, e.g. --gpu t4, or --gpu all; 'autotune gpus' lists them.")
    found: dict[str, Gpu] = {}
    for name in names:
        if name.strip().lower() == "all":
            found |= {gpu.name: gpu for gpu in list_gpus() if gpu.kind == "cuda"}
            continue
        gpu = load_gpu(detect_gpu_name() if name == "auto" else name)
        found[gpu.name] = gpu
    return list(found.values())


def _check_arguments(arguments: Arguments) -> None:
    known = {option[2:] for action in build_parser()._actions for option in action.option_strings if option[:2] == "--"}
    for name in arguments:
        complaint = explain_argument(name, known)
        if complaint is not None:
            raise UsageError(f"--set: {complaint}")


def _request(gpu: Gpu, spec: StudySpec, configurations: int) -> PlanRequest:
    return PlanRequest(
        gpu=gpu,
        model=load_model(spec.model),
        workload=spec.workload,
        slo=spec.slo,
        fixed=spec.arguments,
        overrides=spec.space,
        allow_lossy=spec.allow_lossy,
        configurations=configurations,
        seed=spec.seed,
    )


def _one(gpu: Gpu, spec: StudySpec, hourly: float | None, *, with_capacity: bool, judged: bool) -> dict[str, Any]:
    """One configuration as it is asked for."""
    model = load_model(spec.model)
    if with_capacity:
        planned = predict_at_capacity(gpu, model, spec.workload, spec.slo, spec.arguments, seed=spec.seed)
    else:
        assert spec.load is not None
        found = predict(
            gpu, model, spec.workload, spec.arguments, spec.load, slo=spec.slo if judged else None, seed=spec.seed
        )
        planned = PlannedConfiguration(found, None)
    return _document(gpu, planned, hourly) | {"confidence": _confidence(gpu)}


def _searched(plan: GpuPlan, spec: StudySpec, hourly: float | None) -> dict[str, Any]:
    default, best = _document(plan.gpu, plan.default, hourly), _document(plan.gpu, plan.best, hourly)
    reference = (plan.fitted or plan.default).capacity_rps
    tuned = plan.best.capacity_rps
    return best | {
        "confidence": _confidence(plan.gpu),
        "gain_percent": 100 * (tuned / reference - 1) if tuned and reference else None,
        "default": default,
        "fitted_default": None if plan.fitted is None else _document(plan.gpu, plan.fitted, hourly),
        "configurations": plan.tried,
        "refused": plan.refused,
    }


def _document(gpu: Gpu, planned: PlannedConfiguration, hourly: float | None) -> dict[str, Any]:
    found = planned.prediction
    holds = found.fits and planned.capacity_rps != 0
    dollars = hourly or gpu.price_per_hour
    output = found.output_tokens_per_s if holds else None
    return {
        "gpu": gpu.name,
        "arguments": dict(found.arguments),
        "flags": " ".join(to_argv(found.arguments)),
        "simulated": True,
        "fits": found.fits,
        "reason": found.reason if found.fits is False or holds else "slo_missed",
        "detail": found.detail if found.fits is False or holds else "The objective is missed at every rate.",
        "load": None if not found.fits else {"rate": found.level.rate, "concurrency": found.level.concurrency},
        "capacity_rps": planned.capacity_rps,
        "output_tokens_per_s": output if holds or planned.capacity_rps is None else 0.0,
        "total_tokens_per_s": found.total_tokens_per_s if holds or planned.capacity_rps is None else 0.0,
        "request_rate": found.request_rate,
        "p50_latency_s": found.p50_latency_s,
        "p99_latency_s": found.p99_latency_s,
        "p50_ttft_s": found.p50_ttft_s,
        "p99_ttft_s": found.p99_ttft_s,
        "p99_tpot_s": found.p99_tpot_s,
        "slo_met": found.slo_met,
        "kv_cache_tokens": found.kv_tokens,
        "weights_gib": found.weights_gib,
        "kv_cache_gib": found.kv_gib,
        "price_per_hour": dollars,
        "cost_per_million_output_tokens": dollars * _TOKENS / 3600 / output if dollars and output else None,
    }


def _confidence(gpu: Gpu) -> dict[str, Any]:
    if gpu.measured:
        return {"measured": True, "text": f"calibrated with {gpu.measured}"}
    return {"measured": False, "text": "from the data sheet and assumptions; not measured on this GPU"}


class _Progress:
    """One line now and then on stderr, with the time that is left."""

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus
        self._started = time.monotonic()
        self._shown = -10.0
        self._finished = 0

    def moved(self, progress: PlanProgress) -> None:
        share = (self._finished + progress.done / progress.total) / self._gpus
        if progress.done >= progress.total:
            self._finished += 1
        spent = time.monotonic() - self._started
        if spent - self._shown < 3.0 and progress.done < progress.total:
            return
        self._shown = spent
        left = (
            ""
            if share < _LEAST_SHARE
            else f"; about {format_duration(max(1, round(spent * (1 - share) / share)))} left"
        )
        best = f", best {progress.best_rps:.3g} req/s (simulated)" if progress.best_rps else ""
        print(
            f"{progress.gpu}: {progress.done} of {progress.total} configurations{best}{left}",
            file=sys.stderr,
            flush=True,
        )


_COLUMNS = (
    Column("GPU"),
    Column("configuration", flexible=True),
    Column("fits"),
    Column("capacity, req/s", numeric=True),
    Column("output, tok/s", numeric=True),
    Column("total, tok/s", numeric=True, drop=1),
    Column("P99 latency", numeric=True),
    Column("P99 TTFT", numeric=True, drop=2),
    Column("USD per M output tokens", numeric=True, drop=3),
)


def _show(predictions: Sequence[dict[str, Any]], spec: StudySpec, objective: bool, *, searched: bool) -> None:
    rows = []
    for each in predictions:
        if searched:
            rows.append(_row(each["default"], "vLLM's defaults"))
            if each["fitted_default"] is not None:
                rows.append(_row(each["fitted_default"], f"defaults with {each['fitted_default']['flags']}"))
            gain = each["gain_percent"]
            if each["fits"]:
                rows.append(_row(each, f"best: {each['flags'] or 'no flags'}" + (f" ({gain:+.1f} %)" if gain else "")))
        else:
            rows.append(_row(each, each["flags"] or "vLLM's defaults"))
    target = f", {spec.slo}" if objective else ""
    load = f", at {spec.load}" if spec.load is not None else ""
    show_table(_COLUMNS, rows, f"Simulated: {spec.model}, {spec.workload.input_tokens} tokens in, "
               f"{spec.workload.output_tokens} out{target}{load}")  # fmt: skip
    for each in predictions:
        reasons = {
            f"{document['gpu']}: {document['reason']}: {' '.join(document['detail'].split())}": None
            for document in (each.get("default"), each)
            if document is not None and document["reason"]
        }
        for reason in reasons:
            say(reason)
        if remedy := _remedy(each, spec, searched=searched):
            say(f"{each['gpu']}: {remedy}")
        if searched and each["capacity_rps"]:
            say(f"{each['gpu']}: start with: vllm serve {load_model(spec.model).repository} {each['flags']}".rstrip())
        say(f"{each['gpu']}: simulated, {each['confidence']['text']}.")


def _remedy(each: Mapping[str, Any], spec: StudySpec, *, searched: bool) -> str:
    """What to do where the memory is too small; empty where it is not."""
    if each["fits"] or not str(each["reason"]).startswith("oom_"):
        return ""
    if not searched and each["reason"] == Cause.OOM_KV_CACHE and "max-model-len" not in each["arguments"]:
        space = build_space(load_gpu(each["gpu"]), load_model(spec.model), spec.workload)
        if (length := space.fixed.get("max-model-len")) is not None:
            return f"add --set max-model-len={length}: the workload needs no longer context."
    what = "nothing fits" if searched else "this does not fit"
    return f"{what}: choose a GPU with more memory ('autotune plan --gpu all' compares them) or a smaller model."


def _row(each: dict[str, Any], name: str) -> list[str]:
    cost = each["cost_per_million_output_tokens"]
    return [
        each["gpu"],
        name,
        "yes" if each["fits"] else "no",
        figures.number(each["capacity_rps"]),
        figures.number(each["output_tokens_per_s"]),
        figures.number(each["total_tokens_per_s"]),
        figures.seconds(each["p99_latency_s"]),
        figures.seconds(each["p99_ttft_s"]),
        figures.MISSING if cost is None else f"{cost:.3f}",
    ]
