from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import betainc

from autotune.stats._distributions import beta_cdf


@given(st.floats(0.05, 5000), st.floats(0.05, 5000))
def test_the_point_where_both_tails_meet_is_no_endless_loop(a: float, b: float) -> None:
    middle = (a + 1) / (a + b + 2)
    for x in (middle, 1 - middle, middle * (1 - 2**-53), min(1.0, middle * (1 + 2**-52))):
        assert beta_cdf(x, a, b) == pytest.approx(float(betainc(a, b, x)), abs=1e-8)
