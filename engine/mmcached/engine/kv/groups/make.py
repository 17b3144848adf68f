"""Creates the groups of a configuration."""

from __future__ import annotations

from mmcached.engine.kv.config import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from mmcached.engine.kv.groups.chunked_local import ChunkedLocal
from mmcached.engine.kv.groups.cross_attention import CrossAttention
from mmcached.engine.kv.groups.full_attention import FullAttention
from mmcached.engine.kv.groups.group import Group, GroupKind, tag_of
from mmcached.engine.kv.groups.mamba import Mamba, MambaAlign
from mmcached.engine.kv.groups.sliding_window import SlidingWindow


def make_groups(config: KVCacheConfig, *, num_recomputed: int) -> tuple[Group, ...]:
    """Return the groups in the order of the configuration; `num_recomputed` blocks of a match are no part of a hit."""
    hash_block_size, alignment = config.hash_block_size, config.scheduler_block_size
    groups = []
    for index, (spec, block_size) in enumerate(zip(config.kv_cache_groups, config.block_sizes, strict=True)):
        stride = alignment // block_size
        kind = _kind_of(spec.kv_cache_spec, block_size, stride, num_recomputed)
        groups.append(Group(index, kind, block_size, block_size // hash_block_size, stride, tag_of(index)))
    return tuple(groups)


def _kind_of(spec: KVCacheSpec, block_size: int, stride: int, num_recomputed: int) -> GroupKind:
    match spec:
        case FullAttentionSpec():
            return FullAttention(block_size, num_recomputed=num_recomputed)
        case SlidingWindowSpec():
            return SlidingWindow(block_size, spec.sliding_window, stride=stride, num_recomputed=num_recomputed)
        case ChunkedLocalAttentionSpec():
            return ChunkedLocal(block_size, spec.attention_chunk_size, stride=stride, num_recomputed=num_recomputed)
        case MambaSpec():
            kind = MambaAlign if spec.mamba_cache_mode == "align" else Mamba
            return kind(block_size, num_scratch=spec.num_speculative_blocks, stride=stride)
        case CrossAttentionSpec():
            return CrossAttention(block_size)
