"""A capacity from few probes of the same requests, each sent to its end: for ranking, and for quoting.

`CapacitySearch` looks for the edge and stops each probe as soon as it is decided. Where the edge is known nearly,
another way is cheaper: one probe there, of as many requests as all others had, and the distance of its percentile from
the limit. Configurations that meet the same lengths and arrivals share their luck, which then cancels; so do two probes
of one configuration, whose difference therefore shows how steeply the percentile rises with the rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autotune.spec.slo import Slo
from autotune.stats.capacity import CapacityEstimate, CapacitySearch
from autotune.stats.capacity_probe import ProbePlan, ProbeResult, Purpose
from autotune.stats.probe import probe_size
from autotune.stats.slo_test import Verdict

NARROW_FAIL = 0.15
"""Log of the percentile over its limit below which a probe goes on to its end although it failed."""
_EXPLORING_EFFORT = 0.15
_KNOWN = 1.6
"""A guess that may be wrong by more is looked for before it is measured."""
_FAR = 0.25
"""A failed probe this far (log) from the estimate does not show where the edge is."""
_LIMITS, _LATENCIES = 4.0, 15.0
"""A probe lasts at least this many times the longest limit, and the median latency."""
_MOST_EXPLORING, _MOST_WHOLE = 8, 3
_USUAL_STEEPNESS = 1.5
_FLATTEST, _STEEPEST = 0.3, 30.0
_LOWER = 0.9
_LARGEST_STEP = 0.3
"""Largest change of the log rate from one probe to the next."""
_DIFFERENT = 0.015
"""Two probes closer (log rate) than this tell nothing of the steepness."""
_STEEPNESS_ERROR = 0.5
"""Relative error of a steepness that was not measured."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How probes are sent so that their figures can be compared."""

    requests: int | None = None
    """Of each probe; None: as many as effort and times ask for, the same for all probes of a trial."""
    effort: float = 0.5
    """Share of the requests that a test of a known, independent share needs."""
    least_seconds: float = 0.0
    """Shorter probes would save little beside the start of the engine."""
    near: float = 0.08
    """An estimate within this distance (log) of the rate of a probe is good enough."""


