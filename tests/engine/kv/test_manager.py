"""Looking into the manager's books, and the check of these. What its methods do is tested in modules of their own:

test_prefill     one group, the figures of vLLM's tests     test_steps      reserve, commit, publish, withdraw
test_slots       the token axis                             test_sharing    who counts on a step
test_refusals    what is refused                            test_fences     until when a step's blocks are in use
test_groups      hits of several groups                     test_epochs     everything is forgotten at once
test_windows     one sliding window                         test_memo       who is refused asks again
test_hash_cases  who shares with whom

The rest of what the published class promises is tested in `tests/compat/kv_cache_manager`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mmcached.engine import KVCacheManager
from mmcached.wire.errors import InvariantError
from mmcached.wire.stats import KVCacheStats
from tests.engine.builders import generate
from tests.engine.kv.builders import admit, admit_to_groups, manager_of, with_tail


def test_holders_are_those_with_blocks() -> None:
    manager = manager_of(11)
    requests = [generate(i, 20) for i in range(3)]
    for request in requests:
        admit(manager, request)
    manager.free(requests[1])
    assert manager.holders() == {0, 2}
    assert manager.allocate_slots(generate(3, 160), 160) is None
    manager.holders().clear()
    assert manager.holders() == {0, 2}


def test_stats_count_first_admissions_of_those_who_read() -> None:
    manager = manager_of(11)
    request = with_tail(0, 7)
    admit(manager, request)
    manager.free(request)
    request.was_admitted = True
    request.num_computed_tokens = 0
    admit(manager, request)
    admit(manager, with_tail(1, 7, skip_reading_prefix_cache=True))
    manager.free(request)
    admit(manager, with_tail(2, 5))
    assert manager.stats() == KVCacheStats(queries=108, hits=48, blocks_used=8, blocks_cached=6, blocks_total=10)


def in_use() -> KVCacheManager:
    """Return a manager with two groups: one request that holds blocks, published ones of a freed one, a step."""
    manager = manager_of(30, 16, (16, 32))
    held, freed = with_tail(0, 7), generate(1, 40)
    admit_to_groups(manager, freed)
    manager.free(freed)
    admit_to_groups(manager, held)
    manager.begin_step(0)
    manager.allocate_slots(generate(2, 20), 20)
    manager.check_integrity()
    return manager


def lose_a_block(manager: KVCacheManager) -> None:
    manager.block_pool.get_new_blocks(1)


def free_a_held_block(manager: KVCacheManager) -> None:
    manager.block_pool.free_blocks(manager.get_block_ids(0)[0][-1:])


def share_a_block_with_nobody(manager: KVCacheManager) -> None:
    manager.block_pool.touch(manager.get_block_ids(0)[0][:1])


def publish_behind_its_back(manager: KVCacheManager) -> None:
    manager.block_pool.publish(manager.get_block_ids(0)[0][-1:], [bytes(32)])


def publish_what_is_reserved(manager: KVCacheManager) -> None:
    """As the mistake does that this manager exists to prevent: content is found before it is computed."""
    manager.block_pool.publish(manager.get_block_ids(2)[0][-1:], [bytes(32)])


def forget_content_of_holders(manager: KVCacheManager) -> None:
    manager.block_pool.unpublish_all()


BREAKS = [
    lose_a_block,
    free_a_held_block,
    share_a_block_with_nobody,
    publish_behind_its_back,
    publish_what_is_reserved,
    forget_content_of_holders,
]


@pytest.mark.parametrize("break_books", BREAKS, ids=lambda each: each.__name__)
def test_the_check_finds_books_that_contradict_each_other(break_books: Callable[[KVCacheManager], None]) -> None:
    manager = in_use()
    break_books(manager)
    with pytest.raises(InvariantError):
        manager.check_integrity()
