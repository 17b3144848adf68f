"""Each output of a step leaves its device once. Without a device, host memory is declared to be one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.compat.omni_tensor_prefix_cache.cases import (
    HIDDEN,
    HIT_AND_MISS,
    SCHEDULED,
    STARTS,
    hit,
    make_cache,
    outputs,
    with_keys,
)
from tests.worker.hidden_states.by_content.delayed_transfer import DelayedCopy, DelayedTransfer

OWN = torch.tensor([16, 17, 18, 24, 25])


class Device(DelayedTransfer):
    """Notes how many rows each copy has."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[list[int]] = []

    def start(self, tensors: Sequence[torch.Tensor]) -> DelayedCopy:
        self.copies.append([len(rows) for rows in tensors])
        return super().start(tensors)


@pytest.fixture
def device() -> Device:
    return Device()


def test_a_step_is_one_copy_that_only_merging_waits_for(device: Device) -> None:
    cache = with_keys({"foo": 3, "bar": 2}, device=device)
    hidden, made = torch.rand((8, HIDDEN)), outputs({"foo": 3, "bar": 2}, 8)
    hit(cache, "nobody")
    cache.update_omni_tensor_prefix_cache(hidden, made, 5, OWN, 8)
    assert (device.copies, len(device.open_copies)) == ([[5, 5, 5]], 1)
    found = cache.get_merged_hidden_states(STARTS, HIT_AND_MISS, hidden[:5], SCHEDULED)
    merged: dict[str, Any] = cache.get_merged_multimodal_states(STARTS, HIT_AND_MISS, made, SCHEDULED)
    assert (device.copies, device.open_copies) == ([[5, 5, 5]], [])
    assert torch.equal(found["req2"], hidden[3:5])
    assert torch.equal(merged["foo"]["req2"], made["foo"][3:5])
    cache.check_integrity()


def test_a_buffer_that_is_filled_again_is_copied_again(device: Device) -> None:
    cache = make_cache(transfer_for=lambda *_: device)
    buffer = torch.zeros((5, HIDDEN))
    cache.update_omni_tensor_prefix_cache(buffer, None, 5, OWN)
    buffer.fill_(3)
    assert cache.get_merged_hidden_states(STARTS, HIT_AND_MISS, buffer, SCHEDULED)["req1"].eq(3).all()


def test_the_next_step_copies_again_even_what_torch_has_not_seen_change(device: Device) -> None:
    cache = make_cache(transfer_for=lambda *_: device)
    with torch.inference_mode():  # writes are not counted in it, as they are not by a replayed graph
        buffer = torch.zeros((5, HIDDEN))
        cache.update_omni_tensor_prefix_cache(buffer, None, 5, OWN)
        buffer.fill_(3)
        hit(cache, "nobody")
        assert cache.get_merged_hidden_states(STARTS, HIT_AND_MISS, buffer, SCHEDULED)["req1"].eq(3).all()
        buffer.fill_(4)
        assert cache.get_merged_hidden_states(STARTS, HIT_AND_MISS, buffer, SCHEDULED)["req1"].eq(4).all()


@pytest.mark.parametrize("other", [torch.ones((5, HIDDEN)), torch.ones((5, 2 * HIDDEN))[:, :HIDDEN]])
def test_another_tensor_is_copied_for_itself(device: Device, other: torch.Tensor) -> None:
    cache = make_cache(transfer_for=lambda *_: device)
    cache.update_omni_tensor_prefix_cache(torch.zeros((5, HIDDEN)), None, 5, OWN)
    assert cache.get_merged_hidden_states(STARTS, HIT_AND_MISS, other, SCHEDULED)["req1"].eq(1).all()


def test_more_rows_than_were_copied_are_copied_again(device: Device) -> None:
    cache = make_cache(transfer_for=lambda *_: device)
    rows = torch.rand((5, HIDDEN))
    cache.update_omni_tensor_prefix_cache(rows, None, 3, OWN[:3])
    merged = cache.get_merged_hidden_states(STARTS, HIT_AND_MISS, rows, SCHEDULED)
    assert torch.equal(merged["req2"], rows[3:])


def test_slots_that_are_forgotten_in_the_step_cost_its_own_rows_nothing(device: Device) -> None:
    cache = make_cache(transfer_for=lambda *_: device)
    rows = torch.rand((5, HIDDEN))
    cache.update_omni_tensor_prefix_cache(rows, None, 5, OWN)
    cache.forget_slots(OWN[:2])
    assert torch.equal(cache.get_merged_hidden_states(STARTS, HIT_AND_MISS, rows, SCHEDULED)["req1"], rows[:3])


def test_a_copy_that_the_engine_has_made_saves_ours() -> None:
    cache = with_keys({})
    never = torch.empty((5, HIDDEN), device="meta")  # cannot be read at all
    staged = torch.rand((5, HIDDEN))
    cache.update_omni_tensor_prefix_cache(never, None, 5, OWN, hidden_states_cpu=staged)
    merged = cache.get_merged_hidden_states(STARTS, HIT_AND_MISS, never, SCHEDULED, staged)
    assert torch.equal(merged["req1"], staged[:3])
