"""One transfer for each output of a step. Without a device, host memory is declared to be one."""

from __future__ import annotations

import pytest
import torch

from mmcached.worker.omni import host_copies
from tests.worker.omni.cases import HIDDEN, HIT_AND_MISS, SCHEDULED, STARTS, hit, outputs, with_keys

OWN = torch.tensor([16, 17, 18, 24, 25])


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each transfer from the device that all memory is taken for."""
    made: list[int] = []

    def transfer(rows: torch.Tensor) -> torch.Tensor:
        made.append(len(rows))
        return rows.clone()

    monkeypatch.setattr(host_copies, "_is_on_host", lambda rows: False)
    monkeypatch.setattr(host_copies, "_to_host", transfer)
    return made


def test_writing_and_merging_share_one_transfer_for_each_output(transfers: list[int]) -> None:
    cache = with_keys({"foo": 3})
    hidden, made = torch.rand((8, HIDDEN)), outputs({"foo": 3}, 8)
    hit(cache, "nobody")
    cache.update_omni_tensor_prefix_cache(hidden, made, 5, OWN, 8)
    found = cache.get_merged_hidden_states(STARTS, HIT_AND_MISS, hidden[:5], SCHEDULED)
    cache.get_merged_multimodal_states(STARTS, HIT_AND_MISS, made, SCHEDULED)
    assert transfers == [5, 5]
    assert torch.equal(found["req2"], hidden[3:5])


def test_a_buffer_that_is_filled_again_is_copied_again(transfers: list[int]) -> None:
    cache = with_keys({})
    buffer = torch.zeros((5, HIDDEN))
    cache.update_omni_tensor_prefix_cache(buffer, None, 5, OWN)
    buffer.fill_(3)
    assert cache.get_merged_hidden_states(STARTS, HIT_AND_MISS, buffer, SCHEDULED)["req1"].eq(3).all()
    assert len(transfers) == 2


def test_the_next_step_copies_again_even_what_torch_has_not_seen_change(transfers: list[int]) -> None:
    cache = with_keys({})
    with torch.inference_mode():  # writes are not counted in it, as they are not by a replayed graph
        buffer = torch.zeros((5, HIDDEN))
        cache.update_omni_tensor_prefix_cache(buffer, None, 5, OWN)
        buffer.fill_(3)
        hit(cache, "nobody")
        assert cache.get_merged_hidden_states(STARTS, HIT_AND_MISS, buffer, SCHEDULED)["req1"].eq(3).all()
        buffer.fill_(4)
        assert cache.get_merged_hidden_states(STARTS, HIT_AND_MISS, buffer, SCHEDULED)["req1"].eq(4).all()


@pytest.mark.parametrize("other", [torch.ones((5, HIDDEN)), torch.ones((5, 2 * HIDDEN))[:, :HIDDEN]])
def test_another_tensor_is_copied_for_itself(transfers: list[int], other: torch.Tensor) -> None:
    cache = with_keys({})
    cache.update_omni_tensor_prefix_cache(torch.zeros((5, HIDDEN)), None, 5, OWN)
    assert cache.get_merged_hidden_states(STARTS, HIT_AND_MISS, other, SCHEDULED)["req1"].eq(1).all()


def test_more_rows_than_were_copied_are_copied_again(transfers: list[int]) -> None:
    cache = with_keys({})
    rows = torch.rand((5, HIDDEN))
    cache.update_omni_tensor_prefix_cache(rows, None, 3, OWN[:3])
    merged = cache.get_merged_hidden_states(STARTS, HIT_AND_MISS, rows, SCHEDULED)
    assert torch.equal(merged["req2"], rows[3:])
    assert transfers == [3, 5]


def test_a_copy_that_the_engine_has_made_saves_both() -> None:
    cache = with_keys({})
    never = torch.empty((5, HIDDEN), device="meta")  # cannot be read at all
    staged = torch.rand((5, HIDDEN))
    cache.update_omni_tensor_prefix_cache(never, None, 5, OWN, hidden_states_cpu=staged)
    merged = cache.get_merged_hidden_states(STARTS, HIT_AND_MISS, never, SCHEDULED, staged)
    assert torch.equal(merged["req1"], staged[:3])
