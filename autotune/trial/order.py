"""What a trial is asked to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.spec import Arguments
from autotune.store.result import Role


@dataclass(frozen=True, slots=True)
class WorkloadRates:
    """Where the capacity search for one of several workloads begins; as the fields of an order."""

    guess_rate: float | None = None
    guess_uncertainty: float = 3.0
    incumbent_rate: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a trial's capacity is found where it is to be compared: by few probes that are sent to their end."""

    rate: float | None = None
    """Where the best configuration so far was probed, req/s; None: nothing was measured yet."""
    requests: int | None = None
    """Of its probe."""
    least_seconds: float = 0.0
    """Engine seconds that its probes last at least."""
    steepness: float | None = None
    """By how much the log of the percentile rises per unit of the log of the rate, as predicted."""


@dataclass(frozen=True, slots=True)
class TrialOrder:
    """One configuration to start and measure.

    ``incumbent_rate`` is the best capacity so far (req/s): the first probe runs there, and the trial is
    dropped as soon as it clearly cannot beat it. ``guess_rate`` is where to start without an incumbent.
    """

    number: int
    role: Role
    arguments: Arguments
    folder: Path
    label: str = ""
    block: int | None = None
    incumbent_rate: float | None = None
    guess_rate: float | None = None
    guess_uncertainty: float = 3.0
    """Factor by which ``guess_rate`` may well be wrong (one standard deviation of its log)."""
    light_rate: float | None = None
    """Rate (req/s) of the light load at which a front's latencies are taken; None: half of its own capacity."""
    must_resolve: bool = True
    """The capacity itself is wanted, even if it is below the incumbent's."""
    is_reference: bool = False
    """The default configuration, whose output others are compared with."""
    effort: float = 1.0
    """Scales the requests of a probe: a proposal is looked at more briefly than what is quoted."""
    comparison: Comparison | None = None
    """None: the edge is searched for, each probe ending as soon as it is decided."""
    rates: Mapping[str, WorkloadRates] = field(default_factory=dict)
    """Where several workloads are served: the rates of each by its name, instead of those above."""

    @property
    def prompt_stream(self) -> str:
        """Name of the prompt stream: common to all configurations, and unseen in each confirmation round."""
        return "search" if self.block is None else f"confirm-{self.block}"

    def of(self, workload: str) -> TrialOrder:
        """The order for one of several workloads."""
        rates = self.rates.get(workload)
        if rates is None:
            return self
        return replace(
            self,
            guess_rate=rates.guess_rate,
            guess_uncertainty=rates.guess_uncertainty,
            incumbent_rate=rates.incumbent_rate,
        )
