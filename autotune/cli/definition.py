"""From options and a study file to a study's definition."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.base.errors import UsageError
from autotune.base.suggest import did_you_mean
from autotune.base.units import parse_duration, parse_price, parse_rate
from autotune.base.yaml_text import parse_yaml, read_yaml_mapping
from autotune.catalog import list_workloads, load_workload
from autotune.spec import (
    Budget,
    Combine,
    EngineChoice,
    LoadLevel,
    Objective,
    SamplerChoice,
    Slo,
    StudySpec,
    Workload,
    WorkloadShare,
)
from autotune.spec.argument import ArgumentValue
from autotune.spec.length import LengthSpec
from autotune.spec.slo import Metric, SloTarget
from autotune.spec.study import parse_budget, parse_load, read_study_file, validated

DEFAULT_WORKLOAD = "chat"


@dataclass(frozen=True, slots=True)
class StudyOptions:
    """What was given on the command line; None where it was not."""

    gpu: str | None = None
    model: str | None = None
    slo_p99: str | None = None
    slo_ttft_p99: str | None = None
    slo_tpot_p99: str | None = None
    workload: str | None = None
    more_workloads: tuple[str, ...] = ()
    """Workloads beside the first."""
    combine: Combine | None = None
    input_tokens: str | None = None
    output_tokens: str | None = None
    concurrency: int | None = None
    rate: str | None = None
    objective: Objective | None = None
    price: str | None = None
    trials: int | None = None
    time_budget: str | None = None
    engine: EngineChoice | None = None
    space: Path | None = None
    sampler: SamplerChoice | None = None
    seed: int | None = None
    study: Path | None = None
    name: str | None = None
    arguments: tuple[str, ...] = ()
    allow_lossy: bool = False
    no_reuse: bool = False


def build_spec(options: StudyOptions) -> StudySpec:
    """The definition of a study; an option wins over the study file's key.

    Raises:
        UsageError: something is missing, contradicts itself or is not understood.
    """
    document = read_study_file(options.study) if options.study is not None else {}
    gpu = options.gpu or document.get("gpu")
    model = options.model or document.get("model")
    if gpu is None:
        raise UsageError("--gpu is missing.", "Name the GPU, e.g. --gpu t4; 'autotune gpus' lists them.")
    if model is None:
        raise UsageError("--model is missing.", "Name the model, e.g. --model qwen3-4b; 'autotune models' lists them.")
    mix = _mix(options, document)
    workload = mix[0].workload if mix else build_workload(options, document.get("workload"))
    load = _load(options, document.get("load"))
    objective = _objective(options, document.get("objective"), load)
    price = options.price or document.get("price")
    values: dict[str, Any] = {
        "name": options.name
        or document.get("name")
        or _default_name(str(gpu), str(model), tuple(share.workload for share in mix) or (workload,), load, objective),
        "gpu": str(gpu),
        "model": str(model),
        "workload": workload,
        "mix": mix,
        "combine": _combine(options, document.get("combine"), mix),
        "slo": build_slo(options, document.get("slo")),
        "load": load,
        "objective": objective,
        "price_per_hour": None if price is None else parse_price(str(price)),
        "arguments": {
            **_stored_arguments(document.get("arguments")),
            **_given_arguments(options.arguments),
        },
        "space": read_yaml_mapping(options.space) if options.space is not None else document.get("space") or {},
        "budget": _budget(options, document.get("budget")),
        "allow_lossy": options.allow_lossy or document.get("allow_lossy", False),
        "reuse": not options.no_reuse and document.get("reuse", True),
    }
    if document.get("quality") is not None:
        values["quality"] = document["quality"]
    for key in ("engine", "sampler", "seed"):
        value = getattr(options, key)
        if value is None:
            value = document.get(key)
        if value is not None:
            values[key] = value
    return validated(StudySpec, values)


def parse_argument(text: str) -> tuple[str, ArgumentValue]:
    """``max-num-seqs=64`` as a name and a typed value; a bare name is a switch that is on.

    Raises:
        UsageError: no name.
    """
    name, separator, value = text.partition("=")
    name = name.strip().lstrip("-").replace("_", "-")
    if not name:
        raise UsageError(f"--set '{text}': no argument is named.", "Write e.g. --set max-num-seqs=64.")
    if not separator:
        return name, True
    parsed = parse_yaml(value) if value.strip() else None
    return name, parsed if isinstance(parsed, (bool, int, float)) else value.strip()


def _given_arguments(texts: Iterable[str]) -> Mapping[str, ArgumentValue]:
    given: dict[str, ArgumentValue] = {}
    for name, value in (parse_argument(text) for text in texts):
        if name in given and given[name] != value:
            raise UsageError(f"--set {name}: both {given[name]} and {value} are given.", "Give one of them.")
        given[name] = value
    return given


def _stored_arguments(given: object) -> Mapping[str, Any]:
    remedy = "Write e.g. arguments: {dtype: half, max-num-seqs: 64}."
    if not given:
        return {}
    if not isinstance(given, Mapping):
        raise UsageError(f"arguments: '{given}' is not a mapping of engine arguments to values.", remedy)
    for name, value in given.items():
        if not isinstance(value, (bool, int, float, str)):
            raise UsageError(f"arguments: {name}: '{value}' is not a plain value.", remedy)
    return given


def build_workload(options: StudyOptions, given: object = None) -> Workload:
    """The traffic: a named workload, a YAML file or the study file's own (``given``), with the lengths of the options.

    Raises:
        UsageError: it is not known or not understood.
    """
    lengths = {
        key: value
        for key, value in (("input_tokens", options.input_tokens), ("output_tokens", options.output_tokens))
        if value is not None
    }
    for key, value in lengths.items():
        LengthSpec.parse(value, f"--{key.replace('_', '-')}")
    return _read_workload(options.workload or given or DEFAULT_WORKLOAD, lengths)


def _read_workload(chosen: object, lengths: Mapping[str, str]) -> Workload:
    if isinstance(chosen, str):
        path = Path(chosen)
        if path.suffix in (".yaml", ".yml"):
            chosen = read_yaml_mapping(path)
        else:
            workload = load_workload(chosen)
            chosen = workload.model_dump(mode="python")
    if not isinstance(chosen, dict):
        raise UsageError(
            f"workload: '{chosen}' is not a workload.", f"Known: {', '.join(w.name for w in list_workloads())}."
        )
    if lengths:
        chosen = {**chosen, **lengths, "name": "custom", "description": ""}
    return validated(Workload, chosen)


def _mix(options: StudyOptions, document: Mapping[str, Any]) -> tuple[WorkloadShare, ...]:
    """Several workloads from the command line or the study file; empty for one."""
    given = document.get("workloads")
    if options.workload is not None:
        names = (options.workload, *options.more_workloads)
        shares = tuple(WorkloadShare(workload=_read_workload(name, {})) for name in names) if len(names) > 1 else ()
    elif given is None:
        return ()
    elif "workload" in document:
        raise UsageError("workload and workloads: both are given.", "Keep one of the two.")
    else:
        shares = _shares(given)
    if shares and (options.input_tokens is not None or options.output_tokens is not None):
        raise UsageError(
            "--input-tokens and --output-tokens: several workloads are given.", "Write the lengths in workload files."
        )
    return shares


def _combine(options: StudyOptions, given: object, mix: tuple[WorkloadShare, ...]) -> object:
    """How several workloads make one score; a study file's wish goes with its workloads."""
    wanted = options.combine or (None if options.workload is not None and not mix else given)
    if wanted is not None and not mix:
        raise UsageError("combine: there is one workload.", "Give several (--workload chat --workload rag).")
    return wanted or Combine.WORST


