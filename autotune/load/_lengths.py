"""Token lengths drawn from a distribution."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autotune.spec import LengthKind, LengthSpec

_PAGE = 512


def lengths(spec: LengthSpec, generator: np.random.Generator) -> Iterator[int]:
    """An endless stream of lengths, each within ``[spec.low, spec.high]``."""
    while True:
        match spec.kind:
            case LengthKind.FIXED:
                page = np.full(_PAGE, spec.low, dtype=float)
            case LengthKind.UNIFORM:
                page = generator.integers(spec.low, spec.high, _PAGE, endpoint=True).astype(float)
            case LengthKind.NORMAL:
                page = generator.normal(spec.location, spec.spread, _PAGE)
            case LengthKind.LOGNORMAL:
                page = spec.location * np.exp(spec.spread * generator.standard_normal(_PAGE))
            case LengthKind.FILE:
                page = generator.choice(np.asarray(spec.values, dtype=float), _PAGE)
        yield from np.clip(np.rint(page), spec.low, spec.high).astype(int).tolist()
