"""Configuration of a KV cache: the size of the pool, and the groups of layers that share a block table.

All groups allocate from one pool; a block belongs to one group while it is referenced. Another kind of attention is
another spec here and another module in `groups`.

>>> config = KVCacheConfig(100, [KVCacheGroupSpec(["0", "2"], FullAttentionSpec(32)),
...                              KVCacheGroupSpec(["1", "3"], SlidingWindowSpec(16, sliding_window=128))])
>>> config.hash_block_size, config.scheduler_block_size
(16, 32)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from mmcached.wire.errors import ConfigError


@dataclass(frozen=True, slots=True)
class FullAttentionSpec:
    """Layers that attend to all earlier tokens. Raises `ConfigError` for sizes below 1."""

    block_size: int

    def __post_init__(self) -> None:
        _check_at_least_1("block_size", self.block_size, "token")


@dataclass(frozen=True, slots=True)
class SlidingWindowSpec:
    """Layers that attend to the last `sliding_window` tokens, current one included. Raises as `FullAttentionSpec`."""

    block_size: int
    sliding_window: int

    def __post_init__(self) -> None:
        _check_at_least_1("block_size", self.block_size, "token")
        _check_at_least_1("sliding_window", self.sliding_window, "token, the current token")


KVCacheSpec = FullAttentionSpec | SlidingWindowSpec


@dataclass(frozen=True, slots=True)
class KVCacheGroupSpec:
    """Layers that share a block table; the layer names are used by the engine only."""

    layer_names: Sequence[str]
    kv_cache_spec: KVCacheSpec


@dataclass(frozen=True, slots=True)
class KVCacheConfig:
    """Size of the block pool, and its groups of layers. Raises `ConfigError` if `num_blocks` is below 1.

    Attributes:
        num_blocks: blocks of the pool, the null block included.
        kv_cache_groups: empty for a model without attention.
        hash_block_size: tokens per block hash; the greatest common divisor of the groups' block sizes.
        scheduler_block_size: prefix hits are multiples of it; the least common multiple of the groups' block sizes.
    """

    num_blocks: int
    kv_cache_groups: Sequence[KVCacheGroupSpec] = field(default=())

    def __post_init__(self) -> None:
        _check_at_least_1("num_blocks", self.num_blocks, "block, the null block")

    @classmethod
    def of_one_group(cls, num_blocks: int, block_size: int) -> KVCacheConfig:
        return cls(num_blocks, (KVCacheGroupSpec((), FullAttentionSpec(block_size)),))

    @property
    def block_sizes(self) -> list[int]:
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
