from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.search.budget import (
    DEFAULT_TRIALS,
    FEWEST_JUDGED,
    FEWEST_PROPOSALS,
    WORTH_A_TRIAL,
    BudgetKeeper,
    expected_gain,
)
from autotune.spec import Budget


def keeper(now: list[float], default_time_s: float | None = None, **budget: float) -> BudgetKeeper:
    return BudgetKeeper(Budget(**budget), default_time_s, lambda: now[0])


def test_trials_and_time_each_end_the_search() -> None:
    now = [0.0]
    both = keeper(now, trials=5, time_s=100.0)
    assert not both.spent(4)
    assert both.spent(5)
    now[0] = 100.0
    assert both.spent(0)


def test_time_alone_leaves_the_number_of_trials_open() -> None:
    assert keeper([0.0], time_s=10.0).trials is None
    assert keeper([0.0]).trials == DEFAULT_TRIALS


def test_a_first_look_ends_in_minutes_but_never_without_proposals() -> None:
    now = [0.0]
    first = keeper(now, default_time_s=110.0)
    now[0] = 500.0
    assert not first.spent(FEWEST_PROPOSALS - 1)
    assert first.spent(FEWEST_PROPOSALS)
    assert not keeper(now, default_time_s=110.0, trials=9).spent(8)


def test_the_eta_counts_what_is_left_at_the_recent_pace() -> None:
    now = [0.0]
    budget = keeper(now, trials=10)
    assert budget.eta(0, 9) is None
    for _ in range(3):
        budget.note_duration(20.0)
    assert budget.eta(4, 9) == (6 + 9) * 20.0
    assert budget.eta(4, 9, searching=False) == 9 * 20.0, "what an ended search left of its budget is not used"


def test_the_time_of_earlier_runs_counts() -> None:
    assert BudgetKeeper(Budget(time_s=100.0), before_s=100.0).spent(0)


def test_the_expected_gain_is_the_chance_of_a_record_times_its_size() -> None:
    merits = [100.0, 0.0, 110.0, 95.0, 121.0]
    # Spacings of the best four: 10 %, 10 %, and 100 over 95.
    gap = (math.log(1.1) + 2 * math.log(1.1) + 3 * math.log(100 / 95)) / 3
    assert expected_gain(merits) == pytest.approx(gap / 6)
    assert expected_gain([0.0, 100.0]) == 0.0


@pytest.mark.parametrize("count", [12, 30])
def test_one_more_random_trial_adds_what_the_rule_expects(count: int) -> None:
    rng = np.random.default_rng(3)
    trials = np.exp(0.1 * rng.standard_normal((20_000, count + 1)))
    expected = np.mean([expected_gain(row[:-1].tolist()) for row in trials[:4000]])
    came = np.mean(trials.max(axis=1) / trials[:, :-1].max(axis=1) - 1)
    assert came <= expected <= 1.35 * came


def test_a_search_ends_when_more_of_it_is_not_worth_its_time() -> None:
    hopeless = [100.0, 99.9, 99.8, 99.7] + [90.0] * FEWEST_JUDGED
    hopeful = [120.0, 110.0, 100.0] + [90.0] * FEWEST_JUDGED
    assert expected_gain(hopeful) > WORTH_A_TRIAL
    open_ended = keeper([0.0], time_s=100.0)
    assert not open_ended.worth_going_on(hopeless)
    assert open_ended.worth_going_on(hopeless[: FEWEST_JUDGED - 1])
    assert open_ended.worth_going_on(hopeful)
    assert keeper([0.0], trials=50).worth_going_on(hopeless), "who asks for trials gets them"
