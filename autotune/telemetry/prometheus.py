"""Reading the Prometheus text exposition format, of which only a few families are ever wanted.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (version 0.0.4, and what OpenMetrics adds
to a sample line: an exemplar after ``#``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_NAME_END = re.compile(r"[{ \t]")


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One sample line: the series' name, its labels, its value (may be NaN or infinite)."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse_metrics(text: str, names: Iterable[str] | None = None) -> list[MetricPoint]:
    """The sample lines of ``text``, in order.

    Args:
        text: an exposition; lines that are no samples are skipped, a server's oddity must not end a probe.
        names: keep only series of exactly these names; all by default. Naming the few that are wanted makes
            a large exposition cheap.
    """
    wanted = None if names is None else frozenset(names)
    prefixes = None if wanted is None else tuple(wanted)
    points: list[MetricPoint] = []
    for line in text.split("\n"):  # and at no other character: label values may hold any
        if line.startswith("#") or (prefixes is not None and not line.startswith(prefixes)):
            continue
        point = _parse_line(line, wanted)
        if point is not None:
            points.append(point)
    return points


def _parse_line(line: str, wanted: frozenset[str] | None) -> MetricPoint | None:
    end = _NAME_END.search(line)
    if end is None or end.start() == 0:
        return None
    name = line[: end.start()]
    if wanted is not None and name not in wanted:
        return None
    labels: dict[str, str] = {}
    rest = line[end.start() :].lstrip()
    if rest.startswith("{"):
        parsed = _parse_labels(rest)
        if parsed is None:
            return None
        labels, rest = parsed
    value = rest.split(maxsplit=1)
    try:
        return MetricPoint(name, labels, float(value[0]))
    except (ValueError, IndexError):
        return None


def _parse_labels(rest: str) -> tuple[dict[str, str], str] | None:
    labels: dict[str, str] = {}
    position = 1
    while position < len(rest):
        if rest[position] in " \t,":
            position += 1
            continue
        if rest[position] == "}":
            return labels, rest[position + 1 :]
        match = _LABEL.match(rest, position)
        if match is None:
            return None
        labels[match.group(1)] = _ESCAPE.sub(_unescape, match.group(2))
        position = match.end()
    return None


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match.group(1) == "n" else match.group(1)
