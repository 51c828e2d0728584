"""Several workloads that one configuration must serve."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from autotune.spec._model import Spec
from autotune.spec.workload import Workload


class Combine(StrEnum):
    """How the figures of several workloads become one score. All are ratios to the default's figures."""

    WORST = "worst"
    """The smallest of the ratios."""
    WEIGHTED = "weighted"
    """Their geometric mean by weight."""


class WorkloadShare(Spec):
    """One of several workloads; ``weight`` counts where the ratios are averaged."""

    workload: Workload
    weight: float = Field(default=1.0, gt=0)
