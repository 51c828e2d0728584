"""``result.json`` from the trials so far."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from autotune.search.context import StudyContext
from autotune.search.mix import in_rounds
from autotune.search.objective import aim_of, front
from autotune.store.result import EngineDocument, Role, StudyDocument, Timings, TrialDocument


def build_document(context: StudyContext, documents: Mapping[int, TrialDocument]) -> StudyDocument:
    """The study as it stands, with the verdict still open."""
    spec = context.spec
    aim = aim_of(spec)
    trials = in_rounds((documents[number] for number in sorted(documents)), spec, aim)
    return StudyDocument(
        study=spec.name,
        created=context.created,
        engine=EngineDocument(
            kind=context.engine.kind.value,
            version=context.engine.version,
            time_scale=context.time_scale,
            command=list(context.engine_command),
        ),
        gpu={
            "name": context.gpu.name,
            "title": context.gpu.title,
            "memory_gib": context.gpu.memory_gib,
            "price_per_hour": context.gpu.price_per_hour,
        },
        model={
            "name": spec.model,
            "repository": context.model.repository,
            "parameters": context.model.parameters,
            "context_length": context.model.context_length,
        },
        slo=spec.slo.to_mapping(),
        workload=spec.workload.model_dump(mode="json")
        | {"input": str(spec.workload.input_tokens), "output": str(spec.workload.output_tokens)},
        load=None if spec.load is None else spec.load.model_dump(mode="json"),
        definition=spec.model_dump(mode="json"),
        space=context.space.describe(),
        trials=trials,
        front=front(trials, aim),
        baselines=[t.number for t in trials if t.role is Role.BASELINE],
        time=reduce(Timings.__add__, (t.timings for t in trials), Timings()),
        storage=context.storage,
    )
