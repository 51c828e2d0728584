"""Token lengths: ``512`` is fixed, ``256:768`` uniform, ``normal:512,128``, ``lognormal:512,0.6``."""

from __future__ import annotations

import math
from enum import StrEnum

from pydantic import Field, model_validator

from autotune.base.errors import UsageError
from autotune.spec._model import Spec


class LengthKind(StrEnum):
    """Shape of the distribution of lengths."""

    FIXED = "fixed"
    UNIFORM = "uniform"
    NORMAL = "normal"
    LOGNORMAL = "lognormal"


class LengthSpec(Spec):
    """A distribution of token counts, cut to ``[low, high]``.

    ``location`` and ``spread``: mean and standard deviation for ``normal``; median and sigma of the
    logarithm for ``lognormal``; unused otherwise.
    """

    kind: LengthKind
    low: int = Field(ge=1)
    high: int = Field(ge=1)
    location: float = 0.0
    spread: float = 0.0

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

    @classmethod
    def parse(cls, text: str | int, name: str = "length") -> LengthSpec:
        """Read one of the forms of the module's docstring.

        Raises:
            UsageError: not one of the forms, or a range upside down.
        """
        try:
            return cls._parse(str(text).strip())
        except ValueError as error:
            raise UsageError(
                f"{name}: '{text}' is not a token length.",
                "Write e.g. 512, 256:768, normal:512,128 or lognormal:512,0.6 (low before high, all above zero).",
            ) from error

    @classmethod
    def _parse(cls, text: str) -> LengthSpec:
        kind, _, rest = text.partition(":")
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
            case _:
                return f"{self.kind}:{self.location:g},{self.spread:g}"
