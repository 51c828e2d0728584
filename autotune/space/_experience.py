"""What earlier trials on the same GPU proved, whatever the memory model believes.

A configuration that asks for at least as much, in every respect that matters to a cause, as one that failed of it
fails too; one that asks for no more than one that ran, runs. A choice (of a back end, a data type) that was
part of every failure of a kind, at least twice, and of no success, is at fault.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from autotune.space._demand import Demand
from autotune.spec import Arguments, ArgumentValue

#: Failures that one value may cause by itself.
_VALUE_CAUSES = ("unsupported_hardware", "unsupported_model", "invalid_config")
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


@dataclass
class Experience:
    """Outcomes of earlier trials."""

    ran: list[Demand] = field(default_factory=list)
    failed: list[tuple[str, Demand]] = field(default_factory=list)
    _choices_failed: dict[str, list[frozenset[tuple[str, str]]]] = field(default_factory=dict)
    _choices_ran: set[tuple[str, str]] = field(default_factory=set)

    def add(self, arguments: Arguments, asked: Demand, cause: str | None) -> None:
        """Remember how a trial ended; ``cause`` None when it ran."""
        choices = frozenset(_choices(arguments))
        if cause is None:
            self.ran.append(asked)
            self._choices_ran |= choices
        elif cause in _VALUE_CAUSES:
            self._choices_failed.setdefault(cause, []).append(choices)
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

    def guilty_choices(self, arguments: Arguments) -> tuple[str, frozenset[tuple[str, str]]] | None:
        """A cause and the choices of these arguments that were part of all its failures and of no success."""
        chosen = frozenset(_choices(arguments))
        for cause, failures in self._choices_failed.items():
            if len(failures) < 2:
                continue
            common = frozenset.intersection(*failures) - self._choices_ran
            if common and common <= chosen:
                return cause, common
        return None


def _choices(arguments: Arguments) -> Iterable[tuple[str, str]]:
    """Arguments that are no quantities: texts and switches."""
    for name, value in arguments.items():
        if isinstance(value, (bool, str)):
            yield name, _spelt(value)


def _spelt(value: ArgumentValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _at_least(more: tuple[float, ...] | None, less: tuple[float, ...] | None) -> bool:
    return more is not None and less is not None and all(a >= b - _TOLERANCE for a, b in zip(more, less, strict=True))
