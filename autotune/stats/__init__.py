"""Statistics of measurements: pure functions and small state machines on arrays. No clock, no I/O."""

from __future__ import annotations

from autotune.stats.capacity import CapacityEstimate, CapacitySearch, ProbePlan, ProbeResult, Purpose
from autotune.stats.compare import Choice, Gain, Noise, choose, gain, noise_of, noise_within_rounds, winners_curse
from autotune.stats.correlation import effective_size, exceedance_inflation, inflation
from autotune.stats.percentile import (
    PercentileEstimate,
    estimate_percentile,
    label_percentile,
    least_requests,
    percentile,
)
from autotune.stats.probe import ProbeJudge, ProbeSize, ProbeVerdict, ProbeView, Reason, probe_size
from autotune.stats.slo_test import SloTest, Verdict
from autotune.stats.steady_state import Flow, judge_flow, warm_up_cut
from autotune.stats.target import TargetVerdict

__all__ = [
    "CapacityEstimate",
    "CapacitySearch",
    "Choice",
    "Flow",
    "Gain",
    "Noise",
    "PercentileEstimate",
    "ProbeJudge",
    "ProbePlan",
    "ProbeResult",
    "ProbeSize",
    "ProbeVerdict",
    "ProbeView",
    "Purpose",
    "Reason",
    "SloTest",
    "TargetVerdict",
    "Verdict",
    "choose",
    "effective_size",
    "estimate_percentile",
    "exceedance_inflation",
    "gain",
    "inflation",
    "judge_flow",
    "label_percentile",
    "least_requests",
    "noise_of",
    "noise_within_rounds",
    "percentile",
    "probe_size",
    "warm_up_cut",
    "winners_curse",
]
