"""Frozen models of what the user asks for."""

from autotune.spec.argument import Arguments, ArgumentValue
from autotune.spec.length import LengthKind, LengthSpec
from autotune.spec.load import LoadLevel, Loop
from autotune.spec.mix import Combine, WorkloadShare
from autotune.spec.objective import Objective
from autotune.spec.quality import QualityLimits
from autotune.spec.slo import Metric, Slo, SloTarget
from autotune.spec.study import Budget, EngineChoice, SamplerChoice, StudySpec
from autotune.spec.workload import DatasetSpec, Endpoint, Ramp, SharedPrefix, Workload

__all__ = [
    "ArgumentValue",
    "Arguments",
    "Budget",
    "Combine",
    "DatasetSpec",
    "Endpoint",
    "EngineChoice",
    "LengthKind",
    "LengthSpec",
    "LoadLevel",
    "Loop",
    "Metric",
    "Objective",
    "QualityLimits",
    "Ramp",
    "SamplerChoice",
    "SharedPrefix",
    "Slo",
    "SloTarget",
    "StudySpec",
    "Workload",
    "WorkloadShare",
]
