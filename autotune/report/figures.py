"""Figures with their units, as people read them. A value that was not measured is a dash."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

MISSING = "–"
_GIB = 2**30
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MOST_DECIMALS = 6


def number(value: float | None, digits: int = 3) -> str:
    """``digits`` significant digits, whole numbers in full, thousands separated: ``0.618``, ``1.49``, ``4,688``."""
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{min(max(0, decimals), _MOST_DECIMALS)}f}"


def count(value: float | None) -> str:
    """A number of things, or a mean of such numbers: whole where it is whole."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if value >= 100 or float(value).is_integer() else f"{value:.1f}"


def rate(value: float | None) -> str:
    """Requests per second."""
    return MISSING if value is None else f"{number(value)} req/s"


def tokens_per_second(value: float | None) -> str:
    """Tokens per second."""
    return MISSING if value is None else f"{number(value)} tok/s"


def seconds(value: float | None) -> str:
    """A latency: milliseconds below one second."""
    if value is None:
        return MISSING
    return f"{number(value * 1000)} ms" if abs(value) < 1 else f"{number(value)} s"


def quantity(value: float | None, unit: str) -> str:
    """A value with its unit; seconds as a latency."""
    if value is None:
        return MISSING
    return seconds(value) if unit == "s" else f"{number(value)} {unit}"


def limit(value: float) -> str:
    """The limit of an objective, without digits that nobody gave."""
    return f"{value:g} s" if value >= 1 else f"{value * 1000:g} ms"


def duration(value: float | None) -> str:
    """A span of time of any length: ``41 s``, ``12 min``, ``4 h 34 min``."""
    if value is None:
        return MISSING
    if value < 120:
        return f"{number(value)} s"
    minutes = round(value / 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def percent(value: float | None, *, signed: bool = False) -> str:
    """A value that is a percentage already."""
    if value is None:
        return MISSING
    return f"{value:+.1f} %" if signed else f"{value:.1f} %"


def share(value: float | None) -> str:
    """A share of 0 to 1 as a percentage."""
    return MISSING if value is None else percent(100 * value)


def gibibytes(value: float | None) -> str:
    """Bytes as GiB."""
    return MISSING if value is None else f"{value / _GIB:.1f} GiB"


def interval(bounds: Sequence[float | None] | None, unit: str = "", *, signed: bool = False) -> str:
    """``8.9 to 10.2 s``; with an open end ``at least 8.9 s`` or ``at most 10.2 s``; empty when there is none."""
    if bounds is None or all(bound is None for bound in bounds):
        return ""
    low, high = ("" if b is None else f"{b:+.1f}" if signed else number(b) for b in bounds)
    both = f"{low} to {high}" if low and high else f"at least {low}" if low else f"at most {high}"
    return f"{both} {unit}".strip()


def moment(text: str | None) -> str:
    """An ISO 8601 moment as ``30 Nov 2026, 13:47 UTC``; anything else as it is."""
    if not text:
        return MISSING
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return text
    zone = f" {when.tzname()}" if when.tzinfo is not None else ""
    return f"{when.day} {_MONTHS[when.month - 1]} {when.year}, {when:%H:%M}{zone}"


def objective(key: str, limit: str) -> str:
    """An SLO for people: ``p99_latency`` and ``10s`` become ``P99 latency ≤ 10 s``."""
    percentile, _, metric = key.partition("_")
    name = metric if metric == "latency" else metric.upper()
    return f"{percentile.upper()} {name} ≤ {limit_words(limit)}"


def limit_words(limit: str) -> str:
    """``10s`` as ``10 s``."""
    head = limit.rstrip("abcdefghijklmnopqrstuvwxyz")
    return f"{head} {limit[len(head) :]}" if head and not any(c.isalpha() for c in head) else limit
