from __future__ import annotations

import numpy as np
import pytest

from autotune.stats.compare import noise_within_rounds


def test_a_drift_common_to_a_round_is_no_noise() -> None:
    drift = np.array([1.0, 1.3, 0.8])
    found = noise_within_rounds({"a": 10 * drift, "b": 12 * drift})
    assert found is not None
    assert found.deviation == pytest.approx(0.0, abs=1e-12)


def test_independent_noise_is_recovered() -> None:
    rng = np.random.default_rng(0)
    found = [
        noise_within_rounds({k: np.exp(rng.normal(0, 0.02, 4) + base) for k, base in (("a", 1), ("b", 2), ("c", 3))})
        for _ in range(400)
    ]
    assert np.sqrt(np.mean([noise.deviation**2 for noise in found])) == pytest.approx(0.02, rel=0.1)
    assert {noise.degrees for noise in found} == {(3 - 1) * (4 - 1)}


def test_one_round_tells_nothing() -> None:
    assert noise_within_rounds({"a": [1.0], "b": [2.0]}) is None
