"""Everything that stays the same throughout a study."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autotune.catalog import Gpu, ModelShape
from autotune.engine.api import Engine
from autotune.search.folder import StudyFolder
from autotune.space import SearchSpace
from autotune.spec import Arguments, StudySpec, Workload
from autotune.store.result import TrialDocument


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a configuration is not worth a launch."""

    reason: str
    """A cause as in a diagnosis, e.g. ``oom_kv_cache`` or ``invalid_config``."""
    detail: str


@dataclass(frozen=True, slots=True)
class StudyContext:
    """What a study measures, with what, and where it writes."""

    spec: StudySpec
    gpu: Gpu
    model: ModelShape
    space: SearchSpace
    engine: Engine
    folder: StudyFolder
    storage: str
    created: str
    knows_performance_modes: bool
    refuse: Callable[[Arguments], Refusal | None]
    """Why a configuration cannot run, judged without starting an engine; None when it may."""
    learn: Callable[[TrialDocument], Sequence[str]]
    """Told of every finished trial, so that later refusals are better; says what it now leaves out, in words."""
    predicted_rate: Callable[[Arguments], float | None]
    """A first guess at a configuration's capacity, req/s."""
    predicted_rate_of: Callable[[Arguments, Workload], float | None] = lambda arguments, workload: None
    """The same for one of several workloads."""
    steepness: Callable[[], float | None] = lambda: None
    """By how much the log of the percentile rises per unit of the log of the rate at the capacity, as predicted."""
    first_proposals: Callable[[], Sequence[Arguments]] = lambda: ()
    """Configurations that are tried before the sampler's own: the best of the models of memory and speed."""
    time_scale: float = 1.0
    engine_command: tuple[str, ...] = field(default=())
