"""Gives requests slots: the part of `allocate_slots` that changes block tables.

Invariant: a refused allocation changes nothing, except that windows have moved to the request's position.
"""

from __future__ import annotations

from typing import NamedTuple

from mmcached.engine.kv.blocks import KVCacheBlocks
from mmcached.engine.kv.lookup.lookups import PrefixLookups
from mmcached.engine.kv.publisher import Publisher
from mmcached.engine.kv.request_blocks import UNLIMITED
from mmcached.engine.kv.request_hashes import RequestHashes
from mmcached.engine.kv.stats import AdmissionCounts
from mmcached.engine.kv.steps import Steps
from mmcached.engine.kv.tables import BlockTables
from mmcached.engine.steps.request import Request


class SlotCounts(NamedTuple):
    """Numbers of tokens that one request gets slots for, beside its computed tokens; see the drawing in `kv_cache`.

    Attributes:
        num_new: tokens to be computed now, draft tokens included.
        num_hit: length of the prefix hit; only for a request that holds no blocks yet.
        num_external: tokens after the hit, computed elsewhere and delivered into these slots. Null blocks replace
            blocks that windows have passed by then, in the hit too.
        num_draft: draft tokens at the end of the new tokens; they are not published.
        num_lookahead: slots after all these, for a drafter.
        num_in_flight: computed tokens of the request that workers may still be computing; windows move only past blocks
            that the remaining tokens do not need.
    """

    num_new: int
    num_hit: int
    num_external: int
    num_draft: int
    num_lookahead: int
    num_in_flight: int

    def check(self) -> None:
        """Raise `ValueError`, with the argument of `allocate_slots` and its limit, if a count is invalid."""
        num_new, num_hit, num_external, num_draft, num_lookahead, num_in_flight = self
        is_prefix = num_hit >= 0 and num_external >= 0
        if num_new > 0 and is_prefix and num_lookahead >= 0 and num_in_flight >= 0 and 0 <= num_draft <= num_new:
            return
        counts = {
            "num_new_tokens": num_new,
            "num_new_computed_tokens": num_hit,
            "num_external_computed_tokens": num_external,
            "num_draft_tokens": num_draft,
            "num_lookahead_tokens": num_lookahead,
            "num_in_flight_tokens": num_in_flight,
        }
        for name, value in counts.items():
            if value < 0:
                raise ValueError(f"{name} = {value}: at least 0")
        if num_draft > num_new:
            raise ValueError(f"num_draft_tokens = {num_draft}: at most num_new_tokens = {num_new}")
        if not num_hit and not num_external:
            raise ValueError("num_new_tokens = 0: at least 1 without a prefix hit or external tokens")


class SlotAllocator:
    """Allocates slots in the block tables of one KV cache.

    Args:
        is_caching: whether blocks are published.
        hash_block_size: tokens of a block that is published.

    Attributes:
        counts: admissions, and the tokens found for them in the cache.
    """

    def __init__(
        self,
        tables: BlockTables,
        steps: Steps,
        hashes: RequestHashes,
        lookups: PrefixLookups,
        publisher: Publisher,
        *,
        is_caching: bool,
        hash_block_size: int,
        max_model_len: int,
    ) -> None:
        self.counts = AdmissionCounts()
        self._tables = tables
        self._steps = steps
        self._hashes = hashes
        self._lookups = lookups
        self._publisher = publisher
        self._is_caching = is_caching
        self._hash_block_size = hash_block_size
        self._max_model_len = max_model_len

    def allocate(
        self, request: Request, counts: SlotCounts, hit: KVCacheBlocks | None, *, is_delayed: bool
    ) -> KVCacheBlocks | None:
        """Give a request slots, and publish or reserve the blocks that become full; see `KVCache.allocate_slots`."""
        counts.check()
        num_new, num_hit, num_external, num_draft, num_lookahead, num_in_flight = counts
        steps, held = self._steps, self._tables.held.get(request.request_id)
        steps.check_can_join(request.request_id)
        if hit is None:
            hit = self._tables.empty
        if hit is not self._tables.empty or num_hit:
            if held is not None and num_hit:
                raise ValueError(f"request {request.request_id} holds blocks: it cannot take a prefix hit")
            self._lookups.check(request, hit, num_hit)
        num_local = request.num_computed_tokens + num_hit
        num_tokens = num_local + num_external + num_new
        num_slots = num_tokens + num_lookahead
        if num_slots > self._max_model_len:  # noqa: PLR1730 (a comparison takes a fifth of the time of `min`)
            num_slots = self._max_model_len
        next_full = held.next_full if held is not None else self._first_full(num_hit)
        num_final, block_hashes = num_tokens - num_draft, None
        if num_tokens >= next_full and not is_delayed:
            # Decided before the commit: slots beyond the request's tokens are for draft tokens, and another token
            # may replace a draft token until then.
            num_final = min(num_final, request.num_tokens, self._max_model_len)
            block_hashes = self._hashes.of(request)  # may raise, so it comes before all changes
        if held is None:
            start = hit
            if num_external:
                start = self._tables.behind_windows(hit, num_local + num_external, num_slots)
            new = self._admit(request, hit, start, num_hit, num_slots)
        else:
            new = self._tables.extend_request(held, num_local - num_in_flight, num_slots)
        if new is None:
            return None
        held = self._tables.held[request.request_id]
        steps.add_request(held)
        if block_hashes is not None:
            self._publisher.publish(request, held, block_hashes, num_final, most_tokens=num_tokens)
        held.set_horizon()
        return new

    def _admit(
        self, request: Request, hit: KVCacheBlocks, start: KVCacheBlocks, num_hit_tokens: int, num_slots: int
    ) -> KVCacheBlocks | None:
        missing = self._tables.num_missing(start, num_slots)
        if not self._lookups.fits(request, start, sum(missing)):
            self._lookups.note_refused(request, hit)
            return None
        new = self._tables.admit(request.request_id, start, num_slots, missing, self._first_full(num_hit_tokens))
        self._lookups.note_admitted(request, num_hit_tokens)
        if self._is_caching and not request.skip_reading_prefix_cache:
            self.counts.record(request, num_hit_tokens)
        return new

    def _first_full(self, num_hit_tokens: int) -> int:
        """Return the number of final tokens that fills a new request's first block after its hit."""
        return num_hit_tokens + self._hash_block_size if self._is_caching else UNLIMITED
