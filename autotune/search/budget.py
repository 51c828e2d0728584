"""When the search ends, and how long it will still take."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from autotune.spec import Budget

DEFAULT_TRIALS = 16
"""Configurations to try where neither trials nor time are given."""
FEWEST_PROPOSALS = 3
"""Tried in any case where the user set no time: a search that proposes nothing is none."""
SIMULATED_SEARCH_S = 75.0
"""On the simulated engine the search then also ends after this time: a first look takes minutes."""
FEWEST_JUDGED = 12
"""Measured configurations before the search may be called not worth going on with."""
_UPPERMOST = 3
WORTH_A_TRIAL = 0.0025
"""Share of the best that one more trial must be expected to add: a tenth of what a confirmation can tell from noise."""


def expected_gain(merits: Sequence[float]) -> float:
    """Share of the best that one more trial is expected to add to it.

    Of n + 1 trials in an order that means nothing the last is the best with a chance of 1 / (n + 1), and then adds the
    gap to the second best. That gap is estimated from the uppermost spacings, the i-th times i (A. Rényi, "On the
    theory of order statistics", 1953). A sampler that learns does better than that; what begins with the best
    predictions, worse.

    Args:
        merits: of all measured configurations, larger is better, 0 where the objective never held.
    """
    best = sorted((merit for merit in merits if merit > 0), reverse=True)[: _UPPERMOST + 1]
    spacings = [i * math.log(upper / lower) for i, (upper, lower) in enumerate(pairwise(best), start=1)]
    return statistics.fmean(spacings) / (len(merits) + 1) if spacings else 0.0


@dataclass
class BudgetKeeper:
    """Counts proposals and wall time against a budget."""

    budget: Budget
    default_time_s: float | None = None
    """Wall seconds where the budget names neither trials nor time."""
    monotonic: Callable[[], float] = time.monotonic
    before_s: float = 0.0
    """Wall seconds that earlier runs of the study searched for."""
    started: float = field(init=False)
    _durations: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.started = self.monotonic()

    @property
    def time_s(self) -> float | None:
        """Wall seconds after which no new proposal begins."""
        unlimited = self.budget.trials is None and self.budget.time_s is None
        return self.default_time_s if unlimited else self.budget.time_s

    @property
    def trials(self) -> int | None:
        """Proposals to try, None when only time limits them."""
        if self.budget.trials is None and self.budget.time_s is not None:
            return None
        return self.budget.trials or DEFAULT_TRIALS

    def elapsed(self) -> float:
        """Wall seconds of this run and of those before it."""
        return self.before_s + self.monotonic() - self.started

    def spent(self, proposals: int) -> bool:
        """True when no further proposal may begin."""
        if self.trials is not None and proposals >= self.trials:
            return True
        if self.budget.time_s is None and proposals < FEWEST_PROPOSALS:
            return False
        return self.time_s is not None and self.elapsed() >= self.time_s

    def worth_going_on(self, merits: Sequence[float]) -> bool:
        """False when one more trial is not worth its time; who asked for a number of trials gets them."""
        if self.budget.trials is not None or len(merits) < FEWEST_JUDGED:
            return True
        return expected_gain(merits) >= WORTH_A_TRIAL

    def note_duration(self, seconds: float) -> None:
        """Remember how long a launched trial took, wall seconds."""
        self._durations.append(seconds)

    def typical_duration(self) -> float | None:
        """Mean wall seconds of the recent trials, None before the first."""
        recent = self._durations[-8:]
        return sum(recent) / len(recent) if recent else None

    def eta(self, proposals: int, others: int, *, searching: bool = True) -> float | None:
        """Wall seconds until the study's end, None before the first trial ended.

        Args:
            proposals: that were tried.
            others: trials that are left beside the proposals: baselines, confirmation.
            searching: whether there may be more proposals.
        """
        typical = self.typical_duration()
        if typical is None:
            return None
        if not searching:
            return others * typical
        by_trials = None if self.trials is None else (self.trials - proposals) * typical
        by_time = None if self.time_s is None else self.time_s - self.elapsed()
        search = min((e for e in (by_trials, by_time) if e is not None), default=0.0)
        return max(0.0, search) + others * typical
