"""What a dry run shows to a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autotune.base.units import format_duration

_LABEL_WIDTH = 16


def plan_text(plan: Mapping[str, Any]) -> str:
    """The plan of :func:`autotune.search.describe_plan` in lines of a label and words."""
    return "\n".join(f"{label:<{_LABEL_WIDTH}}{words}".rstrip() for label, words in _lines(plan))


def _lines(plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    engine, workload, space = plan["engine"], plan["workload"], plan["space"]
    simulated = engine["kind"] == "simulated"
    slo = " and ".join(f"{key} <= {limit}" for key, limit in plan["slo"].items())
    yield "study", plan["study"]
    yield "engine", f"SIMULATED ({engine['why']})" if simulated else f"vLLM {engine['version']} ({engine['why']})"
    yield "GPU", plan["gpu"]
    yield "model", plan["model"]
    yield "workload", f"{workload['input']} tokens in, {workload['output']} tokens out"
    if plan["more_workloads"]:
        yield "and", ", ".join(plan["more_workloads"])
    yield "objective", f"{plan['objective']} with {slo}"
    yield "load", plan["load"]
    yield "budget", _budget_words(plan["budget"])
    size = plan["configurations"]
    yield "varies", "any of countless configurations" if size is None else f"{size:,} configurations"
    for name, described in space["parameters"].items():
        yield "", f"{name}: {_values(described)}"
    yield "fixed", ", ".join(f"{name} {_value(value)}" for name, value in space["fixed"].items()) or "nothing"
    refused = plan["default_refused"]
    yield "vLLM's defaults", "started first" if refused is None else f"not expected to run here: {refused}"
    yield "results", plan["folder"]
    yield "database", plan["storage"]
    yield "", "Nothing was started or written. Leave out --dry-run to begin."


def _budget_words(budget: Mapping[str, Any]) -> str:
    trials, time_s = budget["trials"], budget["time_s"]
    limits = [f"{trials} trial" + ("" if trials == 1 else "s")] if trials is not None else []
    limits += [f"no new trial after {format_duration(time_s)}"] if time_s is not None else []
    return ", ".join(limits) or "as many trials as are worth their time"


def _values(described: Mapping[str, Any]) -> str:
    values: Sequence[object] | None = described.get("values")
    if described["type"] == "choice" and values is not None:
        words = ", ".join(_value(value) for value in values)
    else:
        words = f"{described['low']} to {described['high']}" + (f", {len(values)} values" if values else "")
    default = described["default"]
    return words if default is None else f"{words} (default {_value(default)})"


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
