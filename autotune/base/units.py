"""Durations, rates and prices as users write them: ``10s``, ``250ms``, ``2h``, ``0.5/s``, ``0.53/h``."""

from __future__ import annotations

import math
import re

from autotune.base.errors import UsageError

_DURATION_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_RATE_UNITS = {"s": 1.0, "sec": 1.0, "min": 1 / 60, "m": 1 / 60, "h": 1 / 3600}
_PRICE_HOURS = {"h": 1.0, "hour": 1.0, "d": 24.0, "day": 24.0, "month": 730.0}
_NUMBER = r"[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|\.[0-9]+"
_DURATION_PART = re.compile(rf"({_NUMBER})\s*([a-z]+)")
_RATE = re.compile(rf"({_NUMBER})\s*(?:req)?\s*(?:/\s*([a-z]+))?")
_PRICE = re.compile(rf"\$?\s*({_NUMBER})\s*(?:/\s*([a-z]+))?")


def parse_duration(text: str, name: str = "duration") -> float:
    """Seconds in ``text`` such as ``10s``, ``250ms``, ``1h30m``.

    Raises:
        UsageError: no unit, an unknown unit, or not a positive number.
    """
    stripped = text.strip().lower()
    try:
        float(stripped)
    except ValueError:
        pass
    else:
        raise UsageError(
            f"{name}: '{text}' has no unit or is not positive.", "Write it with a unit, e.g. 10s, 250ms or 2h."
        )
    parts = list(_DURATION_PART.finditer(stripped))
    if not parts or "".join(p.group(0) for p in parts).replace(" ", "") != stripped.replace(" ", ""):
        raise UsageError(f"{name}: '{text}' is not a duration.", "Write e.g. 10s, 250ms or 1h30m.")
    total = 0.0
    for part in parts:
        unit = part.group(2)
        if unit not in _DURATION_UNITS:
            raise UsageError(f"{name}: '{unit}' is not a unit of time.", f"Use one of {', '.join(_DURATION_UNITS)}.")
        total += float(part.group(1)) * _DURATION_UNITS[unit]
    if not (total > 0 and math.isfinite(total)):
        raise UsageError(f"{name}: '{text}' must be more than zero and finite.", "Write e.g. 10s.")
    return total


def parse_rate(text: str, name: str = "rate") -> float:
    """Requests per second in ``text``: a plain number of req/s, or ``0.5/s``, ``30/min``.

    Raises:
        UsageError: not a rate, or not positive.
    """
    match = _RATE.fullmatch(text.strip().lower())
    if match is None or (match.group(2) or "s") not in _RATE_UNITS:
        raise UsageError(f"{name}: '{text}' is not a rate.", "Write requests per second, e.g. 0.5 or 30/min.")
    rate = float(match.group(1)) * _RATE_UNITS[match.group(2) or "s"]
    if not (rate > 0 and math.isfinite(rate)):
        raise UsageError(f"{name}: '{text}' must be more than zero.", "Write requests per second, e.g. 0.5.")
    return rate


def parse_price(text: str, name: str = "--price") -> float:
    """US dollars an hour in ``0.53/h``, ``$12/day`` or a plain number.

    Raises:
        UsageError: not a price, or not above zero.
    """
    match = _PRICE.fullmatch(text.strip().lower())
    if match is None or (match.group(2) or "h") not in _PRICE_HOURS or not float(match.group(1)) > 0:
        raise UsageError(f"{name}: '{text}' is not a price.", "Write dollars an hour, e.g. 0.53/h.")
    return float(match.group(1)) / _PRICE_HOURS[match.group(2) or "h"]


def format_duration(seconds: float) -> str:
    """A short form that ``parse_duration`` reads back: ``250ms``, ``10s``, ``1h30m``."""
    if seconds < 1:
        return f"{seconds * 1000:.3g}ms"
    if seconds < 120:
        return f"{seconds:.3g}s"
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    return "".join(f"{n}{u}" for n, u in ((hours, "h"), (minutes, "m"), (secs, "s")) if n)
