"""What earlier trials on the same GPU proved, whatever the memory model believes.

A configuration that asks for at least as much, in every respect that matters to a cause, as one that failed of it
fails too; one that asks for no more than one that ran, runs. What two different configurations that failed of the
same refusal have in common, as far as it never ran, is at fault: usually one value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations

from autotune.space._demand import Demand
from autotune.spec import Arguments, ArgumentValue

#: Failures that one value may cause by itself.
_VALUE_CAUSES = ("unsupported_hardware", "invalid_config")
_TOLERANCE = 1e-9


def respects(cause: str, asked: Demand) -> tuple[float, ...] | None:
    """What a configuration asks for, as far as it matters to the cause; more of anything is worse. None: no memory."""
    fixed = asked.fixed_kv or 0.0
    share = 0.0 if asked.fixed_kv is not None else asked.utilization
    match cause:
        case "gpu_memory_busy":
            return (share,)
        case "oom_weights":
            return (asked.weights, asked.communication)
        case "oom_activation":
            return (asked.weights, asked.communication, asked.activation)
        case "oom_kv_cache":
            return (asked.weights, asked.communication, asked.activation, asked.graphs, asked.needed_kv, -share, -fixed)
        case "oom_cudagraph":
            return (share, fixed, asked.graphs, -asked.activation)
        case "oom_runtime":
            return (share, fixed, asked.graphs, asked.loaded_activation, asked.loaded_activation - asked.activation)
        case _:
            return None


Setting = tuple[str, str]
"""An argument and its value, as it is written."""


@dataclass(frozen=True, slots=True)
class Guilt:
    """Settings that two configurations which failed of the same cause share, and that never ran."""

    cause: str
    settings: tuple[Setting, ...]
    """In order of name. Several: which of them is at fault is not known, only that they fail together."""

    def __str__(self) -> str:
        named = " with ".join(f"{name} {value}" for name, value in self.settings)
        return f"{named} failed twice here ({self.cause}) and never ran"


@dataclass
class Experience:
    """Outcomes of earlier trials."""

    fixed: frozenset[str] = frozenset()
    """Arguments that no proposal varies: none of them is ever at fault."""
    ran: list[Demand] = field(default_factory=list)
    failed: list[tuple[str, Demand]] = field(default_factory=list)
    _refused: list[tuple[str, frozenset[Setting]]] = field(default_factory=list)
    _settings_ran: set[Setting] = field(default_factory=set)

    def add(self, arguments: Arguments, asked: Demand, cause: str | None) -> None:
        """Remember how a trial ended; ``cause`` None when it ran."""
        settings = self._settings(arguments)
        if cause is None:
            self.ran.append(asked)
            self._settings_ran |= settings
        elif cause in _VALUE_CAUSES:
            self._refused.append((cause, settings))
        elif respects(cause, asked) is not None:
            self.failed.append((cause, asked))

    def proved_failure(self, asked: Demand) -> str | None:
        """The cause of which the configuration would fail as one that asked for no more did; None if none did."""
        for cause, other in self.failed:
            if _at_least(respects(cause, asked), respects(cause, other)) and not self.proved_fit(cause, asked):
                return cause
        return None

    def proved_fit(self, cause: str, asked: Demand) -> bool:
        """Whether a configuration that asked for no less ran, so that this one does not fail of the cause."""
        return any(_at_least(respects(cause, other), respects(cause, asked)) for other in self.ran)

    def guilts(self) -> list[Guilt]:
        """All that two failures of the same cause blame."""
        found: dict[Guilt, None] = {}
        for (cause, one), (other_cause, other) in combinations(self._refused, 2):
            shared = (one & other) - self._settings_ran
            if cause == other_cause and one != other and shared:
                found[Guilt(cause, tuple(sorted(shared)))] = None
        return list(found)

    def guilt(self, arguments: Arguments) -> Guilt | None:
        """What makes these arguments fail, if experience blames any of their settings."""
        chosen = self._settings(arguments)
        return next((guilt for guilt in self.guilts() if chosen.issuperset(guilt.settings)), None)

    def _settings(self, arguments: Arguments) -> frozenset[Setting]:
        return frozenset((name, _spelt(value)) for name, value in arguments.items() if name not in self.fixed)


def _spelt(value: ArgumentValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _at_least(more: tuple[float, ...] | None, less: tuple[float, ...] | None) -> bool:
    return more is not None and less is not None and all(a >= b - _TOLERANCE for a, b in zip(more, less, strict=True))
