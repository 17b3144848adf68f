"""Encoder budget of one step: decides item by item how many items a request gets: first `plan`, then `take_plan`.

Between the two the chunk gets its KV slots; no other plan may be taken meanwhile.

A request that is refused for lack of *space* closes the encoder to later requests in this step: otherwise small or
popular items of later requests could keep the cache too full for a large item forever. Items that are held stay usable.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from mmcached.engine.encoder.encoder_cache_table import EncoderCacheTable
from mmcached.engine.steps.request import Request
from mmcached.wire.errors import CacheMiss, InvariantError


class EncoderRefusal(enum.Enum):
    COMPUTE = "more embeddings than may still be computed in this step"
    SPACE = "too little space besides entries that are referred to"
    CLOSED = "an earlier request in this step waits for space"


@dataclass(frozen=True, slots=True)
class EncoderPlan:
    """Items that a request would get.

    Attributes:
        refer: items that have an entry.
        encode: items that need an entry.
        repeat: items with the same entry as an item in `encode`.
        refused: the first item that is not available now; later items were not considered.
    """

    request: Request
    refer: list[int]
    encode: list[int]
    repeat: list[int]
    refused: int | None = None
    refusal: EncoderRefusal | None = None


class EncoderStepBudget:
    """Encoder budget, in embeddings, of the step that is open in the table."""

    def __init__(self, table: EncoderCacheTable, compute_budget: int) -> None:
        self._table = table
        self._compute_budget = compute_budget
        self._is_closed = False

    def plan(self, request: Request, input_ids: Sequence[int]) -> EncoderPlan:
        """Plan items in order until one is not available. Changes nothing.

        Raises `CacheMiss` for an item without pixels whose output has left the store.
        """
        plan = EncoderPlan(request, [], [], [])
        held = self._table.get_cached_input_ids(request)
        compute_budget = self._compute_budget
        num_embeds_taken = 0
        keys: set[str] = set()
        for input_id in input_ids:
            if input_id in held:
                continue
            key = self._table.entry_key(request, input_id)
            if self._is_closed:
                return _refused(plan, input_id, EncoderRefusal.CLOSED)
            if key in keys:
                plan.repeat.append(input_id)
                continue
            if self._table.has_cache(request, input_id):
                num_embeds = self._table.num_embeds_to_pin(request, input_id)
                if num_embeds_taken + num_embeds > self._table.num_freeable_slots:
                    return _refused(plan, input_id, EncoderRefusal.SPACE)
                plan.refer.append(input_id)
            else:
                num_embeds = request.features[input_id].num_embeds
                cost = self._cost(request, input_id)
                if cost > compute_budget:
                    return _refused(plan, input_id, EncoderRefusal.COMPUTE)
                if not self._table.can_allocate(request, input_id, None, num_embeds_taken):
                    return _refused(plan, input_id, EncoderRefusal.SPACE)
                compute_budget -= cost
                plan.encode.append(input_id)
            keys.add(key)
            num_embeds_taken += num_embeds
        return plan

    def narrowed(self, plan: EncoderPlan, input_ids: Sequence[int]) -> EncoderPlan:
        """Return a refused plan for some of its items before the refused one; the refusal stays."""
        again = self.plan(plan.request, input_ids)
        return EncoderPlan(plan.request, again.refer, again.encode, again.repeat, plan.refused, plan.refusal)

    def take_plan(self, plan: EncoderPlan) -> None:
        for input_id in plan.refer:  # first, because `allocate` may evict unreferenced entries
            self._refer(plan.request, input_id)
        for input_id in plan.encode:
            self._table.allocate(plan.request, input_id)
            self._compute_budget -= self._cost(plan.request, input_id)
        for input_id in plan.repeat:
            self._refer(plan.request, input_id)
        if plan.refusal is EncoderRefusal.SPACE:
            self._is_closed = True

    @staticmethod
    def _cost(request: Request, input_id: int) -> int:
        """Return the embeddings to be computed: 0 for an output loaded from the store; raises as `plan`."""
        feature = request.features[input_id]
        if not feature.has_output:
            return feature.num_embeds
        if input_id not in request.outputs:
            raise CacheMiss([feature.mm_hash])
        return 0

    def _refer(self, request: Request, input_id: int) -> None:
        if not self._table.check_and_update_cache(request, input_id):
            raise InvariantError(f"{request}: item {input_id} was planned as cached but has no entry")


def _refused(plan: EncoderPlan, input_id: int, refusal: EncoderRefusal) -> EncoderPlan:
    return EncoderPlan(plan.request, plan.refer, plan.encode, plan.repeat, input_id, refusal)
