"""How much a configuration may change the model's output."""

from __future__ import annotations

from pydantic import Field

from autotune.spec._model import Spec


class QualityLimits(Spec):
    """Limits of the quality check, each measured against how well the reference agrees with itself.

    ``first_tokens``: the least share of prompts whose first greedy token is the reference's, relative to that of the
    reference asked twice. ``logprob_difference``: the greatest mean difference of the log-probability of the
    reference's tokens, above that of the reference asked twice.
    """

    first_tokens: float = Field(default=0.9, ge=0, le=1)
    logprob_difference: float = Field(default=0.1, gt=0)
