"""``autotune search``: run or resume a study."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from autotune.base.errors import ExitCode, NoFeasibleConfigurationError, UsageError
from autotune.cli._plan_text import plan_text
from autotune.cli.definition import StudyOptions, build_spec
from autotune.cli.progress import PlainDisplay, final_summary, make_display
from autotune.engine.api import EngineKind
from autotune.export import write_best
from autotune.report import study_note, trial_note, write_report
from autotune.report.plots import study_figures
from autotune.search import PreparedStudy, SearchOptions, describe_plan, prepare_study, run_prepared
from autotune.spec import Combine, EngineChoice, Objective, SamplerChoice
from autotune.store.result import StudyDocument, TrialDocument

EXAMPLES = """
Examples:

  autotune search --gpu t4 --model qwen3-4b --slo-p99 10s

  autotune search --gpu auto --model ./my-model --slo-ttft-p99 500ms --slo-tpot-p99 25ms --time-budget 2h

  autotune search --gpu t4 --model qwen3-4b --slo-p99 10s --objective latency --concurrency 8

  autotune search --gpu l4 --model qwen3-4b --slo-p99 20s --workload chat --workload rag

  autotune search --gpu l4 --model qwen3-4b --slo-p99 10s --objective cost --price 0.71/h

  autotune search --study studies/t4-qwen3-4b-thinking-2507.yaml

Running the same command again resumes the study where it stopped.
"""


def search(
    gpu: Annotated[str | None, typer.Option(help="GPU by its name in 'autotune gpus', or 'auto'.")] = None,
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
        list[str] | None,
        typer.Option(help="Named workload or a YAML file; repeated, the configuration must serve all. [default: chat]"),
    ] = None,
    combine: Annotated[
        Combine | None,
        typer.Option(help="Score of several workloads: the worst ratio to the default, or the mean. [default: worst]"),
    ] = None,
    input_tokens: Annotated[str | None, typer.Option(help="Prompt length: 512, or 256:768 for uniform.")] = None,
    output_tokens: Annotated[str | None, typer.Option(help="Answer length: 256, or 128:384 for uniform.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Fixed load: this many requests at once.")] = None,
    rate: Annotated[
        str | None, typer.Option(help="Fixed load: requests per second, e.g. 0.5. [default: search for capacity]")
    ] = None,
    objective: Annotated[
        Objective | None,
        typer.Option(
            help="What is sought while the SLO holds: most traffic (capacity); at a fixed load most output (throughput)"
            " or least latency; least cost or energy per token; or the front of output and latency (pareto)."
            " [default: capacity, or throughput at a fixed load]"
        ),
    ] = None,
    price: Annotated[
        str | None, typer.Option(help="Price of the GPU, e.g. 0.53/h. [default: the catalogue's, where known]")
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            help="Configurations to try besides baselines and confirmation. [default: while they are worth it]"
        ),
    ] = None,
    time_budget: Annotated[str | None, typer.Option(help="Wall time after which no new trial begins, e.g. 2h.")] = None,
    engine: Annotated[EngineChoice | None, typer.Option(help="Which engine to use. [default: auto]")] = None,
    space: Annotated[Path | None, typer.Option(help="YAML file with the search space.")] = None,
    sampler: Annotated[SamplerChoice | None, typer.Option(help="Optuna sampler. [default: auto]")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of prompts, arrivals and sampler. [default: 0]")] = None,
    study: Annotated[Path | None, typer.Option(help="Study definition in YAML; options given beside it win.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the study. [default: from GPU, model and workload]")] = None,
    storage: Annotated[str | None, typer.Option(help="Database URL. [default: sqlite:///studies/autotune.db]")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results. [default: studies/NAME]")] = None,
    argument: Annotated[
        list[str] | None, typer.Option("--set", help="Fix an engine argument, e.g. --set dtype=half (repeatable).")
    ] = None,
    vllm_command: Annotated[
        str | None,
        typer.Option(help="How to start vLLM, e.g. 'vllm' or '/env/bin/python -m vllm.entrypoints.cli.main'."),
    ] = None,
    time_scale: Annotated[
        float | None,
        typer.Option(
            min=0.01, help="Speed of the simulated engine's clock. [default: as fast as this machine keeps up with]"
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Trials at once; this version runs one.")] = 1,
    allow_lossy: Annotated[bool, typer.Option(help="Also vary arguments that change the model's output.")] = False,
    no_reuse: Annotated[
        bool, typer.Option("--no-reuse", help="Ask nothing of earlier studies in the database.")
    ] = False,
    dry_run: Annotated[bool, typer.Option(help="Show what would be done and stop; writes nothing.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Find the engine settings that carry the most traffic while the latency objective holds."""
    if workers != 1:
        raise UsageError("--workers: this version runs one trial at a time.", "Leave it at 1.")
    options = StudyOptions(
        gpu=gpu,
        model=model,
        slo_p99=slo_p99,
        slo_ttft_p99=slo_ttft_p99,
        slo_tpot_p99=slo_tpot_p99,
        workload=workload[0] if workload else None,
        more_workloads=tuple(workload[1:]) if workload else (),
        combine=combine,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        concurrency=concurrency,
        rate=rate,
        objective=objective,
        price=price,
        trials=trials,
        time_budget=time_budget,
        engine=engine,
        space=space,
        sampler=sampler,
        seed=seed,
        study=study,
        name=name,
        arguments=tuple(argument or ()),
        allow_lossy=allow_lossy,
        no_reuse=no_reuse,
    )
    spec = build_spec(options)
    places = SearchOptions(storage=storage, out=out, vllm_command=vllm_command, time_scale=time_scale)
    prepared = prepare_study(spec, places)
    if dry_run:
        _show_plan(describe_plan(prepared), json_output)
        return
    with make_display(_headline(prepared)) as display:
        try:
            document = run_prepared(prepared, _Writing(display, prepared.context.folder.path), _Pages(prepared))
        except KeyboardInterrupt:
            display.line(f"Interrupted; everything finished is kept. Resume with: {_command_line()}")
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        except NoFeasibleConfigurationError:
            _show_result(StudyDocument.read(prepared.context.folder.path), prepared.context.folder.path, json_output)
            raise
    _show_result(document, prepared.context.folder.path, json_output)


