"""Arguments of wrong types: named, with what they must be, and nothing has changed; numbers are never truncated."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mmcached.wire.errors import InvalidRequest
from mmcached.worker import OmniTensorPrefixCache
from tests.compat.omni_tensor_prefix_cache.cases import (
    HIDDEN,
    HIT_AND_MISS,
    SCHEDULED,
    SLOTS,
    STARTS,
    TABLE,
    hit,
    with_keys,
)

ROWS = torch.ones((5, HIDDEN))
Call = Callable[[Any], object]


def wrong_batch(**changed: Any) -> Any:
    kept = {name: getattr(HIT_AND_MISS, name) for name in HIT_AND_MISS.__dataclass_fields__}
    return SimpleNamespace(**{name: value for name, value in (kept | changed).items() if value is not None})


def merge(cache: Any, now: Any = HIT_AND_MISS, starts: Any = STARTS, scheduled: Any = SCHEDULED) -> object:
    return cache.get_merged_hidden_states(starts, now, ROWS, scheduled)


CALLS: dict[str, tuple[Call, str]] = {
    "slots None": (lambda c: c.update_omni_tensor_prefix_cache(ROWS, None, 5, None), "slot_mapping"),
    "slots a list": (lambda c: c.update_omni_tensor_prefix_cache(ROWS, None, 2, [1, 2]), "slot_mapping"),
    "slots an array": (lambda c: c.update_omni_tensor_prefix_cache(ROWS, None, 2, np.arange(2)), "slot_mapping"),
    "slots to forget": (lambda c: c.forget_slots([1, 2]), "slot_mapping"),
    "tokens a float": (lambda c: c.update_omni_tensor_prefix_cache(ROWS, None, 2.0, SLOTS), "num_tokens_unpadded"),
    "tokens a word": (lambda c: c.update_omni_tensor_prefix_cache(ROWS, None, "2", SLOTS), "num_tokens_unpadded"),
    "tokens None": (lambda c: c.update_omni_tensor_prefix_cache(ROWS, None, None, SLOTS), "num_tokens_unpadded"),
    "padded a float": (lambda c: c.update_omni_tensor_prefix_cache(ROWS, None, 2, SLOTS, 3.5), "num_tokens_padded"),
    "padded a word": (lambda c: c.update_omni_tensor_prefix_cache(ROWS, None, 2, SLOTS, "3"), "num_tokens_padded"),
    "hidden a list": (lambda c: c.update_omni_tensor_prefix_cache([1.0], None, 1, SLOTS), "hidden_states"),
    "staged an array": (
        lambda c: c.update_omni_tensor_prefix_cache(ROWS, None, 5, SLOTS, hidden_states_cpu=np.ones((5, HIDDEN))),
        "hidden_states_cpu",
    ),
    "outputs a list": (lambda c: c.update_omni_tensor_prefix_cache(None, [ROWS], 5, SLOTS), "multimodal_outputs"),
    "outputs to merge": (
        lambda c: c.get_merged_multimodal_states(STARTS, HIT_AND_MISS, [ROWS], SCHEDULED),
        "multimodal_outputs",
    ),
    "outputs to look at": (lambda c: c.maybe_init_missing_mm_cache_keys([ROWS], 5), "multimodal_outputs"),
    "outputs to stage": (
        lambda c: c.stage_deferred_mm_outputs(STARTS, HIT_AND_MISS, [ROWS], SCHEDULED, {"k"}),
        "multimodal_outputs",
    ),
    "no requests": (lambda c: merge(c, wrong_batch(req_ids=None)), "query_start_loc, num_scheduled_tokens"),
    "no indexes": (lambda c: merge(c, wrong_batch(req_id_to_index=None)), "query_start_loc, num_scheduled_tokens"),
    "no table": (lambda c: merge(c, wrong_batch(block_table=None)), "block_table"),
    "table a list": (lambda c: merge(c, wrong_batch(block_table=TABLE)), "block_table"),
    "no numbers": (lambda c: merge(c, wrong_batch(num_computed_tokens_cpu=None)), "num_computed_tokens_cpu"),
    "numbers in parts": (
        lambda c: merge(c, wrong_batch(num_computed_tokens_cpu=[7.5, 0])),
        "num_computed_tokens_cpu",
    ),
    "too few numbers": (lambda c: merge(c, wrong_batch(num_computed_tokens_cpu=[])), "num_computed_tokens_cpu"),
    "words for numbers": (
        lambda c: merge(c, wrong_batch(num_computed_tokens_cpu=["8", "0"])),
        "num_computed_tokens_cpu",
    ),
    "counts floats": (lambda c: merge(c, scheduled={"req1": 3.0, "req2": 2}), "query_start_loc, num_scheduled_tokens"),
    "counts words": (lambda c: merge(c, scheduled={"req1": "3", "req2": 2}), "query_start_loc, num_scheduled_tokens"),
    "counts None": (lambda c: merge(c, scheduled=None), "query_start_loc, num_scheduled_tokens"),
    "starts floats": (lambda c: merge(c, starts=torch.tensor([0.0, 3])), "query_start_loc, num_scheduled_tokens"),
    "starts None": (lambda c: merge(c, starts=None), "query_start_loc, num_scheduled_tokens"),
    "width a float": (lambda c: c.declare("new", 2.0, torch.float32), "new.width"),
    "dtype a word": (lambda c: c.declare("new", 2, "int8"), "new.dtype"),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_of_another_type_is_named(name: str) -> None:
    call, field = CALLS[name]
    cache = with_keys({"foo": 3})
    cache.update_omni_tensor_prefix_cache(torch.ones((8, HIDDEN)), None, 8, SLOTS)
    hit(cache)
    before = cache.stats()
    takes_slots = field.startswith("hidden_states")  # whose rows do not fit
    with pytest.raises(InvalidRequest) as caught:
        call(cache)
    assert caught.value.details["field"] == field
    assert (cache.stats() == before) is not takes_slots


@pytest.mark.parametrize(
    ("sizes", "field"),
    [((2.0, 4, 2), "num_blocks"), ((4, "4", 2), "block_size"), ((4, 4, None), "hidden_size")],
)
def test_sizes_are_integers(sizes: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        OmniTensorPrefixCache(sizes[0], sizes[1], sizes[2], torch.float32)
    assert caught.value.details["field"] == field


@pytest.mark.parametrize("computed", [torch.tensor([8.0, 0.0]), np.array([8.0, 0.0]), [8.0, 0], [8, 0]])
def test_whole_numbers_of_computed_tokens_may_be_floats(computed: Any) -> None:
    cache = with_keys({})
    prefix = torch.rand((8, HIDDEN))
    cache.update_omni_tensor_prefix_cache(prefix, None, 8, SLOTS)
    hit(cache)
    merged = cache.get_merged_hidden_states(STARTS, wrong_batch(num_computed_tokens_cpu=computed), ROWS, SCHEDULED)
    assert torch.equal(merged["req1"], torch.cat([prefix, ROWS[:3]]))


def test_a_list_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidRequest, match="endless"):
        with_keys({}).get_merged_multimodal_states(STARTS, HIT_AND_MISS, {"endless": endless}, SCHEDULED)
