"""Configures a KV cache: the size of the pool, and the groups of layers that share a block table.

    FullAttentionSpec      every token looks at all before it
    SlidingWindowSpec      every token looks at the last `sliding_window` tokens, itself among them

Knows nothing of shapes, bytes, or what a layer's name means: these are the engine's. All groups draw blocks from one
pool; a block belongs to one of them as long as it is held.

>>> config = KVCacheConfig(100, [KVCacheGroupSpec(["0", "2"], FullAttentionSpec(32)),
...                              KVCacheGroupSpec(["1", "3"], SlidingWindowSpec(16, sliding_window=128))])
>>> config.hash_block_size, config.scheduler_block_size
(16, 32)

Another kind of attention is another spec here and another module in `groups`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from mmcached.wire.errors import ConfigError


@dataclass(frozen=True, slots=True)
class FullAttentionSpec:
    """Layers that need the KV of all earlier tokens.

    Raises:
        ConfigError: a size that cannot be.
    """

    block_size: int

    def __post_init__(self) -> None:
        _check_at_least_1("block_size", self.block_size, "token")


@dataclass(frozen=True, slots=True)
class SlidingWindowSpec:
    """Layers that need the KV of the last `sliding_window` tokens, the one that looks included.

    Raises:
        ConfigError: a size that cannot be.
    """

    block_size: int
    sliding_window: int

    def __post_init__(self) -> None:
        _check_at_least_1("block_size", self.block_size, "token")
        _check_at_least_1("sliding_window", self.sliding_window, "token, the one that looks")


KVCacheSpec = FullAttentionSpec | SlidingWindowSpec


@dataclass(frozen=True, slots=True)
class KVCacheGroupSpec:
    """Layers that share a block table; the names are for the engine alone."""

    layer_names: Sequence[str]
    kv_cache_spec: KVCacheSpec


@dataclass(frozen=True, slots=True)
class KVCacheConfig:
    """The pool and its groups.

    Attributes:
        num_blocks: blocks of the pool, the null block included.
        kv_cache_groups: groups; none for a model without attention.
        hash_block_size: tokens under one block hash; the largest size of which every group's is a multiple.
        scheduler_block_size: every prefix hit is a multiple of it; the smallest multiple of every group's size.

    Raises:
        ConfigError: a size that cannot be.
    """

    num_blocks: int
    kv_cache_groups: Sequence[KVCacheGroupSpec] = field(default=())

    def __post_init__(self) -> None:
        _check_at_least_1("num_blocks", self.num_blocks, "block, the null block")

    @classmethod
    def of_one_group(cls, num_blocks: int, block_size: int) -> KVCacheConfig:
        """Return the plain case: every layer has full attention."""
        return cls(num_blocks, (KVCacheGroupSpec((), FullAttentionSpec(block_size)),))

    @property
    def block_sizes(self) -> list[int]:
        """Tokens per block, by group."""
        return [group.kv_cache_spec.block_size for group in self.kv_cache_groups]

    @property
    def hash_block_size(self) -> int:
        return math.gcd(*self.block_sizes) or 1

    @property
    def scheduler_block_size(self) -> int:
        return math.lcm(*self.block_sizes)


def _check_at_least_1(name: str, value: int, what: str) -> None:
    if value < 1:
        raise ConfigError(name, value, f"at least 1 {what}")
