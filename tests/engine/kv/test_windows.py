"""One sliding window: what it looks for, and what it leaves behind.

Figures of vLLM 0.33's tests (ST12, ST15, ST17, ST20, M3).
"""

from __future__ import annotations

import pytest

from tests.engine.builders import generate
from tests.engine.kv.builders import (
    NULL,
    Spec,
    admit_to_groups,
    books,
    ids,
    manager_of,
    num_hit_tokens,
    plant,
    ref_counts,
    run,
    tables,
    with_tail,
)


@pytest.mark.parametrize(
    ("spec", "pattern", "num_blocks_needed"), [(2, "T" * 10, 20), ((2, 11), "FFFFFTTTTT", 15)], ids=str
)
def test_free_blocks_of_the_hit_count_as_much_as_new_ones(spec: Spec, pattern: str, num_blocks_needed: int) -> None:
    for num_spare in (0, -1):
        manager = manager_of(1 + num_blocks_needed + num_spare, spec)
        request = generate(0, 40)
        plant(manager, request, pattern)
        hit, num_hit = manager.get_computed_blocks(request)
        assert num_hit == 20
        before = books(manager)
        if num_spare < 0:
            assert manager.allocate_slots(request, 20, num_hit, hit) is None
            assert books(manager) == before
        else:
            assert len(ids(manager.allocate_slots(request, 20, num_hit, hit))) == 10
            assert manager.block_pool.num_free == 0


# ---- what is left behind


LEFT_BEHIND = [(0, 0), (4, 0), (5, 1), (6, 1), (7, 2), (11, 4)]  # tokens computed, blocks of no use since then


@pytest.mark.parametrize(("num_computed", "num_null"), LEFT_BEHIND)
def test_it_goes_back_in_one_go_too_and_is_the_next_to_be_used(num_computed: int, num_null: int) -> None:
    manager = manager_of(20, (2, 4), enable_caching=False)
    request = generate(0, 30)
    if num_computed:
        run(manager, request, num_computed)
    num_held = -(-num_computed // 2)
    assert ids(manager.allocate_slots(request, 13))[:num_null] == list(range(num_null, 0, -1))
    assert manager.get_block_ids(0)[0][:num_held] == [NULL] * num_null + list(range(num_null + 1, num_held + 1))


@pytest.mark.parametrize("enable_caching", [True, False])
@pytest.mark.parametrize("window", [1, 2, 4, 5, 6, 9, 13])
def test_a_window_moves_on_token_by_token(window: int, enable_caching: bool) -> None:
    """Also where no block becomes full and none is missing, as behind slots for a drafter."""
    manager = manager_of(20, (4, window), enable_caching=enable_caching)
    request = generate(0, 1)
    for num_computed in range(40):
        assert manager.allocate_slots(request, 1, num_lookahead_tokens=20) is not None
        (table,) = manager.get_block_ids(0)
        assert [block_id == NULL for block_id in table].index(False) == max(0, num_computed + 1 - window) // 4
        request.num_computed_tokens += 1
        request.append_output_token(num_computed)


def test_a_window_moves_on_even_if_the_call_is_refused() -> None:
    manager = manager_of(9, 2, (2, 4))
    request = generate(0, 20)
    manager.allocate_slots(request, 8)
    request.num_computed_tokens = 8
    before = manager.get_block_ids(0)
    assert manager.allocate_slots(request, 4) is None
    assert manager.get_block_ids(0) == (before[0], [NULL, NULL, *before[1][2:]])
    assert manager.block_pool.free_order() == [before[1][1], before[1][0]]
    after = books(manager)
    assert manager.allocate_slots(request, 4) is None
    assert books(manager) == after
    assert [len(new) for new in tables(manager.allocate_slots(request, 2))] == [1, 1]


def test_what_a_window_has_left_behind_cannot_be_published_any_more() -> None:
    manager = manager_of(20, (2, 4))
    request = generate(0, 30)
    for num_computed, num_tokens in ((0, 8), (8, 2)):
        request.num_computed_tokens = num_computed
        assert manager.allocate_slots(request, num_tokens, delay_cache_blocks=True) is not None
    manager.cache_blocks(request, 10)
    (table,) = manager.get_block_ids(0)
    assert table[:2] == [NULL, NULL]
    assert [manager.block_pool.block_key(block_id) for block_id in table] == [None, None, *request.block_hashes[2:5]]
    assert num_hit_tokens(manager, generate(0, 30)) == 10


def test_what_one_window_has_left_behind_stays_with_other_holders() -> None:
    manager = manager_of(20, 16, (16, 32))
    first, second = with_tail(0, 7), with_tail(1, 60)
    admit_to_groups(manager, first)
    hit, num_hit = manager.get_computed_blocks(second)
    assert tables(hit) == ([1, 2, 3], [NULL, 6, 7])
    manager.allocate_slots(second, 32, num_hit, hit)
    second.num_computed_tokens = 80
    assert ref_counts(manager, [6, 7]) == [2, 2]
    manager.allocate_slots(second, 1)
    full, window = manager.get_block_ids(1)
    assert full[:3] == [1, 2, 3]
    assert window[:3] == [NULL] * 3
    assert ref_counts(manager, [6, 7]) == [1, 1]
    assert num_hit_tokens(manager, with_tail(2, 5)) == 48
