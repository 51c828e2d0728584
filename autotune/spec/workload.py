"""What kind of traffic is sent: lengths, endpoint, arrivals."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field, field_validator

from autotune.spec._model import Spec
from autotune.spec.length import LengthSpec


class Endpoint(StrEnum):
    """Which OpenAI-compatible endpoint answers."""

    COMPLETIONS = "completions"
    CHAT = "chat"


class Workload(Spec):
    """Traffic of one kind. Prompts are token ids drawn anew for each probe from a seeded stream.

    ``burstiness`` is the shape of gamma-distributed gaps between arrivals of an open loop: 1 is Poisson,
    below 1 burstier, ``inf`` constant gaps.
    """

    name: str = "custom"
    description: str = ""
    endpoint: Endpoint = Endpoint.COMPLETIONS
    input_tokens: LengthSpec
    output_tokens: LengthSpec
    ignore_eos: bool = True
    burstiness: float = Field(default=1.0, gt=0)

    @field_validator("input_tokens", "output_tokens", mode="before")
    @classmethod
    def _length(cls, value: object) -> object:
        return LengthSpec.parse(value) if isinstance(value, (str, int)) else value

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest prompt and answer together: what ``max-model-len`` must hold."""
        return self.input_tokens.high + self.output_tokens.high
