"""vLLM's `KVCacheManager` on top of the KV cache, for engines that have a scheduler of their own.

All decisions are in `mmcached.engine.kv.kv_cache`; this module adds queries, and reports content that arrives or fails
outside a step. The service does not use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from mmcached.engine.kv.blocks import KVCacheBlocks
from mmcached.engine.kv.config import KVCacheConfig
from mmcached.engine.kv.kv_cache import KVCache
from mmcached.engine.kv.pool.block_pool import NULL_BLOCK_ID
from mmcached.engine.kv.stats import AdmissionCounts
from mmcached.engine.steps.request import Request, RequestId, RequestStatus
from mmcached.wire.errors import LocalProtocolError


@dataclass(slots=True)
class PrefixCacheStats:
    """Admission counts of an interval.

    Attributes:
        reset: Whether the prefix cache was reset during the interval.
        requests, queries, hits: Requests admitted for the first time, their tokens, and the tokens found in the cache.
        preempted_requests, preempted_queries, preempted_hits: The same for requests that had been admitted before.
    """

    reset: bool = False
    requests: int = 0
    queries: int = 0
    hits: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0


class IntervalCounts(AdmissionCounts):
    """Counts since the start, and since they were last taken, as vLLM's loggers report them.

    Attributes:
        interval: The counts of the current interval.
    """

    def __init__(self) -> None:
        super().__init__()
        self.interval = PrefixCacheStats()

    def record(self, request: Request, num_hit_tokens: int) -> None:
        super().record(request, num_hit_tokens)
        interval, num_tokens = self.interval, request.num_tokens
        if not request.was_admitted and not request.num_preemptions:
            interval.requests += 1
            interval.queries += num_tokens
            interval.hits += num_hit_tokens
        else:
            interval.preempted_requests += 1
            interval.preempted_queries += num_tokens
            interval.preempted_hits += num_hit_tokens


class KVCacheManager(KVCache):
    """vLLM's published class: `KVCache`, whose arguments it takes, with the rest of vLLM's methods.

    Args:
        log_stats: Whether admissions are counted by interval (`make_prefix_cache_stats`).
    """

    def __init__(  # noqa: PLR0917 (vLLM's signature)
        self,
        kv_cache_config: KVCacheConfig,
        max_model_len: int,
        enable_caching: bool = True,
        caching_hash_algo: str = "sha256",
        use_eagle: bool = False,
        log_stats: bool = False,
        enable_kv_cache_events: bool = False,
        *,
        num_hash_lookahead_tokens: int = 0,
        hash_seed: str = "",
    ) -> None:
        super().__init__(
            kv_cache_config,
            max_model_len,
            enable_caching,
            caching_hash_algo,
            use_eagle,
            enable_kv_cache_events,
            num_hash_lookahead_tokens=num_hash_lookahead_tokens,
            hash_seed=hash_seed,
        )
        self._interval_counts = IntervalCounts() if log_stats else None
        if self._interval_counts is not None:
            self._allocator.counts = self._interval_counts

    # ---- content that arrives, or fails to

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Publish a request's full blocks up to `num_computed_tokens`, which have been computed or have arrived.

        Blocks that were published or reserved before are unchanged. With caching off, nothing happens.

        Raises:
            LocalProtocolError: The request holds no blocks, or too few slots, or blocks before these wait for a step.
        """
        held = self._held.get(request.request_id)
        num_final = min(num_computed_tokens, request.num_tokens)
        num_final -= num_final % self.config.hash_block_size
        if not self.enable_caching or (held is None and not num_final):
            return
        num_slots = 0 if held is None else min(held.num_slots(self.config.block_sizes), default=num_final)
        if held is None or num_final > num_slots:
            what = f"{num_final} tokens cannot be published"
            raise LocalProtocolError(f"request {request.request_id}: {what}, it has slots for {num_slots}")
        if num_final >= held.next_full:
            if self._steps.reserves_for(held):
                raise LocalProtocolError(f"request {request.request_id}: blocks before these wait for a step to end")
            block_hashes = self._hashes.of(request)
            self._publisher.publish(request, held, block_hashes, num_final, most_tokens=num_final, at_once=True)
        held.set_horizon()

    def evict_blocks(self, block_ids: Iterable[int]) -> list[RequestId]:
        """Remove blocks from the prefix cache, for example after a failed load; requests keep the blocks they hold.

        The holders' later blocks were computed from them, and are removed too. A holder of any removed block has to
        compute it again: set `num_computed_tokens` back and go on; blocks that are final then are published anew. One
        whose window or Mamba state has left behind what that needs can only be freed: `allocate_slots` raises.
        Blocks that requests freed since have computed from these are not known here: pass them too, or begin a
        `new_epoch`.

        Returns:
            The ids of those holders.

        Raises:
            LocalProtocolError: A step is open, which may publish blocks computed from these: end it first.
            ValueError: A block id does not exist.
        """
        if self._steps.is_open:
            raise LocalProtocolError("blocks cannot be evicted while steps are in flight: commit or withdraw them")
        gone = self._checked_ids(block_ids)
        concerned: dict[RequestId, None] = {}
        num_known = -1
        while num_known < len(gone):  # a request's later blocks may be shared by another request
            num_known = len(gone)
            for held in self._held.values():
                start = held.first_gone(self.config.block_sizes, gone)
                if start is not None:
                    concerned[held.request_id] = None
                    gone.update(held.cut_published(self.config.block_sizes, start))
                    gone.discard(NULL_BLOCK_ID)
                    self._tables.note_recomputed(held, start)
        self.block_pool.unpublish(sorted(gone))
        return list(concerned)

    def pop_blocks_for_free(self, request: Request) -> list[int]:
        """Forget a request, and return its blocks, which stay held: free them later, in reverse.

        For engines that have steps in flight without `begin_step`: `block_pool.free_blocks(block_ids[::-1])` when the
        last of them has ended. Reservations and fences are as in `free`, which raises as this does.

        Returns:
            Ids in the order of allocation, group after group, without null blocks; empty if it holds none.

        Raises:
            LocalProtocolError: Other requests share blocks that it would write in the step being built.
        """
        self._lookups.forget_request(request.request_id)
        held = self._held.get(request.request_id)
        if held is None:
            return []
        self._steps.check_can_leave(held)
        return [block_id for table in self._tables.take_blocks(held) for block_id in reversed(table) if block_id]

    def remove_skipped_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Free the blocks behind the sliding windows at `num_computed_tokens`, before the next allocation does."""
        held = self._held.get(request.request_id)
        if held is not None:
            self._tables.move_windows(held, num_computed_tokens)

    # ---- looking in

    def num_blocks_to_allocate(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        *,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        num_encoder_tokens: int = 0,
    ) -> int:
        """Return how many free blocks such a call of `allocate_slots` takes. Changes nothing.

        Free blocks of the hit are included, because no other request can take them then; blocks that windows will free
        are not deducted.
        """
        request_id, num_local = request.request_id, request.num_computed_tokens + num_new_computed_tokens
        num_computed = num_local + num_external_computed_tokens
        num_slots = min(num_computed + num_new_tokens + num_lookahead_tokens, self.max_model_len)
        growth = self._tables.growth(
            num_local,
            num_external_computed_tokens,
            num_new_tokens,
            num_slots,
            num_encoder_tokens,
            is_new=request_id not in self._held,
        )
        hit = self._empty if new_computed_blocks is None else new_computed_blocks
        if num_external_computed_tokens:
            hit = self._tables.behind_windows(hit, num_computed, num_slots)
        return self._tables.num_to_take(request_id, hit, num_slots, growth)

    def get_block_ids(self, request_id: RequestId) -> tuple[list[int], ...]:
        """Return a copy of a request's block tables, null blocks included; empty if it holds no blocks."""
        return tuple(list(self.block_table(request_id, index)) for index in range(len(self._groups)))

    def get_blocks(self, request_id: RequestId) -> KVCacheBlocks:
        """Return a request's present blocks; empty if it holds no blocks."""
        return KVCacheBlocks(self.block_pool, self.get_block_ids(request_id))

    def blocks_of(self, block_ids: Sequence[Sequence[int]]) -> KVCacheBlocks:
        """Return blocks by their ids, by group and position, for example from a connector.

        Raises:
            ValueError: The number of groups is wrong, or a block id does not exist.
        """
        if len(block_ids) != len(self._groups):
            raise ValueError(f"block_ids are of {len(block_ids)} group(s), there are {len(self._groups)}")
        for ids in block_ids:
            self._checked_ids(ids)
        return KVCacheBlocks(self.block_pool, tuple(list(ids) for ids in block_ids))

    def write_block_table(self, request_id: RequestId, out: npt.NDArray[Any], group_index: int = 0) -> int:
        """Write one block table into the caller's row, padded with null blocks, and return its length.

        Args:
            out: `(n,)` integers, one per block; of a tensor, `tensor.numpy()`.

        Raises:
            ValueError: The row is too short; nothing was written.
        """
        table = self.block_table(request_id, group_index)
        if len(table) > len(out):
            raise ValueError(f"out has room for {len(out)} blocks, request {request_id} has {len(table)}")
        out[: len(table)] = table
        out[len(table) :] = NULL_BLOCK_ID
        return len(table)

    def get_num_common_prefix_blocks(self, request: Request, num_running_requests: int) -> list[int]:
        """Return, by group, how many leading blocks of a running request all running requests share.

        Raises:
            LocalProtocolError: The request does not run.
        """
        if request.status is not RequestStatus.RUNNING:
            raise LocalProtocolError(f"{request} does not run; only those that do have a prefix in common")
        tables = self.get_block_ids(request.request_id)
        return [
            group.kind.num_common_prefix_blocks(
                table, lambda block_id: self.block_pool.ref_cnt(block_id) == num_running_requests
            )
            for group, table in zip(self._groups, tables, strict=True)
        ]

    def create_empty_block_list(self) -> KVCacheBlocks:
        return self._empty.new_empty()

    @property
    def prefix_cache_stats(self) -> PrefixCacheStats | None:
        """The present result of `make_prefix_cache_stats`, without a restart."""
        return None if self._interval_counts is None else self._interval_counts.interval

    def make_prefix_cache_stats(self) -> PrefixCacheStats | None:
        """Return and restart the statistics; None if they are off."""
        taken = self.prefix_cache_stats
        if self._interval_counts is not None:
            self._interval_counts.interval = PrefixCacheStats()
        return taken

    def _forget_content(self) -> None:
        super()._forget_content()
        if self._interval_counts is not None:
            self._interval_counts.interval.reset = True

    def _checked_ids(self, block_ids: Iterable[int]) -> set[int]:
        """Return these ids without the null block's; raise ValueError for an unknown block."""
        found = set(block_ids)
        for block_id in found:
            if not 0 <= block_id < self.block_pool.num_blocks:
                raise ValueError(f"block {block_id}: there are {self.block_pool.num_blocks}")
        return found - {NULL_BLOCK_ID}
