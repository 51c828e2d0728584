from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.stats.tail import Tail


def test_evidence_is_the_likelihood_ratio_of_exponential_excesses() -> None:
    rng = np.random.default_rng(1)
    x = rng.exponential(size=4000)
    tail = Tail.of(x, 0.1)
    assert tail is not None
    limit = -math.log(0.012)
    excess = np.sort(x)[-tail.count :] - tail.threshold
    means = [(limit - tail.threshold) / math.log(tail.share / share) for share in (0.005, 0.02)]
    logs = [float(np.sum(-np.log(m) - excess / m)) for m in means]
    assert tail.evidence(limit, 0.005, 0.02) == pytest.approx((logs[1] - logs[0]) / 1.2)


def test_evidence_points_the_right_way() -> None:
    tail = Tail.of(np.random.default_rng(2).exponential(size=2000), 0.1)
    assert tail is not None
    assert tail.evidence(-math.log(0.001), 0.005, 0.02) < -10
    assert tail.evidence(-math.log(0.05), 0.005, 0.02) > 10
    # The limit lies inside the bulk: as bad as can be.
    assert tail.evidence(0.5, 0.005, 0.02) == math.inf


def test_error_of_the_log_quantile() -> None:
    rng = np.random.default_rng(3)
    estimates, errors = [], []
    for _ in range(400):
        x = rng.exponential(size=1000)
        tail = Tail.of(x, 0.1)
        assert tail is not None
        estimates.append(math.log(tail.threshold + tail.mean_excess * math.log(tail.share / 0.01)))
        errors.append(tail.log_quantile_error(0.01, 1.0))
    assert np.std(estimates) == pytest.approx(np.median(errors), rel=0.2)
    assert tail.log_quantile_error(0.01, 4.0) == pytest.approx(2 * tail.log_quantile_error(0.01, 1.0))


def test_few_or_failed_values() -> None:
    assert Tail.of(np.arange(10.0), 0.1) is None
    failed = Tail.of(np.array([1.0] * 60 + [np.inf] * 40), 0.1)
    assert failed is not None
    assert failed.evidence(10.0, 0.005, 0.02) == math.inf
    assert failed.log_quantile_error(0.01, 1.0) == math.inf
