from __future__ import annotations

from autotune.search.budget import DEFAULT_TRIALS, FEWEST_PROPOSALS, BudgetKeeper
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
