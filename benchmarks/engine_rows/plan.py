"""What is to be measured: a model, how its engine is launched, and the loads of each engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from autotune.base.errors import UsageError
from autotune.base.yaml_text import read_yaml_mapping

Flags = Mapping[str, bool | int | float | str | dict[str, object]]
"""Engine flags by name, as ``autotune.space.to_argv`` takes them."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Load(_Part):
    """One load: ``level`` requests in flight (closed), or a Poisson stream of ``level`` requests per second (open).

    In a plan, ``closed`` or ``open`` holds the level, or a list of levels that makes a load of each. Times in seconds.
    """

    kind: Literal["closed", "open"]
    level: float = Field(gt=0)
    input_tokens: int = Field(alias="input", ge=1)
    """Mean; lengths are uniform between half of it and one and a half, unless ``fixed``."""
    output_tokens: int = Field(alias="output", ge=1)
    ramp_s: float = 4.0
    """From the first request to the window; a closed loop starts its requests spread over the first half."""
    measure_s: float = 12.0
    drain_s: float = 20.0
    """How long an open stream goes on after the window while requests of the window are out."""
    fixed: bool = False
    raw: bool = False
    """Keep the record of each request."""
    repeat: int = 1
    """Tells repeats of a load apart."""

    @property
    def expected_s(self) -> float:
        """About how long this load takes, reset and drain included."""
        return self.ramp_s + self.measure_s + (4.0 if self.kind == "open" else 2.0)

    @property
    def label(self) -> str:
        """A name for files and messages."""
        return f"{self.kind}{self.level:g}-{self.input_tokens}x{self.output_tokens}-{self.repeat}"

    def window(self, start: float) -> tuple[float, float]:
        """Begin and end of the measured window of a load that begins at ``start``."""
        return start + self.ramp_s, start + self.ramp_s + self.measure_s

    def bounds(self, mean: int) -> tuple[int, int]:
        """Shortest and longest length with this mean."""
        return (mean, mean) if self.fixed else (mean // 2, mean + mean // 2)

    def lengths(self, mean: int) -> str:
        """The length distribution in words, for the row."""
        low, high = self.bounds(mean)
        return f"fixed {mean}" if self.fixed else f"uniform {low}..{high}"


def _loads(items: Sequence[Mapping[str, object]]) -> Iterator[Mapping[str, object]]:
    for item in items:
        kind = "closed" if "closed" in item else "open"
        levels = item.get(kind)
        rest = {name: value for name, value in item.items() if name != kind}
        for level in levels if isinstance(levels, list) else [levels]:
            yield {**rest, "kind": kind, "level": level}


Loads = Annotated[tuple[Load, ...], BeforeValidator(lambda items: tuple(_loads(items)))]


class EnginePlan(_Part):
    """One engine start and the loads to run on it."""

    name: str
    flags: Flags = {}
    loads: Loads = ()
    env: Mapping[str, str] = {}
    preload: bool = False
    """Start the process before the first engine is measured: it imports, then waits for its turn."""
    before_stop: tuple[str, ...] = ()
    """A command run before the engine is stopped: ENGINE_PID, ENGINE_URL, ENGINE_MODEL, OUT_DIR in its environment."""


class Plan(_Part):
    """A whole run."""

    model: str
    """A folder, or a name that the engine knows."""
    model_label: str = ""
    """What the rows call the model; its folder or name by default."""
    command: tuple[str, ...] = ("vllm", "serve")
    """Words before the model. With ``preload``: the interpreter first, the subcommand last."""
    entry: str = "vllm.entrypoints.cli.main:main"
    """``module:function`` that a preloaded process calls when its turn comes."""
    preload: tuple[str, ...] = ()
    """Modules that a preloaded process imports."""
    common_flags: Flags = {}
    env: Mapping[str, str] = {}
    port: int = 8200
    clients: int = Field(default=8, ge=1)
    """Client processes."""
    vocabulary: tuple[int, int] = (1000, 150000)
    """Random token ids are drawn from the first of these up to below the second."""
    ready_timeout_s: float = 300.0
    warmup: Loads = ()
    engines: tuple[EnginePlan, ...]


def read_plan(path: Path) -> Plan:
    """Read a plan file.

    Raises:
        UsageError: unreadable, or not a plan; the message names the key.
    """
    try:
        return Plan.model_validate(read_yaml_mapping(path))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(step) for step in first["loc"])
        raise UsageError(f"{path}: {place}: {first['msg']}.", "Correct the plan.") from error
