"""The size rules, with the sums that vLLM's suite expects: 100, 210 and 460 bytes in every form."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from mmcached.cache import (
    MultiModalCache,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
    MultiModalProcessorCacheItem,
    MultiModalProcessorCacheItemMetadata,
    ResolvedPromptUpdate,
)
from mmcached.compat.multimodal.sizes import is_within

UPDATES = [ResolvedPromptUpdate("image", 9, 9, 5)] * 100


def an_item(*sizes: int) -> MultiModalKwargsItem:
    return MultiModalKwargsItem.from_record({f"field{n}": np.zeros(size, np.int8) for n, size in enumerate(sizes)})


@pytest.mark.parametrize(("sizes", "expected"), [((100,), 100), ((100, 110), 210)])
def test_one_item_in_all_forms(sizes: tuple[int, ...], expected: int) -> None:
    item = an_item(*sizes)
    forms = [
        item,
        item.to_record(),
        MultiModalProcessorCacheItem(item, UPDATES),
        MultiModalProcessorCacheItemMetadata(item, UPDATES),
    ]
    for form in forms:
        cache = MultiModalCache.get_lru_cache(2048, object)
        cache.put("key", form)
        assert cache.usage == expected, form


def test_two_modalities() -> None:
    items = MultiModalKwargsItems({"a": [an_item(100, 110)], "b": [an_item(120, 130)]})
    assert MultiModalCache.get_item_size(items) == 460
    assert MultiModalCache.get_item_size(items.get_data()) == 460
    assert MultiModalCache.get_item_complexity(items) == MultiModalCache.get_item_complexity(items.get_data()) == 4
    assert MultiModalCache.get_item_complexity(MultiModalProcessorCacheItem(an_item(1, 2), UPDATES)) == 2


def test_leaves_that_are_no_arrays_count_as_python_says() -> None:
    assert MultiModalCache.get_item_size({"a": 7, "b": [None, "text"]}) == sum(map(sys.getsizeof, (7, None, "text")))


def test_tensors_count_their_elements() -> None:
    assert MultiModalCache.get_item_size([torch.zeros(3, 5, dtype=torch.bfloat16), np.zeros((2, 2))]) == 30 + 32


def test_metadata_keeps_no_tensor() -> None:
    metadata = MultiModalProcessorCacheItemMetadata(an_item(100), UPDATES)
    assert vars(metadata) == {"item_size": 100, "prompt_updates": UPDATES}


def test_capacity_in_gib() -> None:
    assert MultiModalCache.get_lru_cache(0.5, object).capacity == 1 << 29


def test_is_within_counts_arrays_alone() -> None:
    record = an_item(100, 110).to_record()
    assert is_within(record, 210)
    assert not is_within(record, 209)
    assert is_within({"text": "x" * 1000}, 0)


def test_what_was_counted_is_logged_if_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    cache = MultiModalCache.get_lru_cache(1, MultiModalKwargsItem, debug=True)
    cache.put("key", an_item(100, 110))
    assert cache.usage == MultiModalCache.get_item_size(an_item(100, 110), debug=True) == 210
    assert {record.getMessage() for record in caplog.records} == {"a MultiModalKwargsItem of 210 bytes in 2 leaves"}
