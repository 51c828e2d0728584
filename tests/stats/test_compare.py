from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from autotune.stats import Noise, choose, gain, noise_of, winners_curse


def test_paired_gain_is_the_t_interval_of_log_ratios() -> None:
    a, b = np.array([12.0, 11.5, 12.4]), np.array([10.0, 9.9, 10.1])
    d = np.log(a / b)
    low, high = stats.t.interval(0.95, 2, d.mean(), stats.sem(d))
    g = gain(a, b)
    assert (g.percent, g.low, g.high) == pytest.approx(
        (100 * math.expm1(d.mean()), 100 * math.expm1(low), 100 * math.expm1(high))
    )
    assert g.repeats == 3
    assert g.significant


def test_unpaired_gain_is_welch() -> None:
    a, b = np.array([12.0, 11.5, 12.4, 12.0]), np.array([10.0, 9.9, 10.1])
    expected = stats.ttest_ind(np.log(a), np.log(b), equal_var=False).confidence_interval()
    g = gain(a, b, paired=False)
    assert (math.log1p(g.low / 100), math.log1p(g.high / 100)) == pytest.approx((expected.low, expected.high))


def test_a_drift_of_the_machine_cancels_in_pairs() -> None:
    drift = np.array([1.0, 0.7, 0.5])
    assert gain(1.1 * drift, drift).low == pytest.approx(10.0)
    assert not gain(1.1 * drift, drift, paired=False).significant


def test_one_repeat_claims_nothing() -> None:
    g = gain([12.0], [10.0])
    assert g.percent == pytest.approx(20.0)
    assert not g.significant


def test_noise_from_all_repeats_gives_the_error_and_its_degrees_of_freedom() -> None:
    a, b = np.array([12.0, 11.5, 12.4]), np.array([10.0, 9.9, 10.1])
    g = gain(a, b, noise=Noise(0.02, 4))
    half = stats.t.ppf(0.975, 4) * 0.02 * math.sqrt(2 / 3)
    mean = np.log(a / b).mean()
    assert (math.log1p(g.low / 100), math.log1p(g.high / 100)) == pytest.approx((mean - half, mean + half))


def test_noise_keeps_a_lucky_agreement_from_looking_certain() -> None:
    assert gain([10.2, 10.2], [10.0, 10.0]).significant
    assert not gain([10.2, 10.2], [10.0, 10.0], noise=Noise(0.02, 4)).significant


def test_noise_of_pools_groups() -> None:
    rng = np.random.default_rng(1)
    groups = [np.exp(rng.normal(m, 0.03, 4)) for m in rng.normal(size=200)]
    found = noise_of(groups)
    assert found is not None
    assert found.deviation == pytest.approx(0.03, rel=0.1)
    assert found.degrees == 600
    assert noise_of([[1.0]]) is None


def test_fewest_flags_within_the_noise() -> None:
    measured = {
        "default": [10.0, 10.1, 9.9, 10.0],
        "many": [13.0, 13.2, 12.9, 13.1],
        "few": [13.0, 13.0, 13.0, 13.0],
        "weak": [11.0, 11.1, 10.9, 11.0],
    }
    choice = choose(measured, baseline="default", flags={"many": 6, "few": 1, "weak": 0})
    assert choice.is_gain
    assert choice.winner == "few"
    assert choice.within_noise == ("few", "many")


def test_baseline_is_kept_without_a_real_gain() -> None:
    choice = choose({"default": [10.0, 10.5, 9.5], "x": [10.4, 9.8, 10.3]}, baseline="default", flags={"x": 2})
    assert not choice.is_gain
    assert choice.winner == "default"
    assert choose({"default": [1.0, 1.1]}, baseline="default", flags={}).winner == "default"


def test_wrong_gains_stay_at_the_stated_level() -> None:
    rng = np.random.default_rng(4)
    wrong = 0
    for _ in range(400):
        measured = {name: np.exp(rng.normal(0, 0.03, 4)) for name in ("default", "a", "b", "c")}
        wrong += choose(measured, baseline="default", flags={}).is_gain
    assert wrong / 400 <= 0.05


def test_winners_curse() -> None:
    assert winners_curse(11.0, 10.0) == pytest.approx(10.0)
    assert winners_curse(9.0, 10.0) == 0.0


def test_only_positive_figures() -> None:
    with pytest.raises(ValueError, match="positive"):
        gain([0.0], [1.0])
    with pytest.raises(ValueError, match="equal in number"):
        gain([1.0, 2.0], [1.0])
