from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.base.errors import UsageError
from autotune.base.units import format_duration, parse_duration, parse_rate


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 10.0),
        ("250ms", 0.25),
        ("2h", 7200.0),
        ("1h30m", 5400.0),
        ("1.5 s", 1.5),
        ("3min", 180.0),
        ("1d", 86400.0),
    ],
)
def test_durations_with_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["10", "-5s", "0s", "", "s", "10 parsecs", "10s!", "nan", "inf", "1h-3m"])
def test_what_is_no_duration_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration(text, "--slo-p99")
    assert "--slo-p99" in str(caught.value)
    assert caught.value.remedy


@given(st.floats(min_value=1e-3, max_value=1e6))
def test_a_printed_duration_reads_back(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=0.01)


@pytest.mark.parametrize(
    ("text", "rate"), [("0.5", 0.5), ("0.5/s", 0.5), ("30/min", 0.5), ("5 req/s", 5.0), ("1e1", 10.0)]
)
def test_rates(text: str, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["0", "-1", "5/parsec", "fast", "inf", "nan"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_rate(text)


def test_an_endless_duration_is_refused() -> None:
    with pytest.raises(UsageError, match="must be more than zero and finite"):
        parse_duration("9" * 400 + "s")