def _show_result(document: StudyDocument, folder: Path, as_json: bool) -> None:
    write_report(document, folder / "report.html")
    if as_json:
        typer.echo(document.model_dump_json(indent=1))
    else:
        typer.echo(final_summary(document))
        best = "" if document.best is None else "best.yaml, "
        typer.echo(f"Files: {folder}/{best}result.json, report.html")


class _Pages:
    """Notes and pictures for optuna-dashboard."""

    def __init__(self, prepared: PreparedStudy) -> None:
        self._slo = prepared.spec.slo.to_mapping()
        self._simulated = prepared.context.engine.kind is EngineKind.SIMULATED

    def trial_note(self, trial: TrialDocument) -> str:
        return trial_note(trial, self._slo, simulated=self._simulated)

    def study_note(self, study: StudyDocument) -> str:
        return study_note(study)

    def pictures(self, study: StudyDocument) -> dict[str, object]:
        return dict(study_figures(study))


class _Writing:
    """Passes everything on to the display, and writes best.yaml whenever the document names a best one."""

    def __init__(self, display: PlainDisplay, folder: Path) -> None:
        self._folder = folder
        self.planned = display.planned
        self.trial_started = display.trial_started
        self.phase = display.phase
        self.probe = display.probe
        self.trial_finished = display.trial_finished
        self.notice = display.notice
        self.concluded = display.concluded

    def saved(self, document: StudyDocument) -> None:
        """Write the files that other tools take."""
        write_best(document, self._folder)


def _headline(prepared: PreparedStudy) -> str:
    context = prepared.context
    text = f"Study {prepared.spec.name}: {context.gpu.title}, {prepared.spec.model}, {prepared.spec.slo}."
    if context.engine.kind is EngineKind.SIMULATED:
        text += (
            f" The engine is SIMULATED ({prepared.selection.reason}), its clock {context.time_scale:.3g} times"
            " real time: its figures are predictions."
        )
    else:
        text += f" Engine: {prepared.selection.reason}."
    return text


def _show_plan(plan: dict[str, object], as_json: bool) -> None:
    typer.echo(json.dumps(plan, indent=1) if as_json else plan_text(plan))


def _command_line() -> str:
    return shlex.join(["autotune", *sys.argv[1:]])
