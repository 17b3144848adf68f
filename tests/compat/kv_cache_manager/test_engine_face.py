"""What an engine with a scheduler of its own asks for: failed loads, blocks by id, tables as arrays, saved managers."""

from __future__ import annotations

import pickle  # noqa: TID251 (a manager is saved by its owner, and read by nobody else)
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mmcached.compat.kv_cache_manager import PrefixCacheStats
from mmcached.engine import Feature, KVCacheBlocks, KVEvent, LoraKey
from mmcached.wire.errors import LocalProtocolError
from tests.engine.builders import generate
from tests.engine.kv.builders import admit, admit_to_groups, books, manager_of, num_hit_tokens, tables

BLOCK = 4


def test_what_a_request_is_made_of_is_exported() -> None:
    assert all(isinstance(each, type) for each in (Feature, LoraKey, PrefixCacheStats))
    assert KVEvent is not None


# ---- blocks whose load has failed


def test_a_failed_load_is_found_by_nobody_and_computed_again() -> None:
    manager, request = manager_of(20, BLOCK), generate(0, range(17))
    manager.allocate_slots(request, 5, num_external_computed_tokens=12)
    request.num_computed_tokens = 17
    assert num_hit_tokens(manager, generate(1, range(17))) == 16
    assert manager.evict_blocks({2}) == [0]
    assert num_hit_tokens(manager, generate(1, range(17))) == 4
    manager.check_integrity()
    request.num_computed_tokens = 4
    for num_tokens, num_found in ((4, 8), (9, 16)):
        manager.allocate_slots(request, num_tokens)
        request.num_computed_tokens += num_tokens
        assert num_hit_tokens(manager, generate(1, range(17))) == num_found
    manager.check_integrity()


def test_those_who_share_what_was_computed_from_it_are_told_too() -> None:
    manager = manager_of(40, BLOCK)
    first, second, stranger = generate(0, range(12)), generate(1, range(17)), generate(2, 9)
    for request in (first, second, stranger):
        admit(manager, request)
    assert sorted(manager.evict_blocks([manager.get_block_ids(0)[0][1]])) == [0, 1]
    assert num_hit_tokens(manager, generate(3, range(17))) == 4
    assert num_hit_tokens(manager, generate(4, stranger.token_ids)) == 8
    manager.check_integrity()


def test_free_blocks_lose_their_content_and_are_handed_out_next() -> None:
    manager = manager_of(20, BLOCK, enable_kv_cache_events=True)
    request = generate(0, range(12))
    _, new = admit(manager, request)
    manager.free(request)
    manager.take_events()
    assert manager.evict_blocks([new[0], new[0], 0]) == []
    assert manager.block_pool.free_order()[0] == new[0]
    (event,) = manager.take_events()
    assert getattr(event, "block_hashes", None) == [request.block_hashes[0]]
    assert num_hit_tokens(manager, generate(1, range(12))) == 0
    manager.check_integrity()


@pytest.mark.parametrize("policy", ["lru", "segmented_lru"])
def test_blocks_of_all_groups_go_from_that_token_on(policy: str) -> None:
    manager = manager_of(60, 8, (2, 8), eviction_policy=policy)
    request = generate(0, range(33))
    admit_to_groups(manager, request)
    assert manager.evict_blocks([manager.get_block_ids(0)[1][9]]) == [0]  # tokens 18 and 19
    assert num_hit_tokens(manager, generate(1, range(33))) == 16
    manager.check_integrity()
    manager.free(request)
    manager.check_integrity()


def test_not_while_steps_are_in_flight_and_no_block_that_is_none() -> None:
    manager, request = manager_of(20, BLOCK), generate(0, range(9))
    manager.begin_step(1)
    admit(manager, request)
    before = books(manager)
    with pytest.raises(LocalProtocolError, match="steps are in flight"):
        manager.evict_blocks([1])
    manager.commit(1)
    with pytest.raises(ValueError, match="block 20: there are 20"):
        manager.evict_blocks([1, 20])
    assert books(manager)["tables"] == before["tables"]
    assert num_hit_tokens(manager, generate(1, range(9))) == 8


# ---- questions


