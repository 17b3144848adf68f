"""Creates the groups of a configuration."""

from __future__ import annotations

from mmcached.engine.kv.config import FullAttentionSpec, KVCacheConfig, KVCacheSpec, SlidingWindowSpec
from mmcached.engine.kv.groups.full_attention import FullAttention
from mmcached.engine.kv.groups.group import Group, GroupKind, tag_of
from mmcached.engine.kv.groups.sliding_window import SlidingWindow


def make_groups(config: KVCacheConfig, *, num_recomputed: int) -> tuple[Group, ...]:
    """Return the groups in the order of the configuration; `num_recomputed` blocks of a match are no part of a hit."""
    hash_block_size, alignment = config.hash_block_size, config.scheduler_block_size
    return tuple(
        Group(
            index,
            _kind_of(spec.kv_cache_spec, alignment, num_recomputed),
            spec.kv_cache_spec.block_size,
            spec.kv_cache_spec.block_size // hash_block_size,
            alignment // spec.kv_cache_spec.block_size,
            num_recomputed,
            tag_of(index),
        )
        for index, spec in enumerate(config.kv_cache_groups)
    )


def _kind_of(spec: KVCacheSpec, alignment: int, num_recomputed: int) -> GroupKind:
    match spec:
        case FullAttentionSpec():
            return FullAttention(spec.block_size, num_recomputed=num_recomputed)
        case SlidingWindowSpec():
            stride = alignment // spec.block_size
            return SlidingWindow(spec.block_size, spec.sliding_window, stride=stride, num_recomputed=num_recomputed)
