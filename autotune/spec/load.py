"""How much load is offered: an open loop at a rate, or a closed loop at a concurrency."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field, model_validator

from autotune.spec._model import Spec


class Loop(StrEnum):
    """Open: arrivals do not wait for answers. Closed: each user sends the next after the answer."""

    OPEN = "open"
    CLOSED = "closed"


class LoadLevel(Spec):
    """One load level: ``rate`` (req/s) of an open loop or ``concurrency`` of a closed one."""

    loop: Loop
    rate: float | None = Field(default=None, gt=0)
    concurrency: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one_of_both(self) -> LoadLevel:
        if (self.loop is Loop.OPEN) != (self.rate is not None) or (self.loop is Loop.CLOSED) != (
            self.concurrency is not None
        ):
            raise ValueError("an open loop has a rate, a closed loop a concurrency")
        return self

    @classmethod
    def open(cls, rate: float) -> LoadLevel:
        """Arrivals at ``rate`` requests per second."""
        return cls(loop=Loop.OPEN, rate=rate)

    @classmethod
    def closed(cls, concurrency: int) -> LoadLevel:
        """``concurrency`` requests in flight at all times."""
        return cls(loop=Loop.CLOSED, concurrency=concurrency)

    def __str__(self) -> str:
        return f"{self.rate:.4g} req/s" if self.loop is Loop.OPEN else f"{self.concurrency} at once"
