"""Content that an engine reports for its caches. Only a routing hint: missing content is computed on any engine."""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.wire.errors import RemoteProtocolError
from mmcached.wire.messages.frontend_from_engines import CacheChanged


class EngineContent:
    """Digests of KV blocks, and of items with an encoder output; at most as many as the engine can hold."""

    def __init__(self, max_blocks: int, max_items: int) -> None:
        self._max_blocks = max_blocks
        self._max_items = max_items
        self._blocks: set[bytes] = set()
        self._items: set[str] = set()

    def take(self, change: CacheChanged) -> None:
        """Apply a reported change.

        Raises:
            RemoteProtocolError: More entries than the engine can hold; from now on its content counts as unknown.
        """
        if change.is_all:
            self._blocks.clear()
            self._items.clear()
        self._blocks.difference_update(change.dropped_blocks)
        self._blocks.update(change.blocks)
        self._items.difference_update(change.dropped_items)
        self._items.update(change.items)
        num_blocks, num_items = len(self._blocks), len(self._items)
        if num_blocks > self._max_blocks or num_items > self._max_items:
            self._blocks.clear()
            self._items.clear()
            limit = f"{self._max_blocks} blocks and {self._max_items} items"
            raise RemoteProtocolError(f"{num_blocks} blocks and {num_items} items are said to be held, of {limit}")

    def num_blocks_of(self, block_hashes: Sequence[bytes]) -> int:
        """Return how many of a prompt's leading blocks are cached without a gap."""
        blocks = self._blocks
        for index, digest in enumerate(block_hashes):
            if digest not in blocks:
                return index
        return len(block_hashes)

    def has_item(self, mm_hash: str) -> bool:
        return mm_hash in self._items
