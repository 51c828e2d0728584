"""One probe judged while it runs: warm-up, saturation and the test of every target, put together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from autotune.spec.slo import Metric, Slo
from autotune.stats._arrays import BoolArray, FloatArray
from autotune.stats.percentile import PercentileEstimate
from autotune.stats.slo_test import SloTest, Verdict
from autotune.stats.steady_state import Flow, judge_flow, warm_up_cut
from autotune.stats.target import TargetVerdict, judge_target

LATENCIES_A_PROBE = 10.0
"""A probe lasts at least this many times the median latency before it can pass."""


_STATES_A_NAT = 6.0
"""A pass rests on this many independent looks at the number of requests in the system for each nat of
evidence that it asks for (18 at 5 % errors): a system that has not been seen to return is not known to be
stable. Comparable to rejecting a unit root (Dickey and Fuller 1979), which takes about 8."""


class Reason(StrEnum):
    """What decided a probe, or keeps it undecided."""

    FEW_MISSES = "few misses"
    MISSES = "misses"
    SATURATED = "saturated"
    TOO_SHORT = "too short"
    CLOSE = "too close to call"


@dataclass(frozen=True, slots=True)
class ProbeView:
    """A look at a probe. Times are seconds on one clock; rows of ``values`` belong to ``scheduled``."""

    started: float
    now: float
    scheduled: FloatArray
    """Scheduled arrivals of the finished requests, in any order."""
    finished: FloatArray
    """Their completions."""
    values: FloatArray
    """Shape (requests, targets): the value of each target's metric, +inf for a failed request, NaN where the
    metric does not apply (TPOT of a single token)."""
    in_flight: FloatArray
    """Scheduled arrivals of the requests still out."""


@dataclass(frozen=True, slots=True)
class ProbeVerdict:
    """What is known of a probe so far. Counts and shares are of the target that is nearest to its limit."""

    decision: Verdict
    reason: Reason
    requests: int
    """Requests that count: resolved, after the warm-up cut."""
    cut: int
    """First requests left out as warm-up."""
    misses: int
    share: float
    share_low: float
    share_high: float
    percentile: PercentileEstimate
    log_margin: float
    log_margin_error: float
    realised_rate: float
    """Arrivals per second from the start to the last arrival."""
    throughput: float
    """Completions per second once the system had filled."""
    saturated: bool
    growth: float
    """Share of the arrivals by which the number in the system grew, once it had filled."""
    growth_error: float
    independent: float
    """Number of independent looks at the state of the system that the probe amounts to."""
    targets: tuple[TargetVerdict, ...]
    duration: float
    """Seconds from the first request that counts to the present."""
    latency_scale: float
    """Median end-to-end latency in seconds."""

    @property
    def decided(self) -> bool:
        """True when the probe may stop."""
        return self.decision is not Verdict.UNDECIDED


@dataclass(frozen=True, slots=True)
class ProbeSize:
    """How long a probe should be: it ends at ``requests`` or ``duration``, whichever comes last."""

    requests: int
    duration: float


def probe_size(rate: float, slo: Slo, *, latency_scale: float | None = None, margin: float = 2.0) -> ProbeSize:
    """Requests and seconds that a probe at ``rate`` (req/s) may need.

    Args:
        rate: offered load.
        slo: the objective; the tightest percentile sets the requests.
        latency_scale: median end-to-end latency in seconds if known; otherwise half the longest limit on the
            latency, or the longest limit of any kind.
        margin: as in `SloTest`.
    """
    scale = latency_scale
    if scale is None:
        limits = [t.limit_s / 2 for t in slo.targets if t.metric is Metric.LATENCY]
        scale = max(limits) if limits else max(t.limit_s for t in slo.targets)
    requests = max(SloTest(t.allowed_miss_share, margin=margin).fixed_size for t in slo.targets)
    return ProbeSize(max(requests, math.ceil(rate * LATENCIES_A_PROBE * scale)), LATENCIES_A_PROBE * scale)


class ProbeJudge:
    """Judges a probe from looks at it. Stateless between looks: each look holds all requests."""

    def __init__(self, slo: Slo, *, error: float = 0.05, margin: float = 2.0, strict: bool = False) -> None:
        """Set up the tests.

        Args:
            slo: all targets must hold.
            error: probability of a wrong pass and of a wrong fail of the whole objective.
            margin: see `SloTest`.
            strict: see `SloTest`.
        """
        self.slo = slo
        # All targets must pass, so a wrong pass needs no correction; any one can fail.
        self._tests = tuple(
            SloTest(
                t.allowed_miss_share, error=error, fail_error=error / len(slo.targets), margin=margin, strict=strict
            )
            for t in slo.targets
        )
        self._states = _STATES_A_NAT * math.log((1 - error) / error)
        self._deadline = min((t.limit_s for t in slo.targets if t.metric is Metric.LATENCY), default=math.inf)

    def judge(self, view: ProbeView) -> ProbeVerdict:
        """The verdict on what has been seen so far."""
        flow = judge_flow(view.scheduled, view.finished, view.in_flight, started=view.started, now=view.now)
        scheduled, values, latencies = self._resolved(view)
        finite = latencies[np.isfinite(latencies)]
        scale = float(np.median(finite)) if len(finite) else math.nan
        cut = _cut(view.started, scheduled, latencies, scale)
        scheduled, values, latencies = scheduled[cut:], values[cut:], latencies[cut:]
        ages = np.where(np.isinf(latencies), view.now - scheduled, np.inf)
        targets = tuple(
            judge_target(test, target, values[:, k], ages, independent=flow.independent)
            for k, (test, target) in enumerate(zip(self._tests, self.slo.targets, strict=True))
        )
        span = float(scheduled[-1] - scheduled[0]) if len(scheduled) > 1 else 0.0
        long_enough = flow.independent >= self._states and span >= LATENCIES_A_PROBE * scale
        decision, reason = _decide(targets, flow, long_enough, view.now - view.started > 4 * self._deadline)
        worst = max(targets, key=lambda t: t.log_margin if not math.isnan(t.log_margin) else -math.inf)
        return ProbeVerdict(
            decision=decision,
            reason=reason,
            requests=len(scheduled),
            cut=cut,
            misses=worst.misses,
            share=worst.share,
            share_low=worst.share_low,
            share_high=worst.share_high,
            percentile=worst.percentile,
            log_margin=worst.log_margin,
            log_margin_error=worst.log_margin_error,
            realised_rate=_realised_rate(view),
            throughput=flow.throughput,
            saturated=flow.saturated,
            growth=flow.growth,
            growth_error=flow.growth_error,
            independent=flow.independent,
            targets=targets,
            duration=view.now - (float(scheduled[0]) if len(scheduled) else view.started),
            latency_scale=scale,
        )

    def _resolved(self, view: ProbeView) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Arrivals, values and latencies of the requests that count, in order of arrival.

        A request is resolved once it has finished or is out for longer than its limit on the latency. Only
        those before the first unresolved one count: otherwise the quick ones would be heard first.
        """
        overdue: BoolArray = view.now - view.in_flight > self._deadline
        open_since = view.in_flight[~overdue]
        late = view.in_flight[overdue]
        scheduled = np.concatenate((view.scheduled, late))
        values = np.concatenate(
            (view.values.reshape(len(view.scheduled), len(self.slo.targets)), self._overdue_values(len(late)))
        )
        ages = np.concatenate((view.finished - view.scheduled, np.full(len(late), np.inf)))
        order = np.argsort(scheduled, kind="stable")
        scheduled, values, ages = scheduled[order], values[order], ages[order]
        count = len(scheduled) if not len(open_since) else int(np.searchsorted(scheduled, open_since.min()))
        return scheduled[:count], values[:count], ages[:count]

    def _overdue_values(self, count: int) -> FloatArray:
        row = [
            np.inf if t.metric is Metric.LATENCY and t.limit_s <= self._deadline else np.nan for t in self.slo.targets
        ]
        return np.tile(np.asarray(row, dtype=np.float64), (count, 1))


