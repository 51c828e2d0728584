from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from autotune.stats import SloTest, Verdict


def test_fixed_size_has_the_stated_error_rates_and_is_the_smallest() -> None:
    test = SloTest(0.01, error=0.05, margin=2)
    n = test.fixed_size
    most = max(c for c in range(50) if stats.binom.cdf(c, n, test.bad_share) <= 0.05)
    assert stats.binom.sf(most, n, test.good_share) <= 0.05
    for smaller in range(n - 60, n):
        accepted = [c for c in range(50) if stats.binom.cdf(c, smaller, test.bad_share) <= 0.05]
        assert not accepted or stats.binom.sf(max(accepted), smaller, test.good_share) > 0.05


def test_walds_boundaries() -> None:
    test = SloTest(0.01)
    assert test.judge(0, test.least_requests) is Verdict.PASS
    assert test.judge(0, test.least_requests - 1) is Verdict.UNDECIDED
    # Three misses at once: 3 log 4 = 4.16 > log 19.
    assert test.judge(3, 3) is Verdict.FAIL
    assert test.judge(2, 2) is Verdict.UNDECIDED


def test_correlation_discounts_the_evidence() -> None:
    test = SloTest(0.01)
    assert test.judge(10, 300, 1.0) is Verdict.FAIL
    assert test.judge(10, 300, 8.0) is Verdict.UNDECIDED


def test_error_rates_on_independent_requests() -> None:
    rng = np.random.default_rng(5)
    test = SloTest(0.01)
    for share, wrong in ((test.bad_share, Verdict.PASS), (test.good_share, Verdict.FAIL)):
        errors, used = 0, 0
        for _ in range(300):
            misses = np.cumsum(rng.random(6000) < share)
            for n in range(50, 6000, 10):
                verdict = test.judge(int(misses[n - 1]), n)
                if verdict is not Verdict.UNDECIDED:
                    errors += verdict is wrong
                    used += n
                    break
        assert errors / 300 <= 0.07
        assert used / 300 < 0.8 * test.fixed_size


def test_update_takes_flags_in_order() -> None:
    flags = np.zeros(400, dtype=bool)
    assert SloTest(0.01).update(flags) is Verdict.PASS
    flags[::10] = True
    assert SloTest(0.01).update(flags) is Verdict.FAIL


def test_strict_puts_the_bad_share_at_the_objective() -> None:
    assert SloTest(0.01, strict=True).bad_share == 0.01
    assert SloTest(0.01, strict=True).good_share == 0.0025


@pytest.mark.parametrize("arguments", [{"allowed_share": 0.0}, {"allowed_share": 0.01, "margin": 1.0}])
def test_refuses_nonsense(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="needed"):
        SloTest(**arguments)


def test_median_objective() -> None:
    test = SloTest(0.5)
    assert test.good_share < 0.5 < test.bad_share < 1
    assert math.isfinite(test.evidence(10, 20))
