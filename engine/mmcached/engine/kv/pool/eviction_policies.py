"""Eviction orders by the name used in the configuration."""

from __future__ import annotations

from collections.abc import Callable

from mmcached.engine.kv.pool.eviction import EvictionOrder, LruOrder
from mmcached.engine.kv.pool.segmented_lru import SegmentedLruOrder
from mmcached.wire.errors import ConfigError

_ORDERS: dict[str, Callable[[int], EvictionOrder]] = {
    "lru": lambda num_blocks: LruOrder(),
    "segmented_lru": SegmentedLruOrder,
}


def make_eviction_order(policy: str, num_blocks: int) -> EvictionOrder:
    """Return an empty eviction order for a pool of `num_blocks` blocks; raises `ConfigError` for an unknown policy."""
    if policy not in _ORDERS:
        raise ConfigError("kv_eviction_policy", policy, f"must be one of {', '.join(_ORDERS)}")
    return _ORDERS[policy](num_blocks)
