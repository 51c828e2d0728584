"""Against scipy, an independent implementation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from autotune.stats._distributions import (
    beta_cdf,
    beta_quantile,
    binomial_cdf,
    normal_quantile,
    share_interval,
    t_quantile,
)

shapes = st.floats(0.05, 3000)
inside = st.floats(0.0001, 0.9999)


@settings(deadline=None)
@given(inside, shapes, shapes)
def test_beta_cdf(x: float, a: float, b: float) -> None:
    assert beta_cdf(x, a, b) == pytest.approx(float(stats.beta.cdf(x, a, b)), abs=1e-8)


@settings(deadline=None)
@given(st.floats(0.01, 0.99), st.floats(0.5, 500), st.floats(0.5, 500))
def test_beta_quantile(q: float, a: float, b: float) -> None:
    assert beta_quantile(q, a, b) == pytest.approx(float(stats.beta.ppf(q, a, b)), abs=1e-8)


@settings(deadline=None)
@given(st.integers(1, 3000), st.integers(0, 3000), inside)
def test_binomial_cdf(n: int, k: int, p: float) -> None:
    assert binomial_cdf(k, n, p) == pytest.approx(float(stats.binom.cdf(k, n, p)), abs=1e-8)


def test_binomial_edges() -> None:
    assert binomial_cdf(-1, 10, 0.5) == 0
    assert beta_cdf(0, 1, 1) == 0
    assert beta_cdf(1, 1, 1) == 1


@pytest.mark.parametrize("degrees", [1, 2, 5, 11, 100, 1e7])
@pytest.mark.parametrize("q", [0.025, 0.5, 0.9, 0.999])
def test_t_quantile(q: float, degrees: float) -> None:
    assert t_quantile(q, degrees) == pytest.approx(float(stats.t.ppf(q, degrees)), rel=1e-6, abs=1e-9)


def test_normal_quantile() -> None:
    assert normal_quantile(0.975) == pytest.approx(1.959964, abs=1e-6)


def test_share_interval_is_clopper_pearson() -> None:
    expected = stats.binomtest(3, 400).proportion_ci(0.95, method="exact")
    assert share_interval(3, 400) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert share_interval(0, 0) == (0.0, 1.0)
    assert share_interval(0, 100)[0] == 0
    assert share_interval(100, 100)[1] == 1
