"""Telemetry that was recorded: rows, their summary, their file."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from autotune.base.files import write_atomically
from autotune.telemetry.throttle import REASONS


class ColumnSummary(TypedDict):
    """One column over a span, as plain JSON."""

    mean: float
    min: float
    max: float
    last: float
    samples: int
    delta: float | None
    """Growth of a counter over the span, resets bridged; None for what is no counter."""


Summary = dict[str, ColumnSummary]
"""Summaries by ``DEVICE.FIELD``; columns without one value are left out."""


@dataclass(frozen=True, slots=True)
class Row:
    """One look at one device, at ``time`` engine seconds."""

    time: float
    device: str
    values: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """How a device did: what it cost, what was missed, and why it was given up, if it was."""

    samples: int = 0
    errors: int = 0
    skipped: int = 0
    """Looks left out because the one before took too long."""
    seconds: float = 0.0
    """Wall seconds spent looking."""
    problem: str | None = None
    """The last error; the device is off when ``off``."""
    off: bool = False


@dataclass(frozen=True)
class Telemetry:
    """Rows of all devices in order of time. Column names are ``DEVICE.FIELD``."""

    rows: Sequence[Row] = ()
    counters: frozenset[str] = frozenset()
    marks: Sequence[tuple[float, str]] = ()
    devices: Mapping[str, DeviceHealth] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, in order of first appearance."""
        return tuple(dict.fromkeys(f"{row.device}.{name}" for row in self.rows for name in row.values))

    def series(self, column: str) -> tuple[list[float], list[float]]:
        """Times and values of a column where it has a value."""
        device, _, name = column.partition(".")
        pairs = [
            (row.time, value)
            for row in self.rows
            if row.device == device and (value := row.values.get(name)) is not None and math.isfinite(value)
        ]
        return [t for t, _ in pairs], [v for _, v in pairs]

    def between(self, started: float, ended: float) -> Telemetry:
        """The rows and marks of a span of engine time, its ends included."""
        return Telemetry(
            rows=[row for row in self.rows if started <= row.time <= ended],
            counters=self.counters,
            marks=[mark for mark in self.marks if started <= mark[0] <= ended],
            devices=self.devices,
        )

    def summary(self) -> Summary:
        """Mean, extremes, last value and growth of each column; bit sets have none of these and are left out."""
        collected: dict[str, list[float]] = {}
        for row in self.rows:
            for name, value in row.values.items():
                if value is not None and math.isfinite(value) and not name.endswith("_bits"):
                    collected.setdefault(f"{row.device}.{name}", []).append(value)
        return {
            column: ColumnSummary(
                mean=math.fsum(values) / len(values),
                min=min(values),
                max=max(values),
                last=values[-1],
                samples=len(values),
                delta=_growth(values) if column in self.counters else None,
            )
            for column, values in collected.items()
        }

    def energy_joules(self) -> float | None:
        """Energy of all GPUs over the rows: by their counters, or else the integral of their power.

        None when a GPU has neither, or fewer than two samples. The integral takes engine seconds as seconds, as
        they are on every machine with a GPU.
        """
        gpus = dict.fromkeys(row.device for row in self.rows if row.device.startswith("gpu"))
        total = 0.0
        for gpu in gpus:
            energy = self._energy_of(gpu)
            if energy is None:
                return None
            total += energy
        return total if gpus else None

    def _energy_of(self, gpu: str) -> float | None:
        _, counter = self.series(f"{gpu}.energy_j")
        if len(counter) >= 2:
            return _growth(counter)
        times, watts = self.series(f"{gpu}.power_w")
        if len(times) < 2:
            return None
        return math.fsum((times[i] - times[i - 1]) * (watts[i] + watts[i - 1]) / 2 for i in range(1, len(times)))

    def throttle_reasons(self) -> dict[str, float]:
        """Share of the samples, over all GPUs, in which each reason held the clocks down; absent ones left out."""
        seen: dict[str, list[float]] = {}
        for row in self.rows:
            for name in REASONS:
                value = row.values.get(f"throttle_{name}")
                if value is not None:
                    seen.setdefault(name, []).append(value)
        shares = {name: math.fsum(values) / len(values) for name, values in seen.items()}
        return {name: share for name, share in shares.items() if share > 0}

    def to_csv_gz(self, path: Path) -> None:
        """Write ``time_s``, ``device``, ``mark`` and the columns, gzip-compressed; an empty cell is no value."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        columns = self.columns
        writer.writerow(["time_s", "device", "mark", *columns])
        for time, device, mark, values in self._lines():
            cells = (values.get(column) for column in columns)
            writer.writerow([f"{time:.6f}", device, mark, *("" if v is None else f"{v:.10g}" for v in cells)])
        write_atomically(path, gzip.compress(buffer.getvalue().encode(), mtime=0))

    def _lines(self) -> Iterator[tuple[float, str, str, dict[str, float | None]]]:
        rows = [(r.time, r.device, "", {f"{r.device}.{name}": v for name, v in r.values.items()}) for r in self.rows]
        marks: list[tuple[float, str, str, dict[str, float | None]]] = [(t, "", label, {}) for t, label in self.marks]
        yield from sorted(rows + marks, key=lambda line: line[0])


def _growth(values: Sequence[float]) -> float:
    """Growth of a counter; where it fell it began again at zero."""
    return math.fsum(now - then if now >= then else now for then, now in itertools.pairwise(values))
