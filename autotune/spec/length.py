"""Token lengths: ``512`` is fixed, ``256:768`` uniform, ``normal:512,128``, ``lognormal:512,0.6``, ``file:PATH``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from pydantic import Field, model_validator

from autotune.base.errors import UsageError
from autotune.spec._model import Spec


class LengthKind(StrEnum):
    """Shape of the distribution of lengths."""

    FIXED = "fixed"
    UNIFORM = "uniform"
    NORMAL = "normal"
    LOGNORMAL = "lognormal"
    FILE = "file"


_MOST_VALUES = 1000


class LengthSpec(Spec):
    """A distribution of token counts, cut to ``[low, high]``.

    ``location`` and ``spread``: mean and standard deviation for ``normal``; median and sigma of the
    logarithm for ``lognormal``; unused otherwise. ``values``: what ``file`` draws from, in ascending order.
    """

    kind: LengthKind
    low: int = Field(ge=1)
    high: int = Field(ge=1)
    location: float = 0.0
    spread: float = 0.0
    values: tuple[int, ...] = ()
    path: str = ""

    @model_validator(mode="after")
    def _ordered(self) -> LengthSpec:
        if self.low > self.high:
            raise ValueError(f"length range is upside down: {self.low}:{self.high}")
        return self

    @property
    def mean(self) -> float:
        """Expected number of tokens (before cutting, for the normal and log-normal kinds)."""
        match self.kind:
            case LengthKind.FIXED | LengthKind.UNIFORM:
                return (self.low + self.high) / 2
            case LengthKind.NORMAL:
                return self.location
            case LengthKind.LOGNORMAL:
                return min(self.location * math.exp(self.spread**2 / 2), float(self.high))
            case LengthKind.FILE:
                return sum(self.values) / len(self.values)

    @classmethod
    def of_values(cls, values: Sequence[int], path: str = "") -> LengthSpec:
        """The distribution of observed lengths; of very many, evenly spaced order statistics are kept.

        Raises:
            ValueError: no values, or one below 1.
        """
        ordered = sorted(values)
        if not ordered or ordered[0] < 1:
            raise ValueError("lengths are whole numbers of at least 1")
        if len(ordered) > _MOST_VALUES:
            last = len(ordered) - 1
            ordered = [ordered[round(i * last / (_MOST_VALUES - 1))] for i in range(_MOST_VALUES)]
        return cls(kind=LengthKind.FILE, low=ordered[0], high=ordered[-1], values=tuple(ordered), path=path)

    @classmethod
    def parse(cls, text: str | int, name: str = "length") -> LengthSpec:
        """Read one of the forms of the module's docstring.

        Raises:
            UsageError: not one of the forms, or a range upside down.
        """
        try:
            return cls._parse(str(text).strip())
        except OSError as error:
            raise UsageError(f"{name}: '{text}': {error.strerror}.", "Name a file with one length a line.") from error
        except ValueError as error:
            raise UsageError(
                f"{name}: '{text}' is not a token length.",
                "Write e.g. 512, 256:768, normal:512,128, lognormal:512,0.6 (low before high, all above zero)"
                " or file:PATH with one length a line.",
            ) from error

    @classmethod
    def _parse(cls, text: str) -> LengthSpec:
        kind, _, rest = text.partition(":")
        if kind == LengthKind.FILE:
            lines = Path(rest).read_text(encoding="utf-8").split()
            return cls.of_values([int(line) for line in lines], rest)
        if kind in (LengthKind.NORMAL, LengthKind.LOGNORMAL):
            location, spread = (float(part) for part in rest.split(","))
            if not (location >= 1 and spread >= 0 and math.isfinite(location) and math.isfinite(spread)):
                raise ValueError("location and spread")
            if kind == LengthKind.NORMAL:
                low, high = location - 3 * spread, location + 3 * spread
            else:
                low, high = location * math.exp(-3 * spread), location * math.exp(3 * spread)
            return cls(
                kind=LengthKind(kind),
                low=max(1, round(low)),
                high=max(1, round(high)),
                location=location,
                spread=spread,
            )
        if rest:
            return cls(kind=LengthKind.UNIFORM, low=int(kind), high=int(rest))
        return cls(kind=LengthKind.FIXED, low=int(kind), high=int(kind))

    def __str__(self) -> str:
        match self.kind:
            case LengthKind.FIXED:
                return str(self.low)
            case LengthKind.UNIFORM:
                return f"{self.low}:{self.high}"
            case LengthKind.FILE:
                return f"file:{self.path}" if self.path else f"{self.low}:{self.high} as in the dataset"
            case _:
                return f"{self.kind}:{self.location:g},{self.spread:g}"
