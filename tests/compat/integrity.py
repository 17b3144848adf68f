"""Checks that the published caches agree with themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from mmcached.compat.multimodal.lru_cache import LRUCache
from mmcached.compat.multimodal.shm_sender_cache import ShmObjectStoreSenderCache
from mmcached.compat.omni_tensor_prefix_cache.cache import OmniTensorPrefixCache
from tests.shm.integrity import check_objects
from tests.worker.integrity import check_pending


def check_lru(cache: LRUCache[Any, Any]) -> None:
    assert cache._values.keys() == cache._sizes.keys()
    assert cache._pinned <= cache._values.keys()
    assert sum(cache._sizes.values()) == cache._usage <= max(cache._capacity, 0)


def check_sender(cache: ShmObjectStoreSenderCache) -> None:
    """Check that a small item is not in the ring too, and that no note has lost its chunk."""
    items = cache._items
    check_objects(items._store)
    assert all(map(items._store.ring.records.is_current, items._notes))
    assert not any(mm_hash in items for mm_hash in cache._small)
    check_lru(cache._small)


def check_tensor_cache(cache: OmniTensorPrefixCache) -> None:
    """Check pending and staged rows, and that no row is staged for two slots."""
    check_pending(cache._pending)
    staging = cache._staging
    assert len(staging._ends) <= staging._num_slots
    for staged in staging.rows._of_key.values():
        numbers = staged.number[staged.number >= 0]
        assert len(staged.rows) <= max(staged.num_rows, staging._num_slots)
        assert len(np.unique(numbers)) == len(numbers)
        assert (numbers < staged.num_rows).all()
    assert len(staging.rows._of_request) <= staging._num_slots
