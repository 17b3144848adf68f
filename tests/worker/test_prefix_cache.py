"""OmniTensorPrefixCache: what the seed's own tests ask of it, then the places where it differs on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmcached.wire.errors import InvalidRequest, InvariantError
from mmcached.worker import InputBatch, MissingRows, OmniTensorPrefixCache

NUM_BLOCKS, BLOCK, HIDDEN = 10, 4, 2
SLOTS = torch.arange(8, 16)
Features = dict[str, int]


def make_cache() -> OmniTensorPrefixCache:
    return OmniTensorPrefixCache(NUM_BLOCKS, BLOCK, HIDDEN, torch.float32)


def outputs(features: Features, num_rows: int) -> dict[str, torch.Tensor]:
    return {key: torch.rand((num_rows, width)).to(torch.float16) for key, width in features.items()}


def batch(computed: list[int], table: list[list[int]], req_ids: list[str] | None = None) -> InputBatch:
    ids = req_ids or [f"req{index + 1}" for index in range(len(computed))]
    return InputBatch(ids, {req_id: index for index, req_id in enumerate(ids)}, computed, torch.tensor(table))


TABLE = [[2, 3, 4, 5], [6, 7, 8, 9]]
HIT_AND_MISS = batch([8, 0], TABLE)
SCHEDULED = {"req1": 3, "req2": 2}


# ---- as the seed


def test_a_fresh_cache_has_room_for_hidden_states_and_no_keys() -> None:
    cache = make_cache()
    assert cache.hidden_states_cache.shape == (NUM_BLOCKS, BLOCK, HIDDEN)
    assert cache.mm_outputs_cache == {}
    assert cache.mm_cache_keys == set()
    assert (cache.num_blocks, cache.block_size, cache.default_hidden_size) == (NUM_BLOCKS, BLOCK, HIDDEN)


def test_keys_are_made_with_their_width_and_dtype() -> None:
    cache = make_cache()
    cache.maybe_init_missing_mm_cache_keys(outputs({"foo": 100, "bar": 50, "baz": 10}, 15), 15)
    assert cache.mm_cache_keys == {"foo", "bar", "baz"}
    assert {key: tensor.shape[-1] for key, tensor in cache.mm_outputs_cache.items()} == {
        "foo": 100,
        "bar": 50,
        "baz": 10,
    }
    assert all(tensor.dtype == torch.float16 for tensor in cache.mm_outputs_cache.values())


def test_making_a_key_again_changes_nothing() -> None:
    cache = make_cache()
    cache.maybe_init_missing_mm_cache_keys(outputs({"foo": 100}, 15), 15)
    cache.mm_outputs_cache["foo"].fill_(1)
    cache.maybe_init_missing_mm_cache_keys(outputs({"foo": 100}, 15), 15)
    assert len(cache.mm_cache_keys) == 1
    assert cache.mm_outputs_cache["foo"].eq(1).all()


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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_staged_rows_on_a_device_are_refused() -> None:
    staged = torch.zeros((8, HIDDEN), device="cuda")
    with pytest.raises(InvalidRequest, match="hidden_states_cpu"):
        make_cache().update_omni_tensor_prefix_cache(staged, None, 8, SLOTS, hidden_states_cpu=staged)


@pytest.mark.parametrize("features", [{"foo": 100, "bar": 100}, {"foo": 100, "bar": 50, "baz": 10}])
def test_other_outputs_go_to_their_slots(features: Features) -> None:
    cache = make_cache()
    made = outputs(features, 8)
    cache.update_omni_tensor_prefix_cache(None, made, 8, SLOTS)
    for key, rows in made.items():
        assert torch.equal(cache.mm_outputs_cache[key].view(-1, features[key])[SLOTS], rows)


def stage(cache: OmniTensorPrefixCache, computed: int, rows: torch.Tensor, req_id: str = "req1") -> InputBatch:
    step = batch([computed], [[2, 3, 4, 5]], [req_id])
    cache.stage_deferred_mm_outputs([0], step, {"codes.audio": rows}, {req_id: len(rows)}, {"codes.audio"})
    return step


def test_deferred_rows_are_written_when_their_request_ends() -> None:
    cache = make_cache()
    rows = torch.arange(16).view(8, 2)
    skip = {"codes.audio"}
    cache.update_omni_tensor_prefix_cache(None, {"codes.audio": rows[:4]}, 4, SLOTS[:4], skip_mm_cache_keys=skip)
    assert cache.mm_cache_keys == skip
    stage(cache, 0, rows[:4])
    ended = stage(cache, 4, rows[4:])
    assert cache.stats().written_bytes == 0
    assert cache.stats().deferred_rows == 8
    cache.commit_deferred_mm_outputs({"req1"}, ended)
    assert torch.equal(cache.mm_outputs_cache["codes.audio"].view(-1, 2)[SLOTS], rows)
    assert cache.stats().deferred_rows == 0


def test_committed_rows_are_served_to_a_hit() -> None:
    cache = make_cache()
    rows = torch.arange(16).view(8, 2)
    cache.commit_deferred_mm_outputs(["req1"], stage(cache, 0, rows))
    cache.add_prefix_cached_new_req_id("req1")
    merged = cache.get_merged_multimodal_states(
        [0], batch([8], [TABLE[0]]), {"codes.audio": torch.tensor([[99, 100]])}, {"req1": 1}
    )
    assert torch.equal(merged["codes.audio"]["req1"], torch.cat([rows, torch.tensor([[99, 100]])]))  # type: ignore[arg-type]


@pytest.mark.parametrize("padded", [None, 16])
@pytest.mark.parametrize("starts", [[0, 3], torch.tensor([0, 3])], ids=["list", "tensor"])
def test_a_hit_gets_its_prefix_and_a_miss_its_own_rows(padded: int | None, starts: Any) -> None:
    cache = make_cache()
    prefix, new = torch.rand((16, HIDDEN)), torch.rand((5, HIDDEN))
    cache.update_omni_tensor_prefix_cache(prefix[: padded or 8], None, 8, torch.arange(8, 24)[: padded or 8], padded)
    cache.add_prefix_cached_new_req_id("req1")
    merged = cache.get_merged_hidden_states(starts, HIT_AND_MISS, new, SCHEDULED)
    assert torch.equal(merged["req1"], torch.cat([prefix[:8], new[:3]]))
    assert torch.equal(merged["req2"], new[3:])
    assert (cache.stats().row_queries, cache.stats().row_hits) == (8, 8)


def test_new_rows_come_from_the_staged_copy() -> None:
    cache = make_cache()
    prefix, staged = torch.rand((8, HIDDEN)), torch.rand((5, HIDDEN))
    cache.update_omni_tensor_prefix_cache(prefix, None, 8, SLOTS)
    cache.add_prefix_cached_new_req_id("req1")
    merged = cache.get_merged_hidden_states([0, 3], HIT_AND_MISS, torch.zeros((5, HIDDEN)), SCHEDULED, staged)
    assert torch.equal(merged["req1"][8:], staged[:3])
    assert torch.equal(merged["req2"], staged[3:])


def test_a_staged_copy_that_is_too_short_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="hidden_states_cpu"):
        make_cache().get_merged_hidden_states(
            [0, 3], HIT_AND_MISS, torch.zeros((5, HIDDEN)), SCHEDULED, torch.zeros((4, HIDDEN))
        )


@pytest.mark.parametrize("padded", [None, 16])
@pytest.mark.parametrize("features", [{"foo": 100, "bar": 100}, {"foo": 100, "bar": 50, "baz": 10}])
def test_other_outputs_are_merged_and_what_is_no_rows_passes(padded: int | None, features: Features) -> None:
    cache = make_cache()
    prefix, new = outputs(features, padded or 8), outputs(features, 5)
    cache.update_omni_tensor_prefix_cache(None, prefix, 8, torch.arange(8, 24)[: padded or 8], padded)
    cache.add_prefix_cached_new_req_id("req1")
    other = {"text": "Something else", "list": ["should", "not", "split"]}
    merged = cache.get_merged_multimodal_states([0, 3], HIT_AND_MISS, {**new, **other}, SCHEDULED)
    for key in features:
        assert torch.equal(merged[key]["req1"], torch.cat([prefix[key][:8], new[key][:3]]))  # type: ignore[arg-type]
        assert torch.equal(merged[key]["req2"], new[key][3:])  # type: ignore[arg-type]
    for key, value in other.items():
        assert merged[key] == {"req1": value, "req2": value}


def test_two_hits_on_the_same_and_on_different_blocks() -> None:
    cache = OmniTensorPrefixCache(4, 4, 8, torch.float32)
    prefix = torch.arange(8).view(8, 1).expand(8, 8).to(torch.float32)
    cache.update_omni_tensor_prefix_cache(prefix, None, 8, SLOTS)
    cache.add_prefix_cached_new_req_id("req1")
    cache.add_prefix_cached_new_req_id("req2")
    new = torch.cat([torch.full((2, 8), 11.0), torch.full((2, 8), 22.0)])
    same = batch([8, 8], [[2, 3, 0, 0], [2, 3, 0, 0]])
    merged = cache.get_merged_hidden_states([0, 2], same, new, {"req1": 2, "req2": 2})
    assert torch.equal(merged["req1"], torch.cat([prefix, new[:2]]))
    assert torch.equal(merged["req2"], torch.cat([prefix, new[2:]]))

    rows = torch.cat([torch.full((8, 8), 3.0), torch.full((8, 8), 7.0)])
    cache.update_omni_tensor_prefix_cache(rows, None, 16, torch.arange(16))
    apart = batch([8, 8], [[0, 1, 0, 0], [2, 3, 0, 0]])
    new = torch.tensor([[0.5] * 8, [0.25] * 8])
    merged = cache.get_merged_hidden_states([0, 1], apart, new, {"req1": 1, "req2": 1})
    assert merged["req1"][:, 0].tolist() == [3.0] * 8 + [0.5]
    assert merged["req2"][:, 0].tolist() == [7.0] * 8 + [0.25]


def test_hits_last_one_step() -> None:
    cache = make_cache()
    assert not cache.has_prefix_cached_new_req_ids()
    cache.add_prefix_cached_new_req_id("req1")
    assert cache.has_prefix_cached_new_req_ids()
    cache.reset_prefix_cached_new_req_ids()
    assert not cache.has_prefix_cached_new_req_ids()
    merged = cache.get_merged_hidden_states([0, 3], HIT_AND_MISS, torch.ones((5, HIDDEN)), SCHEDULED)
    assert len(merged["req1"]) == 3


def test_discarded_rows_are_never_written_and_a_reused_id_starts_anew() -> None:
    cache = make_cache()
    stage(cache, 0, torch.full((4, 2), -1))
    cache.discard_deferred_mm_outputs("req1")
    cache.discard_deferred_mm_outputs("unknown")
    rows = torch.arange(16).view(8, 2)
    cache.commit_deferred_mm_outputs(["req1"], stage(cache, 0, rows))
    assert torch.equal(cache.mm_outputs_cache["codes.audio"].view(-1, 2)[SLOTS], rows)


def test_an_empty_batch_merges_to_nothing() -> None:
    empty = batch([], [], [])
    cache = make_cache()
    assert cache.get_merged_hidden_states([], empty, torch.zeros((0, HIDDEN)), {}) == {}
    assert cache.get_merged_multimodal_states([], empty, {"a": "b"}, {}) == {}


# ---- deliberate differences


def test_a_row_that_was_never_written_is_missing_and_not_zero() -> None:
    cache = make_cache()
    cache.update_omni_tensor_prefix_cache(torch.ones((5, HIDDEN)), None, 5, torch.tensor([8, 9, 12, 13, 15]))
    cache.add_prefix_cached_new_req_id("req1")
    with pytest.raises(MissingRows) as caught:
        cache.get_merged_hidden_states([0, 3], HIT_AND_MISS, torch.ones((5, HIDDEN)), SCHEDULED)
    assert caught.value.details == {"key": "hidden_states", "first": 2, "end": 4}
    assert caught.value.code == "missing_rows"
    assert (cache.stats().row_queries, cache.stats().row_hits) == (8, 0)


def test_a_hit_that_ends_within_a_block_is_served_whole() -> None:
    cache = make_cache()
    prefix, new = torch.rand((6, HIDDEN)), torch.rand((2, HIDDEN))
    cache.update_omni_tensor_prefix_cache(prefix, None, 6, SLOTS[:6])
    cache.add_prefix_cached_new_req_id("req1")
    merged = cache.get_merged_hidden_states([0], batch([6], [TABLE[0]]), new, {"req1": 2})
    assert torch.equal(merged["req1"], torch.cat([prefix, new]))


def test_a_key_that_a_step_lacks_is_missing_in_the_slots_it_wrote() -> None:
    cache = make_cache()
    cache.update_omni_tensor_prefix_cache(None, outputs({"foo": 3}, 8), 8, SLOTS)
    cache.update_omni_tensor_prefix_cache(None, {}, 4, SLOTS[4:])
    cache.add_prefix_cached_new_req_id("req1")
    with pytest.raises(MissingRows) as caught:
        cache.get_merged_multimodal_states([0, 3], HIT_AND_MISS, outputs({"foo": 3}, 5), SCHEDULED)
    assert caught.value.details == {"key": "foo", "first": 4, "end": 8}


def test_rows_still_deferred_are_missing_for_a_hit() -> None:
    cache = make_cache()
    rows = torch.arange(16).view(8, 2)
    cache.update_omni_tensor_prefix_cache(None, {"codes.audio": rows}, 8, SLOTS)
    cache.update_omni_tensor_prefix_cache(None, {"codes.audio": rows}, 8, SLOTS, skip_mm_cache_keys={"codes.audio"})
    stage(cache, 0, rows)
    cache.add_prefix_cached_new_req_id("req1")
    with pytest.raises(MissingRows):
        cache.get_merged_multimodal_states([0, 3], HIT_AND_MISS, {"codes.audio": rows[:5]}, SCHEDULED)


@pytest.mark.parametrize(
    ("slots", "value"),
    [([0, -1], -1), ([40, 1], 40), ([3, 3], "[3, 3]"), ([1], 1)],
    ids=["negative", "beyond", "twice", "short"],
)
def test_wrong_slots_are_named(slots: list[int], value: object) -> None:
    cache = make_cache()
    with pytest.raises(InvalidRequest) as caught:
        cache.update_omni_tensor_prefix_cache(torch.ones((2, HIDDEN)), None, 2, torch.tensor(slots))
    assert (caught.value.details["field"], caught.value.details["value"]) == ("slot_mapping", value)
    assert cache.stats().written_bytes == 0


def test_a_slot_of_minus_one_is_harmless_in_the_padding() -> None:
    cache = make_cache()
    cache.update_omni_tensor_prefix_cache(torch.ones((4, HIDDEN)), None, 2, torch.tensor([5, 6, -1, -1]), 4)
    assert cache.stats().written_bytes == 2 * HIDDEN * 4


Call = Callable[[OmniTensorPrefixCache], object]


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda c: c.update_omni_tensor_prefix_cache(torch.ones((2, 1)), None, 2, SLOTS), "hidden_states.shape"),
        (lambda c: c.update_omni_tensor_prefix_cache(torch.ones((1, 2)), None, 2, SLOTS), "hidden_states"),
        (lambda c: c.update_omni_tensor_prefix_cache(torch.ones((2, 2)).half(), None, 2, SLOTS), "hidden_states.dtype"),
        (lambda c: c.update_omni_tensor_prefix_cache(torch.ones((2, 2)), None, 2, SLOTS.float()), "slot_mapping"),
        (lambda c: c.update_omni_tensor_prefix_cache(torch.ones((2, 2)), None, 2, SLOTS.view(2, 4)), "slot_mapping"),
        (lambda c: c.update_omni_tensor_prefix_cache(None, outputs({"foo": 1}, 2), 2, SLOTS), "foo.shape"),
        (lambda c: c.update_omni_tensor_prefix_cache(None, outputs({"foo": 3}, 3), 2, SLOTS), "foo"),
        (lambda c: c.update_omni_tensor_prefix_cache(None, {"foo": torch.ones((2, 3))}, 2, SLOTS), "foo.dtype"),
        (lambda c: c.update_omni_tensor_prefix_cache(None, {"foo": [1]}, 2, SLOTS), "foo"),
        (lambda c: c.get_merged_hidden_states([0, 3], HIT_AND_MISS, torch.ones((4, 2)), SCHEDULED), "hidden_states"),
        (lambda c: c.get_merged_multimodal_states([0, 3], HIT_AND_MISS, {"foo": [1]}, SCHEDULED), "foo"),
        (lambda c: c.get_merged_multimodal_states([0, 3], HIT_AND_MISS, outputs({"foo": 3}, 4), SCHEDULED), "foo"),
        (
            lambda c: c.get_merged_multimodal_states([0, 3], HIT_AND_MISS, outputs({"foo": 2}, 5), SCHEDULED),
            "foo.shape",
        ),
    ],
)
def test_wrong_rows_are_named_and_change_nothing(call: Call, field: str) -> None:
    cache = make_cache()
    cache.update_omni_tensor_prefix_cache(None, outputs({"foo": 3}, 8), 8, torch.arange(24, 32))
    before = cache.stats()
    with pytest.raises(InvalidRequest) as caught:
        call(cache)
    assert caught.value.details["field"] == field
    assert cache.stats() == before
    cache.check_integrity()


@pytest.mark.parametrize(
    ("field", "sizes"), [("num_blocks", (0, 4, 2)), ("block_size", (4, 0, 2)), ("hidden_size", (4, 4, 0))]
)
def test_a_cache_of_nothing_is_refused(field: str, sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidRequest, match=field):
        OmniTensorPrefixCache(*sizes, torch.float32)


def test_a_hit_beyond_the_block_table_is_refused() -> None:
    cache = make_cache()
    cache.add_prefix_cached_new_req_id("req1")
    with pytest.raises(InvalidRequest, match="block table of req1 has 16"):
        cache.get_merged_hidden_states([0], batch([17], [TABLE[0]]), torch.ones((1, HIDDEN)), {"req1": 1})


def test_staged_rows_are_copies_in_order_of_time() -> None:
    cache = make_cache()
    buffer = torch.arange(16).view(8, 2)
    stage(cache, 0, buffer[:4])
    stage(cache, 4, buffer[4:])
    buffer.fill_(-9)
    again = torch.full((6, 2), 5)
    ended = stage(cache, 0, again)
    cache.commit_deferred_mm_outputs(["req1"], ended)
    found = cache.mm_outputs_cache["codes.audio"].view(-1, 2)[SLOTS]
    assert found.tolist() == [[5, 5]] * 6 + [[12, 13], [14, 15]]


def test_staged_rows_beyond_the_block_table_are_refused_and_stay() -> None:
    cache = make_cache()
    ended = stage(cache, 14, torch.ones((4, 2)))
    with pytest.raises(InvalidRequest, match="block table"):
        cache.commit_deferred_mm_outputs(["req1"], ended)
    assert cache.stats().deferred_rows == 4
    assert cache.mm_cache_keys == set()


def test_a_request_that_left_the_batch_is_not_committed() -> None:
    cache = make_cache()
    stage(cache, 0, torch.ones((4, 2)))
    cache.commit_deferred_mm_outputs(["req1"], batch([0], [TABLE[1]], ["other"]))
    assert cache.stats().deferred_rows == 0
    assert cache.stats().written_bytes == 0


def test_results_are_copies() -> None:
    cache = make_cache()
    new = torch.zeros((5, HIDDEN))
    merged = cache.get_merged_hidden_states([0, 3], HIT_AND_MISS, new, SCHEDULED)
    merged["req1"].fill_(9)
    assert new.eq(0).all()


def test_an_unpadded_key_on_a_padded_step_is_recognised() -> None:
    cache = make_cache()
    cache.update_omni_tensor_prefix_cache(None, outputs({"foo": 3}, 5), 5, torch.arange(16), 16)
    assert cache.mm_cache_keys == {"foo"}
    assert cache.stats().written_bytes == 5 * 3 * 2


def test_only_rows_of_one_dimension_become_keys() -> None:
    cache = make_cache()
    steps = {"cube": torch.ones((8, 2, 2)), "line": torch.ones(8), "constant": torch.ones((3, 2)), "list": [1]}
    cache.update_omni_tensor_prefix_cache(None, steps, 8, SLOTS)
    assert cache.mm_cache_keys == set()


def test_outputs_none_are_no_outputs() -> None:
    cache = make_cache()
    assert cache.get_merged_multimodal_states([0, 3], HIT_AND_MISS, None, SCHEDULED) == {}
    cache.stage_deferred_mm_outputs([0, 3], HIT_AND_MISS, None, SCHEDULED, {"foo"})
    assert cache.stats().deferred_rows == 0


def test_forgotten_slots_are_missing_for_every_key() -> None:
    cache = make_cache()
    cache.update_omni_tensor_prefix_cache(torch.ones((8, HIDDEN)), outputs({"foo": 3}, 8), 8, SLOTS)
    cache.forget_slots(SLOTS[2:])
    assert cache.stats().written_bytes == 2 * (HIDDEN * 4 + 3 * 2)
    cache.clear()
    assert cache.stats().written_bytes == 0
    assert cache.mm_cache_keys == {"foo"}


def test_integrity_sees_a_wrong_count() -> None:
    cache = make_cache()
    cache.check_integrity()
    cache._hidden._written[3] = True
    with pytest.raises(InvariantError, match="1 rows are written, 0"):
        cache.check_integrity()


# ---- as a whole


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("wfr"), st.lists(st.integers(0, 11), unique=True, max_size=6)), max_size=25))
def test_any_sequence_reads_exactly_what_was_last_written(operations: list[tuple[str, list[int]]]) -> None:
    cache = OmniTensorPrefixCache(3, 4, 1, torch.int32)
    model: dict[int, int] = {}
    for number, (operation, slots) in enumerate(operations):
        mapping = torch.tensor(slots, dtype=torch.int64)
        if operation == "w":
            rows = (torch.arange(len(slots), dtype=torch.int32) + 100 * number).view(-1, 1)
            cache.update_omni_tensor_prefix_cache(rows, None, len(slots), mapping)
            model |= dict(zip(slots, rows.flatten().tolist(), strict=True))
        elif operation == "f":
            cache.forget_slots(mapping)
            for slot in slots:
                model.pop(slot, None)
        else:
            expected = [model.get(slot) for slot in slots]
            if None in expected:
                with pytest.raises(MissingRows) as missing:
                    cache._hidden.read(mapping)
                assert missing.value.details["first"] == expected.index(None)
            else:
                assert cache._hidden.read(mapping).flatten().tolist() == expected
        cache.check_integrity()
        assert cache.stats().written_bytes == 4 * len(model)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_rows_are_merged_on_the_cpu() -> None:
    cache = OmniTensorPrefixCache(4, 4, 8, torch.float32)
    prefix = torch.arange(8, device="cuda").view(8, 1).expand(8, 8).to(torch.float32)
    cache.update_omni_tensor_prefix_cache(prefix, None, 8, SLOTS)
    cache.add_prefix_cached_new_req_id("req1")
    new = torch.full((2, 8), 100.0, device="cuda")
    merged = cache.get_merged_hidden_states([0], batch([8], [[2, 3, 0, 0]]), new, {"req1": 2})["req1"]
    assert merged.device.type == "cpu"
    assert torch.equal(merged, torch.cat([prefix, new]).cpu())
