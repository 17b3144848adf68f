"""The cache with one rule removed, for each rule: the histories of `mini_engine` must find what goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from mmcached.worker import OmniTensorPrefixCache
from mmcached.worker.omni import InputBatch
from mmcached.worker.omni.merging import Prefixes
from mmcached.worker.omni.missing import MissingRun
from mmcached.worker.omni.row_store import RowStore
from tests.worker.omni.mini_engine import BLOCK, NUM_BLOCKS, WIDTH, Break, MakeCache, make_cache


def _replace(target: object, name: str, function: Callable[..., Any]) -> None:
    setattr(target, name, function)


def _stores(cache: OmniTensorPrefixCache) -> tuple[RowStore, ...]:
    return cache._stores()


def _hands_out_step_buffers(cache: OmniTensorPrefixCache) -> None:
    merge = cache._merger.merge

    def aliasing(store: RowStore, rows: torch.Tensor, step: Any, prefixes: Prefixes, missing: list[MissingRun]) -> Any:
        merged = merge(store, rows, step, prefixes, missing)
        own = zip(step.req_ids, step.parts(rows), strict=True)
        return merged | {req_id: part for req_id, part in own if req_id not in prefixes}

    _replace(cache._merger, "merge", aliasing)


def _hands_out_the_cache(cache: OmniTensorPrefixCache) -> None:
    alone = cache._merger.prefixes_alone

    def aliasing(store: RowStore, prefixes: Prefixes, missing: list[MissingRun], *, may_lack: bool) -> Any:
        found = alone(store, prefixes, missing, may_lack=may_lack)
        flat = store.rows.view(-1, store.width)
        for req_id in found:
            slots = prefixes[req_id]
            if np.all(np.diff(slots) == 1):
                found[req_id] = flat[slots[0] : slots[-1] + 1]
        return found

    _replace(cache._merger, "prefixes_alone", aliasing)


def _stages_views(cache: OmniTensorPrefixCache) -> None:
    stage_all, stage = cache._deferral.stage, cache._deferral.rows.stage
    outputs_of_step: Mapping[str, Any] = {}

    def remember(outputs: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        nonlocal outputs_of_step
        outputs_of_step = outputs
        return stage_all(outputs, *args, **kwargs)

    _replace(cache._deferral, "stage", remember)
    _replace(cache._deferral.rows, "stage", lambda key, _, parts: stage(key, outputs_of_step[key], parts))


def _takes_the_counter_for_the_number_after_the_step(cache: OmniTensorPrefixCache) -> None:
    stage = cache._deferral.stage

    def shifted(outputs: Any, keys: Any, step: Any, input_batch: InputBatch, table: Any, **_: Any) -> Any:
        computed = list(input_batch.num_computed_tokens_cpu)
        for req_id, count in zip(step.req_ids, step.counts, strict=True):
            index = input_batch.req_id_to_index[req_id]
            computed[index] = max(0, int(computed[index]) - count)
        batch = replace(input_batch, num_computed_tokens_cpu=computed)
        return stage(outputs, keys, step, batch, table, written=None, hits=step.req_ids)

    _replace(cache._deferral, "stage", shifted)


def _fills_with_what_is_there(cache: OmniTensorPrefixCache) -> None:
    for store in _stores(cache):
        store.rows.zero_()
        _replace(store, "first_missing", lambda slots: None)


def _rounds_hits_down(cache: OmniTensorPrefixCache) -> None:
    prefixes = cache._merger.prefixes

    def rounded(*args: Any) -> Prefixes:
        return {req_id: slots[: len(slots) // BLOCK * BLOCK] for req_id, slots in prefixes(*args).items()}

    _replace(cache._merger, "prefixes", rounded)


def _broadcasts(cache: OmniTensorPrefixCache) -> None:
    for store in _stores(cache):
        _replace(store, "check_rows", lambda rows, field: rows.expand(-1, WIDTH))


def _keeps_rows_of_former_tenants(cache: OmniTensorPrefixCache) -> None:
    for store in _stores(cache):
        _replace(store, "forget", lambda slots: None)


def _commits_over_later_tenants(cache: OmniTensorPrefixCache) -> None:
    _replace(cache._slots, "are_as_of", lambda slots, times: np.ones(len(slots), dtype=np.bool_))


def _keeps_what_is_computed_again(cache: OmniTensorPrefixCache) -> None:
    rows = cache._deferral.rows

    def go_on(req_id: str, first: int, num_rows: int) -> None:
        rows._next[req_id] = first + num_rows

    _replace(rows, "go_on", go_on)


def _writes_deferred_keys_at_once(cache: OmniTensorPrefixCache) -> None:
    update: Any = cache.update_omni_tensor_prefix_cache

    def all_keys(*args: Any) -> None:
        *others, _ = args
        update(*others, ())

    _replace(cache, "update_omni_tensor_prefix_cache", all_keys)


def _writes_late(cache: OmniTensorPrefixCache) -> None:
    """A step's rows reach the store when the next step's do."""
    for store in _stores(cache):
        pending: list[tuple[np.ndarray, torch.Tensor]] = []

        def late(
            slots: np.ndarray,
            rows: torch.Tensor,
            pending: list[tuple[np.ndarray, torch.Tensor]] = pending,
            write: Callable[[np.ndarray, torch.Tensor], None] = store.write,
        ) -> None:
            for earlier in pending:
                write(*earlier)
            pending[:] = [(slots, rows.clone())]

        _replace(store, "write", late)


def _fails_for_all_when_one_key_does_not_fit(cache: OmniTensorPrefixCache) -> None:
    write = cache._writer.write_key

    def write_none(store: RowStore, value: object, slots: np.ndarray, padded: int) -> None:
        try:
            write(store, value, slots, padded)
        except Exception:
            for other in _stores(cache):
                other.forget(slots)
            raise

    _replace(cache._writer, "write_key", write_none)


MUTANTS: dict[str, tuple[MakeCache, Break]] = {
    "hands out step buffers": (make_cache, _hands_out_step_buffers),
    "hands out the cache": (make_cache, _hands_out_the_cache),
    "stages views": (make_cache, _stages_views),
    "takes the counter for the number after the step": (make_cache, _takes_the_counter_for_the_number_after_the_step),
    "fills with what is there": (make_cache, _fills_with_what_is_there),
    "rounds hits down": (make_cache, _rounds_hits_down),
    "discovers by the first shape": (
        lambda: OmniTensorPrefixCache(NUM_BLOCKS, BLOCK, WIDTH, torch.int64, discover="first"),
        lambda cache: None,
    ),
    "broadcasts": (make_cache, _broadcasts),
    "keeps rows of former tenants": (make_cache, _keeps_rows_of_former_tenants),
    "commits over later tenants": (make_cache, _commits_over_later_tenants),
    "keeps what is computed again": (make_cache, _keeps_what_is_computed_again),
    "writes deferred keys at once": (make_cache, _writes_deferred_keys_at_once),
    "writes late": (make_cache, _writes_late),
    "fails for all when one key does not fit": (make_cache, _fails_for_all_when_one_key_does_not_fit),
}
