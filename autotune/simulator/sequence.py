"""One sequence on its way through the engine."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from enum import IntEnum

from autotune.simulator.blocks import BlockKey


class State(IntEnum):
    """Where a sequence is."""

    WAITING = 0
    PREFILL = 1
    DECODE = 2
    FINISHED = 3
    ABORTED = 4


class Sequence:
    """A prompt and how far its answer has come.

    While it decodes, its progress is not stored: ``generated`` counts the tokens after step ``anchor_step``, and every
    later step adds one. ``target`` is the number of output tokens at which it ends for ``finish_reason``.
    """

    __slots__ = (
        "anchor_step", "arrived", "cached_tokens", "computed", "finish_due", "finish_reason", "first_due",
        "fixed_blocks", "generated", "id", "keyed", "keys", "owner", "plain_blocks", "preemptions", "prompt_tokens",
        "scheduled", "state", "submitted", "target",
    )  # fmt: skip

    def __init__(
        self,
        id: int,
        prompt_tokens: int,
        target: int,
        *,
        keys: Seq[BlockKey] = (),
        finish_reason: str = "length",
        owner: object = None,
    ) -> None:
        if prompt_tokens < 1 or target < 1:
            raise ValueError("a sequence has at least one prompt token and one output token")
        self.id = id
        self.prompt_tokens = prompt_tokens
        self.target = target
        self.keys = keys
        self.finish_reason = finish_reason
        self.owner = owner
        self.state = State.WAITING
        self.submitted = 0.0
        """When the API server received it, engine seconds."""
        self.arrived = 0.0
        """When it reached the engine core."""
        self.scheduled: float | None = None
        """When its first step began."""
        self.first_due: float | None = None
        """When its first token left the API server."""
        self.finish_due: float | None = None
        self.computed = 0
        """KV tokens computed while it prefills."""
        self.generated = 0
        self.anchor_step = 0
        self.keyed: list[BlockKey] = []
        self.plain_blocks = 0
        self.fixed_blocks = 0
        """Held in layers whose cache does not grow with the context."""
        self.preemptions = 0
        self.cached_tokens = 0
        """Prompt tokens found in the prefix cache at the first scheduling."""

    @property
    def total_to_prefill(self) -> int:
        """Tokens whose KV must be there before the next output token."""
        return self.prompt_tokens + self.generated

    def generated_at(self, step: int) -> int:
        """Output tokens after ``step`` (a step of the scheduler that has been committed)."""
        if self.state is State.DECODE:
            return self.generated + max(0, step - self.anchor_step)
        return self.generated
