"""The cache with one rule removed, for each rule: the histories of `mini_engine` must find what goes wrong."""

from __future__ import annotations

from collections.abc import Callable
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

    def aliasing(store: RowStore, prefixes: Prefixes, missing: list[MissingRun]) -> Any:
        found = alone(store, prefixes, missing)
        flat = store.rows.view(-1, store.width)
        for req_id in found:
            slots = prefixes[req_id]
            if np.all(np.diff(slots) == 1):
                found[req_id] = flat[slots[0] : slots[-1] + 1]
        return found

    _replace(cache._merger, "prefixes_alone", aliasing)


def _stages_views(cache: OmniTensorPrefixCache) -> None:
    rows = cache._staging.rows
    stage = rows.stage

    def aliasing(key: str, values: torch.Tensor, parts: Any) -> None:
        stage(key, values, parts)
        rows._of_key[key].pieces[-1] = values

    _replace(rows, "stage", aliasing)


def _takes_the_counter_for_the_number_after_the_step(cache: OmniTensorPrefixCache) -> None:
    stage = cache._staging.stage

    def shifted(outputs: Any, keys: Any, step: Any, input_batch: InputBatch, table: Any, **_: Any) -> Any:
        computed = list(input_batch.num_computed_tokens_cpu)
        for req_id, count in zip(step.req_ids, step.counts, strict=True):
            index = input_batch.req_id_to_index[req_id]
            computed[index] = max(0, int(computed[index]) - count)
        batch = replace(input_batch, num_computed_tokens_cpu=computed)
        return stage(outputs, keys, step, batch, table, written=None, hits=step.req_ids)

    _replace(cache._staging, "stage", shifted)


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
    _replace(cache._slots, "take_over", lambda slots: None)
    for store in _stores(cache):
        _replace(store, "forget", lambda slots: None)


def _writes_staged_rows_over_later_tenants(cache: OmniTensorPrefixCache) -> None:
    _replace(cache._staging.rows, "forget", lambda slots: None)


def _keeps_what_was_staged_first(cache: OmniTensorPrefixCache) -> None:
    rows = cache._staging.rows
    stage = rows.stage
    _replace(rows, "forget", lambda slots: None)

    def only_where_none_is(key: str, values: torch.Tensor, parts: Any) -> None:
        if key in rows._of_key:
            number = rows._of_key[key].number
            parts = [(req_id, start, np.where(number[slots] < 0, slots, -1)) for req_id, start, slots in parts]
        stage(key, values, parts)

    _replace(rows, "stage", only_where_none_is)


def _hides_what_is_staged(cache: OmniTensorPrefixCache) -> None:
    _replace(cache._staging.rows, "settle", lambda slots: None)


def _keeps_what_is_discarded(cache: OmniTensorPrefixCache) -> None:
    _replace(cache._staging.rows, "discard", lambda req_id: None)


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
    "writes staged rows over later tenants": (make_cache, _writes_staged_rows_over_later_tenants),
    "keeps what was staged first": (make_cache, _keeps_what_was_staged_first),
    "hides what is staged": (make_cache, _hides_what_is_staged),
    "keeps what is discarded": (make_cache, _keeps_what_is_discarded),
    "writes deferred keys at once": (make_cache, _writes_deferred_keys_at_once),
    "writes late": (make_cache, _writes_late),
    "fails for all when one key does not fit": (make_cache, _fails_for_all_when_one_key_does_not_fit),
}
