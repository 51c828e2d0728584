"""Telemetry of probes in words: names, units, and which probe speaks for a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.report import figures
from autotune.store.result import ProbeDocument, TrialDocument


@dataclass(frozen=True, slots=True)
class Quantity:
    """A column of the telemetry, which statistic of it is shown, and how."""

    column: str
    statistic: str
    title: str
    show: Callable[[float | None], str]


def _with_unit(unit: str) -> Callable[[float | None], str]:
    return lambda value: figures.MISSING if value is None else f"{figures.number(value)} {unit}"


QUANTITIES = (
    Quantity("gpu.utilization", "mean", "GPU utilisation, mean (share of time with any kernel running)", figures.share),
    Quantity("gpu.memory_used_bytes", "max", "GPU memory used, highest", figures.gibibytes),
    Quantity("gpu.power_w", "mean", "GPU power, mean", _with_unit("W")),
    Quantity("gpu.energy_j", "delta", "GPU energy over the probe", _with_unit("J")),
    Quantity("gpu.temperature_c", "max", "GPU temperature, highest", _with_unit("°C")),
    Quantity("gpu.sm_clock_mhz", "mean", "GPU clock, mean", _with_unit("MHz")),
    Quantity("gpu.throttled", "mean", "GPU clocks held down by heat or a slowdown, share of time", figures.share),
    Quantity("engine.running", "mean", "requests running, mean", figures.count),
    Quantity("engine.running", "max", "requests running, highest", figures.count),
    Quantity("engine.waiting", "mean", "requests waiting, mean", figures.count),
    Quantity("engine.kv_cache_usage", "max", "KV cache in use, highest", figures.share),
    Quantity("engine.preemptions", "delta", "preemptions", figures.count),
    Quantity("host.cpu", "mean", "host CPU in use, mean", figures.share),
)


def statistic(probe: ProbeDocument, column: str, name: str) -> float | None:
    """One statistic of one column; for ``gpu.`` columns the sum (power, energy) or the highest over all GPUs."""
    device, _, field = column.partition(".")
    if device != "gpu":
        return _number(probe.telemetry.get(column), name)
    values = [
        value
        for key, summary in probe.telemetry.items()
        if key.startswith("gpu") and key.partition(".")[2] == field and (value := _number(summary, name)) is not None
    ]
    if not values:
        return None
    return sum(values) if field in ("power_w", "energy_j", "memory_used_bytes") else max(values)


def _number(summary: Any, name: str) -> float | None:
    value = summary.get(name) if isinstance(summary, Mapping) else None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def loaded_probe(trial: TrialDocument) -> ProbeDocument | None:
    """The probe that speaks for a configuration: the highest load that it carried, else the lowest that it tried."""
    valid = [probe for probe in trial.probes if probe.valid]
    passed = [probe for probe in valid if probe.decision == "pass"]
    if passed:
        return max(passed, key=probe_load)
    return min(valid, key=probe_load, default=None)


def probe_load(probe: ProbeDocument) -> float:
    """The load of a probe as a number to order by: its concurrency or its rate."""
    return float(probe.concurrency) if probe.concurrency is not None else probe.rate or 0.0
