"""What other studies in the same database know of this study's configurations."""

from __future__ import annotations

import hashlib
import math
import platform
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field

from pydantic import ValidationError

from autotune.catalog import Gpu, ModelShape, model_revision
from autotune.engine.api import EngineKind
from autotune.search.context import StudyContext
from autotune.search.engines import EngineSelection
from autotune.space import ChoiceParameter, SearchSpace
from autotune.spec import Arguments, Objective, QualityLimits, Workload
from autotune.store import Circumstances, MeasuredConfiguration, MeasuredConfigurations, configuration_fingerprint
from autotune.store.result import Outcome, Role, Timings, TrialDocument
from autotune.trial.quality import judged

ADVICE = 16
"""Configurations of similar studies that are looked at."""
SAME_SPEED = 1.1
"""Factor by which the default of an earlier study may differ from this one's. Fresh starts differ by some percent;
machines that drifted, by 20 to 50 %: figures from before such a drift would mislead the search."""


@dataclass(frozen=True, slots=True)
class EarlierStudies:
    """Looks up what was measured before under the same circumstances, or similar ones."""

    measured: MeasuredConfigurations
    circumstances: Circumstances
    study: str
    """Name of this study, whose own rows are not earlier ones."""
    limits: QualityLimits = field(default_factory=QualityLimits)
    """By which comparisons of the output are judged in this study."""
    lossy: frozenset[str] = frozenset()
    """Engine arguments that may change the output: figures of such a configuration count with a comparison only."""

    def result(
        self, number: int, arguments: Arguments, reference: TrialDocument | None, effort: float
    ) -> TrialDocument | None:
        """What an earlier study measured of these arguments, as trial ``number`` of this one; None: measure.

        The newest usable one, because after a search come confirmations, which were not chosen for their luck.
        Usable is a failure of the configuration, and a figure of its own (not "below the best") that rests on
        probes at least as long as ``effort`` asks for, from a study whose default was as fast as ours is
        (``reference``).
        """
        if not self._model_is_known:
            return None
        for one in self._elsewhere(arguments):
            trial = _trial_of(one)
            if trial is None or not (
                trial.outcome is Outcome.INFEASIBLE
                or (
                    _is_as_precise(trial, effort)
                    and self._was_compared(trial)
                    and self._was_as_fast(one.study, reference)
                    and _was_as_lightly_loaded(trial, reference)
                )
            ):
                continue
            source = f"trial {one.trial_number} of study '{one.study}', {one.recorded_at:%Y-%m-%d}"
            found = f"measured in {source}, with {one.requests} requests"
            detail = f"{trial.detail} ({source})" if trial.detail else found
            reused = without_launch(trial, number, detail)
            quality = None if trial.quality is None else judged(trial.quality, self.limits)
            return reused.model_copy(update={"reused_from": f"{one.study}/{one.trial_number}", "quality": quality})
        return None

    def advice(self, space: SearchSpace) -> Iterator[tuple[str, Arguments]]:
        """What did best in similar studies, as configurations of this space, the most similar first, with their study.

        Left out is what sets an argument that this space neither varies nor fixes, or a choice that it does not offer,
        and what changed the output too much.
        """
        here = self.circumstances
        for found in self.measured.similar(
            here.gpu,
            here.model_family,
            here.workload,
            engine_kind=here.engine_kind,
            model=here.model,
            slo=here.slo,
            limit=ADVICE,
        ):
            arguments, trial = _in_space(space, found.measured.arguments), _trial_of(found.measured)
            changed = trial is not None and trial.changes_output
            if arguments is not None and found.measured.study != self.study and not changed:
                yield found.measured.study, arguments

    def experience(self) -> Iterator[tuple[TrialDocument, Workload]]:
        """What ran and what failed on this GPU with this model and engine, under whatever traffic; each once."""
        here = self.circumstances
        seen: set[tuple[str, str]] = set()
        for one in self.measured.history(engine_kind=here.engine_kind, gpu=here.gpu):
            there, trial = one.circumstances, _trial_of(one)
            key = (configuration_fingerprint(there, one.arguments), one.reason)
            if trial is None or one.study == self.study or key in seen:
                continue
            if (there.engine_version, there.model, there.model_revision) == (
                here.engine_version,
                here.model,
                here.model_revision,
            ):
                seen.add(key)
                yield trial, there.workload

    @property
    def _model_is_known(self) -> bool:
        """A name stands for other weights once its repository or folder changes; simulated ones have no weights."""
        simulated = self.circumstances.engine_kind == EngineKind.SIMULATED.value
        return simulated or bool(self.circumstances.model_revision)

    def _elsewhere(self, arguments: Arguments) -> list[MeasuredConfiguration]:
        found = self.measured.find(self.circumstances, arguments)
        return [one for one in found if one.study != self.study]

    def _was_compared(self, trial: TrialDocument) -> bool:
        """False where the output was not checked: it might fail, after it kept better ones from being confirmed."""
        if not (self.lossy & trial.arguments.keys() and trial.output_tokens_per_s):
            return True
        return trial.quality is not None and trial.quality.passed is not None

    def _was_as_fast(self, study: str, reference: TrialDocument | None) -> bool:
        """Whether the default did then what it does now; a fixed load decides the output, so there latencies, too."""
        if reference is None:
            return False
        then = [o for o in self._elsewhere(reference.arguments) if o.study == study]
        outputs = [o.output_tokens_per_s or 0.0 for o in then]
        if not outputs or not _is_about(statistics.median(outputs), reference.output_tokens_per_s or 0.0):
            return False
        if self.circumstances.load is None or not reference.p50_latency_s:
            return True
        latencies = [t.p50_latency_s for o in then if (t := _trial_of(o)) is not None and t.p50_latency_s]
        return not latencies or _is_about(statistics.median(latencies), reference.p50_latency_s)


