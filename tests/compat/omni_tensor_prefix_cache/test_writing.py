"""What is checked when rows are written or merged: nothing is broadcast, truncated, wrapped around or shared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    batch,
    hit,
    make_cache,
    outputs,
    rows_at,
    with_keys,
)

Call = Callable[[OmniTensorPrefixCache], object]


@pytest.mark.parametrize(
    ("slots", "value"),
    [([0, -1], -1), ([40, 1], 40), ([3, 3], 3), ([1], 1)],
    ids=["negative", "beyond", "twice", "short"],
)
def test_wrong_slots_are_named_and_nothing_is_written(slots: list[int], value: object) -> None:
    cache = with_keys({"foo": 3})
    with pytest.raises(InvalidRequest) as caught:
        cache.update_omni_tensor_prefix_cache(torch.ones((2, HIDDEN)), outputs({"foo": 3}, 2), 2, torch.tensor(slots))
    assert (caught.value.details["field"], caught.value.details["value"]) == ("slot_mapping", value)
    assert cache.stats().written_bytes == 0


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda c: c.update_omni_tensor_prefix_cache(torch.ones((2, 1)), None, 2, SLOTS), "hidden_states.shape"),
        (lambda c: c.update_omni_tensor_prefix_cache(torch.ones((1, 2)), None, 2, SLOTS), "hidden_states"),
        (lambda c: c.update_omni_tensor_prefix_cache(torch.ones((2, 2)).half(), None, 2, SLOTS), "hidden_states.dtype"),
        (lambda c: c.update_omni_tensor_prefix_cache(torch.ones((2, 2)), None, 2, SLOTS.float()), "slot_mapping"),
        (lambda c: c.update_omni_tensor_prefix_cache(torch.ones((2, 2)), None, 2, SLOTS.view(2, 4)), "slot_mapping"),
        (lambda c: c.update_omni_tensor_prefix_cache(torch.ones((2, 2)), None, -1, SLOTS), "slot_mapping"),
        (lambda c: c.update_omni_tensor_prefix_cache(torch.ones((4, 2)), None, 4, SLOTS, 3), "num_tokens_padded"),
        (lambda c: c.update_omni_tensor_prefix_cache(None, outputs({"foo": 1}, 2), 2, SLOTS), "foo.shape"),
        (lambda c: c.update_omni_tensor_prefix_cache(None, outputs({"foo": 4}, 2), 2, SLOTS), "foo.shape"),
        (lambda c: c.update_omni_tensor_prefix_cache(None, outputs({"foo": 3}, 3), 2, SLOTS), "foo"),
        (lambda c: c.update_omni_tensor_prefix_cache(None, outputs({"foo": 3}, 1), 2, SLOTS), "foo"),
        (lambda c: c.update_omni_tensor_prefix_cache(None, {"foo": torch.ones((2, 3))}, 2, SLOTS), "foo.dtype"),
        (lambda c: c.update_omni_tensor_prefix_cache(None, {"foo": [1]}, 2, SLOTS), "foo"),
        (lambda c: c.get_merged_hidden_states(STARTS, HIT_AND_MISS, torch.ones((4, 2)), SCHEDULED), "hidden_states"),
        (lambda c: c.get_merged_multimodal_states(STARTS, HIT_AND_MISS, {"foo": [1]}, SCHEDULED), "foo"),
        (lambda c: c.get_merged_multimodal_states(STARTS, HIT_AND_MISS, outputs({"foo": 3}, 4), SCHEDULED), "foo"),
        (
            lambda c: c.get_merged_multimodal_states(STARTS, HIT_AND_MISS, outputs({"foo": 2}, 5), SCHEDULED),
            "foo.shape",
        ),
    ],
)
def test_wrong_rows_are_named_and_written_nowhere(call: Call, field: str) -> None:
    cache = with_keys({"foo": 3})
    cache.update_omni_tensor_prefix_cache(None, outputs({"foo": 3}, 8), 8, torch.arange(24, 32))
    before = cache.stats()
    with pytest.raises(InvalidRequest) as caught:
        call(cache)
    assert caught.value.details["field"] == field
    assert cache.stats() == before


def test_hidden_states_that_do_not_fit_cost_their_own_rows_and_no_others() -> None:
    cache = with_keys({"foo": 3})
    with pytest.raises(InvalidRequest, match="hidden_states"):
        cache.update_omni_tensor_prefix_cache(torch.ones((8, 3)), outputs({"foo": 3}, 8), 8, SLOTS)
    assert cache.stats().written_bytes == 8 * 3 * 2


@pytest.mark.parametrize(
    ("field", "sizes"), [("num_blocks", (0, 4, 2)), ("block_size", (4, 0, 2)), ("hidden_size", (4, 4, 0))]
)
def test_a_cache_of_nothing_is_refused(field: str, sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidRequest, match=field):
        OmniTensorPrefixCache(*sizes, torch.float32)


@pytest.mark.parametrize(
    ("computed", "blocks", "message"),
    [
        (17, [2, 3, 4, 5], "block table of req1 has 16"),
        (5, [2, 10], "block_table = 10: blocks of req1"),
        (5, [2, -1], "block_table = -1"),
    ],
)
def test_a_hit_beyond_the_block_table_or_on_no_block_is_refused(computed: int, blocks: list[int], message: str) -> None:
    cache = make_cache()
    hit(cache)
    with pytest.raises(InvalidRequest, match=message):
        cache.get_merged_hidden_states([0], batch([computed], [blocks]), torch.ones((1, HIDDEN)), {"req1": 1})


def test_results_share_no_bytes_with_the_step_the_cache_or_each_other() -> None:
    cache = with_keys({"foo": 3}, torch.float32)
    kept, new = torch.zeros((8, 3)), torch.zeros((5, 3))
    hidden = torch.zeros((8, HIDDEN))
    cache.update_omni_tensor_prefix_cache(hidden, {"foo": kept}, 8, SLOTS)
    hit(cache)
    same, element = torch.zeros(4), torch.zeros(2)
    value = {"foo": new, "same": same, "list": [element]}
    new_hidden = torch.zeros((5, HIDDEN))
    merged: dict[str, Any] = cache.get_merged_multimodal_states(STARTS, HIT_AND_MISS, value, SCHEDULED)
    merged["hidden"] = cache.get_merged_hidden_states(STARTS, HIT_AND_MISS, new_hidden, SCHEDULED, new_hidden)
    tensors = [parts[req][0] if key == "list" else parts[req] for key, parts in merged.items() for req in parts]
    assert len(tensors) == 8
    storages = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    assert len(storages) == 8
    for tensor in tensors:
        tensor.fill_(9)
    assert all(buffer.eq(0).all() for buffer in (new, new_hidden, same, element))
    assert rows_at(cache, "foo").eq(0).all()
    assert cache.hidden_states_cache.view(-1, HIDDEN)[SLOTS].eq(0).all()


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float64, torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn]
)
@pytest.mark.parametrize("width", [1, 3, 8])
def test_rows_of_any_dtype_and_width_come_back(dtype: torch.dtype, width: int) -> None:
    cache = OmniTensorPrefixCache(10, 4, width, dtype)
    made = torch.randint(0, 2, (13, width)).to(torch.float32).to(dtype)
    cache.update_omni_tensor_prefix_cache(made[:8], None, 8, torch.tensor([15, 9, 10, 11, 12, 13, 14, 8]))
    hit(cache)
    merged = cache.get_merged_hidden_states(STARTS, HIT_AND_MISS, made[8:], SCHEDULED)["req1"]
    expected = made[[7, 1, 2, 3, 4, 5, 6, 0, 8, 9, 10]] if dtype != torch.float8_e4m3fn else None
    if expected is not None:
        assert torch.equal(merged, expected)
    else:
        as_bytes = made.view(torch.uint8)
        assert torch.equal(merged.view(torch.uint8), as_bytes[[7, 1, 2, 3, 4, 5, 6, 0, 8, 9, 10]])


def test_rows_with_gradients_and_rows_of_inference_mode_are_taken() -> None:
    cache = make_cache()
    cache.update_omni_tensor_prefix_cache(torch.ones((8, HIDDEN), requires_grad=True), None, 8, SLOTS)
    hit(cache)
    with torch.inference_mode():
        new = torch.full((5, HIDDEN), 2.0)
        cache.update_omni_tensor_prefix_cache(new, {"foo": new}, 5, torch.tensor([16, 17, 18, 24, 25]))
        merged = cache.get_merged_hidden_states(STARTS, HIT_AND_MISS, new, SCHEDULED)["req1"]
    assert not merged.requires_grad
    assert merged[:, 0].tolist() == [1.0] * 8 + [2.0] * 3


def test_memory_is_not_touched_before_it_is_written() -> None:
    def resident() -> int:
        status = Path("/proc/self/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1]) << 10

    before = resident()
    cache = OmniTensorPrefixCache(16_384, 16, 2_048, torch.bfloat16)  # 1 GiB
    cache.declare("foo", 2_048, torch.bfloat16)  # and another
    cache.update_omni_tensor_prefix_cache(None, {}, 16, torch.arange(16))
    assert resident() - before < 16 << 20


def test_of_several_keys_that_do_not_fit_each_is_named() -> None:
    cache = with_keys({"foo": 3, "bar": 1})
    with pytest.raises(InvalidRequest, match="foo") as caught:
        cache.update_omni_tensor_prefix_cache(None, outputs({"foo": 1, "bar": 3}, 2), 2, SLOTS)
    assert any("bar" in note for note in caught.value.__notes__)
