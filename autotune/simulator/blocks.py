"""KV cache blocks: counted, not numbered, with a prefix cache of full blocks.

Blocks that nobody uses are free; some of those still hold a known prefix and are evicted last, the least recently
released first. A block with a key is shared by all sequences that hold the key.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

BlockKey = tuple[int, int] | int
"""Identity of a full block's content and all before it."""


class BlockPool:
    """Accounting of ``total`` blocks. Amounts are blocks."""

    def __init__(self, total: int, *, caching: bool = True) -> None:
        self.total = total
        self.caching = caching
        self.free = total
        """Blocks without an owner, those with a cached prefix included."""
        self._owners: dict[BlockKey, int] = {}
        self._evictable: OrderedDict[BlockKey, None] = OrderedDict()

    @property
    def used(self) -> int:
        """Blocks with an owner."""
        return self.total - self.free

    @property
    def idle_cached(self) -> int:
        """Free blocks that still hold a known prefix."""
        return len(self._evictable)

    def take(self, count: int) -> bool:
        """Take so many blocks for new content; False (and nothing taken) when there are not enough."""
        if count > self.free:
            return False
        self.free -= count
        surplus = len(self._evictable) - self.free
        for _ in range(surplus):
            self._evictable.popitem(last=False)
        return True

    def cached_prefix(self, keys: Sequence[BlockKey]) -> int:
        """How many of the leading blocks are in the cache."""
        if not self.caching:
            return 0
        for position, key in enumerate(keys):
            if key not in self._owners and key not in self._evictable:
                return position
        return len(keys)

    def idle_among(self, keys: Iterable[BlockKey]) -> int:
        """How many of these cached blocks have no owner: sharing them uses up free blocks."""
        return sum(1 for key in keys if key in self._evictable)

    def share(self, keys: Iterable[BlockKey]) -> None:
        """Become an owner of cached blocks."""
        for key in keys:
            if key in self._evictable:
                del self._evictable[key]
                self._owners[key] = 1
                self.free -= 1
            else:
                self._owners[key] += 1

    def register(self, key: BlockKey) -> bool:
        """Give an owned block a key; False when the content is cached already (the block stays without a key)."""
        if not self.caching or key in self._owners:
            return False
        if key in self._evictable:
            return False
        self._owners[key] = 1
        return True

    def release(self, keys: Sequence[BlockKey], plain: int) -> None:
        """Give back keyed blocks (last first, so that prefixes outlive their ends) and blocks without a key."""
        self.free += plain
        for key in reversed(keys):
            owners = self._owners[key] - 1
            if owners:
                self._owners[key] = owners
            else:
                del self._owners[key]
                self._evictable[key] = None
                self.free += 1

    def reset(self) -> bool:
        """Forget all cached prefixes; False while a sequence is running, as in vLLM."""
        if self.used:
            return False
        self._evictable.clear()
        return True
