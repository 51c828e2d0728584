"""The figures of a probe, from its records and its verdict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from autotune.load.api import LoadRun
from autotune.load.records import ErrorKind, RequestRecord
from autotune.spec import Metric, Slo
from autotune.stats.percentile import estimate_percentile, percentile, smooth_percentile
from autotune.stats.probe import ProbeVerdict
from autotune.store.result import ProbeDocument

_FILLING = 0.1


def finite(value: float | None) -> float | None:
    """JSON has no infinity and no NaN: what is not a number is null."""
    return None if value is None or not math.isfinite(value) else float(value)


def counted(records: Sequence[RequestRecord], verdict: ProbeVerdict) -> list[RequestRecord]:
    """The requests that the verdict rests on: in order of arrival, after the warm-up cut."""
    ordered = sorted((r for r in records if r.error is not ErrorKind.CANCELLED), key=lambda r: r.scheduled)
    return ordered[verdict.cut : verdict.cut + verdict.requests] or ordered


def values_of(records: Sequence[RequestRecord], metric: Metric) -> list[float]:
    """One metric of each request: infinite for a failed one; requests without it are left out."""
    found = (math.inf if not r.succeeded else r.value(metric) for r in records)
    return [v for v in found if v is not None]


def smooth_margin(records: Sequence[RequestRecord], slo: Slo) -> float:
    """Log of the smooth percentile over its limit, of the target that is nearest to it; NaN where nothing is known.

    All requests of a run that was sent to its end count, but for a first share that meets an empty engine: a cut that
    looks at the latencies would leave out other requests of one configuration than of another.
    """
    ordered = sorted(records, key=lambda r: r.scheduled)
    ordered = ordered[int(_FILLING * len(ordered)) :]
    margins = []
    for target in slo.targets:
        value = smooth_percentile(values_of(ordered, target.metric), target.percentile)
        if value > 0:
            margins.append(math.log(value / target.limit_s))
    return max(margins, default=math.nan)


def tokens_per_second(records: Sequence[RequestRecord]) -> tuple[float | None, float | None]:
    """Output tok/s and total tok/s (prompt tokens too) of whole answers, over the time in which they came.

    The span runs from the first arrival to the last; requests that finish after it belong to what was
    offered in it as those before it to what was offered earlier.
    """
    done = [r for r in records if r.succeeded]
    if len(done) < 2:
        return None, None
    span = max(r.scheduled for r in records) - min(r.scheduled for r in records)
    if span <= 0:
        span = max(r.finished for r in done) - min(r.scheduled for r in done)
    share = (len(records) - 1) / len(records)
    output = share * sum(r.output_tokens for r in done) / span
    return output, output + share * sum(r.input_tokens for r in done) / span


def describe_probe(index: int, purpose: str, run: LoadRun, verdict: ProbeVerdict) -> ProbeDocument:
    """The document of a finished probe; telemetry and validity are added by the caller."""
    records = counted(run.records, verdict)
    level = run.plan.level
    output, total = tokens_per_second(records)
    latencies = values_of(records, Metric.LATENCY)
    ttft, tpot = values_of(records, Metric.TTFT), values_of(records, Metric.TPOT)
    p99 = estimate_percentile(np.asarray(latencies), 99.0)
    errors = Counter(r.error.value for r in run.records if r.error is not None and r.error is not ErrorKind.CANCELLED)

    def at(values: list[float], p: float) -> float | None:
        return finite(percentile(np.asarray(values), p)) if values else None

    return ProbeDocument(
        index=index,
        purpose=purpose,
        loop=level.loop.value,
        rate=level.rate,
        concurrency=level.concurrency,
        realised_rate=finite(verdict.realised_rate),
        planned_requests=run.plan.max_requests,
        log_margin=finite(verdict.log_margin),
        duration_s=run.ended - run.started,
        requests=verdict.requests,
        failed=sum(not r.succeeded for r in records),
        misses=verdict.misses,
        decision=verdict.decision.value,
        reason=verdict.reason.value,
        output_tokens_per_s=finite(output),
        total_tokens_per_s=finite(total),
        p50_latency_s=at(latencies, 50),
        p90_latency_s=at(latencies, 90),
        p99_latency_s=at(latencies, 99),
        p99_interval_s=(finite(p99.low), finite(p99.high)),
        p99_label=p99.label,
        p50_ttft_s=at(ttft, 50),
        p99_ttft_s=at(ttft, 99),
        p50_tpot_s=at(tpot, 50),
        p99_tpot_s=at(tpot, 99),
        errors=dict(errors),
        client={
            "slip_p99_s": run.client.slip_p99,
            "loop_lag_max_s": run.client.loop_lag_max,
            "cpu_seconds": run.client.cpu_seconds,
            "processes": float(run.client.processes),
        },
    )
