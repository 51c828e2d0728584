"""What runs the trials of a study."""

from __future__ import annotations

from typing import Protocol

from autotune.store.result import TrialDocument
from autotune.trial.order import TrialOrder


class TrialExecutor(Protocol):
    """Runs one trial to its end; failures of the engine become outcomes, not exceptions."""

    async def run(self, order: TrialOrder) -> TrialDocument:
        """Start, warm up, measure, stop."""
        ...

    def slow_down(self) -> float | None:
        """Run on a slower clock from now on: its scale, or None where there is no slower one."""
        ...
