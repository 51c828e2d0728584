"""Probes as the search for the capacity asks for them and learns of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from autotune.stats.probe import ProbeVerdict
from autotune.stats.slo_test import Verdict

_SETTLING_STATES = 10.0
"""A run of many more independent states than this answers to its realised rate. In a shorter one the realised rate is
also what made it stop, since a burst fails it: then the planned rate counts for more."""


class Purpose(StrEnum):
    """Why a probe is made."""

    INCUMBENT = "can it beat the best known"
    EXPLORE = "find the edge"
    REFINE = "narrow the edge"
    RETRY = "try a failed edge again"
    COMPARE = "compare at the edge"


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """A probe to make: at most ``max_requests`` and ``max_duration`` seconds of sending."""

    rate: float
    max_requests: int
    max_duration: float
    purpose: Purpose
    error: float = 0.05
    """Error probability at which the probe may stop early, for `ProbeJudge`."""
    whole: bool = False
    """It is sent to its end unless it fails, with the arrivals that all others of its kind have."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a probe showed. An invalid one (client slipped, GPU throttled) is repeated and tells nothing."""

    rate: float
    """As planned, req/s."""
    realised_rate: float
    verdict: Verdict
    requests: int
    misses: int
    log_margin: float
    log_margin_error: float
    saturated: bool
    throughput: float
    latency_scale: float = math.nan
    growth: float = 0.0
    growth_error: float = math.inf
    independent: float = 0.0
    valid: bool = True

    @classmethod
    def of(cls, plan: ProbePlan, verdict: ProbeVerdict, *, valid: bool = True) -> ProbeResult:
        """The result of a judged probe."""
        realised = verdict.realised_rate
        return cls(
            rate=plan.rate,
            realised_rate=plan.rate if math.isnan(realised) else realised,
            verdict=verdict.decision,
            requests=verdict.requests,
            misses=verdict.misses,
            log_margin=verdict.log_margin,
            log_margin_error=verdict.log_margin_error,
            saturated=verdict.saturated,
            throughput=verdict.throughput,
            latency_scale=verdict.latency_scale,
            growth=verdict.growth,
            growth_error=verdict.growth_error,
            independent=verdict.independent,
            valid=valid,
        )

    @property
    def load(self) -> float:
        """The rate that the result speaks of, req/s: between the planned and the realised one."""
        weight = self.independent / (self.independent + _SETTLING_STATES)
        return self.rate * math.exp(weight * math.log(self.realised_rate / self.rate))
