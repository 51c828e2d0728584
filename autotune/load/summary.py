"""What a run comes to: counts, throughput, percentiles over all requests, errors by kind."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from autotune.load.api import LoadRun
from autotune.load.records import ErrorKind, RequestRecord, TokenSource
from autotune.spec import Loop, Metric, Slo

PERCENTILES = (50, 90, 99)
_FEW_REQUESTS = 100


def order_statistic(values: Iterable[float], percentile: float) -> float:
    """The smallest value that at least ``percentile`` per cent of the values do not exceed.

    An observed value, never an interpolated one: the nearest-rank percentile. NaN without values.
    """
    ordered = sorted(values)
    if not ordered:
        return math.nan
    # The product of a decimal percentile and a count may lie a rounding error above a whole number.
    rank = math.ceil(round(percentile / 100 * len(ordered), 9))
    return ordered[max(rank, 1) - 1]


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Failed requests of one kind."""

    kind: ErrorKind
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """A run in figures. Times are engine seconds; rates are per engine second.

    Percentiles are taken over all requests, a failed one counting as infinitely late. Requests that the
    client cut off itself (``cancelled``) count nowhere.
    """

    requests: int
    succeeded: int
    failed: int
    cancelled: int
    duration: float
    """From the start to the last answer."""
    realised_rate: float
    """Arrivals per second of the time in which requests were sent (open loop); answers per second (closed)."""
    input_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    """Output tokens of whole answers over the duration, filling and draining included."""
    total_tokens_per_s: float
    steady_output_tokens_per_s: float
    """Output tokens by the time they came, between the first answer and the last arrival; NaN if that is nothing."""
    tokens_estimated: bool
    """True when a server without ``usage`` made us count chunks."""
    percentiles: dict[Metric, dict[int, float]]
    inter_chunk: dict[int, float]
    max_gap: float
    goodput_share: float | None
    """Share of requests within every target of the SLO; None without an SLO."""
    goodput: float | None
    """Requests per second within the SLO."""
    slo_held: bool | None
    p99_is_maximum: bool
    """True with fewer than 100 requests: the P99 is then the largest value."""
    errors: tuple[ErrorGroup, ...] = field(default=())

    def percentile(self, metric: Metric, percentile: int) -> float:
        """One of the percentiles 50, 90, 99; infinite when so many requests failed, NaN without values."""
        return self.percentiles[metric][percentile]


def summarise(run: LoadRun, slo: Slo | None = None) -> LoadSummary:
    """The figures of a run."""
    records = [record for record in run.records if record.error is not ErrorKind.CANCELLED]
    good = [record for record in records if record.succeeded]
    duration = max((record.finished for record in records), default=run.ended) - run.started
    inputs, outputs = sum(r.input_tokens for r in good), sum(r.output_tokens for r in good)
    within = None if slo is None else [not any(record.misses(slo)) for record in records]
    gaps = sorted(run.gaps)
    return LoadSummary(
        requests=len(records),
        succeeded=len(good),
        failed=len(records) - len(good),
        cancelled=len(run.records) - len(records),
        duration=duration,
        realised_rate=_realised_rate(run, records, duration),
        input_tokens=inputs,
        output_tokens=outputs,
        output_tokens_per_s=_ratio(outputs, duration),
        total_tokens_per_s=_ratio(inputs + outputs, duration),
        steady_output_tokens_per_s=_steady_rate(good, run.records),
        tokens_estimated=any(record.token_source is TokenSource.ESTIMATE for record in good),
        percentiles={metric: _percentiles(_values(records, metric)) for metric in Metric},
        inter_chunk=_percentiles(gaps),
        max_gap=gaps[-1] if gaps else math.nan,
        goodput_share=None if within is None else _ratio(sum(within), len(within)),
        goodput=None if within is None else _ratio(sum(within), duration),
        slo_held=None if slo is None else slo_holds(records, slo),
        p99_is_maximum=len(records) < _FEW_REQUESTS,
        errors=_errors(records),
    )


def slo_holds(records: Sequence[RequestRecord], slo: Slo) -> bool:
    """Whether each target's observed percentile is within its limit. No statement about the next run."""
    if not records:
        return False
    return all(
        order_statistic(_values(records, target.metric), target.percentile) <= target.limit_s
        or not _values(records, target.metric)
        for target in slo.targets
    )


def _values(records: Iterable[RequestRecord], metric: Metric) -> list[float]:
    """Values of all requests, infinite for a failed one; a metric that does not apply is left out."""
    values = (record.value(metric) if record.succeeded else math.inf for record in records)
    return [value for value in values if value is not None]


def _percentiles(values: Sequence[float]) -> dict[int, float]:
    ordered = sorted(values)
    return {p: order_statistic(ordered, p) for p in PERCENTILES}


def _realised_rate(run: LoadRun, records: Sequence[RequestRecord], duration: float) -> float:
    if run.plan.level.loop is Loop.CLOSED:
        return _ratio(len(records), duration)
    scheduled = [record.scheduled for record in run.records]
    return _ratio(len(scheduled), max(scheduled) - run.started) if scheduled else 0.0


def _steady_rate(good: Sequence[RequestRecord], everything: Sequence[RequestRecord]) -> float:
    """Tokens per second while requests were still coming and answers already leaving.

    The tokens of an answer are spread evenly between its first and its last one.
    """
    if not good:
        return math.nan
    begin = min(record.finished for record in good)
    end = max(record.scheduled for record in everything)
    if end <= begin:
        return math.nan
    tokens = 0.0
    for record in good:
        first = record.finished if record.first_token is None else record.first_token
        last = record.finished if record.last_token is None else record.last_token
        if last > first:
            tokens += record.output_tokens * max(0.0, min(last, end) - max(first, begin)) / (last - first)
        elif begin <= first <= end:
            tokens += record.output_tokens
    return tokens / (end - begin)


def _errors(records: Iterable[RequestRecord]) -> tuple[ErrorGroup, ...]:
    groups: dict[ErrorKind, list[str]] = {}
    for record in records:
        if record.error is not None:
            groups.setdefault(record.error, []).append(record.detail)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return tuple(ErrorGroup(kind, len(details), details[0]) for kind, details in ordered)


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else 0.0
