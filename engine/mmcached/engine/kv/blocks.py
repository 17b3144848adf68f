"""What the KV cache manager hands out: lists of block ids, per group of layers that share a block table.

The books hold integers only; a `KVCacheBlock` is a view made when somebody looks. One group exists so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmcached.engine.kv.block_pool import NULL_BLOCK_ID, BlockPool
from mmcached.wire.errors import ConfigError


@dataclass(frozen=True, slots=True)
class KVCacheConfig:
    """The size of a KV cache; `num_blocks` includes the null block, `block_size` counts tokens.

    Raises:
        ConfigError: a size that cannot be.
    """

    num_blocks: int
    block_size: int
    enable_caching: bool = True

    def __post_init__(self) -> None:
        if self.num_blocks < 1:
            raise ConfigError("num_blocks", self.num_blocks, "at least 1, the null block")
        if self.block_size < 1:
            raise ConfigError("block_size", self.block_size, "at least 1 token")


@dataclass(frozen=True, slots=True)
class KVCacheBlock:
    """One block as it is now; reads through to the pool."""

    pool: BlockPool
    block_id: int

    @property
    def ref_cnt(self) -> int:
        return self.pool.ref_cnt(self.block_id)

    @property
    def block_hash(self) -> bytes | None:
        return self.pool.block_hash(self.block_id)

    @property
    def is_null(self) -> bool:
        return self.block_id == NULL_BLOCK_ID


@dataclass(frozen=True, slots=True)
class KVCacheBlocks:
    """Blocks by group and position. Immutable; owns no reference.

    Attributes:
        ids: `ids[group][position]`.
    """

    pool: BlockPool
    ids: tuple[tuple[int, ...], ...]

    @property
    def blocks(self) -> tuple[list[KVCacheBlock], ...]:
        return tuple([KVCacheBlock(self.pool, block_id) for block_id in group] for group in self.ids)

    def __add__(self, other: KVCacheBlocks) -> KVCacheBlocks:
        return KVCacheBlocks(self.pool, tuple(a + b for a, b in zip(self.ids, other.ids, strict=True)))

    def get_block_ids(self) -> tuple[list[int], ...]:
        return tuple(list(group) for group in self.ids)

    def get_unhashed_block_ids(self) -> list[int]:
        """Return, for exactly one group, the blocks without published content, in order."""
        (group,) = self.ids
        return [block_id for block_id in group if self.pool.block_hash(block_id) is None]

    def new_empty(self) -> KVCacheBlocks:
        return KVCacheBlocks(self.pool, tuple(() for _ in self.ids))


def one_group(pool: BlockPool, block_ids: Sequence[int] = ()) -> KVCacheBlocks:
    """Return the blocks of the only group."""
    return KVCacheBlocks(pool, (tuple(block_ids),))