def _shares(given: object) -> tuple[WorkloadShare, ...]:
    remedy = "Write e.g. workloads: [{workload: chat, weight: 2}, {workload: rag}]."
    if not isinstance(given, list) or len(given) < 2:
        raise UsageError(f"workloads: '{given}' is not a list of two or more.", remedy)
    shares = []
    for each in given:
        if not isinstance(each, Mapping) or "workload" not in each:
            raise UsageError(f"workloads: '{each}' names no workload.", remedy)
        shares.append(validated(WorkloadShare, {**each, "workload": _read_workload(each["workload"], {})}))
    return tuple(shares)


def _load(options: StudyOptions, given: object) -> LoadLevel | None:
    if options.concurrency is not None and options.rate is not None:
        raise UsageError(
            "--concurrency and --rate: only one load can be fixed.", "Give one of them, or none to search."
        )
    if options.concurrency is not None:
        if options.concurrency < 1:
            raise UsageError(
                f"--concurrency: {options.concurrency} must be at least 1.", "Write e.g. --concurrency 16."
            )
        return LoadLevel.closed(options.concurrency)
    if options.rate is not None:
        return LoadLevel.open(parse_rate(options.rate, "--rate"))
    return parse_load(given)


def _objective(options: StudyOptions, given: object, load: LoadLevel | None) -> Objective:
    if options.objective is not None:
        return options.objective
    if given is None:
        return Objective.implied_by(load)
    try:
        return Objective(str(given))
    except ValueError as error:
        raise UsageError(f"objective: '{given}' is not known.", did_you_mean(str(given), list(Objective))) from error


def build_slo(options: StudyOptions, given: object = None) -> Slo:
    """The objective of the study file (``given``) and the options; an option wins over the same key.

    Raises:
        UsageError: there is none, or it is not understood.
    """
    targets = {}
    if given is not None:
        if not isinstance(given, dict):
            raise UsageError(f"slo: '{given}' is not an objective.", "Write e.g. slo: {p99_latency: 10s}.")
        targets = {t.key: t for t in (SloTarget.parse(str(k), str(v)) for k, v in given.items())}
    for metric, text, option in (
        (Metric.LATENCY, options.slo_p99, "--slo-p99"),
        (Metric.TTFT, options.slo_ttft_p99, "--slo-ttft-p99"),
        (Metric.TPOT, options.slo_tpot_p99, "--slo-tpot-p99"),
    ):
        if text is not None:
            target = SloTarget(metric=metric, percentile=99, limit_s=parse_duration(text, option))
            targets[target.key] = target
    if not targets:
        raise UsageError("no objective is given.", "Add one, e.g. --slo-p99 10s.")
    return Slo(targets=tuple(targets.values()))


def _budget(options: StudyOptions, given: object) -> Budget:
    budget = parse_budget(given) if given is not None else Budget()
    values: dict[str, Any] = budget.model_dump()
    if options.trials is not None:
        if options.trials < 1:
            raise UsageError(f"--trials: {options.trials} must be at least 1.", "Write e.g. --trials 20.")
        values["trials"] = options.trials
    if options.time_budget is not None:
        values["time_s"] = parse_duration(options.time_budget, "--time-budget")
    return Budget(**values)


def _default_name(
    gpu: str, model: str, workloads: tuple[Workload, ...], load: LoadLevel | None, objective: Objective
) -> str:
    parts = [gpu, Path(model).name or model, *(workload.name for workload in workloads)]
    if load is not None:
        parts.append(f"{load.concurrency}-at-once" if load.concurrency else f"{load.rate:g}rps")
    if objective is not Objective.implied_by(load):
        parts.append(objective.value)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(parts).lower()).strip("-.")[:120]