def _is_about(before: float, now: float) -> bool:
    if not (before and now):
        return before == now
    return abs(math.log(now / before)) <= math.log(SAME_SPEED)


def without_launch(known: TrialDocument, number: int, detail: str) -> TrialDocument:
    """What is known of a configuration, as a proposal that no engine was started for."""
    return known.model_copy(
        update={
            "number": number,
            "role": Role.SEARCH,
            "label": "",
            "block": None,
            "launched": False,
            "reused_from": "",
            "detail": detail,
            "probes": [],
            "timings": Timings(),
            "requests": 0,
        }
    )


def circumstances_of(context: StudyContext, selection: EngineSelection) -> Circumstances:
    """All that decides what a configuration does, apart from its arguments."""
    device, spec = selection.device, context.spec
    simulated = context.engine.kind is EngineKind.SIMULATED
    version = context.engine.version
    host = platform.node() if context.gpu.kind == "cpu" and not simulated else ""
    return Circumstances(
        gpu=context.gpu.name if device is None else device.name,
        driver=host if device is None else (device.driver or ""),
        engine_kind=context.engine.kind.value,
        engine_version=f"{version}+{_facts(context.gpu, context.model)}" if simulated else version,
        model=spec.model,
        model_revision="" if simulated else model_revision(spec.model),
        model_family=context.model.architecture,
        workload=spec.workload,
        slo=spec.slo,
        load=spec.load,
        aim=_sought(context),
    )


def _sought(context: StudyContext) -> str:
    """What decides which figures are taken beside those of a capacity or of a fixed load; empty where nothing does."""
    spec = context.spec
    if spec.objective is Objective.implied_by(spec.load) and not spec.mix:
        return ""
    price = spec.price_per_hour or context.gpu.price_per_hour
    served = ", ".join(share.model_dump_json(exclude={"weight"}) for share in spec.mix)
    return f"{spec.objective} of {spec.slo.targets[0].key} at {price} USD/h{f' for {served}' if served else ''}"


def _in_space(space: SearchSpace, arguments: Arguments) -> Arguments | None:
    """The arguments brought to the space's grids, with what it fixes; None where it lacks one of them."""
    parameters = {parameter.name: parameter for parameter in space.parameters}
    for name, value in arguments.items():
        parameter = parameters.get(name)
        if parameter is None and name not in space.fixed:
            return None
        if isinstance(parameter, ChoiceParameter) and parameter.snap(value) != value:
            return None
    try:
        return space.arguments(space.params_of(arguments))
    except ValueError:
        return None


def _facts(gpu: Gpu, model: ModelShape) -> str:
    """Short hash of what the simulator's physics are computed from."""
    return hashlib.sha256((gpu.model_dump_json() + model.model_dump_json()).encode()).hexdigest()[:12]


def _trial_of(one: MeasuredConfiguration) -> TrialDocument | None:
    """None for what an earlier version stored, without the trial itself."""
    try:
        return TrialDocument.model_validate(one.document)
    except ValidationError:
        return None


def _is_as_precise(trial: TrialDocument, effort: float) -> bool:
    return (
        trial.outcome is Outcome.MEASURED
        and not trial.dominated
        and trial.effort is not None
        and trial.effort >= effort
    )


def _was_as_lightly_loaded(trial: TrialDocument, reference: TrialDocument | None) -> bool:
    """Latencies of a front can only be compared at the same light load; other trials have none."""
    return trial.light_rps == (None if reference is None else reference.light_rps)
