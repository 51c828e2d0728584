"""Rules between engine arguments, the GPU and the model, as data."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Rule(BaseModel):
    """One condition that a configuration must satisfy.

    ``when`` and ``require`` are expressions of `autotune.space` (comparisons over engine arguments with
    underscores in their names, and the facts ``gpu_*``, ``model_*``, ``vllm_minor``). The rule holds where
    ``when`` is false, and where a name that it compares has no known value.
    ``message`` may quote values as ``{max_num_seqs}``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    when: str | None = None
    require: str
    message: str = Field(min_length=1)
    remedy: str = Field(min_length=1)
    cause: str = "invalid_config"
    """How an engine that was launched all the same would fail: a name of ``autotune.engine.failure.Cause``."""
    source: str = ""
