"""Lists of block ids, by group, as the KV cache manager returns them.

The manager stores integer ids only; a `KVCacheBlock` is created when a caller asks for block objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmcached.engine.kv.groups.group import DIGEST_TAG_BYTES
from mmcached.engine.kv.pool.block_pool import NULL_BLOCK_ID, BlockPool
from mmcached.engine.steps.request import RequestId
from mmcached.wire.errors import LocalProtocolError

Version = tuple[RequestId, int]
"""A request's id, and the counter of forgotten content when its hit was found."""


@dataclass(frozen=True, slots=True)
class KVCacheBlock:
    """Live view of one block in the pool, as an entry of group `group_index`'s block table."""

    pool: BlockPool
    block_id: int
    group_index: int = 0

    @property
    def ref_cnt(self) -> int:
        return self.pool.ref_cnt(self.block_id)

    @property
    def block_hash(self) -> bytes | None:
        """Digest under which the block is published, without the group tag; None if it is not published."""
        key = self.pool.block_key(self.block_id)
        return key[:-DIGEST_TAG_BYTES] if key is not None and self.group_index else key

    @property
    def is_null(self) -> bool:
        return self.block_id == NULL_BLOCK_ID


class KVCacheBlocks:
    """Immutable list of blocks, `ids[group][position]`; owns no references. Prefix hits have a `version`."""

    __slots__ = ("_pool", "ids", "version")

    def __init__(self, pool: BlockPool, ids: tuple[Sequence[int], ...], version: Version | None = None) -> None:
        self._pool = pool
        self.ids = ids
        self.version = version

    def __repr__(self) -> str:
        return f"KVCacheBlocks({', '.join(str(list(group)) for group in self.ids)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KVCacheBlocks) and self.get_block_ids() == other.get_block_ids()

    def __hash__(self) -> int:
        return hash(tuple(tuple(group) for group in self.ids))

    def __add__(self, other: KVCacheBlocks) -> KVCacheBlocks:
        """Concatenate the blocks of each group. Raises `LocalProtocolError` if the numbers of groups differ."""
        if len(self.ids) != len(other.ids):
            raise LocalProtocolError(f"blocks of {len(self.ids)} group(s) and of {len(other.ids)} cannot be joined")
        return KVCacheBlocks(self._pool, tuple([*a, *b] for a, b in zip(self.ids, other.ids, strict=True)))

    @property
    def blocks(self) -> tuple[list[KVCacheBlock], ...]:
        return tuple([KVCacheBlock(self._pool, block_id, g) for block_id in ids] for g, ids in enumerate(self.ids))

    def get_block_ids(self) -> tuple[list[int], ...]:
        return tuple(list(group) for group in self.ids)

    def get_unhashed_block_ids(self) -> list[int]:
        """Return the unpublished blocks, in order; raises `LocalProtocolError` unless there is exactly one group."""
        if len(self.ids) != 1:
            raise LocalProtocolError(f"get_unhashed_block_ids: {len(self.ids)} groups, exactly 1 supported")
        return [block_id for block_id in self.ids[0] if self._pool.block_key(block_id) is None]

    def new_empty(self) -> KVCacheBlocks:
        return KVCacheBlocks(self._pool, tuple(() for _ in self.ids))
