"""Gives requests slots: the part of `allocate_slots` that changes block tables.

Refused are allocations for which too few blocks are free, and prefix hits whose state is still to be computed by the
open step. Invariant: a refused allocation changes nothing, except that windows have moved to the request's position.
"""

from __future__ import annotations

from mmcached.engine.kv.blocks import KVCacheBlocks
from mmcached.engine.kv.groups.group import Growth
from mmcached.engine.kv.lookup.lookups import PrefixLookups
from mmcached.engine.kv.publisher import Publisher
from mmcached.engine.kv.request_blocks import UNLIMITED, RequestBlocks
from mmcached.engine.kv.request_hashes import RequestHashes
from mmcached.engine.kv.stats import AdmissionCounts
from mmcached.engine.kv.steps import Steps
from mmcached.engine.kv.tables import BlockTables
from mmcached.engine.steps.request import Request


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

    def allocate(  # noqa: PLR0917 (keyword arguments take a tenth of a decode step's time)
        self,
        request: Request,
        held: RequestBlocks | None,
        hit: KVCacheBlocks | None,
        num_new: int,
        num_hit: int,
        num_external: int,
        num_draft: int,
        num_lookahead: int,
        num_in_flight: int,
        num_encoder: int,
        is_delayed: bool,
    ) -> KVCacheBlocks | None:
        """Give a request slots, and publish or reserve the blocks that become full; see `KVCache.allocate_slots`.

        Args:
            held: the request's block tables; None for a new request.
            hit, num_hit: its prefix hit, and the hit's length; only for a new request.
            num_new: tokens to be computed now, draft tokens included.
            num_external: tokens after the hit, computed elsewhere; blocks that windows have passed by then become null.
            num_draft, num_lookahead: draft tokens at the end of the new tokens, not published; slots after all these.
            num_in_flight: computed tokens that workers may still be computing; windows stay behind them.
            num_encoder: encoder outputs for cross-attention, in the request's first step after the encoder.
        """
        least = num_hit | num_external | num_draft | num_lookahead | num_in_flight | num_encoder  # negative if one is
        if num_new <= 0 or num_draft > num_new or least < 0:
            _check_counts(num_new, num_hit, num_external, num_draft, num_lookahead, num_in_flight, num_encoder)
        steps = self._steps
        steps.check_can_join(request.request_id)
        hit = self._tables.empty if hit is None else hit
        if hit is not self._tables.empty or num_hit:
            self._check_hit(request, held, hit, num_hit)
        num_local = request.num_computed_tokens + num_hit
        num_tokens = num_local + num_external + num_new
        num_slots = num_tokens + num_lookahead
        if num_slots > self._max_model_len:  # noqa: PLR1730 (a comparison takes a fifth of the time of `min`)
            num_slots = self._max_model_len
        next_full = held.next_full if held is not None else self._first_full(num_hit)
        num_final, block_hashes = num_tokens - num_draft, None
        if num_tokens >= next_full and not is_delayed:
            # Slots beyond the request's tokens are for draft tokens: until the commit another token may replace one.
            num_final = min(num_final, request.num_tokens, self._max_model_len)
            block_hashes = self._hashes.of(request)  # may raise, so it comes before all changes
        growth = self._tables.growth(num_local, num_external, num_new, num_slots, num_encoder, is_new=held is None)
        if held is None:
            num_delivered = num_local + num_external if num_external else 0
            new = self._admit(request, hit, num_hit, num_delivered, num_slots, growth)
        else:
            new = self._tables.extend_request(held, num_local - num_in_flight, num_slots, growth)
        if new is None:
            return None
        held = self._tables.held[request.request_id]
        steps.add_request(held)
        if growth is not None:
            self._tables.note_chunk(held, num_local + num_external, min(num_final, request.num_tokens))
        if block_hashes is not None:
            self._publisher.publish(request, held, block_hashes, num_final, most_tokens=num_tokens)
        held.set_horizon()
        return new

    def _check_hit(self, request: Request, held: RequestBlocks | None, hit: KVCacheBlocks, num_hit: int) -> None:
        if held is not None and num_hit:
            raise ValueError(f"request {request.request_id} holds blocks: it cannot take a prefix hit")
        self._lookups.check(request, hit, num_hit)

    def _admit(  # noqa: PLR0917 (called once a request)
        self,
        request: Request,
        hit: KVCacheBlocks,
        num_hit_tokens: int,
        num_delivered: int,
        num_slots: int,
        growth: Growth | None,
    ) -> KVCacheBlocks | None:
        """Admit a new request after its hit and, if there are any, the tokens delivered after it."""
        start = self._tables.behind_windows(hit, num_delivered, num_slots) if num_delivered else hit
        missing = self._tables.num_missing(start.ids, num_slots, growth)
        if not self._lookups.fits(request, start, sum(missing)):
            self._lookups.note_refused(request, hit)
            return None
        if growth is not None and not self._lookups.is_computed(start):
            return None  # in the next step, the hit's state can be read
        next_full = self._first_full(num_hit_tokens)
        new = self._tables.admit(request.request_id, start, num_slots, growth, missing, next_full)
        self._lookups.note_admitted(request, num_hit_tokens)
        if self._is_caching and not request.skip_reading_prefix_cache:
            self.counts.record(request, num_hit_tokens)
        return new

    def _first_full(self, num_hit_tokens: int) -> int:
        """Return the number of final tokens that fills a new request's first block after its hit."""
        return num_hit_tokens + self._hash_block_size if self._is_caching else UNLIMITED


def _check_counts(  # noqa: PLR0917
    num_new: int,
    num_hit: int,
    num_external: int,
    num_draft: int,
    num_lookahead: int,
    num_in_flight: int,
    num_encoder: int,
) -> None:
    """Raise `ValueError`, with the argument of `allocate_slots` and its limit, if a count is invalid."""
    counts = {
        "num_new_tokens": num_new,
        "num_new_computed_tokens": num_hit,
        "num_external_computed_tokens": num_external,
        "num_draft_tokens": num_draft,
        "num_lookahead_tokens": num_lookahead,
        "num_in_flight_tokens": num_in_flight,
        "num_encoder_tokens": num_encoder,
    }
    for name, value in counts.items():
        if value < 0:
            raise ValueError(f"{name} = {value}: at least 0")
    if num_draft > num_new:
        raise ValueError(f"num_draft_tokens = {num_draft}: at most num_new_tokens = {num_new}")
    if not num_new and not num_hit and not num_external:
        raise ValueError("num_new_tokens = 0: at least 1 without a prefix hit or external tokens")
