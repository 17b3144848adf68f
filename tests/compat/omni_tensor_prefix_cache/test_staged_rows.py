"""Rows that wait on their device: owned, at their true positions, and found by hits all the time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmcached.wire.errors import InvalidRequest
from mmcached.worker import MissingRows, OmniTensorPrefixCache
from tests.compat.omni_tensor_prefix_cache.cases import HIDDEN, SLOTS, TABLE, batch, hit, make_cache, rows_at, with_keys
from tests.worker.hidden_states.by_content.delayed_transfer import DelayedTransfer

CODES = "codes.audio"


def numbers(first: int, count: int) -> torch.Tensor:
    """Rows whose value is their position plus one."""
    return torch.arange(first + 1, first + count + 1).view(-1, 1).expand(-1, 2).clone()


def step(
    cache: OmniTensorPrefixCache, computed: int, rows: torch.Tensor, *, writes: bool = True, table: Any = (2, 3, 4, 5)
) -> Any:
    """Play one step of `req1`: its slots are written, its codes staged. Return its batch."""
    blocks = list(table)
    slots = [blocks[at // 4] * 4 + at % 4 for at in range(computed, computed + len(rows))]
    now = batch([computed], [blocks])
    if writes:
        cache.reset_prefix_cached_new_req_ids()
        cache.update_omni_tensor_prefix_cache(None, {CODES: rows}, len(rows), torch.tensor(slots), None, {CODES})
    cache.stage_deferred_mm_outputs([0], now, {CODES: rows}, {"req1": len(rows)}, {CODES})
    return now


def prefix_of(cache: OmniTensorPrefixCache, num_rows: int, table: Any = (2, 3, 4, 5)) -> list[int]:
    """Return what a request with this hit gets of the codes."""
    hit(cache, "other")
    merged: dict[str, Any] = cache.get_merged_multimodal_states(
        [0], batch([num_rows], [list(table)], ["other"]), {CODES: torch.tensor([[0, 0]])}, {"other": 1}
    )
    values: list[int] = merged[CODES]["other"][:-1, 0].tolist()
    return values


@pytest.mark.parametrize("writes", [True, False])
def test_chunks_and_decode_steps_land_at_their_positions(writes: bool) -> None:
    cache = make_cache()
    for computed, count in [(0, 4), (4, 4), (8, 4), (12, 1), (13, 1), (14, 1)]:
        ended = step(cache, computed, numbers(computed, count), writes=writes)
    assert cache.stats().deferred_rows == 15
    assert cache.stats().written_bytes == 0
    cache.commit_deferred_mm_outputs({"req1"}, ended)
    assert prefix_of(cache, 15) == list(range(1, 16))
    assert cache.stats().deferred_rows == 0


def test_the_number_after_the_step_is_refused_where_the_slots_tell() -> None:
    cache = with_keys({CODES: 2}, torch.int64)
    cache.update_omni_tensor_prefix_cache(None, {}, 4, SLOTS[:4])
    after = batch([4], [TABLE[0]])
    with pytest.raises(InvalidRequest, match="position 4 of req1 has slot 12, the step has written 8") as caught:
        cache.stage_deferred_mm_outputs([0], after, {CODES: numbers(0, 4)}, {"req1": 4}, {CODES})
    assert caught.value.details["field"] == "num_computed_tokens_cpu"
    assert cache.stats().deferred_rows == 0


def test_a_gap_is_refused_and_the_others_are_staged() -> None:
    cache = with_keys({CODES: 2}, torch.int64)
    rows = numbers(0, 4)
    cache.stage_deferred_mm_outputs([0, 2], batch([0, 0], TABLE), {CODES: rows}, {"req1": 2, "req2": 2}, {CODES})
    gap = batch([3, 2], TABLE)
    with pytest.raises(InvalidRequest, match="rows of req1 go on at 2"):
        cache.stage_deferred_mm_outputs([0, 2], gap, {CODES: rows}, {"req1": 2, "req2": 2}, {CODES})
    assert cache.stats().deferred_rows == 4 + 2


def test_a_resumed_request_may_go_on_behind_a_hit() -> None:
    cache = make_cache()
    step(cache, 0, numbers(0, 4), writes=False)
    hit(cache)
    ended = batch([8], [TABLE[0]])
    cache.stage_deferred_mm_outputs([0], ended, {CODES: numbers(8, 2)}, {"req1": 2}, {CODES})
    cache.commit_deferred_mm_outputs(["req1"], ended)
    assert rows_at(cache, CODES, SLOTS[:4])[:, 0].tolist() == [1, 2, 3, 4]
    assert rows_at(cache, CODES, torch.tensor([16, 17]))[:, 0].tolist() == [9, 10]
    with pytest.raises(MissingRows) as caught:
        prefix_of(cache, 10)
    assert (caught.value.details["first"], caught.value.details["end"]) == (4, 8)


def test_where_the_slots_are_known_a_request_may_begin_anywhere() -> None:
    cache = make_cache()
    step(cache, 0, numbers(0, 4))
    cache.commit_deferred_mm_outputs(["nobody"], step(cache, 8, numbers(8, 2)))
    with pytest.raises(MissingRows) as caught:
        prefix_of(cache, 10)
    assert (caught.value.details["first"], caught.value.details["end"]) == (4, 8)


def test_steps_that_lack_the_key_are_no_gap_but_missing() -> None:
    cache = with_keys({CODES: 2}, torch.int64)
    step(cache, 0, numbers(0, 2), writes=False)
    for outputs in ({}, None, {CODES: "words"}):
        at = batch([2], [TABLE[0]])
        cache.stage_deferred_mm_outputs([0], at, outputs, {"req1": 2}, {CODES})
    cache.commit_deferred_mm_outputs(["req1"], step(cache, 4, numbers(4, 2), writes=False))
    with pytest.raises(MissingRows) as caught:
        prefix_of(cache, 6)
    assert (caught.value.details["first"], caught.value.details["end"]) == (2, 4)


def test_rejected_drafts_are_replaced() -> None:
    cache = make_cache()
    step(cache, 0, numbers(0, 6))
    step(cache, 3, numbers(103, 2))
    cache.commit_deferred_mm_outputs(["req1"], step(cache, 5, numbers(205, 1)))
    assert prefix_of(cache, 6) == [1, 2, 3, 104, 105, 206]


@pytest.mark.parametrize("order", [["req1", "req2"], ["req2", "req1"]])
def test_of_two_that_end_together_the_later_rows_of_a_slot_win(order: list[str]) -> None:
    cache = with_keys({CODES: 2}, torch.int64)
    same = batch([0, 0], [TABLE[0], TABLE[0]])
    cache.stage_deferred_mm_outputs([0, 4], same, {CODES: numbers(0, 4)}, {"req1": 4}, {CODES})
    cache.stage_deferred_mm_outputs([0, 0], same, {CODES: numbers(10, 2)}, {"req2": 2}, {CODES})
    cache.commit_deferred_mm_outputs(order, same)
    assert prefix_of(cache, 4) == [11, 12, 3, 4]


def test_rows_of_a_request_that_runs_are_found_by_a_step_that_lacks_the_key() -> None:
    cache = make_cache()
    step(cache, 0, numbers(0, 8))
    hit(cache, "other")
    now = batch([8], [TABLE[0]], ["other"])
    merged: dict[str, Any] = cache.get_merged_multimodal_states([0], now, {}, {"other": 1})
    assert merged[CODES]["other"][:, 0].tolist() == list(range(1, 9))


def test_discarded_rows_leave_those_that_another_has_staged_for_their_slots() -> None:
    cache = with_keys({CODES: 2}, torch.int64)
    same = batch([0, 0], [TABLE[0], TABLE[0]])
    cache.stage_deferred_mm_outputs([0, 4], same, {CODES: numbers(0, 4)}, {"req1": 4}, {CODES})
    cache.stage_deferred_mm_outputs([0, 0], same, {CODES: numbers(10, 2)}, {"req2": 2}, {CODES})
    cache.discard_deferred_mm_outputs("req1")
    assert prefix_of(cache, 2) == [11, 12]
    assert cache.stats().written_bytes == 2 * 2 * 8


def test_rows_beyond_the_block_table_are_refused_and_the_others_staged() -> None:
    cache = with_keys({CODES: 2}, torch.int64)
    two = batch([14, 0], TABLE)
    with pytest.raises(InvalidRequest, match="block table of req1 has 16"):
        cache.stage_deferred_mm_outputs([0, 4], two, {CODES: numbers(0, 6)}, {"req1": 4, "req2": 2}, {CODES})
    assert cache.stats().deferred_rows == 2
    cache.commit_deferred_mm_outputs(["req1", "req2"], two)
    assert rows_at(cache, CODES, torch.tensor([24, 25]))[:, 0].tolist() == [5, 6]
    assert cache.stats().written_bytes == 2 * 2 * 8


@pytest.mark.parametrize(
    ("rows", "field"),
    [
        (torch.ones((4, 3), dtype=torch.int64), f"{CODES}.shape"),
        (torch.ones((4, 1), dtype=torch.int64), f"{CODES}.shape"),
        (torch.ones((4, 2)), f"{CODES}.dtype"),
        (torch.ones((3, 2), dtype=torch.int64), CODES),
    ],
    ids=["wide", "narrow", "dtype", "short"],
)
def test_rows_that_do_not_fit_their_key_are_refused_and_other_keys_staged(rows: torch.Tensor, field: str) -> None:
    cache = with_keys({CODES: 2}, torch.int64)
    both = {CODES: rows, "other": torch.ones((4, 1))}
    with pytest.raises(InvalidRequest) as caught:
        cache.stage_deferred_mm_outputs([0], batch([0], [TABLE[0]]), both, {"req1": 4}, {CODES, "other"})
    assert caught.value.details["field"] == field
    assert cache.stats().deferred_rows == 4


def test_a_key_known_by_two_lengths_stays_one_once_it_is_deferred() -> None:
    cache = make_cache()
    for length in (3, 5):
        cache.update_omni_tensor_prefix_cache(None, {CODES: numbers(0, length)}, length, torch.arange(24, 24 + length))
    cache.reset_prefix_cached_new_req_ids()
    ended = step(cache, 0, numbers(0, 4), writes=False)
    with pytest.raises(InvalidRequest):
        cache.update_omni_tensor_prefix_cache(None, {CODES: numbers(0, 2)}, 5, torch.arange(24, 29))
    cache.commit_deferred_mm_outputs(["req1"], ended)
    assert prefix_of(cache, 4) == [1, 2, 3, 4]


def test_what_many_steps_have_staged_is_written_in_one_copy() -> None:
    device = DelayedTransfer()
    cache = OmniTensorPrefixCache(40, 4, HIDDEN, torch.float32, transfer_for=lambda *_: device)
    table = [list(range(20)), list(range(20, 40))]
    for at in range(37):
        rows = torch.cat([numbers(at, 1), numbers(100 + at, 1)])
        now = batch([at, at], table)
        both = {CODES: rows, "other": rows[:, :1].half()}
        cache.stage_deferred_mm_outputs([0, 1], now, both, {"req1": 1, "req2": 1}, {CODES, "other"})
    cache.discard_deferred_mm_outputs("req2")
    assert device.num_started == 0
    cache.commit_deferred_mm_outputs(["req1"], now)
    assert (device.num_started, len(device.open_copies)) == (1, 1), "a commit does not wait"
    with pytest.raises(MissingRows):
        prefix_of(cache, 37, range(20, 40))
    assert prefix_of(cache, 37, range(20)) == list(range(1, 38))
    assert cache.stats().written_bytes == 37 * (2 * 8 + 2)


def test_what_nobody_commits_takes_no_more_than_there_are_slots() -> None:
    """Neither on the device nor, by request, in the books."""
    cache = make_cache()
    for number in range(300):
        block = number % 10
        now = batch([0], [[block]], [f"r{number}"])
        cache.reset_prefix_cached_new_req_ids()
        cache.update_omni_tensor_prefix_cache(None, None, 4, torch.arange(4) + 4 * block)
        cache.stage_deferred_mm_outputs([0], now, {CODES: numbers(number, 4)}, {f"r{number}": 4}, {CODES})
    for block in range(10):
        assert prefix_of(cache, 4, (block,)) == [291 + block + offset for offset in range(4)]


def test_a_copy_that_cannot_begin_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    device = DelayedTransfer()
    cache = with_keys({CODES: 2}, torch.int64, device=device)
    ended = step(cache, 0, numbers(0, 8))
    with monkeypatch.context() as patch:
        patch.setattr(device, "start", lambda tensors: (_ for _ in ()).throw(RuntimeError("device")))
        with pytest.raises(RuntimeError, match="device"):
            cache.commit_deferred_mm_outputs(["req1"], ended)
    cache.commit_deferred_mm_outputs(["req1"], ended)
    assert prefix_of(cache, 8) == list(range(1, 9))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_rows_stay_on_the_device_until_the_commit() -> None:
    cache = make_cache()
    buffer = numbers(0, 8).cuda()
    ended = batch([0], [TABLE[0]])
    cache.stage_deferred_mm_outputs([0], ended, {CODES: buffer}, {"req1": 8}, {CODES})
    assert cache.stats().deferred_rows == 8
    buffer.fill_(-9)
    cache.commit_deferred_mm_outputs(["req1"], ended)
    assert prefix_of(cache, 8) == list(range(1, 9))
