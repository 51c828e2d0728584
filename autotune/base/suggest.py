"""The nearest known names for a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """At most ``count`` of the known names that resemble ``name``, best first."""
    candidates = list(known)
    by_fold = {candidate.casefold(): candidate for candidate in candidates}
    close = difflib.get_close_matches(name.casefold(), by_fold, n=count, cutoff=0.5)
    return [by_fold[c] for c in close]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A remedy sentence: the nearest names, or else all of them."""
    candidates = sorted(known)
    close = nearest(name, candidates)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    return f"Known: {', '.join(candidates)}."