class ComparedCapacity(CapacitySearch):
    """Chooses rates: exploring ones where little is known, then probes to the end until one is near the estimate."""

    def __init__(
        self,
        slo: Slo,
        start_rate: float,
        *,
        uncertainty: float,
        pace: Pace,
        common_rate: float | None = None,
        incumbent: float | None = None,
        steepness: float | None = None,
        latency_scale: float | None = None,
    ) -> None:
        """Set up the search.

        Args:
            slo: the objective.
            start_rate: guess of the capacity, req/s.
            uncertainty: factor by which the guess may well be wrong.
            pace: of the probes that are sent to their end.
            common_rate: where the incumbent was probed, req/s; no probe is made below it. None: there is none.
            incumbent: its capacity, req/s; what is clearly below it is dropped.
            steepness: by how much the log of the percentile is thought to rise per unit of the log of the rate.
            latency_scale: median latency in seconds, if known.
        """
        super().__init__(
            slo,
            start_rate,
            uncertainty=uncertainty,
            incumbent=incumbent,
            steepness=steepness,
            latency_scale=latency_scale,
        )
        self._pace = pace
        self._requests = pace.requests
        self._common = common_rate
        self._is_known = common_rate is not None or uncertainty <= _KNOWN
        self._steepness = min(max(steepness or _USUAL_STEEPNESS, _FLATTEST), _STEEPEST)
        self._whole: list[ProbeResult] = []
        """Probes that were sent to their end."""
        self._cut: list[ProbeResult] = []
        """Probes that were to be sent to their end and clearly failed before."""
        self._planned: ProbePlan | None = None

    def next(self) -> ProbePlan | None:
        """The next probe, or None when enough is known."""
        if self._invalid_left < 0:
            return None
        self._planned = self._choose()
        return self._planned

    def tell(self, result: ProbeResult) -> None:
        """Take in a probe; one that was sent to its end has a verdict other than a fail."""
        super().tell(result)
        if result.valid and self._planned is not None and self._planned.whole:
            (self._cut if result.verdict is Verdict.FAIL else self._whole).append(result)

    def estimate(self) -> CapacityEstimate:
        """What is known of the capacity so far."""
        found = super().estimate()
        if not self._whole:
            return found
        rate, error = self._root()
        return replace(
            found, rate=rate, low=rate * math.exp(-1.64 * error), high=rate * math.exp(1.64 * error), dominated=False
        )

    def _root(self) -> tuple[float, float]:
        """The rate at which the percentile would be the limit, and the standard error of its log."""
        nearest, *others = sorted(self._whole, key=lambda r: abs(r.log_margin))
        apart = [o for o in others if abs(math.log(o.rate / nearest.rate)) > _DIFFERENT]
        steepness, unsure = self._steepness, _STEEPNESS_ERROR
        if apart:
            other = min(apart, key=lambda o: abs(math.log(o.rate / nearest.rate)))
            rise = (other.log_margin - nearest.log_margin) / math.log(other.rate / nearest.rate)
            steepness = min(max(rise, _FLATTEST, self._steepness / 4), _STEEPEST)
            unsure = _STEEPNESS_ERROR / 2
        shift = min(max(-nearest.log_margin / steepness, -_LARGEST_STEP), _LARGEST_STEP)
        above = [r for r in self._cut if r.rate > nearest.rate]
        if above and shift > 0:
            # What was cut short had gone that far beyond the limit, or further.
            failed = min(above, key=lambda r: r.rate)
            beyond = max(failed.log_margin, NARROW_FAIL) if math.isfinite(failed.log_margin) else 1.0
            gap = math.log(failed.rate / nearest.rate)
            shift = min(shift, gap * -nearest.log_margin / (beyond - nearest.log_margin))
        noise = nearest.log_margin_error if math.isfinite(nearest.log_margin_error) else 0.1
        return nearest.rate * math.exp(shift), math.hypot(noise / steepness, unsure * shift)

    def _choose(self) -> ProbePlan | None:
        if not self.results:
            rate = max(self._start, self._common or 0.0)
            return self._send_whole(rate) if self._is_known else self._explore(rate)
        estimate = self.estimate()
        if estimate.hopeless or len(self.results) >= _MOST_EXPLORING + _MOST_WHOLE:
            return None
        if self._whole:
            return self._narrow(estimate)
        if self._cut:
            return self._after_cut(estimate)
        return self._send_whole(estimate.rate) if self._is_near(estimate) else self._explore(estimate.rate)

    def _narrow(self, estimate: CapacityEstimate) -> ProbePlan | None:
        """One more probe at the estimate, if it is far from what was probed."""
        if len(self._whole) >= _MOST_WHOLE:
            return None
        nearest = min(self._whole, key=lambda r: abs(r.log_margin))
        target = max(estimate.rate, self._common or 0.0)
        if abs(math.log(target / nearest.rate)) <= self._pace.near:
            # Far below its limit the percentile rises slowly, however steep it is at the edge.
            above = min((r.rate for r in self._cut if r.rate > nearest.rate), default=math.inf)
            if nearest.log_margin > -NARROW_FAIL or math.log(above / nearest.rate) <= 2 * self._pace.near:
                return None
            further = nearest.rate * math.exp(self._pace.near)
            target = min(max(target, further), math.sqrt(nearest.rate * above))
        known = (r.rate for r in (*self._whole, *self._cut))
        if any(abs(math.log(target / rate)) < _DIFFERENT for rate in known):
            return None
        return self._send_whole(target)

    def _after_cut(self, estimate: CapacityEstimate) -> ProbePlan | None:
        """What clearly failed is tried at a lower rate, down to the one that the incumbent holds; there once more,
        since one stalled probe decides nothing."""
        lowest, failed = self._common or 0.0, min(r.rate for r in self._cut)
        if failed > lowest * (1 + _DIFFERENT):
            return self._send_whole(max(lowest, min(estimate.rate, _LOWER * failed)))
        tried = sum(abs(math.log(r.rate / failed)) < _DIFFERENT for r in self._cut)
        return self._send_whole(failed) if tried < 2 else None

    def _is_near(self, estimate: CapacityEstimate) -> bool:
        last = self.results[-1]
        off = abs(math.log(estimate.rate / last.rate))
        if len(self.results) >= _MOST_EXPLORING:
            return True
        return (last.verdict is not Verdict.FAIL or off < _FAR) and estimate.high < _KNOWN**2 * estimate.low

    def _explore(self, rate: float) -> ProbePlan:
        size = probe_size(rate, self.slo, latency_scale=self._scale)
        requests = math.ceil(max(size.requests * _EXPLORING_EFFORT, rate * self._longest_limit() * _LIMITS))
        return ProbePlan(rate, requests, max(size.duration, 1.3 * requests / rate), Purpose.EXPLORE)

    def _send_whole(self, rate: float) -> ProbePlan:
        if self._requests is None:
            # Without a rate: the size for independent requests. What the latencies ask for does not shrink with effort.
            size = probe_size(0.0, self.slo).requests * self._pace.effort
            seconds = max(self._pace.least_seconds, _LIMITS * self._longest_limit(), _LATENCIES * (self._scale or 0.0))
            self._requests = math.ceil(max(size, rate * seconds))
        return ProbePlan(rate, self._requests, math.inf, Purpose.COMPARE, whole=True)
