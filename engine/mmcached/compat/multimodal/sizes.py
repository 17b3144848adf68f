"""Sizes in bytes of cached values, computed identically on both sides of a mirrored cache.

Included: every leaf of the item. Not included: keys, prompt updates, Python's overhead.

Source: vLLM's `MultiModalCache`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from mmcached.compat.multimodal.features import ResolvedPromptUpdate
from mmcached.compat.multimodal.items import MultiModalFieldElem, MultiModalKwargsItem
from mmcached.compat.multimodal.lru_cache import LRUCache
from mmcached.compat.multimodal.nested import is_array, leaves
from mmcached.wire.config import GIB

V = TypeVar("V")
_logger = logging.getLogger(__name__)


class MultiModalProcessorCacheItem:
    """A processed item with its prompt updates; its size is that of the item."""

    def __init__(self, item: MultiModalKwargsItem, prompt_updates: Sequence[ResolvedPromptUpdate]) -> None:
        self.item = item
        self.prompt_updates = prompt_updates


class MultiModalProcessorCacheItemMetadata:
    """The size in bytes and the prompt updates of an item that the receiver holds; no tensor."""

    def __init__(self, item: MultiModalKwargsItem, prompt_updates: Sequence[ResolvedPromptUpdate]) -> None:
        self.item_size = MultiModalCache.get_item_size(item)
        self.prompt_updates = prompt_updates


class MultiModalCache:
    @classmethod
    def get_leaf_size(cls, leaf: object) -> int:
        """Return the bytes of one leaf: of an array its elements, of any other value `sys.getsizeof`."""
        if isinstance(leaf, MultiModalProcessorCacheItem):
            return cls.get_item_size(leaf.item)
        if isinstance(leaf, MultiModalProcessorCacheItemMetadata):
            return leaf.item_size
        if isinstance(leaf, MultiModalFieldElem):
            return cls.get_item_size(leaf.data)
        if is_array(leaf):
            return int(leaf.nbytes)
        return sys.getsizeof(leaf)

    @classmethod
    def get_item_size(cls, value: Any, *, debug: bool = False) -> int:
        """Return the bytes of a value: the sum over the leaves of nested mappings, lists and tuples.

        Args:
            debug: Also log the result.
        """
        if debug:
            size, num_leaves = cls.get_item_size(value), cls.get_item_complexity(value)
            _logger.debug("a %s of %d bytes in %d leaves", type(value).__name__, size, num_leaves)
            return size
        if isinstance(value, MultiModalKwargsItem):
            # The most frequent case: its elements directly, without a traversal of their leaves.
            return sum(cls._get_data_size(element.data) for element in value.data.values())
        if isinstance(value, MultiModalProcessorCacheItemMetadata):
            return value.item_size
        return sum(map(cls.get_leaf_size, leaves(value)))

    @classmethod
    def _get_data_size(cls, data: object) -> int:
        return int(data.nbytes) if is_array(data) else cls.get_item_size(data)

    @classmethod
    def get_item_complexity(cls, value: Any) -> int:
        if isinstance(value, MultiModalProcessorCacheItem):
            return cls.get_item_complexity(value.item)
        return sum(
            cls.get_item_complexity(leaf.data) if isinstance(leaf, MultiModalFieldElem) else 1 for leaf in leaves(value)
        )

    @classmethod
    def get_lru_cache(cls, capacity_gb: float, value_type: type[V], *, debug: bool = False) -> LRUCache[str, V]:
        """Return an empty cache of `capacity_gb` GiB for values of a type that `get_item_size` can measure."""
        return LRUCache(int(capacity_gb * GIB), partial(cls.get_item_size, debug=True) if debug else cls.get_item_size)


def is_within(value: Mapping[str, object], limit: int) -> bool:
    """Return whether the arrays of a record have at most `limit` bytes in total; needs no encoding."""
    return sum(leaf.nbytes for leaf in leaves(value) if is_array(leaf)) <= limit
