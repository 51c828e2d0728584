"""What a configuration carries: its capacity under the SLO, its latency at a light load, its figures at a fixed one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.spec import LoadLevel, Loop, Metric
from autotune.stats.capacity import CapacityEstimate, CapacitySearch, ProbeResult
from autotune.stats.compared import ComparedCapacity, Pace
from autotune.stats.probe import probe_size
from autotune.stats.slo_test import Verdict
from autotune.store.result import ProbeDocument, Role, WorkloadFigures
from autotune.trial.figures import finite
from autotune.trial.order import Comparison, TrialOrder
from autotune.trial.prober import JudgedProbe, Prober, ProbesVoidError

FIRST_GUESS_RPS = 1.0
INVALID_REPEATS = 3
MOST_PROBES, MOST_BRIEF_PROBES = 6, 4
"""Valid probes of a configuration at most, at full and at less effort."""
NEAR_FIRST, NEAR, NEAR_QUOTED = 0.15, 0.08, 0.04
"""An estimate further (log) than this from the rate of its probe is looked at again there: of the default, which only
says where the others begin, of what is compared with the best so far, and of what is quoted."""
LEAST_WHOLE_REQUESTS = 200
"""Of a probe whose percentile is compared: a P90 of 50 requests would rank by chance."""
LOADED_OVER_LIGHT = 2.0
"""About what load makes of the median latency by the time the objective is near."""
LIGHT_SHARE = 0.5
"""Of the capacity: the light load at which a front's latencies are taken."""
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
    target_latency_s: float | None = None
    """The percentile that the first target limits, at the fixed load or at ``light_rps``."""
    light_rps: float | None = None

    @property
    def carries(self) -> bool:
        """The objective held, and the figure is its own."""
        return bool(self.output_tokens_per_s) and not (self.capacity is not None and self.capacity.dominated)

    def fields(self, price_per_hour: float | None = None) -> dict[str, Any]:
        """As fields of a trial's document."""
        output = self.output_tokens_per_s
        found: dict[str, Any] = {
            "output_tokens_per_s": output,
            "total_tokens_per_s": self.total_tokens_per_s,
            "slo_margin": self.slo_margin,
            "target_latency_s": self.target_latency_s,
            "light_rps": self.light_rps,
            "power": output / self.target_latency_s if output and self.target_latency_s else None,
            "cost_per_million_tokens": price_per_hour / 3600 * 1e6 / output if price_per_hour and output else None,
            "energy_per_token_j": None if self.probe is None else self.probe.energy_per_token_j,
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


def combined_fields(parts: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Fields of a trial from those of several workloads by name: the first one's, unless any of them is lost."""
    (_, first), *_ = parts
    margins = [margin for _, part in parts if (margin := part["slo_margin"]) is not None]
    missed = any(not part["output_tokens_per_s"] for _, part in parts)
    return {
        **first,
        "output_tokens_per_s": 0.0 if missed else first["output_tokens_per_s"],
        "dominated": any(part.get("dominated", False) for _, part in parts),
        "slo_margin": max(margins, default=None),
        "workloads": [WorkloadFigures.model_validate({**part, "workload": name}) for name, part in parts],
    }


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
        latency_scale=_first_scale(prober),
    )
    return await _carry_out(search, prober)


async def _carry_out(search: CapacitySearch, prober: Prober, *, quoted: bool = False) -> Measured:
    """Make the probes that a search asks for.

    Raises:
        ProbesVoidError: none was valid.
    """
    judged: list[JudgedProbe] = []
    while (plan := search.next()) is not None:
        level = LoadLevel.open(plan.rate)
        sent = await prober.probe(level, plan.purpose.value, plan.max_requests, plan.max_duration, compared=plan.whole)
        probe = _to_its_end(sent, quoted=quoted)
        search.tell(ProbeResult.of(plan, probe.verdict, valid=probe.document.valid))
        if probe.document.valid:
            judged.append(probe)
            if _fails_almost_idle(probe):
                break
    if not judged:
        raise ProbesVoidError(prober.probes[-1].invalid_reason)
    return _at_capacity(search.estimate(), judged)


def _first_scale(prober: Prober) -> float | None:
    """Median latency to expect of the first probe, s, where no limit on the latency tells."""
    if prober.light_latency_s is None or any(t.metric is Metric.LATENCY for t in prober.slo.targets):
        return None
    return LOADED_OVER_LIGHT * prober.light_latency_s


async def measure_compared(prober: Prober, order: TrialOrder, comparison: Comparison) -> Measured:
    """The capacity from few probes that are sent to their end, with the requests that all others had."""
    quoted = order.role is Role.CONFIRMATION
    pace = Pace(
        requests=comparison.requests,
        effort=order.effort,
        least_seconds=comparison.least_seconds,
        near=NEAR_QUOTED if quoted else NEAR if order.incumbent_rate else NEAR_FIRST,
    )
    search = ComparedCapacity(
        prober.slo,
        order.guess_rate or order.incumbent_rate or FIRST_GUESS_RPS,
        uncertainty=order.guess_uncertainty,
        pace=pace,
        common_rate=comparison.rate,
        incumbent=order.incumbent_rate,
        steepness=comparison.steepness,
        latency_scale=_first_scale(prober),
    )
    return await _carry_out(search, prober, quoted=quoted)


def _to_its_end(probe: JudgedProbe, *, quoted: bool) -> JudgedProbe:
    """A probe that was sent to its end tells by its smooth percentile how far it was from the limit, on either side.

    Most probes miss the rare long bursts, so that a percentile of all traffic is higher than that of a typical probe:
    by about its standard error. What is quoted allows for it; in a comparison it would only be noise.
    """
    margin = probe.document.smooth_margin
    if margin is None:
        return probe
    if quoted and math.isfinite(probe.verdict.log_margin_error):
        margin += probe.verdict.log_margin_error
    failed = probe.verdict.decision is Verdict.FAIL
    decision = Verdict.UNDECIDED if failed else probe.verdict.decision
    return replace(probe, verdict=replace(probe.verdict, decision=decision, log_margin=margin))


def _fails_almost_idle(probe: JudgedProbe) -> bool:
    """True when the objective is missed although the engine mostly works on one request at a time.

    By Little's law rate times latency requests are in the engine; below one, less load hardly helps.
    """
    in_flight = probe.verdict.realised_rate * probe.verdict.latency_scale
    return probe.verdict.decision is Verdict.FAIL and in_flight < ALMOST_IDLE


async def measure_front(prober: Prober, order: TrialOrder) -> Measured:
    """The capacity, and the latency at a light load that is the same for all configurations."""
    measured = await measure_capacity(prober, order)
    if measured.capacity is None:
        return measured
    rate = order.light_rate or LIGHT_SHARE * measured.capacity.rate
    light = await _at_level(prober, LoadLevel.open(rate), "light load", whole=True)
    return replace(measured, target_latency_s=_target_latency(light), light_rps=rate)


async def measure_level(prober: Prober, level: LoadLevel, *, whole: bool = False) -> Measured:
    """Figures at one fixed load; they count only when the SLO holds there.

    ``whole``: the probe goes on after the SLO is known to hold, so that the percentile is worth comparing.
    """
    probe = await _at_level(prober, level, "fixed load", whole=whole)
    margin = _margin(probe)
    if not _holds(probe):
        return Measured(probe=probe.document, output_tokens_per_s=0.0, slo_margin=max(margin, 0.0))
    return Measured(
        probe=probe.document,
        output_tokens_per_s=probe.document.output_tokens_per_s,
        total_tokens_per_s=probe.document.total_tokens_per_s,
        slo_margin=min(margin, 0.0),
        target_latency_s=_target_latency(probe),
    )


async def _at_level(prober: Prober, level: LoadLevel, purpose: str, *, whole: bool) -> JudgedProbe:
    """A valid probe at one load.

    Raises:
        ProbesVoidError: every repeat was void.
    """
    rate = level.rate if level.loop is Loop.OPEN and level.rate is not None else None
    size = probe_size(rate or 0.0, prober.slo)
    requests = max(size.requests, 20 * (level.concurrency or 1), LEAST_WHOLE_REQUESTS if whole else 0)
    longest = math.inf if rate is None else 1.2 * requests / rate
    probe = await prober.probe(level, purpose, requests, longest, whole=whole)
    for _ in range(INVALID_REPEATS):
        if probe.document.valid:
            return probe
        probe = await prober.probe(level, "repeat of a void probe", requests, math.inf, whole=whole)
    if not probe.document.valid:
        raise ProbesVoidError(probe.document.invalid_reason)
    return probe


def _target_latency(probe: JudgedProbe) -> float | None:
    return finite(probe.verdict.targets[0].percentile.value)


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
