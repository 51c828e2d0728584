"""What kind of traffic is sent: lengths, endpoint, arrivals, where the prompts come from."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from autotune.base.units import parse_duration
from autotune.spec._model import Spec
from autotune.spec.dataset import Dataset, DatasetKind, read_dataset
from autotune.spec.length import LengthSpec


class Endpoint(StrEnum):
    """Which OpenAI-compatible endpoint answers."""

    COMPLETIONS = "completions"
    CHAT = "chat"


class SharedPrefix(Spec):
    """A beginning that many prompts share, such as a system prompt: ``groups`` different ones in equal parts."""

    tokens: int = Field(ge=1)
    groups: int = Field(default=1, ge=1)


class DatasetSpec(Spec):
    """Prompts or lengths from a file; see :mod:`autotune.spec.dataset` for the formats.

    ``replay``: requests arrive in the pattern of the file's times, stretched to the rate that is asked for;
    otherwise rows come in random order and arrivals are random too. ``output_tokens`` replaces the lengths of
    the file's answers.
    """

    path: Path
    kind: DatasetKind | None = None
    replay: bool = False
    output_tokens: LengthSpec | None = None
    digest: str = ""
    """Of the file's bytes; filled in, so that a study notices when its file was changed."""

    @field_validator("output_tokens", mode="before")
    @classmethod
    def _length(cls, value: object) -> object:
        return LengthSpec.parse(value) if isinstance(value, (str, int)) else value

    @model_validator(mode="after")
    def _read(self) -> DatasetSpec:
        dataset = self.load()
        if self.digest and self.digest != dataset.digest:
            raise ValueError(f"dataset {self.path} is not the file that was used before")
        object.__setattr__(self, "digest", dataset.digest)
        if self.replay:
            _ = dataset.rate
        return self

    def load(self) -> Dataset:
        """The file's content."""
        return read_dataset(self.path, self.kind)


class Ramp(Spec):
    """The rate of an open loop grows linearly from ``start`` (a share of it) to all of it within ``seconds``."""

    seconds: float = Field(gt=0)
    start: float = Field(default=0.1, gt=0, le=1)

    @field_validator("seconds", mode="before")
    @classmethod
    def _duration(cls, value: object) -> object:
        return parse_duration(value, "ramp") if isinstance(value, str) else value


class Workload(Spec):
    """Traffic of one kind. Prompts are token ids drawn anew for each probe from a seeded stream.

    ``burstiness`` is the shape of gamma-distributed gaps between arrivals of an open loop: 1 is Poisson,
    below 1 burstier, ``inf`` constant gaps. A conversation of several ``turns`` sends each with all that was
    said before; ``think_time`` (mean of exponential times, seconds) passes between an answer and the user's
    next turn, and between two conversations of a user of a closed loop. With a ``dataset`` prompts and lengths
    are the file's; the lengths here then only say what to expect.
    """

    name: str = "custom"
    description: str = ""
    endpoint: Endpoint = Endpoint.COMPLETIONS
    input_tokens: LengthSpec
    output_tokens: LengthSpec
    ignore_eos: bool = True
    burstiness: float = Field(default=1.0, gt=0)
    shared_prefix: SharedPrefix | None = None
    turns: LengthSpec = LengthSpec.parse(1)
    think_time: float = Field(default=0.0, ge=0)
    ramp: Ramp | None = None
    dataset: DatasetSpec | None = None

    @model_validator(mode="before")
    @classmethod
    def _lengths_of_dataset(cls, values: Any) -> Any:
        """Describe the lengths of a dataset where they are not given."""
        if not isinstance(values, Mapping) or not values.get("dataset"):
            return values
        spec = values["dataset"]
        spec = {"path": spec} if isinstance(spec, (str, Path)) else spec
        dataset = spec if isinstance(spec, DatasetSpec) else DatasetSpec.model_validate(spec)
        rows = dataset.load().rows
        found = {
            "input_tokens": LengthSpec.of_values([row.input_tokens for row in rows]),
            "output_tokens": dataset.output_tokens or LengthSpec.of_values([row.output_tokens for row in rows]),
            **values,
            "dataset": dataset,
        }
        if dataset.load().has_text and "endpoint" not in values:
            found["endpoint"] = Endpoint.CHAT
        return found

    @field_validator("input_tokens", "output_tokens", "turns", mode="before")
    @classmethod
    def _length(cls, value: object) -> object:
        return LengthSpec.parse(value) if isinstance(value, (str, int)) else value

    @field_validator("think_time", mode="before")
    @classmethod
    def _duration(cls, value: object) -> object:
        return parse_duration(value, "think_time") if isinstance(value, str) else value

    @model_validator(mode="after")
    def _consistent(self) -> Workload:
        if self.dataset is not None and self.shared_prefix is not None:
            raise ValueError("a dataset brings its own prompts: leave shared_prefix out")
        if self.ramp is not None and self.dataset is not None and self.dataset.replay:
            raise ValueError("a replay has its own pattern: leave ramp out")
        return self

    @property
    def prefix_tokens(self) -> int:
        """Tokens of the shared prefix; 0 without one."""
        return 0 if self.shared_prefix is None else self.shared_prefix.tokens

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest prompt and answer together: what ``max-model-len`` must hold."""
        return self.prefix_tokens + self.turns.high * (self.input_tokens.high + self.output_tokens.high)

    @property
    def mean_input_tokens(self) -> float:
        """Expected tokens of a prompt: the shared prefix and what was said before included."""
        earlier = (self.turns.mean - 1) / 2 * (self.input_tokens.mean + self.output_tokens.mean)
        return self.prefix_tokens + self.input_tokens.mean + earlier
