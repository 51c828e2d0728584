from __future__ import annotations

import pytest

from autotune.simulator.lag import LagMeter


def test_the_mean_is_of_the_last_moments_only() -> None:
    now = [0.0]
    meter = LagMeter(lambda: now[0])
    assert meter.mean() == 0.0
    meter.note(0.3)
    meter.note(0.1)
    assert meter.mean() == pytest.approx(0.2)
    now[0] = 1.5
    meter.note(0.0)
    assert meter.mean() == pytest.approx(0.4 / 3)
    now[0] = 2.6
    assert meter.mean() == 0.0
    now[0] = 9.0
    assert meter.mean() == 0.0
