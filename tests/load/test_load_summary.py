"""Figures of a run, checked by hand."""

from __future__ import annotations

import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.load import ClientHealth, ErrorKind, LoadPlan, LoadRun, RequestRecord, TokenSource, order_statistic
from autotune.load.summary import summarise
from autotune.spec import LoadLevel, Metric, Slo, Workload


def record(
    index: int, latency: float, error: ErrorKind | None = None, *, scheduled: float | None = None
) -> RequestRecord:
    at = float(index) if scheduled is None else scheduled
    return RequestRecord(
        index=index,
        scheduled=at,
        sent=at,
        first_token=at + latency / 2,
        last_token=at + latency,
        finished=at + latency,
        input_tokens=10,
        output_tokens=0 if error else 11,
        token_source=TokenSource.NONE if error else TokenSource.USAGE,
        chunks=11,
        error=error,
        detail=f"reason {index}" if error else "",
    )


def run(records: list[RequestRecord], level: LoadLevel | None = None) -> LoadRun:
    plan = LoadPlan(
        level or LoadLevel.open(1), Workload(input_tokens=10, output_tokens=11), 1, "s", len(records), 1e9, 60
    )
    health = ClientHealth(0, 0, 0, 1)
    ended = max((r.finished for r in records), default=0)
    return LoadRun(plan, 0.0, ended, records, health, False, array("f", [0.1, 0.2, 0.9]))


@pytest.mark.parametrize(("n", "rank"), [(1, 1), (20, 20), (99, 99), (100, 99), (101, 100), (300, 297), (1000, 990)])
def test_p99_is_an_observed_value_and_the_maximum_below_100(n: int, rank: int) -> None:
    assert order_statistic(range(1, n + 1), 99) == rank


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(1, 99))
def test_enough_values_do_not_exceed_an_order_statistic(values: list[float], percentile: float) -> None:
    value = order_statistic(values, percentile)
    assert value in values
    assert sum(v <= value for v in values) >= percentile / 100 * len(values) - 1e-6
    assert sum(v < value for v in values) < percentile / 100 * len(values) + 1e-6


def test_failures_are_infinitely_late_and_carry_no_tokens() -> None:
    records = [record(i, 1.0) for i in range(97)] + [record(i, 0.1, ErrorKind.TIMEOUT) for i in range(97, 100)]
    summary = summarise(run(records), Slo.from_mapping({"p99_latency": "2s"}))
    assert (summary.requests, summary.succeeded, summary.failed) == (100, 97, 3)
    assert math.isinf(summary.percentile(Metric.LATENCY, 99))
    assert summary.percentile(Metric.LATENCY, 90) == 1.0
    assert summary.output_tokens == 97 * 11
    assert summary.goodput_share == 0.97
    assert summary.slo_held is False
    assert not summary.p99_is_maximum


def test_cancelled_requests_count_nowhere() -> None:
    records = [record(0, 1.0), record(1, 9.0, ErrorKind.CANCELLED)]
    summary = summarise(run(records), Slo.from_mapping({"p99_latency": "2s"}))
    assert (summary.requests, summary.failed, summary.cancelled) == (1, 0, 1)
    assert summary.percentile(Metric.LATENCY, 99) == 1.0
    assert summary.slo_held is True
    assert summary.p99_is_maximum


def test_throughput_and_rates() -> None:
    records = [record(i, 2.0, scheduled=(i + 1) * 0.5) for i in range(40)]
    summary = summarise(run(records))
    assert summary.duration == pytest.approx(22.0)
    assert summary.realised_rate == pytest.approx(2.0)
    assert summary.output_tokens_per_s == pytest.approx(440 / 22)
    assert summary.total_tokens_per_s == pytest.approx(840 / 22)
    assert summary.steady_output_tokens_per_s == pytest.approx(22.0, rel=0.01)
    assert summarise(run(records, LoadLevel.closed(4))).realised_rate == pytest.approx(40 / 22)


def test_percentiles_of_each_metric_and_of_the_gaps() -> None:
    summary = summarise(run([record(i, 1.0 + i) for i in range(3)]))
    assert summary.percentiles[Metric.LATENCY] == {50: 2.0, 90: 3.0, 99: 3.0}
    assert summary.percentiles[Metric.TTFT] == {50: 1.0, 90: 1.5, 99: 1.5}
    assert summary.percentiles[Metric.TPOT] == pytest.approx({50: 0.1, 90: 0.15, 99: 0.15})
    assert summary.inter_chunk[50] == pytest.approx(0.2)
    assert summary.max_gap == pytest.approx(0.9)


def test_errors_are_grouped_by_kind_with_one_example() -> None:
    kinds = [ErrorKind.CONNECT, ErrorKind.TIMEOUT, ErrorKind.TIMEOUT]
    summary = summarise(run([record(i, 1.0, kind) for i, kind in enumerate(kinds)]))
    groups = [(g.kind, g.count, g.example) for g in summary.errors]
    assert groups == [(ErrorKind.TIMEOUT, 2, "reason 1"), (ErrorKind.CONNECT, 1, "reason 0")]


def test_a_run_without_requests_has_no_figures() -> None:
    summary = summarise(run([]), Slo.from_mapping({"p99_latency": "2s"}))
    assert math.isnan(summary.percentile(Metric.LATENCY, 99))
    assert summary.slo_held is False


def test_a_client_that_sent_late_or_was_starved_says_so() -> None:
    assert ClientHealth(0.01, 5.0, 1.0, 1, 0.001).problem(2.0) is None
    late = ClientHealth(0.03, 0.0, 1.0, 1, 0.0).problem(2.0)
    assert late is not None
    assert "sent late" in late
    starved = ClientHealth(0.0, 0.0, 1.0, 1, 0.01).problem(2.0, scale=60)
    assert starved is not None
    assert "short of CPU" in starved
