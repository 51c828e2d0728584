"""What differs between two studies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from autotune.base.errors import UsageError
from autotune.base.secrets import redacted
from autotune.report import figures
from autotune.search.objective import aim_of_result
from autotune.spec import LengthSpec, StudySpec
from autotune.store.result import BestDocument, StudyDocument

Change = tuple[str, Any, Any]


@dataclass(frozen=True, slots=True)
class FigureChange:
    """One figure of both winners."""

    name: str
    title: str
    show: Callable[[float | None], str]
    first: float | None
    second: float | None

    @property
    def is_known(self) -> bool:
        """One of the two studies has it."""
        return self.first is not None or self.second is not None

    @property
    def change(self) -> float | None:
        """From the first to the second in percent."""
        return None if self.second is None or not self.first else 100 * (self.second / self.first - 1)


@dataclass(frozen=True, slots=True)
class Difference:
    """All of it; ``cautions`` say why figures may not be comparable."""

    studies: tuple[str, str]
    definition: tuple[Change, ...]
    arguments: tuple[Change, ...]
    figures: tuple[FigureChange, ...]
    cautions: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As one JSON document."""
        return {
            "studies": list(self.studies),
            "definition": {key: [a, b] for key, a, b in self.definition},
            "arguments": {key: [a, b] for key, a, b in self.arguments},
            "figures": {
                f.name: {"first": f.first, "second": f.second, "change_percent": f.change} for f in self.figures
            },
            "cautions": list(self.cautions),
        }


_FIGURES: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("capacity_rps", "capacity", figures.rate),
    ("output_tokens_per_s", "output", figures.tokens_per_second),
    ("total_tokens_per_s", "input and output", figures.tokens_per_second),
    ("p50_latency_s", "P50 latency", figures.seconds),
    ("p99_latency_s", "P99 latency", figures.seconds),
    ("p99_ttft_s", "P99 TTFT", figures.seconds),
    ("p99_tpot_s", "P99 TPOT", figures.seconds),
)
_SOUGHT: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("target_latency_s", "latency of the first SLO", figures.seconds),
    ("cost_per_million_tokens", "USD per million output tokens", figures.number),
    ("energy_per_token_j", "J per output token", figures.number),
)
"""Figures that only some studies have."""


def compare_studies(first: StudyDocument, second: StudyDocument) -> Difference:
    """Definition, best configuration and figures of two studies, side by side."""
    definition = tuple(_changes(_definition(first), _definition(second)))
    best = (first.best, second.best)
    arguments = tuple(
        _changes(*(redacted(dict(b.arguments) | dict(b.environment)) if b is not None else {} for b in best))
    )
    return Difference(
        studies=(first.study, second.study),
        definition=definition,
        arguments=arguments,
        figures=(
            *(_change(*figure, best) for figure in _FIGURES),
            *(change for figure in _SOUGHT if (change := _change(*figure, best)).is_known),
        ),
        cautions=tuple(_cautions(first, second, definition)),
    )


def _change(
    name: str, title: str, show: Callable[[float | None], str], best: tuple[BestDocument | None, BestDocument | None]
) -> FigureChange:
    first, second = (None if b is None else getattr(b, name) for b in best)
    return FigureChange(name, title, show, first, second)


def _definition(document: StudyDocument) -> dict[str, Any]:
    flat = _flat(redacted(_completed(document.definition)))
    flat |= {
        "engine": f"{document.engine.kind} {document.engine.version}",
        "gpu": document.gpu_name,
        "model": document.model_name,
        "objective": aim_of_result(document).objective.value,
    }
    flat |= {f"slo.{key}": limit for key, limit in document.slo.items()}
    return {key: value for key, value in flat.items() if not key.startswith("slo.targets")}


def _completed(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    """With what went without saying in earlier versions; as it is where this version does not understand it."""
    try:
        return StudySpec.model_validate(dict(definition)).model_dump(mode="json")
    except (ValidationError, UsageError):
        return definition


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys; a length is one value, and what is empty is left out."""
    if isinstance(value, Mapping):
        length = _as_length(value)
        if length is not None:
            return {prefix: length}
        found: dict[str, Any] = {}
        for key, item in value.items():
            found |= _flat(item, f"{prefix}.{key}" if prefix else str(key))
        return found
    return {} if value in (None, "", []) else {prefix: value}


def _as_length(value: Mapping[str, Any]) -> str | None:
    try:
        return str(LengthSpec.model_validate(dict(value)))
    except ValidationError:
        return None


def _changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Change]:
    keys = [*first, *(key for key in second if key not in first)]
    return [(key, first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)]


def _cautions(first: StudyDocument, second: StudyDocument, definition: tuple[Change, ...]) -> list[str]:
    found = []
    if first.simulated != second.simulated:
        one = first if first.simulated else second
        found.append(f"{one.study} is SIMULATED and the other is not; their figures cannot be compared.")
    changed = [key for key, _, _ in definition if key.startswith(("workload.", "mix", "slo.", "load.", "objective"))]
    if changed:
        found.append(f"the figures answer different questions ({', '.join(sorted(changed))} differ).")
    found += [
        f"the best of {document.study} is not confirmed."
        for document in (first, second)
        if document.best is not None and not document.best.confirmed
    ]
    return found
