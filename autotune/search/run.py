"""Prepare a study from its definition and run it: the main job behind ``autotune search``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from autotune.base.errors import EnvironmentProblemError
from autotune.catalog import Gpu, ModelShape, load_gpu, load_model
from autotune.search.context import StudyContext
from autotune.search.earlier import EarlierStudies, circumstances_of
from autotune.search.engines import EngineSelection, check_objective, detect_gpu_name, select_engine
from autotune.search.events import StudyObserver
from autotune.search.feasibility import Judge
from autotune.search.folder import StudyFolder
from autotune.search.identity import refuse_changes, study_identity
from autotune.search.keeper import DashboardPages, Keeper
from autotune.search.objective import aim_of
from autotune.search.planning import PREDICTED_CONFIGURATIONS, PREDICTED_PROPOSALS, PlanRequest, leaders
from autotune.search.prediction import (
    expected_tokens_per_s,
    predicted_rate,
    predicted_steepness,
    shortest_time_s,
)
from autotune.search.record import OptunaRecord
from autotune.search.sampler import sampler_factory
from autotune.search.setup import TrialEvents, trial_setup
from autotune.search.study import StudyRun
from autotune.space import SearchSpace, build_space
from autotune.spec import Arguments, StudySpec
from autotune.store import Store
from autotune.store.result import StudyDocument
from autotune.trial import TrialRunner

STUDIES = Path("studies")
_IDENTITY = "identity"
_CREATED = "created"


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Where a study runs and writes; nothing that its figures depend on."""

    storage: str | None = None
    out: Path | None = None
    vllm_command: str | None = None
    time_scale: float | None = None


@dataclass(frozen=True, slots=True)
class PreparedStudy:
    """A definition that was checked against the catalogue, the machine and the installed engine."""

    spec: StudySpec
    context: StudyContext
    selection: EngineSelection
    judge: Judge
    artifacts: Path


def prepare_study(spec: StudySpec, options: SearchOptions) -> PreparedStudy:
    """Check everything that can be checked before anything is written.

    Raises:
        UsageError: unknown names, values that contradict each other.
        EnvironmentProblemError: no such GPU, no vLLM.
    """
    if spec.gpu == "auto":
        spec = spec.model_copy(update={"gpu": detect_gpu_name()})
    gpu = load_gpu(spec.gpu)
    model = load_model(spec.model)
    alone = [spec.model_copy(update={"workload": workload}) for workload in spec.workloads]
    selection = select_engine(
        spec.engine,
        gpu,
        vllm_command=options.vllm_command,
        time_scale=options.time_scale,
        seed=spec.seed,
        study=spec.name,
        expected_tokens_per_s=max(expected_tokens_per_s(gpu, model, each) for each in alone),
        shortest_time_s=min(shortest_time_s(gpu, model, each) for each in alone),
    )
    check_objective(spec, gpu, selection)
    engine = selection.engine
    space = build_space(
        gpu,
        model,
        spec.longest_workload,
        overrides=spec.space,
        fixed=spec.arguments,
        allow_lossy=spec.allow_lossy,
        known=engine.catalogue.names,
        vllm_version=selection.vllm_version,
    )
    judge = Judge(spec, space, engine)
    judge.check_fixed(spec.arguments)
    folder = StudyFolder(options.out or STUDIES / spec.name)
    storage = options.storage or f"sqlite:///{STUDIES / 'autotune.db'}"
    context = StudyContext(
        spec=spec,
        gpu=gpu,
        model=model,
        space=space,
        engine=engine,
        folder=folder,
        storage=storage,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        knows_performance_modes=not engine.check({"performance-mode": "throughput"}),
        refuse=judge.refuse,
        learn=judge.learn,
        predicted_rate=lambda arguments: predicted_rate(gpu, model, spec, arguments),
        predicted_rate_of=lambda arguments, workload: predicted_rate(
            gpu, model, spec.model_copy(update={"workload": workload}), arguments
        ),
        steepness=cache(lambda: predicted_steepness(gpu, model, spec, space.fixed)),
        first_proposals=lambda: _predicted_best(spec, gpu, model, space),
        time_scale=selection.time_scale,
        engine_command=selection.command,
    )
    return PreparedStudy(spec, context, selection, judge, STUDIES / "artifacts")


def _predicted_best(spec: StudySpec, gpu: Gpu, model: ModelShape, space: SearchSpace) -> Sequence[Arguments]:
    """What the models rank highest; for a fixed load they are not asked."""
    if spec.load is not None or gpu.kind == "cpu":
        return ()
    request = PlanRequest(gpu, model, spec.workload, spec.slo, configurations=PREDICTED_CONFIGURATIONS, seed=spec.seed)
    return leaders(request, space, PREDICTED_PROPOSALS)


