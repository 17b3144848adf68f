"""When an output is taken for rows: declared, named as deferred, or two lengths; by the first one only on demand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmcached.wire.errors import InvalidRequest
from mmcached.worker import MissingRows, OmniTensorPrefixCache
from tests.compat.omni_tensor_prefix_cache.cases import (
    HIT_AND_MISS,
    SCHEDULED,
    SLOTS,
    STARTS,
    TABLE,
    batch,
    hit,
    make_cache,
    rows_at,
)


def write(
    cache: OmniTensorPrefixCache, outputs: dict[str, Any], slots: torch.Tensor, padded: int | None = None
) -> None:
    cache.reset_prefix_cached_new_req_ids()
    cache.update_omni_tensor_prefix_cache(None, outputs, len(slots), slots, padded)


def test_two_lengths_make_a_key_and_the_first_rows_are_kept() -> None:
    cache = make_cache()
    first, second = torch.rand((5, 3)), torch.rand((3, 3))
    write(cache, {"foo": first}, SLOTS[:5])
    assert cache.mm_cache_keys == set()
    assert cache.mm_outputs_cache == {}
    assert cache.stats().written_bytes == 0
    write(cache, {"foo": second}, SLOTS[5:])
    assert cache.mm_cache_keys == {"foo"}
    assert torch.equal(rows_at(cache, "foo"), torch.cat([first, second]))
    hit(cache)
    new = torch.rand((5, 3))
    merged: dict[str, Any] = cache.get_merged_multimodal_states(STARTS, HIT_AND_MISS, {"foo": new}, SCHEDULED)
    assert torch.equal(merged["foo"]["req1"], torch.cat([first, second, new[:3]]))


def test_a_constant_that_met_a_step_of_its_length_is_no_key_for_good() -> None:
    cache = make_cache()
    constant = torch.arange(12).view(4, 3)
    write(cache, {"voice": constant}, SLOTS[:4])
    write(cache, {"voice": constant}, SLOTS[:5])
    for length in (4, 3, 4):
        write(cache, {"voice": constant}, SLOTS[:length])
    assert cache.mm_cache_keys == set()
    hit(cache)
    merged: dict[str, Any] = cache.get_merged_multimodal_states(STARTS, HIT_AND_MISS, {"voice": constant}, SCHEDULED)
    assert torch.equal(merged["voice"]["req1"], constant)
    assert torch.equal(merged["voice"]["req2"], constant)


def test_a_padded_and_an_unpadded_length_of_rows_are_two() -> None:
    cache = make_cache()
    rows = torch.rand((16, 3))
    write(cache, {"foo": rows}, torch.arange(5), 16)
    write(cache, {"foo": rows[:6]}, torch.arange(20, 26), 16)
    assert cache.mm_cache_keys == {"foo"}
    assert torch.equal(rows_at(cache, "foo", torch.arange(5)), rows[:5])
    assert torch.equal(rows_at(cache, "foo", torch.arange(20, 26)), rows[:6])
    assert cache.stats().written_bytes == 11 * 3 * 4


def test_an_undecided_output_has_no_prefix_for_a_hit_and_is_cut_for_the_others() -> None:
    cache = make_cache()
    write(cache, {"foo": torch.rand((5, 3))}, torch.arange(24, 29))
    hit(cache)
    new = torch.rand((5, 3))
    cache.update_omni_tensor_prefix_cache(None, {"foo": new}, 5, torch.tensor([16, 17, 18, 24, 25]))
    with pytest.raises(MissingRows) as caught:
        cache.get_merged_multimodal_states(STARTS, HIT_AND_MISS, {"foo": new}, SCHEDULED)
    assert caught.value.details == {"key": "foo", "first": 0, "end": 8, "request_id": "req1"}
    cache.reset_prefix_cached_new_req_ids()
    merged: dict[str, Any] = cache.get_merged_multimodal_states(STARTS, HIT_AND_MISS, {"foo": new}, SCHEDULED)
    assert torch.equal(merged["foo"]["req2"], new[3:])


def test_another_width_or_dtype_begins_anew() -> None:
    cache = make_cache()
    write(cache, {"foo": torch.ones((4, 3))}, SLOTS[:4])
    write(cache, {"foo": torch.ones((5, 2))}, SLOTS[:5])
    assert cache.mm_cache_keys == set()
    write(cache, {"foo": torch.ones((4, 2))}, SLOTS[:4])
    assert cache.mm_outputs_cache["foo"].shape[-1] == 2


def test_per_request_outputs_of_decode_steps_are_refused_by_the_first_longer_step_and_said_so_once() -> None:
    cache = make_cache()
    write(cache, {"stats": torch.ones((2, 3))}, SLOTS[:2])
    write(cache, {"stats": torch.ones((3, 3))}, SLOTS[:3])
    assert cache.mm_cache_keys == {"stats"}
    with pytest.raises(InvalidRequest, match="no key any more"):
        write(cache, {"stats": torch.ones((2, 3))}, SLOTS)
    assert cache.mm_cache_keys == set()
    write(cache, {"stats": torch.ones((2, 3))}, SLOTS)


def test_a_declared_key_is_one_from_its_first_rows_on_and_stays_one() -> None:
    cache = make_cache()
    cache.declare("foo", 3, torch.float32)
    cache.declare("foo", 3, torch.float32)
    rows = torch.rand((8, 3))
    write(cache, {"foo": rows}, SLOTS)
    assert torch.equal(rows_at(cache, "foo"), rows)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="must have 2 or 2 rows"):
            write(cache, {"foo": rows[:3]}, torch.tensor([30, 31]))
    assert cache.mm_cache_keys == {"foo"}


@pytest.mark.parametrize(("width", "dtype"), [(2, torch.float32), (3, torch.float16), (0, torch.float32)])
def test_a_key_cannot_be_declared_otherwise(width: int, dtype: torch.dtype) -> None:
    cache = make_cache()
    cache.declare("foo", 3, torch.float32)
    with pytest.raises(InvalidRequest, match="foo"):
        cache.declare("foo", width, dtype)
    assert cache.mm_outputs_cache["foo"].shape[-1] == 3


def test_declaring_keeps_the_rows_of_an_undecided_output_and_takes_a_refused_one_back() -> None:
    cache = make_cache()
    rows = torch.rand((4, 3))
    write(cache, {"foo": rows}, SLOTS[:4])
    cache.declare("foo", 3, torch.float32)
    assert torch.equal(rows_at(cache, "foo", SLOTS[:4]), rows)
    assert cache.stats().written_bytes == 4 * 3 * 4
    write(cache, {"voice": torch.ones((4, 3))}, SLOTS[:4])
    write(cache, {"voice": torch.ones((4, 3))}, SLOTS[:5])
    cache.declare("voice", 3, torch.float32)
    write(cache, {"voice": torch.ones((2, 3))}, SLOTS[:2])
    assert cache.stats().written_bytes == 2 * 3 * 4


def test_a_name_among_the_deferred_makes_a_key() -> None:
    cache = make_cache()
    rows = torch.ones((4, 3))
    cache.update_omni_tensor_prefix_cache(None, {"codes": rows}, 4, SLOTS[:4], skip_mm_cache_keys={"codes"})
    assert cache.mm_cache_keys == {"codes"}
    assert cache.stats().written_bytes == 0
    cache.stage_deferred_mm_outputs([0], batch([0], [TABLE[0]]), {"other": rows}, {"req1": 4}, {"other"})
    assert cache.mm_cache_keys == {"codes", "other"}


def test_only_rows_of_one_dimension_become_keys() -> None:
    cache = make_cache(discover="first")
    made = {
        "cube": torch.ones((8, 2, 2)),
        "line": torch.ones(8),
        "constant": torch.ones((3, 2)),
        "nothing": torch.ones((8, 0)),
        "list": [1],
        "none": None,
    }
    write(cache, made, SLOTS)
    assert cache.mm_cache_keys == set()


def test_with_the_first_length_a_constant_becomes_a_key_and_every_other_step_an_error() -> None:
    cache = make_cache(discover="first")
    write(cache, {"voice": torch.ones((4, 3))}, SLOTS[:4])
    assert cache.mm_cache_keys == {"voice"}
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="voice"):
            write(cache, {"voice": torch.ones((4, 3))}, SLOTS)
    assert cache.mm_cache_keys == {"voice"}


def test_looking_for_keys_by_hand_counts_as_a_step() -> None:
    cache = make_cache()
    cache.maybe_init_missing_mm_cache_keys({"foo": torch.ones((4, 3))}, 4)
    assert cache.mm_cache_keys == set()
    cache.maybe_init_missing_mm_cache_keys({"foo": torch.ones((6, 3))}, 6)
    assert cache.mm_cache_keys == {"foo"}