@pytest.mark.parametrize("num_running", [0, 1])
def test_what_a_call_takes_is_known_before(num_running: int) -> None:
    manager = manager_of(60, 8, (4, 9))
    known, request = generate(0, range(40)), generate(1, range(50))
    admit_to_groups(manager, known)
    if not num_running:
        manager.free(known)
    hit, num_hit = manager.get_computed_blocks(request)
    assert num_hit == 40
    options: Any = {"num_lookahead_tokens": 3, "num_external_computed_tokens": 4}
    before, num_free = books(manager), manager.block_pool.num_free
    num_taken = manager.num_blocks_to_allocate(request, 6, num_hit, hit, **options)
    assert books(manager) == before
    manager.allocate_slots(request, 6, num_hit, hit, **options)
    assert num_free - manager.block_pool.num_free == num_taken
    request.num_computed_tokens = 44
    num_free, num_taken = manager.block_pool.num_free, manager.num_blocks_to_allocate(request, 20)
    manager.remove_skipped_blocks(request, 44)
    num_given_back = manager.block_pool.num_free - num_free
    manager.allocate_slots(request, 20)
    assert manager.block_pool.num_free == num_free + num_given_back - num_taken
    manager.check_integrity()


def test_windows_move_on_when_told() -> None:
    manager, request = manager_of(20, (4, 5)), generate(0, 16)
    manager.allocate_slots(request, 16)
    manager.remove_skipped_blocks(request, 12)
    assert manager.get_block_ids(0) == ([0, 0, 3, 4],)
    manager.remove_skipped_blocks(generate(1, 9), 9)
    manager.check_integrity()


def test_windows_wait_for_tokens_that_are_still_being_computed() -> None:
    manager, request = manager_of(20, (4, 5)), generate(0, 40)
    manager.allocate_slots(request, 16)
    request.num_computed_tokens = 16
    manager.allocate_slots(request, 4, num_in_flight_tokens=8)
    assert manager.get_block_ids(0) == ([0, 2, 3, 4, 5],), "8 tokens are done, and the next ones need tokens 4 to 7"
    request.num_computed_tokens = 20
    manager.allocate_slots(request, 4)
    assert manager.get_block_ids(0)[0][:4] == [0, 0, 0, 0]
    with pytest.raises(ValueError, match="num_in_flight_tokens = -1"):
        manager.allocate_slots(request, 4, num_in_flight_tokens=-1)
    manager.check_integrity()


def test_blocks_by_request_and_by_id() -> None:
    manager = manager_of(20, 8, (4, 9))
    admit_to_groups(manager, generate(0, 20))
    blocks = manager.get_blocks(0)
    assert isinstance(blocks, KVCacheBlocks)
    assert manager.blocks_of(tables(blocks)) == blocks
    assert manager.get_blocks(7).get_block_ids() == ([], [])
    for wrong, named in (([[1]], "1 group"), ([[1], [20]], "block 20")):
        with pytest.raises(ValueError, match=named):
            manager.blocks_of(wrong)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_table_is_written_into_the_row_of_a_batch(dtype: type) -> None:
    manager = manager_of(20, BLOCK)
    admit(manager, generate(0, 9))
    batch: npt.NDArray[Any] = np.full((2, 5), 99, dtype)
    assert manager.write_block_table(0, batch[1]) == 3
    assert batch.tolist() == [[99] * 5, [1, 2, 3, 0, 0]]
    with pytest.raises(ValueError, match="room for 2 blocks, request 0 has 3"):
        manager.write_block_table(0, batch[0, :2])


# ---- saved and restored


@pytest.mark.parametrize("policy", ["lru", "segmented_lru"])
def test_a_manager_goes_on_where_it_was_saved(policy: str) -> None:
    manager = manager_of(40, 8, (4, 9), enable_kv_cache_events=True, log_stats=True, eviction_policy=policy)
    first, second = generate(0, range(30)), generate(1, range(40))
    admit_to_groups(manager, first)
    manager.begin_step(1)
    admit_to_groups(manager, second)
    copy, (first_copy, second_copy) = pickle.loads(pickle.dumps((manager, (first, second))))  # noqa: S301
    for each, requests in ((manager, (first, second)), (copy, (first_copy, second_copy))):
        each.commit(1)
        for request in requests:
            each.free(request)
        each.check_integrity()
    assert books(copy) == books(manager)
    assert copy.take_events() == manager.take_events()
    assert num_hit_tokens(copy, generate(2, range(40))) == num_hit_tokens(manager, generate(2, range(40))) == 32
