from __future__ import annotations

import pytest

from autotune.report import figures
from autotune.report._svg import Axis, linear_ticks


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0, "0"),
        (0.0123, "0.0123"),
        (0.618, "0.618"),
        (1.4935, "1.49"),
        (41.23, "41.2"),
        (149.35, "149"),
        (4688.4, "4,688"),
        (1234567, "1,234,567"),
        (-5.5, "-5.50"),
    ],
)
def test_numbers_keep_three_digits_and_whole_numbers_in_full(value: float | None, shown: str) -> None:
    assert figures.number(value) == shown


def test_latencies_below_one_second_are_milliseconds() -> None:
    assert figures.seconds(0.0126) == "12.6 ms"
    assert figures.seconds(9.22) == "9.22 s"
    assert figures.seconds(None) == "–"


def test_spans_of_time_choose_their_unit() -> None:
    assert figures.duration(41) == "41.0 s"
    assert figures.duration(12 * 60 + 10) == "12 min"
    assert figures.duration(4 * 3600 + 34 * 60 + 20) == "4 h 34 min"


def test_objectives_read_as_sentences() -> None:
    assert figures.objective("p99_latency", "10s") == "P99 latency ≤ 10 s"
    assert figures.objective("p95_ttft", "500ms") == "P95 TTFT ≤ 500 ms"
    assert figures.objective("p99.9_tpot", "1m30s") == "P99.9 TPOT ≤ 1m30s"


def test_open_intervals_show_a_dash() -> None:
    assert figures.interval((8.9, None), "s") == "at least 8.90 s"
    assert figures.interval((None, 10.2), "s") == "at most 10.2 s"
    assert figures.interval((32.4, 44.9), "%", signed=True) == "+32.4 to +44.9 %"
    assert figures.interval((None, None)) == figures.interval(None) == ""


def test_moments_are_readable_and_unknown_ones_stay_as_they_are() -> None:
    assert figures.moment("2026-11-30T13:47:05+00:00") == "30 Nov 2026, 13:47 UTC"
    assert figures.moment("yesterday") == "yesterday"


def test_ticks_are_round_and_inside_the_range() -> None:
    assert linear_ticks(0, 2.03, 4) == [0, 1, 2]
    assert linear_ticks(0, 18.5, 6) == [0, 5, 10, 15]
    assert Axis(0.3, 70, "s", log=True).ticks(6) == pytest.approx([0.5, 1, 2, 5, 10, 20, 50])
    assert Axis(1, 100, "s", log=True).position(10) == pytest.approx(0.5)
