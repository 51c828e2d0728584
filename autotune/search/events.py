"""What happens in a study, told to whoever shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from autotune.store.result import StudyDocument, TrialDocument, VerdictDocument


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """What will be done, known before the first engine starts. Durations are wall seconds."""

    baselines: int
    trials: int | None
    confirmations: int
    resumed_trials: int
    expected_seconds: float | None


@dataclass(frozen=True, slots=True)
class TrialStarted:
    """A configuration is about to be started."""

    number: int
    role: str
    label: str
    flags: str
    position: int
    """How many trials of the plan were done before this one."""
    total: int
    eta_seconds: float | None
    """Wall seconds until the study's end, as far as can be told."""


@dataclass(frozen=True, slots=True)
class ProbeProgress:
    """A running probe. Times are engine seconds."""

    trial: int
    index: int
    level: str
    sent: int
    planned: int
    finished: int
    misses: int
    elapsed: float


class StudyObserver(Protocol):
    """Receives a study's events, in order, from the loop's thread. Must not block or raise."""

    def planned(self, plan: StudyPlan) -> None:
        """The study begins."""
        ...

    def trial_started(self, event: TrialStarted) -> None:
        """An engine is about to start."""
        ...

    def phase(self, text: str) -> None:
        """What is being done now, in a few words."""
        ...

    def probe(self, progress: ProbeProgress) -> None:
        """A running probe moved on."""
        ...

    def trial_finished(self, trial: TrialDocument, best: TrialDocument | None) -> None:
        """A trial ended; ``best`` is the best so far."""
        ...

    def notice(self, text: str) -> None:
        """Something worth knowing: a resumed study, a reused measurement, a retried fault."""
        ...

    def saved(self, document: StudyDocument) -> None:
        """``result.json`` was just written."""
        ...

    def concluded(self, verdict: VerdictDocument) -> None:
        """The verdict stands."""
        ...


class SilentObserver:
    """Shows nothing."""

    def planned(self, plan: StudyPlan) -> None:
        """Ignored."""

    def trial_started(self, event: TrialStarted) -> None:
        """Ignored."""

    def phase(self, text: str) -> None:
        """Ignored."""

    def probe(self, progress: ProbeProgress) -> None:
        """Ignored."""

    def trial_finished(self, trial: TrialDocument, best: TrialDocument | None) -> None:
        """Ignored."""

    def notice(self, text: str) -> None:
        """Ignored."""

    def saved(self, document: StudyDocument) -> None:
        """Ignored."""

    def concluded(self, verdict: VerdictDocument) -> None:
        """Ignored."""
