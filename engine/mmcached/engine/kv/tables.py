"""Block tables of all requests: moves blocks from the pool into the tables and back.

Invariant: an allocation that does not fit changes nothing, except that windows have moved to the request's position.
"""

from __future__ import annotations

from mmcached.engine.kv.blocks import KVCacheBlocks
from mmcached.engine.kv.config import KVCacheConfig
from mmcached.engine.kv.groups import Group
from mmcached.engine.kv.pool.block_pool import NULL_BLOCK_ID, BlockPool
from mmcached.engine.kv.request_blocks import UNLIMITED, RequestBlocks, num_missing
from mmcached.engine.kv.steps import Steps
from mmcached.wire.errors import LocalProtocolError


class BlockTables:
    """Block tables by request id, of all requests that hold blocks; `held` is changed here only."""

    def __init__(
        self, config: KVCacheConfig, pool: BlockPool, steps: Steps, groups: tuple[Group, ...], max_model_len: int
    ) -> None:
        self.held: dict[int, RequestBlocks] = {}
        self.empty = KVCacheBlocks(pool, tuple(() for _ in groups))
        self._pool = pool
        self._steps = steps
        self._groups = groups
        self._block_sizes = config.block_sizes
        self._windows = [group for group in groups if group.kind.releases_at(0) != UNLIMITED]
        self._hash_block_size = config.hash_block_size
        self._max_model_len = max_model_len

    def num_missing(self, hit: KVCacheBlocks, num_slots: int) -> list[int]:
        """Return the number of blocks, by group, that a new request needs after its hit for `num_slots` slots."""
        return num_missing(self._block_sizes, hit.ids, num_slots)

    def behind_windows(self, hit: KVCacheBlocks, num_computed_tokens: int, num_slots: int) -> KVCacheBlocks:
        """Return the initial tables for a hit and delivered tokens, with null blocks where windows have passed.

        `num_computed_tokens` counts both; at most `num_slots` tokens are covered by null blocks.
        """
        tables = list(hit.ids)
        for group in self._windows:
            num_passed = min(group.kind.num_left_behind(num_computed_tokens), -(-num_slots // group.block_size))
            tables[group.index] = [NULL_BLOCK_ID] * num_passed + list(tables[group.index][num_passed:])
        return KVCacheBlocks(self._pool, tuple(tables)) if self._windows else hit

    def admit(
        self, request_id: int, hit: KVCacheBlocks, num_slots: int, missing: list[int], next_full: int
    ) -> KVCacheBlocks:
        """Give a new request its hit and its first new blocks. The caller has checked that enough blocks are free.

        Args:
            missing: `num_missing` of the hit.
            next_full: number of final tokens that fills the first block after the hit; `UNLIMITED` to publish nothing.
        """
        held = RequestBlocks(request_id, hit.ids, next_full=next_full)
        for group in self._windows:
            held.num_left_behind[group.index] = hit.ids[group.index].count(NULL_BLOCK_ID)
        self._set_next_release(held)
        if any(hit.ids):
            self._steps.note_hit_taken(held)
            for ids in hit.ids:  # before new blocks are allocated: that could evict the request's own hit
                self._pool.touch(ids)
        self.held[request_id] = held
        return self._extend(held, num_slots, missing)

    def extend_request(self, held: RequestBlocks, num_computed_tokens: int, num_slots: int) -> KVCacheBlocks | None:
        """Move a request's windows, then append the blocks that it lacks; return None if too few are free.

        Raises `LocalProtocolError` if content that the request relies on was withdrawn.
        """
        if held.is_lost:
            raise LocalProtocolError(f"request {held.request_id} relied on a step that was withdrawn: free it")
        if num_computed_tokens >= held.next_release:
            self._leave_behind(held, num_computed_tokens)
        if num_slots <= held.capacity:
            return self.empty
        missing = num_missing(self._block_sizes, held.tables, num_slots)
        if sum(missing) > self._pool.num_free:
            held.set_horizon()
            return None
        return self._extend(held, num_slots, missing)

    def move_windows(self, held: RequestBlocks, num_computed_tokens: int) -> None:
        """Free the blocks that windows have left behind at this number of computed tokens."""
        if num_computed_tokens >= held.next_release and not held.is_lost:
            self._leave_behind(held, num_computed_tokens)
            held.set_horizon()

    def num_to_take(self, request_id: int, hit: KVCacheBlocks, num_slots: int) -> int:
        """Return the number of free blocks needed for `num_slots` slots; free blocks of a new request's hit count."""
        held = self.held.get(request_id)
        if held is not None:
            return sum(num_missing(self._block_sizes, held.tables, num_slots))
        return sum(self.num_missing(hit, num_slots)) + sum(map(self._pool.num_unreferenced, hit.ids))

    def num_lacking(self, request_id: int, num_tokens: int, most_new_tokens: int) -> int:
        """Return the number of blocks that a request still needs to reach `num_tokens` tokens, over several steps."""
        held = self.held.get(request_id)
        num_lacking = 0
        for group in self._groups:
            num_held = len(held.tables[group.index]) - held.num_left_behind[group.index] if held is not None else 0
            num_lacking += max(0, group.kind.most_blocks_held(num_tokens, most_new_tokens) - num_held)
        return num_lacking

    def free(self, held: RequestBlocks) -> None:
        """Free all blocks of a request, each table from its tail, in order of group."""
        del self.held[held.request_id]
        self._steps.remove_request(held)
        for block_ids in held.take_all():
            self._steps.give_back(self._pool, held, block_ids)

    def _extend(self, held: RequestBlocks, num_slots: int, missing: list[int]) -> KVCacheBlocks:
        block_ids = self._pool.get_new_blocks(sum(missing))
        # A lower bound: a group with larger blocks may have more slots.
        capacity = -(-num_slots // self._hash_block_size) * self._hash_block_size
        held.capacity = capacity if capacity < self._max_model_len and self._groups else UNLIMITED
        return KVCacheBlocks(self._pool, held.extend(missing, block_ids))

    def _leave_behind(self, held: RequestBlocks, num_computed_tokens: int) -> None:
        """Free the blocks before the windows, last position first, and put null blocks in their places."""
        for group in self._windows:
            table, start = held.tables[group.index], held.num_left_behind[group.index]
            stop = min(group.kind.num_left_behind(num_computed_tokens), len(table))
            if stop > start:
                block_ids = table[start:stop][::-1]
                table[start:stop] = [NULL_BLOCK_ID] * len(block_ids)
                held.num_left_behind[group.index] = stop
                self._steps.note_window_moved(held)
                self._steps.give_back(self._pool, held, block_ids)
        self._set_next_release(held)

    def _set_next_release(self, held: RequestBlocks) -> None:
        held.next_release = UNLIMITED
        for group in self._windows:
            held.next_release = min(held.next_release, group.kind.releases_at(held.num_left_behind[group.index]))
