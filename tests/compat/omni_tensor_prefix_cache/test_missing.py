"""Rows that were never written, or no longer belong to their slot: said so, with their range, to their request only."""

from __future__ import annotations

import pytest
import torch

from mmcached.compat.omni_tensor_prefix_cache import MissingPrefix, MissingRun
from mmcached.wire.errors import MmcachedError, error_from_wire, error_to_wire
from mmcached.worker import MissingRows
from tests.compat.omni_tensor_prefix_cache.cases import (
    HIDDEN,
    HIT_AND_MISS,
    SCHEDULED,
    SLOTS,
    STARTS,
    batch,
    hit,
    make_cache,
    outputs,
    with_keys,
)


def test_a_row_that_was_never_written_is_missing_and_not_zero() -> None:
    cache = make_cache()
    cache.update_omni_tensor_prefix_cache(torch.ones((5, HIDDEN)), None, 5, torch.tensor([8, 9, 12, 13, 15]))
    hit(cache)
    with pytest.raises(MissingRows, match=r"request req1: rows \[2, 4\) of 'hidden_states'") as caught:
        cache.get_merged_hidden_states(STARTS, HIT_AND_MISS, torch.ones((5, HIDDEN)), SCHEDULED)
    assert caught.value.details == {"key": "hidden_states", "first": 2, "end": 4, "request_id": "req1"}
    assert caught.value.retryable
    assert (cache.stats().row_queries, cache.stats().row_hits) == (8, 0)


def test_the_others_have_their_results() -> None:
    cache = make_cache()
    rows, new = torch.rand((8, HIDDEN)), torch.rand((6, HIDDEN))
    cache.update_omni_tensor_prefix_cache(rows, None, 8, torch.arange(24, 32))
    hit(cache, "a", "b", "c")
    three = batch([8, 8, 6], [[2, 3], [6, 7], [3, 4]], ["a", "b", "c"])
    with pytest.raises(MissingPrefix) as caught:
        cache.get_merged_hidden_states([0, 2, 4], three, new, {"a": 2, "b": 2, "c": 2})
    error = caught.value
    assert error.missing == (MissingRun("a", "hidden_states", 0, 8), MissingRun("c", "hidden_states", 0, 6))
    assert set(error.merged) == {"b"}
    assert torch.equal(error.merged["b"], torch.cat([rows, new[2:4]]))


def test_the_other_keys_have_their_results() -> None:
    cache = with_keys({"foo": 3, "bar": 1})
    made, new = outputs({"foo": 3}, 8), outputs({"foo": 3, "bar": 1}, 5)
    cache.update_omni_tensor_prefix_cache(None, made, 8, SLOTS)
    hit(cache)
    with pytest.raises(MissingPrefix) as caught:
        cache.get_merged_multimodal_states(STARTS, HIT_AND_MISS, {**new, "text": "words"}, SCHEDULED)
    merged = caught.value.merged
    assert caught.value.missing == (MissingRun("req1", "bar", 0, 8),)
    assert torch.equal(merged["foo"]["req1"], torch.cat([made["foo"], new["foo"][:3]]))
    assert torch.equal(merged["bar"]["req2"], new["bar"][3:])
    assert set(merged["bar"]) == {"req2"}
    assert merged["text"] == {"req1": "words", "req2": "words"}


def test_what_travels_of_it_are_its_numbers() -> None:
    error = MissingPrefix([MissingRun("a", "k", 2, 4), MissingRun("b", "k", 0, 1)], {})
    assert "1 more" in str(error)
    arrived = error_from_wire(error_to_wire(error))
    assert isinstance(arrived, MmcachedError)
    assert (arrived.details, arrived.retryable) == (error.details, True)


def test_a_step_without_outputs_leaves_nothing_of_its_slots_former_tenants() -> None:
    cache = with_keys({"foo": 3})
    cache.update_omni_tensor_prefix_cache(torch.ones((8, HIDDEN)), outputs({"foo": 3}, 8), 8, SLOTS)
    cache.reset_prefix_cached_new_req_ids()
    cache.update_omni_tensor_prefix_cache(torch.ones((2, HIDDEN)), None, 2, SLOTS[:2])
    assert cache.stats().written_bytes == 8 * HIDDEN * 4 + 6 * 3 * 2
    cache.reset_prefix_cached_new_req_ids()
    cache.update_omni_tensor_prefix_cache(None, outputs({"foo": 3}, 4), 4, SLOTS[:4])
    assert cache.stats().written_bytes == 4 * HIDDEN * 4 + 8 * 3 * 2


def test_forgotten_slots_are_missing_for_every_key() -> None:
    cache = with_keys({"foo": 3})
    cache.update_omni_tensor_prefix_cache(torch.ones((8, HIDDEN)), outputs({"foo": 3}, 8), 8, SLOTS)
    cache.forget_slots(SLOTS[2:])
    assert cache.stats().written_bytes == 2 * (HIDDEN * 4 + 3 * 2)
    cache.clear()
    assert cache.stats().written_bytes == 0
    assert cache.mm_cache_keys == {"foo"}
