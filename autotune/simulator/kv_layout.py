"""How one sequence's KV cache is cut into blocks where not all layers see the whole context.

Layers that see all of it grow by a block each ``block_size`` tokens. Local layers keep a window, and stateful ones a
state: what a sequence holds for them is fixed as soon as it is longer than the window. vLLM gives all kinds of layers
blocks of one size from one pool; here a block is one of the growing layers, and the rest is counted in such blocks.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from autotune.catalog import ModelShape


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Blocks of one GPU of an engine."""

    block_size: int
    block_bytes: float
    """Of all growing layers."""
    window: int = 0
    """Tokens that local layers keep; 0 where there are none."""
    window_token_bytes: float = 0.0
    """KV cache of one token in all local layers."""
    state_bytes: float = 0.0
    """State of one sequence in all stateful layers."""
    step_tokens: int = 1
    """Largest batch: so many tokens a local layer holds besides its window while a prompt is computed."""

    @property
    def grows_only(self) -> bool:
        """True where every layer sees the whole context."""
        return not (self.window or self.state_bytes)

    def fixed_blocks(self, tokens: int) -> int:
        """What a sequence of so many tokens holds in layers that do not grow."""
        return 0 if self.grows_only else self._fixed(min(tokens, self.window))

    def longest_blocks(self, tokens: int) -> int:
        """What vLLM wants to be free for one sequence of the longest length before it starts.

        Source: vLLM v1/kv_cache_interface.py, ``SlidingWindowSpec.max_memory_usage_bytes``.
        """
        growing = -(-tokens // self.block_size)
        if self.grows_only:
            return growing
        held = min(tokens, self.window - 1 + self.step_tokens) + self.block_size if self.window else 0
        return growing + self._fixed(held)

    def longest_fitting(self, blocks: int, limit: int) -> int:
        """The longest length up to ``limit`` of which one sequence fits; 0 when not even one token does."""
        if self.grows_only:
            return min(limit, blocks * self.block_size)
        return bisect_right(range(1, limit + 1), blocks, key=self.longest_blocks)

    def _fixed(self, window_tokens: int) -> int:
        return math.ceil((self.state_bytes + self.window_token_bytes * window_tokens) / self.block_bytes)


def kv_layout(
    model: ModelShape, *, block_size: int, value_bytes: float, ranks: int, step_tokens: int, factor: float = 1.0
) -> KvLayout:
    """The layout of a model on one of ``ranks`` GPUs; ``factor`` scales all bytes.

    A model whose layers are all local is taken as one whose layers all grow: too much rather than too little.
    """
    values = model.kv_values_per_layer()
    if model.latent_kv is None:
        values = values // model.kv_heads * math.ceil(model.kv_heads / ranks)
    token_bytes = values * value_bytes * factor
    local = model.local_layers
    return KvLayout(
        block_size=block_size,
        block_bytes=(model.kv_layers - local) * token_bytes * block_size,
        window=(model.sliding_window or 0) if local else 0,
        window_token_bytes=local * token_bytes,
        state_bytes=model.state_bytes / ranks * factor,
        step_tokens=step_tokens,
    )