def run_prepared(prepared: PreparedStudy, observer: StudyObserver, pages: DashboardPages) -> StudyDocument:
    """Run or resume a prepared study until its verdict.

    SIGINT and SIGTERM stop the running engine and then raise ``KeyboardInterrupt``; everything finished is kept.

    Raises:
        UsageError: a study of this name exists with another definition.
        EnvironmentProblemError: storage or folder cannot be used, or the engine cannot run here at all.
        NoFeasibleConfigurationError: nothing holds the objective.
    """
    context = prepared.context
    identity = study_identity(prepared.spec, context.space, context.engine.kind)
    _refuse_foreign_folder(context.folder, prepared.spec.name)
    made = context.folder.create()
    try:
        store = Store.open(context.storage)
    except EnvironmentProblemError:
        for folder in made:
            folder.rmdir()
        raise
    with contextlib.closing(store):
        record = OptunaRecord(
            context.storage,
            prepared.spec.name,
            sampler_factory(prepared.spec.sampler, prepared.spec.seed),
            prepared.artifacts,
            aim_of(prepared.spec),
        )
        known = record.attribute(_IDENTITY)
        # A folder that came from another machine resumes there, in a database that does not know it.
        stored = context.folder.read_identity() if known is None else json.loads(known)
        if stored is not None:
            refuse_changes(prepared.spec.name, stored, json.loads(json.dumps(identity)))
        if known is None:
            record.set_attribute(_IDENTITY, json.dumps(identity))
            record.set_attribute(_CREATED, context.created)
        context.folder.write_identity(identity if stored is None else stored)
        context = replace(context, created=str(record.attribute(_CREATED)))
        circumstances = circumstances_of(context, prepared.selection)
        keeper = Keeper(store, context, record, circumstances, pages)
        keeper.end_orphans(observer)
        runner = TrialRunner(trial_setup(context, prepared.selection, keeper), TrialEvents(observer))
        earlier = None
        if prepared.spec.reuse:
            lossy = frozenset(parameter.name for parameter in context.space.parameters if parameter.lossy)
            earlier = EarlierStudies(store.measured, circumstances, prepared.spec.name, prepared.spec.quality, lossy)
            for trial, workload in earlier.experience():
                prepared.judge.learn(trial, workload)
        run = StudyRun(context, record, runner, observer, keeper.keep_trial, earlier)
        try:
            return _run_interruptibly(run)
        finally:
            keeper.keep_study(StudyDocument.read(context.folder.path))


def _run_interruptibly(run: StudyRun) -> StudyDocument:
    async def main() -> StudyDocument:
        task = asyncio.ensure_future(run.run())
        with _cancelled_by_signals(task):
            return await task

    try:
        return asyncio.run(main())
    except asyncio.CancelledError as error:
        raise KeyboardInterrupt from error


@contextlib.contextmanager
def _cancelled_by_signals(task: asyncio.Task[StudyDocument]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _refuse_foreign_folder(folder: StudyFolder, name: str) -> None:
    """A folder that holds another study's result is not ours to write into."""
    path = folder.path / "result.json"
    if not path.exists():
        return
    found = StudyDocument.read(folder.path).study
    if found != name:
        raise EnvironmentProblemError(
            f"output folder {folder.path}: it holds study '{found}'.", "Choose another with --out."
        )


def describe_plan(prepared: PreparedStudy) -> dict[str, object]:
    """What a dry run shows."""
    context, spec = prepared.context, prepared.spec
    return {
        "study": spec.name,
        "engine": {
            "kind": context.engine.kind.value,
            "version": context.engine.version,
            "why": prepared.selection.reason,
        },
        "gpu": context.gpu.title,
        "model": spec.model,
        "workload": {"input": str(spec.workload.input_tokens), "output": str(spec.workload.output_tokens)},
        "more_workloads": [workload.name for workload in spec.workloads[1:]],
        "slo": spec.slo.to_mapping(),
        "objective": spec.objective.value,
        "load": "search for capacity" if spec.load is None else str(spec.load),
        "budget": spec.budget.model_dump(mode="json"),
        "space": context.space.describe(),
        "configurations": context.space.size(),
        "default_refused": _refusal_text(context),
        "folder": str(context.folder.path),
        "storage": context.storage,
    }


def _refusal_text(context: StudyContext) -> str | None:
    refusal = context.refuse(context.spec.arguments)
    return None if refusal is None else f"{refusal.reason}: {refusal.detail}"