def _realised_rate(view: ProbeView) -> float:
    """Arrivals per second; a gap in front of the first arrival counts."""
    arrivals = len(view.scheduled) + len(view.in_flight)
    last = max((float(a.max()) for a in (view.scheduled, view.in_flight) if len(a)), default=view.started)
    return arrivals / (last - view.started) if last > view.started else math.nan


def _cut(started: float, scheduled: FloatArray, latencies: FloatArray, scale: float) -> int:
    """Leave out the fill of the empty system and what MSER-5 calls warm-up, at most half."""
    if not len(scheduled) or math.isnan(scale):
        return 0
    fill = int(np.searchsorted(scheduled, started + scale))
    return min(max(fill, warm_up_cut(latencies)), len(scheduled) // 2)


def _decide(
    targets: tuple[TargetVerdict, ...], flow: Flow, long_enough: bool, hopeless: bool
) -> tuple[Verdict, Reason]:
    # A failed probe should also say what the engine completes: it is the best guide to the next rate.
    if any(t.decision is Verdict.FAIL for t in targets) and (flow.known or hopeless):
        return Verdict.FAIL, Reason.MISSES
    if flow.saturated:
        return Verdict.FAIL, Reason.SATURATED
    if not long_enough:
        return Verdict.UNDECIDED, Reason.TOO_SHORT
    if all(t.decision is Verdict.PASS for t in targets):
        return Verdict.PASS, Reason.FEW_MISSES
    return Verdict.UNDECIDED, Reason.CLOSE
