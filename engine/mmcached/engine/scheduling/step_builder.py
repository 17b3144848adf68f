"""Builds one step: gives each request in turn a share of the step's remaining budgets.

The scheduler decides the order of requests and the consequences of a refusal, which changes nothing in the caches. Each
item that overlaps a chunk must be held, cached, or reserved for encoding in this step; otherwise the chunk ends before
the first such item:

    start                     end
    |--text--[item 0]--text--[item 1]       item 1 is not available
    |--text--[item 0]--text--|              the chunk is shorter; empty if it starts inside or at item 1
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

from mmcached.engine.encoder.encoder_inputs import EncoderStepBudget
from mmcached.engine.hidden_states.tensor_prefix_index import NO_NEW_HASHES
from mmcached.engine.kv.blocks import KVCacheBlocks
from mmcached.engine.scheduling.block_admission import BlockAdmission
from mmcached.engine.scheduling.caches import Caches
from mmcached.engine.scheduling.step import ScheduledChunk, ScheduledStep
from mmcached.engine.steps.request import Request, RequestStatus, ScheduledItem
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages.worker import EmbedSpan


class ScheduleOutcome(enum.Enum):
    SCHEDULED = "takes part in the step"
    NO_TOKENS = "the token budget is used up"
    ENCODER_REFUSED = "the next item is neither cached nor can it be encoded in this step"
    KV_REFUSED = "not enough free blocks"


# Read for every request of every step; the enum lookup takes 60 ns.
_RUNNING = RequestStatus.RUNNING


class StepBuilder:
    """Step that is being built, open in `caches`; if it `is_shared`, a long prompt leaves tokens to other requests."""

    def __init__(self, config: ServiceConfig, caches: Caches, *, is_shared: bool) -> None:
        self._config = config
        self._kv = caches.kv
        self._encoder = caches.encoder
        self._rows = caches.kept_rows
        self._alignment = caches.alignment
        self._block_size = config.block_size
        self._encoder_budget = EncoderStepBudget(caches.encoder, caches.encoder_budget.compute_budget)
        self._token_budget = config.max_num_batched_tokens
        self._most_tokens = (is_shared and config.long_prefill_token_threshold) or config.max_num_batched_tokens
        self._chunks: list[ScheduledChunk] = []
        self._emit: list[ScheduledItem] = []

    @property
    def is_empty(self) -> bool:
        return not self._chunks and not self._emit

    def add_decodes(self, requests: Iterator[Request]) -> Request | None:
        """Schedule one token for each running request while each only decodes; this is the common case.

        Returns the first request that needs more, has no slot, or finds the budget used up; None if all were served.
        """
        allocate_slots, block_table, add = self._kv.allocate_slots, self._kv.block_table, self._chunks.append
        block_size, reserve_rows = self._block_size, self._rows.reserve
        num_left = self._token_budget
        first_other = None
        for request in requests:
            start = request.num_computed_tokens
            is_decode = len(request.token_ids) - start == 1 and start >= request.features_end
            if not (is_decode and num_left and request.status is _RUNNING) or allocate_slots(request, 1) is None:
                first_other = request
                break
            num_left -= 1
            # A block gets its hash with the token that fills it.
            hashes = NO_NEW_HASHES if (start + 1) % block_size else reserve_rows(request, start, 1)
            add(ScheduledChunk(request, start, 1, block_table(request.request_id), (), True, hashes))
        self._token_budget = num_left
        return first_other

    def add_running(self, request: Request) -> ScheduleOutcome:
        if request.kind == "encode":
            return self._add_items(request)
        return self._add_chunk(request, request.num_computed_tokens)

    def add_waiting(self, request: Request, admission: BlockAdmission) -> ScheduleOutcome:
        """Schedule the first chunk after the prefix hit, or the first items, of a request that holds nothing."""
        if request.kind == "encode":
            return self._add_items(request)
        if not self._token_budget:
            return ScheduleOutcome.NO_TOKENS
        hit, num_hit_tokens = self._kv.get_computed_blocks(request)
        num_usable = self._alignment.usable(request, self._rows.usable_prefix(request, num_hit_tokens))
        if num_usable < num_hit_tokens:
            hit, num_hit_tokens = self._kv.get_computed_blocks(request, num_usable)
        if not admission.is_room_for(request, hit):
            return ScheduleOutcome.KV_REFUSED
        outcome = self._add_chunk(request, num_hit_tokens, hit=hit)
        if outcome is ScheduleOutcome.SCHEDULED:
            admission.admitted(request)
            if not request.was_admitted:
                request.num_cached_tokens = num_hit_tokens
        return outcome

    def build(self, step_id: int, requests: dict[int, Request]) -> ScheduledStep:
        encode = self._encoder.reserved_inputs(requests)
        freed, released = self._encoder.take_freed(), self._rows.take_released()
        return ScheduledStep(step_id, self._chunks, encode, self._emit, freed, released, self._rows.index.epoch)

    def _add_chunk(self, request: Request, start: int, *, hit: KVCacheBlocks | None = None) -> ScheduleOutcome:
        num_tokens = request.num_tokens
        end = min(num_tokens, start + min(self._token_budget, self._most_tokens))
        end = self._alignment.end(request, start, end)
        plan = None
        if start < request.features_end:
            if self._config.disable_chunked_mm_input:
                end = _end_without_split(request, start, end, start + self._token_budget)
            if end > start:
                plan = self._encoder_budget.plan(request, [index for index, _ in request.features_in(start, end)])
                if plan.refused is not None:
                    first_refused = max(start, request.features[plan.refused].offset)
                    end = self._alignment.end(request, start, first_refused)
                    if end < first_refused:  # no room is taken for items of later chunks
                        items = [index for index, _ in request.features_in(start, end)] if end > start else []
                        plan = self._encoder_budget.narrowed(plan, items)
                    if end == start:
                        self._encoder_budget.take_plan(plan)
                        return ScheduleOutcome.ENCODER_REFUSED
        if end == start:
            return ScheduleOutcome.NO_TOKENS
        num_hit_tokens = 0 if hit is None else start
        if self._kv.allocate_slots(request, end - start, num_hit_tokens, hit) is None:
            return ScheduleOutcome.KV_REFUSED
        if plan is not None:
            self._encoder_budget.take_plan(plan)
        request.num_computed_tokens = start
        self._token_budget -= end - start
        table = self._kv.block_table(request.request_id)
        spans = self._spans(request, start, end) if plan is not None else ()
        hashes = self._rows.reserve(request, start, end - start)
        self._chunks.append(ScheduledChunk(request, start, end - start, table, spans, end == num_tokens, hashes))
        return ScheduleOutcome.SCHEDULED

    def _add_items(self, request: Request) -> ScheduleOutcome:
        wanted = range(request.num_emitted, len(request.features))
        plan = self._encoder_budget.plan(request, wanted)
        self._encoder_budget.take_plan(plan)
        had = range(wanted.start, wanted.stop if plan.refused is None else plan.refused)
        self._emit.extend(ScheduledItem(request, index, self._encoder.entry_key(request, index)) for index in had)
        return ScheduleOutcome.SCHEDULED if had else ScheduleOutcome.ENCODER_REFUSED

    def _spans(self, request: Request, start: int, end: int) -> list[EmbedSpan]:
        spans = []
        for index, feature in request.features_in(start, end):
            first, last = max(start, feature.offset), min(end, feature.offset + feature.length)
            key = self._encoder.entry_key(request, index)
            spans.append(EmbedSpan(key, first - start, first - feature.offset, last - first))
        return spans


def _end_without_split(request: Request, start: int, end: int, last: int) -> int:
    """Return the end of the chunk such that no item that begins in the chunk is split.

    If the chunk begins with an item, that item may extend it up to `last`, beyond a long prompt's share of the step.
    """
    for _, feature in request.features_in(start, end):
        item_end = feature.offset + feature.length
        if feature.offset >= start and item_end > end:
            return item_end if feature.offset == start and item_end <= last else feature.offset
    return end
