"""Keeps who holds which blocks: the tables of all requests, and the way of blocks from the pool into them and back.

    admit      hit shared, new blocks behind it        go_on    new blocks at the end
    free       all go back                             windows that move on give back the head

Knows nothing of block hashes, tokens or what is published. Invariant: a refusal has changed nothing, except that
windows have moved on to where the request is.
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
    """The tables of all requests that hold blocks.

    Args:
        max_model_len: tokens; more slots are never asked for.

    Attributes:
        held: blocks by request id; changed here only.
        empty: no blocks, of as many groups as there are.
    """

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
        """Return how many blocks a request that holds nothing needs behind its hit for so many slots, by group."""
        return num_missing(self._block_sizes, hit.ids, num_slots)

    def behind_windows(self, hit: KVCacheBlocks, num_computed_tokens: int, num_slots: int) -> KVCacheBlocks:
        """Return how tables begin with a hit and tokens that are delivered behind it: null where windows have passed.

        Args:
            num_computed_tokens: tokens of the hit and those delivered.
            num_slots: null blocks stand for at most so many.
        """
        tables = list(hit.ids)
        for group in self._windows:
            num_passed = min(group.kind.num_left_behind(num_computed_tokens), -(-num_slots // group.block_size))
            tables[group.index] = [NULL_BLOCK_ID] * num_passed + list(tables[group.index][num_passed:])
        return KVCacheBlocks(self._pool, tuple(tables)) if self._windows else hit

    def admit(
        self, request_id: int, hit: KVCacheBlocks, num_slots: int, missing: list[int], next_full: int
    ) -> KVCacheBlocks:
        """Give a request that holds nothing its first blocks, behind its hit. The caller has seen that they are free.

        Args:
            missing: `num_missing` of the hit.
            next_full: so many final tokens fill the first block behind the hit; `UNLIMITED` if none is published.
        """
        held = RequestBlocks(request_id, hit.ids, next_full=next_full)
        for group in self._windows:
            held.num_left_behind[group.index] = hit.ids[group.index].count(NULL_BLOCK_ID)
        self._set_next_release(held)
        if any(hit.ids):
            self._steps.note_hit_taken(held)
            for ids in hit.ids:  # before new blocks are taken: a hit must not be evicted for its own request
                self._pool.touch(ids)
        self.held[request_id] = held
        return self._extend(held, num_slots, missing)

    def go_on(self, held: RequestBlocks, num_computed_tokens: int, num_slots: int) -> KVCacheBlocks | None:
        """Give a request that holds blocks those that it lacks, after its windows have moved on; None if too few.

        Raises:
            LocalProtocolError: what it took over was withdrawn.
        """
        if held.is_lost:
            raise LocalProtocolError(f"request {held.request_id} counted on a step that was withdrawn: free it")
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
        """Give back what windows have left behind at this many computed tokens."""
        if num_computed_tokens >= held.next_release and not held.is_lost:
            self._leave_behind(held, num_computed_tokens)
            held.set_horizon()

    def num_to_take(self, request_id: int, hit: KVCacheBlocks, num_slots: int) -> int:
        """Return how many of the free blocks it takes to give a request so many slots, behind a hit if it is new."""
        held = self.held.get(request_id)
        if held is not None:
            return sum(num_missing(self._block_sizes, held.tables, num_slots))
        return sum(self.num_missing(hit, num_slots)) + sum(map(self._pool.num_unreferenced, hit.ids))

    def num_lacking(self, request_id: int, num_tokens: int, most_new_tokens: int) -> int:
        """Return how many blocks a request has to be given on its way to so many tokens, a few at a time."""
        held = self.held.get(request_id)
        num_lacking = 0
        for group in self._groups:
            num_held = len(held.tables[group.index]) - held.num_left_behind[group.index] if held is not None else 0
            num_lacking += max(0, group.kind.most_blocks_held(num_tokens, most_new_tokens) - num_held)
        return num_lacking

    def free(self, held: RequestBlocks) -> None:
        """Take back all blocks, the ends of the tables first, group after group."""
        del self.held[held.request_id]
        self._steps.leave(held)
        for block_ids in held.take_all():
            self._steps.give_back(self._pool, held, block_ids)

    def _extend(self, held: RequestBlocks, num_slots: int, missing: list[int]) -> KVCacheBlocks:
        block_ids = self._pool.get_new_blocks(sum(missing))
        # At least so many: a group with larger blocks may have more.
        capacity = -(-num_slots // self._hash_block_size) * self._hash_block_size
        held.capacity = capacity if capacity < self._max_model_len and self._groups else UNLIMITED
        return KVCacheBlocks(self._pool, held.extend(missing, block_ids))

    def _leave_behind(self, held: RequestBlocks, num_computed_tokens: int) -> None:
        """Give back the heads of tables that windows have left, their ends first; null blocks take their places."""
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
