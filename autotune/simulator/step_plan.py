"""What one step of the engine core computes."""

from __future__ import annotations

from dataclasses import dataclass, field

from autotune.simulator.sequence import Sequence


@dataclass(slots=True)
class StepPlan:
    """One batch, and what is true once it has run."""

    number: int
    decodes: int = 0
    decode_context: int = 0
    """Summed KV length that the decodes read."""
    chunk_tokens: int = 0
    chunk_pairs: float = 0.0
    chunk_context: int = 0
    sampled: int = 0
    scheduled: list[Sequence] = field(default_factory=list)
    """Sequences that left the waiting queue in this step."""
    first_tokens: list[Sequence] = field(default_factory=list)
    """Sequences whose prefill completed: each got one token."""
    finished: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Tokens of the batch."""
        return self.decodes + self.chunk_tokens
