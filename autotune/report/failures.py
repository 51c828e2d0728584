"""Failed trials, grouped by what went wrong."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.store.result import Outcome, StudyDocument, TrialDocument


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Trials that failed for the same reason."""

    outcome: Outcome
    reason: str
    trials: tuple[TrialDocument, ...]

    @property
    def advice(self) -> str:
        """The first advice among them."""
        return next((t.advice for t in self.trials if t.advice), "")


def failure_groups(document: StudyDocument) -> list[FailureGroup]:
    """Failed trials by outcome and reason, the most frequent first."""
    groups: dict[tuple[Outcome, str], list[TrialDocument]] = {}
    for trial in document.trials:
        if trial.outcome is not Outcome.MEASURED:
            groups.setdefault((trial.outcome, trial.reason), []).append(trial)
    found = [FailureGroup(outcome, reason, tuple(trials)) for (outcome, reason), trials in groups.items()]
    return sorted(found, key=lambda g: (g.outcome is Outcome.FAULT, -len(g.trials)))
