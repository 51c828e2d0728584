"""The base of all specifications: frozen, and a misspelt key is an error."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Spec(BaseModel):
    """Frozen model that refuses unknown keys: a setting that is silently ignored costs GPU hours."""

    model_config = ConfigDict(extra="forbid", frozen=True)
