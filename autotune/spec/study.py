"""A study's definition: what the command line or a study file asks for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError, field_validator, model_validator

from autotune.base.errors import UsageError
from autotune.base.suggest import did_you_mean
from autotune.base.units import parse_duration
from autotune.base.yaml_text import read_yaml_mapping
from autotune.spec._model import Spec
from autotune.spec.argument import ArgumentValue
from autotune.spec.load import LoadLevel
from autotune.spec.mix import Combine, WorkloadShare
from autotune.spec.objective import Objective
from autotune.spec.quality import QualityLimits
from autotune.spec.slo import Slo
from autotune.spec.workload import Workload

SpecT = TypeVar("SpecT", bound=Spec)


class EngineChoice(StrEnum):
    """Which engine to use; ``auto`` takes the real one where its GPU and a vLLM are here."""

    AUTO = "auto"
    VLLM = "vllm"
    SIMULATED = "simulated"


class SamplerChoice(StrEnum):
    """Optuna samplers on offer; ``auto`` is the one that the benchmark favours."""

    AUTO = "auto"
    TPE = "tpe"
    GP = "gp"
    RANDOM = "random"
    QMC = "qmc"


class Budget(Spec):
    """When the search ends: after ``trials`` configurations or ``time_s`` seconds of engine time."""

    trials: int | None = Field(default=None, ge=1)
    time_s: float | None = Field(default=None, gt=0)


class StudySpec(Spec):
    """Everything that decides what a study measures. ``load`` None means: search for capacity."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=120)
    gpu: str
    model: str
    workload: Workload
    mix: tuple[WorkloadShare, ...] = ()
    """Where several workloads are served: all of them, ``workload`` being the first."""
    combine: Combine = Combine.WORST
    slo: Slo
    load: LoadLevel | None = None
    objective: Objective = Objective.CAPACITY
    price_per_hour: float | None = Field(default=None, gt=0)
    """US dollars an hour of the GPU; None: the catalogue's."""
    engine: EngineChoice = EngineChoice.AUTO
    arguments: dict[str, ArgumentValue] = Field(default_factory=dict)
    space: dict[str, Any] = Field(default_factory=dict)
    budget: Budget = Budget()
    sampler: SamplerChoice = SamplerChoice.AUTO
    seed: int = Field(default=0, ge=0)
    allow_lossy: bool = False
    quality: QualityLimits = QualityLimits()
    """What a configuration that changes the output must hold to win."""
    reuse: bool = True
    """Whether earlier studies in the same database are asked for what they measured and learned."""

    @model_validator(mode="before")
    @classmethod
    def _implied_objective(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("objective") is None:
            return {**values, "objective": Objective.implied_by(values.get("load"))}
        return values

    @field_validator("arguments", "space", mode="before")
    @classmethod
    def _dashed(cls, value: object) -> object:
        if isinstance(value, Mapping):
            return {str(k).lstrip("-").replace("_", "-"): v for k, v in value.items()}
        return value

    @model_validator(mode="after")
    def _fixed_or_varied(self) -> StudySpec:
        both = sorted(set(self.arguments) & set(self.space))
        if both:
            raise ValueError(f"{', '.join(both)}: fixed under 'arguments' and varied under 'space'")
        return self

    @model_validator(mode="after")
    def _mixable(self) -> StudySpec:
        names = [share.workload.name for share in self.mix]
        if len(set(names)) != len(names):
            raise UsageError(
                f"workloads: two have the same name ({', '.join(names)}).", "Name each of them differently."
            )
        if self.mix and self.mix[0].workload != self.workload:
            raise ValueError("the first of several workloads must be the study's workload")
        if self.mix and self.objective is Objective.PARETO:
            raise UsageError("objective pareto: a front is of one workload.", "Leave the others out.")
        if self.combine is Combine.WORST and any(share.weight != 1.0 for share in self.mix):
            raise UsageError("workloads: weights do not count for the worst of them.", "Add 'combine: weighted'.")
        return self

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """All that a configuration must serve."""
        return tuple(share.workload for share in self.mix) or (self.workload,)

    @property
    def longest_workload(self) -> Workload:
        """The workload with the longest sequences, which decides the context length and the memory."""
        return max(self.workloads, key=lambda workload: workload.longest_sequence)

    @model_validator(mode="after")
    def _objective_and_load(self) -> StudySpec:
        self.objective.check_load(self.load)
        return self

    def measured_identity(self) -> dict[str, Any]:
        """What must not change when a study is resumed: everything that a figure depends on.

        What goes without saying is left out, as it is in studies from before anything else could be said.
        """
        hidden = {"name", "budget", "sampler", "engine", "reuse"}
        hidden |= {"objective"} if self.objective is Objective.implied_by(self.load) else set()
        hidden |= {"price_per_hour"} if self.objective is not Objective.COST else set()
        hidden |= {"quality"} if self.quality == QualityLimits() else set()
        hidden |= set() if self.mix else {"mix", "combine"}
        return self.model_dump(mode="json", exclude=hidden)

    def fingerprint(self) -> str:
        """Short hash of :meth:`measured_identity`."""
        text = json.dumps(self.measured_identity(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


_KEYS = {
    "name", "gpu", "model", "workload", "workloads", "combine", "slo", "load", "objective", "price", "engine",
    "arguments", "space", "budget", "sampler", "seed", "allow_lossy", "quality", "reuse",
}  # fmt: skip


def read_study_file(path: Path) -> dict[str, Any]:
    """The raw mapping of a study file, with unknown keys refused.

    Raises:
        UsageError: the file cannot be read, is not a mapping, or has an unknown key.
    """
    document = read_yaml_mapping(path)
    for key in document:
        if key not in _KEYS:
            raise UsageError(f"study file {path}: unknown key '{key}'.", did_you_mean(str(key), _KEYS))
    return document


def parse_load(value: object) -> LoadLevel | None:
    """``capacity``, ``{concurrency: 5}`` or ``{rate: 0.5}``.

    Raises:
        UsageError: anything else, or both at once.
    """
    remedy = "Write capacity, {concurrency: 5} or {rate: 0.5}."
    if value is None or value == "capacity":
        return None
    if not isinstance(value, dict) or len(value) != 1:
        raise UsageError(f"load: '{value}' is not a load.", remedy)
    (kind, amount), *_ = value.items()
    try:
        if kind == "concurrency":
            if isinstance(amount, bool) or float(amount) != int(amount):
                raise ValueError("not a whole number")
            return LoadLevel.closed(int(amount))
        if kind == "rate":
            return LoadLevel.open(float(amount))
    except (ValueError, TypeError, OverflowError) as error:
        what = "whole number of requests at once above zero" if kind == "concurrency" else "positive rate"
        raise UsageError(f"load: '{amount}' is not a {what}.", remedy) from error
    raise UsageError(f"load: unknown kind '{kind}'.", remedy)


def parse_budget(value: object) -> Budget:
    """``{trials: 20, time: 2h}``.

    Raises:
        UsageError: an unknown key or a value that is not positive.
    """
    if not isinstance(value, dict):
        raise UsageError(f"budget: '{value}' is not a budget.", "Write {trials: 20, time: 2h}.")
    for key in value:
        if key not in ("trials", "time"):
            raise UsageError(f"budget: unknown key '{key}'.", did_you_mean(str(key), ("trials", "time")))
    time = value.get("time")
    return validated(
        Budget, {"trials": value.get("trials"), "time_s": None if time is None else parse_duration(str(time), "time")}
    )


def validated(kind: type[SpecT], values: Mapping[str, Any]) -> SpecT:
    """Build a specification; the first complaint becomes a one-line usage error."""
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        complaints = error.errors()
        first = next((each for each in complaints if each["type"] == "extra_forbidden"), complaints[0])
        where = ".".join(str(part) for part in first["loc"]) or kind.__name__
        if first["type"] == "missing":
            raise UsageError(f"{where} is missing.", "Add it.") from error
        given = first.get("input")
        shown = f" (got {given!r})" if isinstance(given, (str, int, float)) else ""
        if first["type"] == "extra_forbidden":
            *above, key = (str(part) for part in first["loc"])
            place = f"{'.'.join(above)}: " if above else ""
            known = () if above else kind.model_fields
            raise UsageError(f"{place}unknown key '{key}'.", did_you_mean(key, known) if known else "") from error
        if first["type"] == "string_pattern_mismatch" and where == "name":
            raise UsageError(
                f"name: {given!r} cannot name a folder.",
                "Use letters, digits, '.', '_' and '-', a letter or digit first.",
            ) from error
        raise UsageError(f"{where}: {first['msg'].removeprefix('Value error, ')}{shown}.", "Correct it.") from error
