"""Block tables of all requests: moves blocks from the pool into the tables and back.

Invariant: an allocation that does not fit changes nothing, except that windows have moved to the request's position.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.engine.kv.blocks import KVCacheBlocks
from mmcached.engine.kv.config import KVCacheConfig
from mmcached.engine.kv.groups import Group
from mmcached.engine.kv.groups.group import Growth, SparseKind
from mmcached.engine.kv.groups.mamba import MambaAlign
from mmcached.engine.kv.pool.block_pool import NULL_BLOCK_ID, BlockPool
from mmcached.engine.kv.request_blocks import UNLIMITED, RequestBlocks, num_missing
from mmcached.engine.kv.steps import Steps
from mmcached.engine.steps.request import RequestId
from mmcached.wire.errors import LocalProtocolError


class BlockTables:
    """Block tables by request id, of all requests that hold blocks; `held` is changed here only."""

    def __init__(
        self, config: KVCacheConfig, pool: BlockPool, steps: Steps, groups: tuple[Group, ...], max_model_len: int
    ) -> None:
        self.held: dict[RequestId, RequestBlocks] = {}
        self.empty = KVCacheBlocks(pool, tuple(() for _ in groups))
        self._pool = pool
        self._steps = steps
        self._groups = groups
        self._block_sizes = config.block_sizes
        self._windows = [group for group in groups if group.kind.releases_at(0) != UNLIMITED]
        self._sparse = {group.index: group.kind for group in groups if isinstance(group.kind, SparseKind)}
        self._has_state = any(group.kind.has_state for group in groups)
        self._hash_block_size = config.hash_block_size
        self._max_model_len = max_model_len

    def growth(
        self, num_computed: int, num_external: int, num_new: int, num_slots: int, num_encoder: int, *, is_new: bool
    ) -> Growth | None:
        """Return what sparse kinds go by; None without any.

        Args:
            num_computed: tokens that the request has computed, and its prefix hit.
            num_external: tokens after these that are delivered; `num_new` after them are computed.
        """
        if not self._sparse:
            return None
        num_tokens = min(num_computed + num_external + num_new, self._max_model_len)
        num_delivered = num_computed + num_external if num_external and is_new else 0
        return Growth(num_slots, num_tokens, num_delivered, num_encoder, is_new)

    def num_missing(self, tables: Sequence[Sequence[int]], num_slots: int, growth: Growth | None) -> list[int]:
        """Return the number of blocks, by group, that tables lack for `num_slots` slots."""
        missing = num_missing(self._block_sizes, tables, num_slots)
        if growth is not None:
            for index, kind in self._sparse.items():
                missing[index] = kind.num_new_blocks(tables[index], growth)
        return missing

    def behind_windows(self, hit: KVCacheBlocks, num_computed_tokens: int, num_slots: int) -> KVCacheBlocks:
        """Return the initial tables for a hit and delivered tokens, with null blocks where windows have passed.

        `num_computed_tokens` counts both; at most `num_slots` tokens are covered by null blocks.
        """
        tables = list(hit.ids)
        for group in self._windows:
            num_passed = min(group.kind.num_left_behind(num_computed_tokens), -(-num_slots // group.block_size))
            tables[group.index] = [NULL_BLOCK_ID] * num_passed + list(tables[group.index][num_passed:])
        return KVCacheBlocks(self._pool, tuple(tables)) if self._windows else hit

    def admit(  # noqa: PLR0917 (called once a request)
        self,
        request_id: RequestId,
        hit: KVCacheBlocks,
        num_slots: int,
        growth: Growth | None,
        missing: list[int],
        next_full: int,
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
        return self._extend(held, num_slots, growth, missing)

    def extend_request(
        self, held: RequestBlocks, num_computed_tokens: int, num_slots: int, growth: Growth | None = None
    ) -> KVCacheBlocks | None:
        """Move a request's windows, then append the blocks that it lacks; return None if too few are free.

        Raises `LocalProtocolError` if content that the request relies on was withdrawn or removed.
        """
        if held.is_lost:
            raise LocalProtocolError(f"request {held.request_id} relied on content that was withdrawn: free it")
        if num_computed_tokens >= held.next_release:
            self._leave_behind(held, num_computed_tokens)
        if num_slots <= held.capacity and not (growth is not None and growth.num_encoder_tokens):
            return self.empty
        missing = self.num_missing(held.tables, num_slots, growth)
        if sum(missing) > self._pool.num_free:
            held.set_horizon()
            return None
        return self._extend(held, num_slots, growth, missing)

    def note_recomputed(self, held: RequestBlocks, start: int) -> None:
        """Mark a request as lost if blocks that it needs to compute tokens from `start` on anew were left behind."""
        for group in self._windows:
            if NULL_BLOCK_ID in held.tables[group.index][group.kind.num_left_behind(start) :]:
                held.is_lost = True

    def move_windows(self, held: RequestBlocks, num_computed_tokens: int) -> None:
        """Free the blocks that windows have left behind at this number of computed tokens."""
        if num_computed_tokens >= held.next_release and not held.is_lost:
            self._leave_behind(held, num_computed_tokens)
            held.set_horizon()

    def num_to_take(
        self, request_id: RequestId, hit: KVCacheBlocks, num_slots: int, growth: Growth | None = None
    ) -> int:
        """Return the number of free blocks needed for `num_slots` slots; free blocks of a new request's hit count."""
        held = self.held.get(request_id)
        if held is not None:
            return sum(self.num_missing(held.tables, num_slots, growth))
        return sum(self.num_missing(hit.ids, num_slots, growth)) + sum(map(self._pool.num_unreferenced, hit.ids))

    def num_lacking(self, request_id: RequestId, num_tokens: int, most_new_tokens: int) -> int:
        """Return the number of blocks that a request still needs to reach `num_tokens` tokens, over several steps."""
        held = self.held.get(request_id)
        num_lacking = 0
        for group in self._groups:
            num_held = 0
            if held is not None:
                table, num_left = held.tables[group.index], held.num_left_behind[group.index]
                num_held = sum(map(bool, table[num_left:])) if group.kind.has_state else len(table) - num_left
            num_lacking += max(0, group.kind.most_blocks_held(num_tokens, most_new_tokens) - num_held)
        return num_lacking

    def free(self, held: RequestBlocks) -> None:
        """Free all blocks of a request, each table from its tail, in order of group."""
        for block_ids in self.take_blocks(held):
            self._steps.give_back(self._pool, held, block_ids)

    def take_blocks(self, held: RequestBlocks) -> list[list[int]]:
        """Forget a request, and return its blocks, which are still held: each table from its tail."""
        del self.held[held.request_id]
        self._steps.remove_request(held)
        return held.take_all()

    def in_step(self) -> list[RequestBlocks]:
        """Return the requests that take part in the open step, whose states it overwrites; none without states."""
        return [held for held in self.held.values() if self._steps.takes_part(held)] if self._has_state else []

    def note_chunk(self, held: RequestBlocks, start: int, end: int) -> None:
        """Never publish a state that the chunk `start … end - 1` has run past: it was overwritten in place."""
        for index, kind in self._sparse.items():
            position = start // kind.block_size
            if isinstance(kind, MambaAlign) and start % kind.block_size and end > (position + 1) * kind.block_size:
                held.num_published[index] = max(held.num_published[index], position + 1)

    def _extend(self, held: RequestBlocks, num_slots: int, growth: Growth | None, missing: list[int]) -> KVCacheBlocks:
        block_ids = self._pool.get_new_blocks(sum(missing))
        # A lower bound: a group with larger blocks may have more slots. States have none for a drafter.
        num_covered = num_slots if growth is None else growth.num_tokens
        capacity = -(-num_covered // self._hash_block_size) * self._hash_block_size
        held.capacity = capacity if capacity < self._max_model_len and self._groups else UNLIMITED
        if growth is None:
            return KVCacheBlocks(self._pool, held.extend(missing, block_ids))
        return KVCacheBlocks(self._pool, self._extend_sparsely(held, growth, missing, block_ids))

    def _extend_sparsely(
        self, held: RequestBlocks, growth: Growth, missing: list[int], block_ids: list[int]
    ) -> tuple[list[int], ...]:
        """Extend the tables in order of group, and return their new parts, null blocks of states included."""
        parts, start = [], 0
        for index, (table, num) in enumerate(zip(held.tables, missing, strict=True)):
            length, taken = len(table), block_ids[start : start + num]
            if index in self._sparse:
                self._sparse[index].extend_table(table, growth, taken)
            else:
                table.extend(taken)
            parts.append(table[length:])
            start += num
        return tuple(parts)

    def _leave_behind(self, held: RequestBlocks, num_computed_tokens: int) -> None:
        """Free the blocks before the windows, last position first, and put null blocks in their places."""
        for group in self._windows:
            table, start = held.tables[group.index], held.num_left_behind[group.index]
            stop = min(group.kind.num_left_behind(num_computed_tokens), len(table))
            if stop > start:
                block_ids = table[start:stop][::-1]
                table[start:stop] = [NULL_BLOCK_ID] * len(block_ids)
                held.num_left_behind[group.index] = stop
                if any(block_ids):
                    self._steps.note_window_moved(held)
                    self._steps.give_back(self._pool, held, block_ids)
        self._set_next_release(held)

    def _set_next_release(self, held: RequestBlocks) -> None:
        held.next_release = UNLIMITED
        for group in self._windows:
            held.next_release = min(held.next_release, group.kind.releases_at(held.num_left_behind[group.index]))
