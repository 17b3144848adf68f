"""The step builder fills one step: it gives each request that is asked what is left of the step's budgets.

The order of requests, and what follows from a refusal, is the scheduler's. A refusal has changed nothing in the caches.

The encoder's window: each item that overlaps the chunk must be held, cached, or reserved for encoding in this step, or
the chunk ends just before the first that is not:

    start                     end
    |--text--[item 0]--text--[item 1]       item 1 cannot be had
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
    """Answers to a request that is asked into a step."""

    SCHEDULED = "takes part in the step"
    NO_TOKENS = "the token budget is used up"
    ENCODER_REFUSED = "the next item can neither be had nor encoded in this step"
    KV_REFUSED = "not enough free blocks"


# Asked for every request of every step; looking it up in the enum takes 60 ns each time.
_RUNNING = RequestStatus.RUNNING


class StepBuilder:
    """One step in the making.

    Args:
        caches: with this step open.
        is_shared: true if there are several requests, so that a long prompt leaves tokens to others.
    """

    def __init__(self, config: ServiceConfig, caches: Caches, *, is_shared: bool) -> None:
        self._config = config
        self._kv = caches.kv
        self._encoder = caches.encoder
        self._rows = caches.kept_rows
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
        """Give running requests one token each while that is all they need: almost all that is ever scheduled.

        Returns:
            The first that needs something else, has no slot, or comes when the budget is used up; None: all are served.
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
            # Only the token that fills a block gives it a hash.
            hashes = NO_NEW_HASHES if (start + 1) % block_size else reserve_rows(request, start, 1)
            add(ScheduledChunk(request, start, 1, block_table(request.request_id), (), True, hashes))
        self._token_budget = num_left
        return first_other

    def add_running(self, request: Request) -> ScheduleOutcome:
        if request.kind == "encode":
            return self._add_items(request)
        return self._add_chunk(request, request.num_computed_tokens, None)

    def add_waiting(self, request: Request, admission: BlockAdmission) -> ScheduleOutcome:
        """Give a request that holds nothing its first chunk behind its prefix hit, or its first items."""
        if request.kind == "encode":
            return self._add_items(request)
        if not self._token_budget:
            return ScheduleOutcome.NO_TOKENS
        hit, num_hit_tokens = self._kv.get_computed_blocks(request)
        num_usable = self._rows.usable_prefix(request, num_hit_tokens)
        if num_usable < num_hit_tokens:
            hit, num_hit_tokens = self._kv.get_computed_blocks(request, num_usable)
        if not admission.is_room_for(request, hit):
            return ScheduleOutcome.KV_REFUSED
        outcome = self._add_chunk(request, num_hit_tokens, hit)
        if outcome is ScheduleOutcome.SCHEDULED:
            admission.admitted(request)
            if not request.was_admitted:
                request.num_cached_tokens = num_hit_tokens
        return outcome

    def build(self, step_id: int, requests: dict[int, Request]) -> ScheduledStep:
        encode = self._encoder.reserved_inputs(requests)
        freed, released = self._encoder.take_freed(), self._rows.take_released()
        return ScheduledStep(step_id, self._chunks, encode, self._emit, freed, released, self._rows.index.epoch)

    def _add_chunk(self, request: Request, start: int, hit: KVCacheBlocks | None) -> ScheduleOutcome:
        num_tokens = request.num_tokens
        end = min(num_tokens, start + min(self._token_budget, self._most_tokens))
        plan = None
        if start < request.features_end:
            if self._config.disable_chunked_mm_input:
                end = _end_without_split(request, start, end, start + self._token_budget)
            if end > start:
                plan = self._encoder_budget.plan(request, [index for index, _ in request.features_in(start, end)])
                if plan.refused is not None:
                    end = max(start, request.features[plan.refused].offset)
                    if end == start:
                        self._encoder_budget.take(plan)
                        return ScheduleOutcome.ENCODER_REFUSED
        if end == start:
            return ScheduleOutcome.NO_TOKENS
        num_hit_tokens = 0 if hit is None else start
        if self._kv.allocate_slots(request, end - start, num_hit_tokens, hit) is None:
            return ScheduleOutcome.KV_REFUSED
        if plan is not None:
            self._encoder_budget.take(plan)
        request.num_computed_tokens = start
        self._token_budget -= end - start
        table = self._kv.block_table(request.request_id)
        spans = self._spans(request, start, end) if plan is not None else ()
        hashes = self._rows.reserve(request, start, end - start)
        self._chunks.append(ScheduledChunk(request, start, end - start, table, spans, end == num_tokens, hashes))
        return ScheduleOutcome.SCHEDULED

    def _add_items(self, request: Request) -> ScheduleOutcome:
        """Give an "encode" request as many of its next items as the encoder's budget allows."""
        wanted = range(request.num_emitted, len(request.features))
        plan = self._encoder_budget.plan(request, wanted)
        self._encoder_budget.take(plan)
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
    """Return the end of the chunk before which no item is split. An item that began before `start` may be.

    An item that the chunk begins with may extend it up to `last`: a long prompt's share of a step can be shorter.
    """
    for _, feature in request.features_in(start, end):
        item_end = feature.offset + feature.length
        if feature.offset >= start and item_end > end:
            return item_end if feature.offset == start and item_end <= last else feature.offset
    return end
