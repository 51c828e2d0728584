"""What a rule is: a pattern of a statement, the cause it stands for, and what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass

from autotune.engine.failure import Cause, FailureKind

KIND_OF_CAUSE: dict[Cause, FailureKind] = {
    Cause.OOM_WEIGHTS: FailureKind.INFEASIBLE,
    Cause.OOM_KV_CACHE: FailureKind.INFEASIBLE,
    Cause.OOM_ACTIVATION: FailureKind.INFEASIBLE,
    Cause.OOM_CUDAGRAPH: FailureKind.INFEASIBLE,
    Cause.OOM_RUNTIME: FailureKind.INFEASIBLE,
    Cause.INVALID_CONFIG: FailureKind.INFEASIBLE,
    Cause.UNSUPPORTED_HARDWARE: FailureKind.INFEASIBLE,
    Cause.NONE: FailureKind.NONE,
}
"""What a cause means for the search; causes that are not listed are faults."""

ENVIRONMENT_CAUSES = frozenset(
    {
        Cause.UNSUPPORTED_MODEL,
        Cause.MODEL_NOT_FOUND,
        Cause.MODEL_CORRUPT,
        Cause.DEPENDENCY_ERROR,
        Cause.DRIVER_ERROR,
        Cause.DISK_FULL,
    }
)
"""Causes that every other configuration would meet as well."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One known statement. The pattern is searched in ``Type: message`` of exceptions and in error lines."""

    cause: Cause
    pattern: re.Pattern[str]
    advice: str
    """One sentence; ``{name}`` stands for the pattern's named group."""
    fallback: str = ""
    """The advice when a named group is missing."""
    kind: FailureKind | None = None
    environment: bool | None = None
    weak: bool = False
    """True for a broad pattern that counts only where no other statement has a specific one."""

    def advise(self, match: re.Match[str]) -> str:
        """The advice with the figures of the log."""
        groups = {name: value.rstrip(".") for name, value in match.groupdict().items() if value is not None}
        try:
            return self.advice.format(**groups)
        except KeyError:
            return self.fallback


def rule(
    cause: Cause,
    pattern: str,
    advice: str,
    *,
    fallback: str = "",
    kind: FailureKind | None = None,
    environment: bool | None = None,
    weak: bool = False,
) -> Rule:
    """Build a rule; the pattern ignores case and its dots span lines."""
    return Rule(cause, re.compile(pattern, re.IGNORECASE | re.DOTALL), advice, fallback, kind, environment, weak)
