"""vLLM's classes of blocks, for `vllm_face`: our pool as vLLM's callers look into theirs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from vllm.v1 import kv_cache_interface as specs
from vllm.v1.core.kv_cache_utils import KVCacheBlock, get_block_hash, get_group_id, make_block_hash_with_group_id
from vllm.v1.core.single_type_kv_cache_manager import CrossAttentionManager

from mmcached.compat.kv_cache_manager import KVCacheManager
from mmcached.engine.kv.groups.group import DIGEST_TAG_BYTES, tag_of
from mmcached.engine.kv.pool.block_pool import NULL_BLOCK_ID, BlockPool

DIGEST_BYTES = frozenset((8, 16, 32))
"""Of vLLM's hash functions."""


class Block(KVCacheBlock):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """A block as vLLM's callers see it: an id, with what our pool knows of it now."""

    def __init__(self, block_id: int, pool: BlockPool, lengths: Mapping[bytes, int]) -> None:
        self.block_id = block_id
        self._ours = pool
        self._lengths = lengths
        self.pool = None
        self.is_null = block_id == NULL_BLOCK_ID

    @property
    def ref_cnt(self) -> int:
        return self._ours.ref_cnt(self.block_id)

    @property
    def block_hash(self) -> Any:
        key = self._ours.block_key(self.block_id)
        return None if key is None else _their_key(key)

    @property
    def block_hash_num_tokens(self) -> int | None:
        key = self._ours.block_key(self.block_id)
        return None if key is None else self._lengths[bytes(get_block_hash(_their_key(key)))]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Block) and other.block_id == self.block_id

    def __hash__(self) -> int:
        return self.block_id

    def __repr__(self) -> str:
        return f"Block({self.block_id})"


class FreeBlocks:
    """vLLM's queue of free blocks, to be looked at.

    Attributes:
        fake_free_list_tail: the end of the list that begins with `fake_free_list_head`.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._head = Block(-1, pool.ours, {})
        self.fake_free_list_tail = Block(-1, pool.ours, {})

    @property
    def fake_free_list_head(self) -> Block:
        """The head of a linked list of the blocks that are free now."""
        linked = [self._head, *self.get_all_free_blocks(), self.fake_free_list_tail]
        for block, following in pairwise(linked):
            block.next_free_block, following.prev_free_block = following, block
        return self._head

    @property
    def num_free_blocks(self) -> int:
        return self._pool.get_num_free_blocks()

    def get_all_free_blocks(self) -> list[Block]:
        return self._pool.of(self._pool.ours.free_order())


class CachedBlocks:
    """vLLM's map from hashes to blocks, to be looked at."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def __len__(self) -> int:
        return len({key for key in map(self._pool.ours.block_key, range(self._pool.num_gpu_blocks)) if key})

    def get_one_block(self, key: bytes) -> Block | None:
        found = self._pool.ours.find(_our_key(key))
        return None if found is None else self._pool.blocks[found]

    def pop(self, key: bytes, block_id: int = NULL_BLOCK_ID) -> None:
        """Let no lookup find a content any longer, as tests do."""
        self._first.pop(_our_key(key), None)

    def __getitem__(self, key: bytes) -> int:
        return self._first[_our_key(key)]

    def __setitem__(self, key: bytes, block_id: int) -> None:
        self._first[_our_key(key)] = block_id

    @property
    def _cache(self) -> CachedBlocks:
        return self

    @_cache.setter
    def _cache(self, saved: SavedBlocks) -> None:
        self._first.update(saved.first)

    def __copy__(self) -> SavedBlocks:
        return SavedBlocks(dict(self._first))

    @property
    def _first(self) -> dict[bytes, int]:
        return self._pool.ours._published._first


@dataclass(frozen=True)
class SavedBlocks:
    """What lookups found at some time, by our keys."""

    first: dict[bytes, int]

    def __getitem__(self, key: bytes) -> int:
        return self.first[_our_key(key)]


