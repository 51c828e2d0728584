"""Service level objectives: limits on percentiles of what a request experiences."""

from __future__ import annotations

import re
from enum import StrEnum

from pydantic import Field, field_validator

from autotune.base.errors import UsageError
from autotune.base.units import format_duration, parse_duration
from autotune.spec._model import Spec

_KEY = re.compile(r"p([0-9]{1,2}(?:\.[0-9]+)?)_(latency|ttft|tpot)")


class Metric(StrEnum):
    """What is limited. All start at the scheduled arrival except TPOT."""

    LATENCY = "latency"
    TTFT = "ttft"
    TPOT = "tpot"


class SloTarget(Spec):
    """One limit: the ``percentile`` of ``metric`` over all requests is at most ``limit_s`` seconds."""

    metric: Metric
    percentile: float = Field(gt=0, lt=100)
    limit_s: float = Field(gt=0)

    @property
    def key(self) -> str:
        """Name as written in a study file, e.g. ``p99_latency``."""
        return f"p{self.percentile:g}_{self.metric}"

    @property
    def allowed_miss_share(self) -> float:
        """Largest share of requests that may miss the limit, e.g. 0.01 for P99."""
        return 1 - self.percentile / 100

    def __str__(self) -> str:
        return f"{self.key} <= {format_duration(self.limit_s)}"

    @classmethod
    def parse(cls, key: str, limit: str) -> SloTarget:
        """Read ``p99_latency`` and ``10s``.

        Raises:
            UsageError: an unknown key or a limit without a unit.
        """
        match = _KEY.fullmatch(key)
        if match is None:
            raise UsageError(f"slo: unknown key '{key}'.", "Write e.g. p99_latency, p99_ttft or p95_tpot.")
        percentile = float(match.group(1))
        if percentile <= 0:
            raise UsageError(f"slo: {key} is not a percentile above zero.", "Write e.g. p99_latency.")
        return cls(metric=Metric(match.group(2)), percentile=percentile, limit_s=parse_duration(str(limit), key))


class Slo(Spec):
    """All targets must hold at once. A failed request misses every one of them."""

    targets: tuple[SloTarget, ...] = Field(min_length=1)

    @field_validator("targets")
    @classmethod
    def _distinct(cls, targets: tuple[SloTarget, ...]) -> tuple[SloTarget, ...]:
        keys = [t.key for t in targets]
        if len(set(keys)) != len(keys):
            raise ValueError("the same objective is given twice")
        return targets

    @classmethod
    def from_mapping(cls, mapping: dict[str, str]) -> Slo:
        """Read the study file's form, e.g. ``{"p99_latency": "10s"}``."""
        return cls(targets=tuple(SloTarget.parse(k, v) for k, v in mapping.items()))

    def to_mapping(self) -> dict[str, str]:
        """The study file's form."""
        return {t.key: format_duration(t.limit_s) for t in self.targets}

    def __str__(self) -> str:
        return " and ".join(str(t) for t in self.targets)
