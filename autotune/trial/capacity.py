"""What a configuration carries: its capacity under the objective, or its figures at one fixed load."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from autotune.spec import LoadLevel, Loop
from autotune.stats.capacity import CapacityEstimate, CapacitySearch, ProbeResult
from autotune.stats.probe import probe_size
from autotune.stats.slo_test import Verdict
from autotune.store.result import ProbeDocument
from autotune.trial.order import TrialOrder
from autotune.trial.prober import JudgedProbe, Prober, ProbesVoidError

FIRST_GUESS_RPS = 1.0
INVALID_REPEATS = 3
MOST_PROBES, MOST_BRIEF_PROBES = 6, 4
"""Valid probes of a configuration at most, at full and at less effort."""
ALMOST_IDLE = 0.7
"""Requests in the engine below which a missed objective is the engine's, not the load's."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of a measured configuration; all None when the objective never held."""

    capacity: CapacityEstimate | None = None
    probe: ProbeDocument | None = None
    """The passing probe that the latencies come from: the one nearest to the capacity."""
    output_tokens_per_s: float | None = None
    total_tokens_per_s: float | None = None
    slo_margin: float | None = None

    def fields(self) -> dict[str, Any]:
        """As fields of a trial's document."""
        found: dict[str, Any] = {
            "output_tokens_per_s": self.output_tokens_per_s,
            "total_tokens_per_s": self.total_tokens_per_s,
            "slo_margin": self.slo_margin,
        }
        if self.capacity is not None:
            found |= {
                "capacity_rps": self.capacity.rate,
                "capacity_interval": (self.capacity.low, self.capacity.high),
                "dominated": self.capacity.dominated,
            }
        if self.probe is not None:
            for name in ("p50_latency_s", "p99_latency_s", "p99_interval_s", "p99_label", "p99_ttft_s", "p99_tpot_s"):
                found[name] = getattr(self.probe, name)
        return found


async def measure_capacity(prober: Prober, order: TrialOrder) -> Measured:
    """Search the highest rate at which the objective holds; drop a configuration that cannot beat the incumbent."""
    search = CapacitySearch(
        prober.slo,
        order.guess_rate or order.incumbent_rate or FIRST_GUESS_RPS,
        uncertainty=order.guess_uncertainty,
        incumbent=order.incumbent_rate,
        drop_dominated=not order.must_resolve,
        effort=order.effort,
        max_probes=MOST_PROBES if order.effort >= 1 else MOST_BRIEF_PROBES,
    )
    judged: list[JudgedProbe] = []
    while (plan := search.next()) is not None:
        probe = await prober.probe(LoadLevel.open(plan.rate), plan.purpose.value, plan.max_requests, plan.max_duration)
        search.tell(ProbeResult.of(plan, probe.verdict, valid=probe.document.valid))
        if probe.document.valid:
            judged.append(probe)
            if _fails_almost_idle(probe):
                break
    if not judged:
        raise ProbesVoidError(prober.probes[-1].invalid_reason)
    return _at_capacity(search.estimate(), judged)


def _fails_almost_idle(probe: JudgedProbe) -> bool:
    """True when the objective is missed although the engine mostly works on one request at a time.

    By Little's law rate times latency requests are in the engine; below one, less load hardly helps.
    """
    in_flight = probe.verdict.realised_rate * probe.verdict.latency_scale
    return probe.verdict.decision is Verdict.FAIL and in_flight < ALMOST_IDLE


async def measure_level(prober: Prober, level: LoadLevel) -> Measured:
    """Figures at one fixed load; they count only when the objective holds there."""
    rate = level.rate if level.loop is Loop.OPEN and level.rate is not None else None
    size = probe_size(rate or 0.0, prober.slo)
    requests = max(size.requests, 20 * (level.concurrency or 1))
    probe = await prober.probe(level, "fixed load", requests, math.inf if rate is None else 1.2 * requests / rate)
    for _ in range(INVALID_REPEATS):
        if probe.document.valid:
            break
        probe = await prober.probe(level, "repeat of a void probe", requests, math.inf)
    if not probe.document.valid:
        raise ProbesVoidError(probe.document.invalid_reason)
    margin = _margin(probe)
    if not _holds(probe):
        return Measured(probe=probe.document, output_tokens_per_s=0.0, slo_margin=max(margin, 0.0))
    return Measured(
        probe=probe.document,
        output_tokens_per_s=probe.document.output_tokens_per_s,
        total_tokens_per_s=probe.document.total_tokens_per_s,
        slo_margin=min(margin, 0.0),
    )


def _at_capacity(estimate: CapacityEstimate, judged: list[JudgedProbe]) -> Measured:
    """The figures at the estimated capacity, from the probe that shows best what happens there.

    That is the fastest one that held the objective, or else one that could not be told from the limit: around the
    capacity the percentile is the limit, and noise decides the sign of the difference.
    """
    holding = [p for p in judged if _holds(p)]
    open_ones = [p for p in judged if p.verdict.decision is Verdict.UNDECIDED]
    if not (holding or open_ones or estimate.dominated):
        return Measured(output_tokens_per_s=0.0, slo_margin=min((_margin(p) for p in judged), default=None))
    if holding:
        nearest = max(holding, key=lambda p: p.verdict.realised_rate)
    else:
        nearest = min(open_ones or judged, key=lambda p: abs(_margin(p)))
    output_per_request, total_per_request = nearest.tokens_per_request
    held = bool(holding or open_ones)
    return Measured(
        capacity=estimate,
        probe=nearest.document if held else None,
        output_tokens_per_s=estimate.rate * output_per_request,
        total_tokens_per_s=estimate.rate * total_per_request,
        slo_margin=min(_margin(nearest), 0.0) if held else max(_margin(nearest), 0.0),
    )


def _holds(probe: JudgedProbe) -> bool:
    """Passed, or too close to call with the percentile inside the limit."""
    if probe.verdict.decision is Verdict.UNDECIDED:
        return probe.verdict.log_margin <= 0
    return probe.verdict.decision is Verdict.PASS


def _margin(probe: JudgedProbe) -> float:
    """The log margin as a number that Optuna takes."""
    margin = probe.verdict.log_margin
    if math.isnan(margin):
        return 0.0
    return max(-10.0, min(10.0, margin))
