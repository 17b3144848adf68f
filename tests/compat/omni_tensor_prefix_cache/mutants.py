"""The cache with one rule removed, for each rule: the histories of `mini_engine` must find what goes wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mmcached.compat.omni_tensor_prefix_cache.merging import Merger, Prefixes
from mmcached.compat.omni_tensor_prefix_cache.output_keys import OutputKeys
from mmcached.compat.omni_tensor_prefix_cache.staged_rows import StagedKey, StagedRows
from mmcached.compat.omni_tensor_prefix_cache.staging import Staging
from mmcached.wire.errors import InvalidRequest
from mmcached.worker import OmniTensorPrefixCache
from mmcached.worker.hidden_states import KeySpec
from mmcached.worker.hidden_states.pending_rows import PendingRows
from mmcached.worker.hidden_states.row_arena import RowArena
from tests.compat.omni_tensor_prefix_cache.mini_engine import BLOCK, WIDTH
from tests.removals import mutants

Patch = pytest.MonkeyPatch


def hands_out_step_buffers(patch: Patch) -> None:
    real = Merger.merge

    def merge(
        merger: Merger, arena: RowArena, rows: Any, step: Any, prefixes: Prefixes, *args: Any, **named: Any
    ) -> Any:
        merged = real(merger, arena, rows, step, prefixes, *args, **named)
        own = zip(step.req_ids, step.parts(rows), strict=True) if rows is not None else ()
        return merged | {req_id: part for req_id, part in own if req_id not in prefixes}

    patch.setattr(Merger, "merge", merge)


def hands_out_the_cache(patch: Patch) -> None:
    real = Merger.merge

    def merge(
        merger: Merger, arena: RowArena, rows: Any, step: Any, prefixes: Prefixes, *args: Any, **named: Any
    ) -> Any:
        merged = real(merger, arena, rows, step, prefixes, *args, **named)
        for req_id in merged if rows is None else ():
            slots = prefixes[req_id]
            if np.all(np.diff(slots) == 1):
                merged[req_id] = arena.tensor.flatten(0, 1)[slots[0] : slots[-1] + 1]
        return merged

    patch.setattr(Merger, "merge", merge)


def stages_views(patch: Patch) -> None:
    def add(staged: StagedKey, rows: torch.Tensor) -> None:
        staged.rows = torch.cat([staged.rows[: staged.num_rows], rows]) if staged.num_rows else rows
        staged.num_rows += len(rows)

    patch.setattr(StagedKey, "add", add)


def takes_the_counter_for_the_number_after_the_step(patch: Patch) -> None:
    real = Staging.stage

    def stage(staging: Staging, outputs: Any, *args: Any, **_: Any) -> list[InvalidRequest]:
        keys, step, input_batch, table = args
        computed = list(input_batch.num_computed_tokens_cpu)
        for req_id, count in zip(step.req_ids, step.counts, strict=True):
            index = input_batch.req_id_to_index[req_id]
            computed[index] = max(0, int(computed[index]) - count)
        batch = replace(input_batch, num_computed_tokens_cpu=computed)
        return real(staging, outputs, keys, step, batch, table, written=None, hits=step.req_ids)

    patch.setattr(Staging, "stage", stage)


def fills_with_what_is_there(patch: Patch) -> None:
    patch.setattr(RowArena, "are_written", lambda arena, indexes: np.ones(len(indexes), dtype=np.bool_))


def rounds_hits_down(patch: Patch) -> None:
    real = Merger.prefixes

    def prefixes(merger: Merger, *args: Any) -> Prefixes:
        return {req_id: slots[: len(slots) // BLOCK * BLOCK] for req_id, slots in real(merger, *args).items()}

    patch.setattr(Merger, "prefixes", prefixes)


def discovers_by_the_first_shape(patch: Patch) -> None:
    real = OutputKeys.__init__
    patch.setattr(OutputKeys, "__init__", lambda keys, make_arena, discover: real(keys, make_arena, "first"))


def broadcasts(patch: Patch) -> None:
    patch.setattr(KeySpec, "check_rows", lambda spec, rows, *_, **__: rows.expand(-1, WIDTH))


def keeps_rows_of_former_tenants(patch: Patch) -> None:
    patch.setattr(PendingRows, "forget", lambda pending, arena, indexes: None)


def writes_staged_rows_over_later_tenants(patch: Patch) -> None:
    patch.setattr(StagedRows, "forget", lambda staged, slots: None)


def keeps_what_was_staged_first(patch: Patch) -> None:
    class FirstWins(np.ndarray):
        def __setitem__(self, slots: Any, values: Any) -> None:
            if isinstance(slots, np.ndarray) and isinstance(values, np.ndarray):
                is_free = np.asarray(self)[slots] < 0
                slots, values = slots[is_free], values[is_free]
            super().__setitem__(slots, values)

    real = StagedKey.__init__

    def begin(staged: StagedKey, num_slots: int) -> None:
        real(staged, num_slots)
        staged.number = staged.number.view(FirstWins)

    patch.setattr(StagedKey, "__init__", begin)
    patch.setattr(StagedRows, "forget", lambda staged, slots: None)


def hides_what_is_staged(patch: Patch) -> None:
    patch.setattr(StagedRows, "settle", lambda staged, slots: None)


def keeps_what_is_discarded(patch: Patch) -> None:
    patch.setattr(StagedRows, "discard", lambda staged, req_id: None)


def writes_deferred_keys_at_once(patch: Patch) -> None:
    real: Any = OmniTensorPrefixCache.update_omni_tensor_prefix_cache

    def update(cache: OmniTensorPrefixCache, *args: Any) -> None:
        *others, _ = args
        real(cache, *others, ())

    patch.setattr(OmniTensorPrefixCache, "update_omni_tensor_prefix_cache", update)


def writes_late(patch: Patch) -> None:
    """A step's rows reach their arena when the next step's do."""
    real = PendingRows.put
    late: dict[RowArena, list[Any]] = {}

    def put(pending: PendingRows, arena: RowArena, rows: torch.Tensor, *where: Any) -> None:
        for earlier in late.pop(arena, []):
            real(pending, arena, *earlier)
        late[arena] = [(rows.clone(), *where)]

    patch.setattr(PendingRows, "put", put)


def fails_for_all_when_one_key_does_not_fit(patch: Patch) -> None:
    real: Any = OmniTensorPrefixCache.update_omni_tensor_prefix_cache

    def update(cache: OmniTensorPrefixCache, *args: Any) -> None:
        try:
            real(cache, *args)
        except InvalidRequest:
            cache.forget_slots(args[3][: args[2]])
            raise

    patch.setattr(OmniTensorPrefixCache, "update_omni_tensor_prefix_cache", update)


def lets_rows_come_to_later_tenants(patch: Patch) -> None:
    """On the way: copies land where they were to go when they began."""
    patch.setattr(PendingRows, "forget", lambda pending, arena, indexes: arena.forget(indexes))


def reads_what_is_not_there_yet(patch: Patch) -> None:
    patch.setattr(PendingRows, "settle", lambda pending, arenas, indexes: None)


MUTANTS = mutants(
    hands_out_step_buffers,
    hands_out_the_cache,
    stages_views,
    takes_the_counter_for_the_number_after_the_step,
    fills_with_what_is_there,
    rounds_hits_down,
    discovers_by_the_first_shape,
    broadcasts,
    keeps_rows_of_former_tenants,
    writes_staged_rows_over_later_tenants,
    keeps_what_was_staged_first,
    hides_what_is_staged,
    keeps_what_is_discarded,
    writes_deferred_keys_at_once,
    writes_late,
    fails_for_all_when_one_key_does_not_fit,
    lets_rows_come_to_later_tenants,
    reads_what_is_not_there_yet,
)
