"""Search parameters: an engine argument with the values that it may take."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from autotune.spec import ArgumentValue

#: The value of a choice that means: leave the flag out.
UNSET = "unset"


def _nearest(grid: tuple[float, ...], value: float, log: bool) -> float:
    """The grid value nearest to ``value``; of two equally near the lower one."""
    position = bisect_left(grid, value)
    if position == 0:
        return grid[0]
    if position == len(grid):
        return grid[-1]
    below, above = grid[position - 1], grid[position]
    if log and value > 0:
        return below if value / below <= above / value else above
    return below if value - below <= above - value else above


@dataclass(frozen=True, slots=True)
class IntParameter:
    """A whole number in ``[low, high]``, on ``grid`` where there is one."""

    name: str
    low: int
    high: int
    log: bool = False
    grid: tuple[int, ...] | None = None
    default: int | None = None
    """What the unset flag resolves to on this GPU; None where that is not known."""
    lossy: bool = False

    def distribution(self) -> BaseDistribution:
        """The range, for Optuna. The grid is not in it: :meth:`snap` brings a proposal to the grid."""
        return IntDistribution(self.low, self.high, log=self.log)

    def snap(self, value: ArgumentValue) -> int:
        """The nearest value of the parameter."""
        number = _as_number(self.name, value)
        if self.grid is None:
            return min(max(round(number), self.low), self.high)
        return int(_nearest(self.grid, number, self.log))

    def size(self) -> int:
        """How many values there are."""
        return self.high - self.low + 1 if self.grid is None else len(self.grid)

    def describe(self) -> dict[str, object]:
        """JSON form."""
        return {
            "type": "int",
            "low": self.low,
            "high": self.high,
            "log": self.log,
            "values": None if self.grid is None else list(self.grid),
            "default": self.default,
        }


@dataclass(frozen=True, slots=True)
class FloatParameter:
    """A number in ``[low, high]``, on ``grid`` where there is one."""

    name: str
    low: float
    high: float
    log: bool = False
    grid: tuple[float, ...] | None = None
    default: float | None = None
    lossy: bool = False

    def distribution(self) -> BaseDistribution:
        """The range, for Optuna."""
        return FloatDistribution(self.low, self.high, log=self.log)

    def snap(self, value: ArgumentValue) -> float:
        """The nearest value of the parameter."""
        number = _as_number(self.name, value)
        if self.grid is None:
            return min(max(number, self.low), self.high)
        return _nearest(self.grid, number, self.log)

    def size(self) -> int | None:
        """How many values there are; None without a grid."""
        return None if self.grid is None else len(self.grid)

    def describe(self) -> dict[str, object]:
        """JSON form."""
        return {
            "type": "float",
            "low": self.low,
            "high": self.high,
            "log": self.log,
            "values": None if self.grid is None else list(self.grid),
            "default": self.default,
        }


@dataclass(frozen=True, slots=True)
class ChoiceParameter:
    """One of a few values; ``unset`` among them leaves the flag out."""

    name: str
    values: tuple[ArgumentValue, ...]
    default: ArgumentValue | None = None
    lossy: bool = False

    def distribution(self) -> BaseDistribution:
        """The choices, for Optuna."""
        return CategoricalDistribution(self.values)

    def snap(self, value: ArgumentValue) -> ArgumentValue:
        """The value itself where it is a choice, otherwise the default or the first choice."""
        for choice in self.values:
            if choice == value and isinstance(choice, bool) == isinstance(value, bool):
                return choice
        return self.default if self.default in self.values and self.default is not None else self.values[0]

    def size(self) -> int:
        """How many values there are."""
        return len(self.values)

    def describe(self) -> dict[str, object]:
        """JSON form."""
        return {"type": "choice", "values": list(self.values), "default": self.default}


Parameter = IntParameter | FloatParameter | ChoiceParameter


def _as_number(name: str, value: ArgumentValue) -> float:
    if isinstance(value, (bool, str)) or not math.isfinite(value):
        raise ValueError(f"{name}: {value!r} is not a number")
    return value