class Pool:
    """vLLM's block pool, as its scheduler, connectors and tests use it.

    Attributes:
        lengths: number of tokens of the sequence up to the end of a block, by the block's digest.
    """

    def __init__(self, manager: KVCacheManager) -> None:
        self._manager = manager
        ours = self.ours = manager.block_pool
        self.num_gpu_blocks = ours.num_blocks
        self.enable_caching = manager.enable_caching
        self.hash_block_size = manager.config.hash_block_size
        self.lengths: dict[bytes, int] = {}
        self.null_block = Block(NULL_BLOCK_ID, ours, self.lengths)
        self.blocks = [
            self.null_block,
            *(Block(block_id, ours, self.lengths) for block_id in range(1, ours.num_blocks)),
        ]
        self.free_block_queue = FreeBlocks(self)
        self.cached_block_hash_to_block = CachedBlocks(self)

    def of(self, block_ids: Iterable[int]) -> list[Block]:
        return [self.blocks[block_id] for block_id in block_ids]

    def get_num_free_blocks(self) -> int:
        return self.ours.num_free

    def get_usage(self) -> float:
        return self._manager.usage

    def get_cached_block(self, block_hash: bytes, kv_cache_group_ids: Sequence[int]) -> list[Block] | None:
        found = [self.ours.find(bytes(block_hash) + tag_of(index)) for index in kv_cache_group_ids]
        return None if None in found else self.of(found)  # type: ignore[arg-type]

    def get_new_blocks(self, num_blocks: int) -> list[Block]:
        return self.of(self.ours.get_new_blocks(num_blocks))

    def touch(self, held: Iterable[Block]) -> None:
        self.ours.touch(ids_of(held))

    def free_blocks(self, ordered_blocks: Iterable[Block]) -> None:
        self.ours.free_blocks(ids_of(ordered_blocks))

    def evict_blocks(self, block_ids: set[int]) -> None:
        self._manager.evict_blocks(block_ids)

    def reset_prefix_cache(self) -> bool:
        return self._manager.reset_prefix_cache()


class Tables(Mapping[str, list[Block]]):
    """Block tables of one group by request id."""

    def __init__(self, manager: KVCacheManager, pool: Pool, index: int) -> None:
        self._manager = manager
        self._pool = pool
        self._index = index

    def __getitem__(self, request_id: str) -> list[Block]:
        if request_id not in self._manager.holders():
            raise KeyError(request_id)
        return self._pool.of(self._manager.block_table(request_id, self._index))

    def __iter__(self) -> Iterator[str]:
        return map(str, self._manager.holders())

    def __len__(self) -> int:
        return len(self._manager.holders())


class GroupManager:
    """What vLLM's scheduler reads of the manager of one group.

    Attributes:
        new_block_ids: blocks handed out since they were last taken, if the worker must zero them.
    """

    retains_longer_hit = False

    def __init__(self, ours: KVCacheManager, pool: Pool, config: Any, index: int) -> None:
        self._ours = ours
        self._null_block = pool.null_block
        self._is_zeroed = config.needs_kv_cache_zeroing
        self.block_pool = pool
        self.kv_cache_group_id = index
        self.kv_cache_spec = config.kv_cache_groups[index].kv_cache_spec
        self.block_size = ours.config.block_sizes[index]
        self.dcp_world_size = self.block_size // self.kv_cache_spec.block_size
        self.req_to_blocks = Tables(ours, pool, index)
        self.new_block_ids: list[int] = []

    @property
    def records_new_block_ids(self) -> bool:
        return self._is_zeroed and isinstance(self.kv_cache_spec, specs.AttentionSpec)

    @property
    def num_cached_block(self) -> dict[Any, int]:
        held = self._ours._held
        return {request_id: each.num_published[self.kv_cache_group_id] for request_id, each in held.items()}

    def take_new_block_ids(self) -> list[int]:
        taken, self.new_block_ids = self.new_block_ids, []
        return taken


class CrossAttentionGroupManager(GroupManager, CrossAttentionManager):  # type: ignore[misc]
    """The same, told apart by its class."""


def group_manager(ours: KVCacheManager, pool: Pool, config: Any, index: int) -> GroupManager:
    """Return the manager of a group of vLLM's configuration."""
    is_cross = isinstance(config.kv_cache_groups[index].kv_cache_spec, specs.CrossAttentionSpec)
    return (CrossAttentionGroupManager if is_cross else GroupManager)(ours, pool, config, index)


def ids_of(held: Iterable[Block]) -> list[int]:
    return [block.block_id for block in held]


def _our_key(key: bytes) -> bytes:
    """Return our key, digest and tag, for vLLM's."""
    return bytes(get_block_hash(key)) + tag_of(get_group_id(key))


def _their_key(key: bytes) -> bytes:
    """Return vLLM's key, digest and group, for ours."""
    digest, tag = (key, b"") if len(key) in DIGEST_BYTES else (key[:-DIGEST_TAG_BYTES], key[-DIGEST_TAG_BYTES:])
    return bytes(make_block_hash_with_group_id(digest, int.from_bytes(tag, "little")))
