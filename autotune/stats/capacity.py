"""Search for the capacity: the highest rate at which the objective holds, in few probes.

Each probe gives more than yes or no: how far the percentile was from its limit, with a standard error, and how
much the number in the system grew. The posterior of `autotune.stats.curve` joins them; its median is the
estimate and the next rate to probe. No probe decides alone: what rests on one failure is tried again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.spec.slo import Metric, Slo
from autotune.stats.capacity_probe import ProbePlan, ProbeResult, Purpose
from autotune.stats.curve import CapacityPosterior
from autotune.stats.probe import probe_size
from autotune.stats.slo_test import Verdict

__all__ = ["CapacityEstimate", "CapacitySearch", "ProbePlan", "ProbeResult", "Purpose"]

_WIDE = 2.5
"""While the interval is wider than this ratio, probes explore; below it they refine."""
_LIMITS_TO_EXPLORE, _LIMITS_TO_REFINE = 4.0, 10.0
"""A probe lasts this many times the longest limit on the latency: an overload of a tenth makes a queue grow by the
limit in ten times the limit, so that shorter probes cannot tell it from a load that holds."""
_TYPICAL_LIMIT = 2.0
"""Of the median latency: stands for that limit where only first tokens or the time per token are limited. An answer
takes much longer than those, and it is answers that come and go."""


@dataclass(frozen=True, slots=True)
class CapacityEstimate:
    """Capacity in req/s with a 90 % credible interval."""

    rate: float
    low: float
    high: float
    resolved: bool
    """The interval is as narrow as asked for."""
    dominated: bool
    """It cannot beat the incumbent, with 95 % probability; the estimate is then rough."""
    probes: int
    hopeless: bool = False
    """The objective failed with less than one request at a time in the engine: no rate will do."""


class CapacitySearch:
    """Chooses the rates of the probes of one configuration on a running engine."""

    def __init__(
        self,
        slo: Slo,
        start_rate: float,
        *,
        uncertainty: float = 4.0,
        incumbent: float | None = None,
        precision: float = 0.05,
        max_probes: int = 6,
        max_invalid: int = 4,
        latency_scale: float | None = None,
        drop_dominated: bool = True,
        effort: float = 1.0,
        steepness: float | None = None,
    ) -> None:
        """Set up the search.

        Args:
            slo: the objective.
            start_rate: guess of the capacity in req/s.
            uncertainty: factor by which the guess may well be wrong (one standard deviation in log).
            incumbent: capacity of the best configuration so far; the first probe is made at it.
            precision: the estimate is resolved when its 90 % interval is within this share of it.
            max_probes: valid probes at most.
            max_invalid: invalid probes at most.
            latency_scale: median latency in seconds, if known.
            drop_dominated: stop as soon as the incumbent clearly cannot be beaten.
            effort: scales the requests of a probe.
            steepness: by how much the log of the percentile is thought to rise per unit of the log of the rate.
        """
        if not start_rate > 0 or not uncertainty > 1:
            raise ValueError("a positive start rate and an uncertainty above 1 are needed")
        self.slo = slo
        self.incumbent = incumbent
        self.precision = precision
        self.results: list[ProbeResult] = []
        self._start = start_rate
        self._max_probes = max_probes
        self._invalid_left = max_invalid
        self._scale = latency_scale
        self._drop = drop_dominated
        self._effort = effort
        self._posterior = CapacityPosterior(start_rate, uncertainty, incumbent, steepness)

    def next(self) -> ProbePlan | None:
        """The next probe, or None when the search is over."""
        if len(self.results) >= self._max_probes or self._invalid_left < 0:
            return None
        if not self.results:
            if self.incumbent is None:
                return self._plan(self._start, Purpose.EXPLORE)
            return self._plan(self.incumbent, Purpose.INCUMBENT)
        estimate = self.estimate()
        if estimate.hopeless or (self._drop and estimate.dominated):
            return None
        if self._drop and self._beaten():
            return self._plan(self.results[-1].rate, Purpose.RETRY)
        edge = self._lone_failure(estimate)
        if edge is not None and (estimate.resolved or self._odd(edge)):
            return self._plan(edge.rate, Purpose.RETRY)
        if estimate.resolved:
            return None
        wide = estimate.high > estimate.low * _WIDE
        return self._plan(estimate.rate, Purpose.EXPLORE if wide else Purpose.REFINE)

    def tell(self, result: ProbeResult) -> None:
        """Take in a probe."""
        if not result.valid:
            self._invalid_left -= 1
            return
        self.results.append(result)
        if math.isfinite(result.latency_scale) and (self._scale is None or result.verdict is not Verdict.FAIL):
            self._scale = result.latency_scale
        self._posterior.update(self.results)

    def estimate(self) -> CapacityEstimate:
        """What is known of the capacity so far."""
        low, middle, high = self._posterior.quantiles(0.05, 0.5, 0.95)
        # A curve through distant probes is an extrapolation, however sure it looks; so is one through failures.
        near = any(
            abs(math.log(r.load / middle)) <= 2 * self.precision and r.verdict is not Verdict.FAIL for r in self.results
        )
        return CapacityEstimate(
            rate=middle,
            low=low,
            high=high,
            resolved=near and high <= low * (1 + self.precision) ** 2,
            dominated=self._beaten() and len(self._failures_below_incumbent()) > 1,
            probes=len(self.results),
            hopeless=any(r.verdict is Verdict.FAIL and r.load * r.latency_scale < 0.5 for r in self.results),
        )

    def _plan(self, rate: float, purpose: Purpose) -> ProbePlan:
        refine = purpose in {Purpose.REFINE, Purpose.RETRY}
        size = probe_size(rate, self.slo, latency_scale=self._scale)
        requests = max(
            size.requests * self._effort * (2.0 if refine else 1.0),
            rate * self._longest_limit() * (_LIMITS_TO_REFINE if refine else _LIMITS_TO_EXPLORE),
        )
        return ProbePlan(rate, math.ceil(requests), max(size.duration, 1.3 * requests / rate), purpose)

    def _longest_limit(self) -> float:
        """Seconds."""
        limits = [t.limit_s for t in self.slo.targets if t.metric is Metric.LATENCY]
        if limits:
            return max(limits)
        return max(_TYPICAL_LIMIT * (self._scale or 0.0), *(t.limit_s for t in self.slo.targets))

    def _beaten(self) -> bool:
        """The capacity lies below the incumbent's with 95 % probability."""
        return (
            self.incumbent is not None
            and bool(self.results)
            and self._posterior.probability_below(self.incumbent) > 0.95
        )

    def _failures_below_incumbent(self) -> list[ProbeResult]:
        bound = 1.1 * (self.incumbent or math.inf)
        return [r for r in self.results if r.verdict is not Verdict.PASS and r.rate <= bound]

    def _lone_failure(self, estimate: CapacityEstimate) -> ProbeResult | None:
        """The failed probe that alone holds the estimate down, if there is one."""
        above = [r for r in self.results if r.verdict is not Verdict.PASS and r.load > estimate.low]
        return above[0] if len(above) == 1 and above[0].verdict is Verdict.FAIL else None

    def _odd(self, failure: ProbeResult) -> bool:
        """A slightly lower rate passed so easily that the failure looks like a stall."""
        return any(
            r.verdict is Verdict.PASS and 0.75 * failure.load < r.load < failure.load and r.log_margin < -0.7
            for r in self.results
        )
