"""Prometheus text: counters, gauges and histograms as ``prometheus_client`` writes them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Histogram:
    """Counts by bucket."""

    name: str
    help: str
    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, ``times`` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def lines(self, labels: str, created: float) -> list[str]:
        """The exposition of this histogram."""
        out = [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} histogram"]
        running = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            running += count
            le = "+Inf" if bound == float("inf") else str(float(bound))
            out.append(f'{self.name}_bucket{{{labels},le="{le}"}} {float(running)}')
        out += [f"{self.name}_count{{{labels}}} {float(running)}", f"{self.name}_sum{{{labels}}} {self.total}"]
        return out + created_lines(self.name, {labels: 0.0}, created, self.help)


def gauge_lines(name: str, text: str, values: Mapping[str, float]) -> list[str]:
    """A gauge; ``values`` by their labels."""
    lines = [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
    return lines + [f"{name}{{{labels}}} {float(value)}" for labels, value in values.items()]


def counter_lines(name: str, text: str, values: Mapping[str, float], created: float) -> list[str]:
    """A counter; ``name`` without its suffix, ``values`` by their labels, ``created`` as a Unix time."""
    lines = [f"# HELP {name}_total {text}", f"# TYPE {name}_total counter"]
    lines += [f"{name}_total{{{labels}}} {float(value)}" for labels, value in values.items()]
    return lines + created_lines(name, values, created, text)


def created_lines(name: str, values: Mapping[str, float], created: float, text: str) -> list[str]:
    """The gauge that says since when a counter or histogram counts."""
    return gauge_lines(f"{name}_created", text, dict.fromkeys(values, created))


def escaped(value: str) -> str:
    """A label's value."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
