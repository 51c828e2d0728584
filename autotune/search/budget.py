"""When the search ends, and how long it will still take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from autotune.spec import Budget

DEFAULT_TRIALS = 16
"""Configurations to try where neither trials nor time are given."""
FEWEST_PROPOSALS = 3
"""Tried in any case where the user set no time: a search that proposes nothing is none."""
SIMULATED_SEARCH_S = 75.0
"""On the simulated engine the search then also ends after this time: a first look takes minutes."""


@dataclass
class BudgetKeeper:
    """Counts proposals and wall time against a budget. Time is this process's wall time."""

    budget: Budget
    default_time_s: float | None = None
    """Wall seconds where the budget names neither trials nor time."""
    monotonic: Callable[[], float] = time.monotonic
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
        """Wall seconds since the start of this run."""
        return self.monotonic() - self.started

    def spent(self, proposals: int) -> bool:
        """True when no further proposal may begin."""
        if self.trials is not None and proposals >= self.trials:
            return True
        if self.budget.time_s is None and proposals < FEWEST_PROPOSALS:
            return False
        return self.time_s is not None and self.elapsed() >= self.time_s

    def note_duration(self, seconds: float) -> None:
        """Remember how long a launched trial took, wall seconds."""
        self._durations.append(seconds)

    def typical_duration(self) -> float | None:
        """Mean wall seconds of the recent trials, None before the first."""
        recent = self._durations[-8:]
        return sum(recent) / len(recent) if recent else None

    def eta(self, proposals: int, confirmations: int) -> float | None:
        """Wall seconds until the study's end, None before the first trial ended."""
        typical = self.typical_duration()
        if typical is None:
            return None
        by_trials = None if self.trials is None else (self.trials - proposals) * typical
        by_time = None if self.time_s is None else self.time_s - self.elapsed()
        search = min((e for e in (by_trials, by_time) if e is not None), default=0.0)
        return max(0.0, search) + confirmations * typical
