"""What the seed's own tests ask of the cache: the catalogue of its cases, in calls of its ten methods."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmcached.wire.errors import InvalidRequest
from mmcached.worker import OmniTensorPrefixCache
from tests.compat.omni_tensor_prefix_cache.cases import (
    BLOCK,
    HIDDEN,
    HIT_AND_MISS,
    NUM_BLOCKS,
    SCHEDULED,
    SLOTS,
    STARTS,
    TABLE,
    Features,
    batch,
    hit,
    make_cache,
    outputs,
    rows_at,
)

FEATURES: list[Features] = [{"foo": 100, "bar": 100}, {"foo": 100, "bar": 50, "baz": 10}]


def test_a_fresh_cache_has_room_for_hidden_states_and_no_keys() -> None:
    cache = make_cache()
    assert cache.hidden_states_cache.shape == (NUM_BLOCKS, BLOCK, HIDDEN)
    assert cache.hidden_states_cache.device.type == "cpu"
    assert cache.mm_outputs_cache == {}
    assert cache.mm_cache_keys == set()
    assert (cache.num_blocks, cache.block_size, cache.default_hidden_size) == (NUM_BLOCKS, BLOCK, HIDDEN)


def test_keys_are_made_with_their_width_and_dtype() -> None:
    cache = make_cache(discover="first")
    cache.maybe_init_missing_mm_cache_keys(outputs({"foo": 100, "bar": 50, "baz": 10}, 15), 15)
    shapes = {key: tuple(kept.shape) for key, kept in cache.mm_outputs_cache.items()}
    assert shapes == {"foo": (10, 4, 100), "bar": (10, 4, 50), "baz": (10, 4, 10)}
    assert cache.mm_cache_keys == set(shapes)
    assert all(kept.dtype == torch.float16 for kept in cache.mm_outputs_cache.values())


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_hidden_states_go_to_their_slots(dtype: torch.dtype) -> None:
    cache = make_cache()
    rows = torch.rand((8, HIDDEN))
    cache.update_omni_tensor_prefix_cache(rows, None, 8, SLOTS.to(dtype))
    assert torch.equal(cache.hidden_states_cache.view(-1, HIDDEN)[SLOTS], rows)


def test_rows_already_on_the_cpu_are_preferred() -> None:
    cache = make_cache()
    staged = torch.rand((8, HIDDEN))
    cache.update_omni_tensor_prefix_cache(torch.zeros((8, HIDDEN)), None, 8, SLOTS, hidden_states_cpu=staged)
    assert torch.equal(cache.hidden_states_cache.view(-1, HIDDEN)[SLOTS], staged)


@pytest.mark.parametrize(
    "staged",
    [
        torch.zeros((4, HIDDEN)),
        torch.zeros((8, HIDDEN), dtype=torch.float16),
        torch.zeros((8, 3)),
        torch.zeros((HIDDEN, 8)).T,
    ],
    ids=["short", "dtype", "wide", "not contiguous"],
)
def test_staged_rows_that_do_not_fit_are_refused(staged: torch.Tensor) -> None:
    cache = make_cache()
    with pytest.raises(InvalidRequest, match="hidden_states_cpu"):
        cache.update_omni_tensor_prefix_cache(torch.zeros((8, HIDDEN)), None, 8, SLOTS, hidden_states_cpu=staged)
    assert cache.stats().written_bytes == 0


@pytest.mark.parametrize("features", FEATURES)
def test_other_outputs_go_to_their_slots(features: Features) -> None:
    cache = make_cache(discover="first")
    made = outputs(features, 8)
    cache.update_omni_tensor_prefix_cache(None, made, 8, SLOTS)
    for key, rows in made.items():
        assert torch.equal(rows_at(cache, key), rows)


@pytest.mark.parametrize("padded", [None, 16])
@pytest.mark.parametrize("starts", [STARTS, torch.tensor(STARTS)], ids=["list", "tensor"])
def test_a_hit_gets_its_prefix_and_a_miss_its_own_rows(padded: int | None, starts: Any) -> None:
    cache = make_cache()
    prefix, new = torch.rand((16, HIDDEN)), torch.rand((5, HIDDEN))
    cache.update_omni_tensor_prefix_cache(prefix[: padded or 8], None, 8, torch.arange(8, 24)[: padded or 8], padded)
    hit(cache)
    merged = cache.get_merged_hidden_states(starts, HIT_AND_MISS, new, SCHEDULED)
    assert torch.equal(merged["req1"], torch.cat([prefix[:8], new[:3]]))
    assert torch.equal(merged["req2"], new[3:])
    assert (cache.stats().row_queries, cache.stats().row_hits) == (8, 8)


def test_new_rows_come_from_the_staged_copy() -> None:
    cache = make_cache()
    prefix, staged = torch.rand((8, HIDDEN)), torch.rand((5, HIDDEN))
    cache.update_omni_tensor_prefix_cache(prefix, None, 8, SLOTS)
    hit(cache)
    merged = cache.get_merged_hidden_states(STARTS, HIT_AND_MISS, torch.zeros((5, HIDDEN)), SCHEDULED, staged)
    assert torch.equal(merged["req1"], torch.cat([prefix, staged[:3]]))
    assert torch.equal(merged["req2"], staged[3:])


@pytest.mark.parametrize("padded", [None, 16])
@pytest.mark.parametrize("features", FEATURES)
def test_other_outputs_are_merged_and_what_is_no_rows_passes(padded: int | None, features: Features) -> None:
    cache = make_cache(discover="first")
    prefix, new = outputs(features, padded or 8), outputs(features, 5)
    cache.update_omni_tensor_prefix_cache(None, prefix, 8, torch.arange(8, 24)[: padded or 8], padded)
    hit(cache)
    other = {"text": "Something else", "list": ["should", "not", "split"]}
    merged: dict[str, Any] = cache.get_merged_multimodal_states(STARTS, HIT_AND_MISS, {**new, **other}, SCHEDULED)
    for key in features:
        assert torch.equal(merged[key]["req1"], torch.cat([prefix[key][:8], new[key][:3]]))
        assert torch.equal(merged[key]["req2"], new[key][3:])
    for key, value in other.items():
        assert merged[key] == {"req1": value, "req2": value}


def test_two_hits_on_the_same_and_on_different_blocks() -> None:
    cache = OmniTensorPrefixCache(4, 4, 8, torch.float32)
    prefix = torch.arange(8).view(8, 1).expand(8, 8).to(torch.float32)
    cache.update_omni_tensor_prefix_cache(prefix, None, 8, SLOTS)
    hit(cache, "req1", "req2")
    new = torch.cat([torch.full((2, 8), 11.0), torch.full((2, 8), 22.0)])
    same = batch([8, 8], [[2, 3, 0, 0], [2, 3, 0, 0]])
    merged = cache.get_merged_hidden_states([0, 2], same, new, {"req1": 2, "req2": 2})
    assert torch.equal(merged["req1"], torch.cat([prefix, new[:2]]))
    assert torch.equal(merged["req2"], torch.cat([prefix, new[2:]]))

    rows = torch.cat([torch.full((8, 8), 3.0), torch.full((8, 8), 7.0)])
    cache.update_omni_tensor_prefix_cache(rows, None, 16, torch.arange(16))
    hit(cache, "req1", "req2")
    apart = batch([8, 8], [[0, 1, 0, 0], [2, 3, 0, 0]])
    new = torch.tensor([[0.5] * 8, [0.25] * 8])
    merged = cache.get_merged_hidden_states([0, 1], apart, new, {"req1": 1, "req2": 1})
    assert merged["req1"][:, 0].tolist() == [3.0] * 8 + [0.5]
    assert merged["req2"][:, 0].tolist() == [7.0] * 8 + [0.25]


def test_a_hit_on_rows_of_the_same_step_gets_them() -> None:
    cache = make_cache()
    rows = torch.rand((10, HIDDEN))
    hit(cache, "late")
    both = batch([0, 8], [[2, 3, 4], [2, 3, 5]], ["early", "late"])
    cache.update_omni_tensor_prefix_cache(rows, None, 10, torch.tensor([*range(8, 16), 20, 21]))
    merged = cache.get_merged_hidden_states([0, 8], both, rows, {"early": 8, "late": 2})
    assert torch.equal(merged["late"], rows)


def test_a_hit_behind_a_divergent_block_gets_the_shared_ones_and_leaves_the_other_alone() -> None:
    cache = make_cache()
    first = torch.rand((12, HIDDEN))
    cache.update_omni_tensor_prefix_cache(first, None, 12, torch.arange(12))
    hit(cache, "b")
    own = torch.rand((4, HIDDEN))
    cache.update_omni_tensor_prefix_cache(own, None, 4, torch.arange(12, 16))
    merged = cache.get_merged_hidden_states([0], batch([8], [[0, 1, 3]], ["b"]), own, {"b": 4})
    assert torch.equal(merged["b"], torch.cat([first[:8], own]))
    assert torch.equal(cache.hidden_states_cache.view(-1, HIDDEN)[8:12], first[8:])


def test_committed_rows_are_served_to_a_hit() -> None:
    cache = make_cache()
    rows = torch.arange(16).view(8, 2)
    ended = batch([0], [TABLE[0]])
    cache.stage_deferred_mm_outputs([0], ended, {"codes.audio": rows}, {"req1": 8}, {"codes.audio"})
    cache.commit_deferred_mm_outputs(["req1"], ended)
    hit(cache, "req2")
    new = torch.tensor([[99, 100]])
    merged: dict[str, Any] = cache.get_merged_multimodal_states(
        [0], batch([8], [TABLE[0]], ["req2"]), {"codes.audio": new}, {"req2": 1}
    )
    assert torch.equal(merged["codes.audio"]["req2"], torch.cat([rows, new]))
