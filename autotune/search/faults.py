"""What a fault means for a study: run the configuration again, leave it, or stop.

A fault of the environment stops the study at once, with its remedy. Any other is transient: a proposal is run again
once, and a second time only where the second fault was another one; then it is left, and neither learned nor proposed
again. What the study cannot do without (baselines, confirmation) is run up to three times. Three equal faults with no
trial between them that ended properly stop the study.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from autotune.base.errors import EnvironmentProblemError
from autotune.search.confirmation import configuration_key
from autotune.spec import Arguments
from autotune.store.result import Outcome, TrialDocument

MAX_RETRIES = 2
EQUAL_FAULTS_THAT_STOP = 3


class FaultRules:
    """The faults of one run of a study; a resumed run begins anew, since somebody may have mended what was wrong."""

    def __init__(self) -> None:
        self._streak: list[str] = []
        self._met: defaultdict[str, list[str]] = defaultdict(list)

    def note(self, document: TrialDocument) -> None:
        """Take in a trial that an engine was started for.

        Raises:
            EnvironmentProblemError: the study must stop.
        """
        if document.outcome is not Outcome.FAULT:
            self._streak.clear()
            return
        if document.environment:
            raise EnvironmentProblemError(
                f"the study cannot go on: {document.reason}: {document.detail}.", document.advice
            )
        self._streak.append(document.reason)
        self._met[configuration_key(document.arguments)].append(document.reason)
        same = Counter(self._streak)[document.reason]
        if same >= EQUAL_FAULTS_THAT_STOP:
            raise EnvironmentProblemError(
                f"{same} trials in a row failed with {document.reason}: {document.detail}.", document.advice
            )

    def left(self, arguments: Arguments) -> str | None:
        """The fault for which a proposal is not run again; None where it may be."""
        met = self._met.get(configuration_key(arguments), [])
        return met[-1] if _is_enough(met) else None

    def count_left(self) -> int:
        """How many configurations were left."""
        return sum(_is_enough(met) for met in self._met.values())


def _is_enough(met: Sequence[str]) -> bool:
    """Whether a proposal met its last fault: the second equal one, or the third."""
    return len(met) > MAX_RETRIES or len(set(met)) < len(met)
