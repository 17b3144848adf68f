"""The token axis of `allocate_slots`: how many slots a call gives, and how much of them it publishes.

    computed | hit | external | new, the last of them drafts | lookahead

Four tokens to a block where nothing else is said. Figures of vLLM 0.33's tests (KU22, PC15, PC60-PC63, M9).
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from mmcached.wire.errors import LocalProtocolError
from tests.engine.builders import generate
from tests.engine.kv.builders import (
    COMMON,
    NULL,
    Spec,
    admit,
    admit_to_groups,
    ids,
    manager_of,
    num_hit_tokens,
    ref_counts,
    run,
    tables,
    with_tail,
)

BLOCK = 4


MIXES: list[tuple[Spec, ...]] = [(16,), (16, (16, 64)), ((16, 48), 16, (16, 64)), (16, 16, (16, 48))]


@dataclass
class Call:
    """One call for a request that nothing was computed of, and what it gives.

    Attributes:
        num_known: tokens of the request.
        new, drafts, lookahead, external, delay, max_model_len: of the call; drafts are among the new ones.
        num_blocks: that the request holds then.
        num_published: of these.
    """

    num_known: int
    new: int
    num_blocks: int
    num_published: int
    drafts: int = 0
    lookahead: int = 0
    external: int = 0
    delay: bool = False
    max_model_len: int = 1000


CALLS = {
    "a block that is not full is not published": Call(10, new=10, num_blocks=3, num_published=2),
    "exactly full": Call(8, new=8, num_blocks=2, num_published=2),
    "a first chunk": Call(10, new=7, num_blocks=2, num_published=1),
    "lookahead takes slots": Call(3, new=3, lookahead=2, num_blocks=2, num_published=0),
    "as many as still fit take none": Call(3, new=3, lookahead=1, num_blocks=1, num_published=0),
    "lookahead to the end of a block": Call(3, new=3, lookahead=4, num_blocks=2, num_published=0),
    "lookahead is never published": Call(30, new=8, lookahead=8, num_blocks=4, num_published=2),
    "drafts take slots": Call(3, new=5, drafts=2, num_blocks=2, num_published=0),
    "drafts are never published": Call(30, new=8, drafts=1, num_blocks=2, num_published=1),
    "all but the first are drafts": Call(5, new=8, drafts=3, num_blocks=2, num_published=1),
    "nor is what nobody knows yet": Call(7, new=8, num_blocks=2, num_published=1),
    "drafts and lookahead": Call(5, new=8, drafts=3, lookahead=1, num_blocks=3, num_published=1),
    "no slots behind max_model_len": Call(10, new=10, lookahead=8, max_model_len=12, num_blocks=3, num_published=2),
    "not even one": Call(8, new=8, lookahead=4, max_model_len=8, num_blocks=2, num_published=2),
    "which may end inside a block": Call(9, new=9, lookahead=9, max_model_len=10, num_blocks=3, num_published=2),
    "nor do more tokens than that": Call(20, new=20, max_model_len=8, num_blocks=2, num_published=2),
    "drafts neither": Call(8, new=12, drafts=4, max_model_len=9, num_blocks=3, num_published=2),
    "external tokens take slots": Call(20, new=3, external=8, num_blocks=3, num_published=2),
    "and may be all": Call(20, new=0, external=8, num_blocks=2, num_published=2),
    "or end inside a block": Call(20, new=4, external=6, num_blocks=3, num_published=2),
    "they may arrive later": Call(20, new=0, external=9, delay=True, num_blocks=3, num_published=0),
    "with all that comes behind": Call(20, new=3, external=8, delay=True, num_blocks=3, num_published=0),
    "external, new, drafts, lookahead": Call(
        50, new=5, drafts=2, external=10, lookahead=3, num_blocks=5, num_published=3
    ),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_slots_and_what_is_published(call: Call) -> None:
    manager = manager_of(20, BLOCK, max_model_len=call.max_model_len)
    request = generate(0, call.num_known)
    new = manager.allocate_slots(
        request,
        call.new,
        num_draft_tokens=call.drafts,
        num_lookahead_tokens=call.lookahead,
        num_external_computed_tokens=call.external,
        delay_cache_blocks=call.delay,
    )
    assert ids(new) == list(range(1, call.num_blocks + 1))
    assert manager.get_block_ids(0) == (ids(new),)
    assert manager.block_pool.num_published == call.num_published


def test_slots_come_behind_what_was_computed_and_hit() -> None:
    manager = manager_of(20, BLOCK)
    first = generate(0, range(8))
    admit(manager, first)
    request = generate(1, range(30))
    hit, num_hit = manager.get_computed_blocks(request)
    assert num_hit == 8
    # 8 hit, 4 external, 1 new, 2 for a drafter: 15 tokens, the first 13 of them to be published as far as they are full
    new = manager.allocate_slots(
        request, 1, num_hit, hit, num_lookahead_tokens=2, num_external_computed_tokens=4, delay_cache_blocks=False
    )
    assert ids(new) == [3, 4]
    assert manager.block_pool.num_published == 3
    request.num_computed_tokens = 13
    assert run(manager, request, 3) == []
    assert manager.block_pool.num_published == 4
    assert run(manager, request, 9) == [5, 6, 7]
    assert manager.get_block_ids(1) == ([1, 2, 3, 4, 5, 6, 7],)
    assert manager.block_pool.num_published == 6


def test_guesses_that_were_refused_leave_slots_to_use() -> None:
    manager = manager_of(20, BLOCK)
    request = generate(0, 8)
    admit(manager, request)
    request.append_output_token(1)
    # The drafter's eight guesses are wrong: one token is computed, and the next calls need less than is held.
    assert ids(manager.allocate_slots(request, 9, num_draft_tokens=8)) == [3, 4, 5]
    request.num_computed_tokens = 9
    for num_drafts in (7, 3, 0):
        request.append_output_token(2)
        before = manager.get_block_ids(0)
        assert ids(manager.allocate_slots(request, 1 + num_drafts, num_draft_tokens=num_drafts)) == []
        assert manager.get_block_ids(0) == before
        request.num_computed_tokens += 1
    assert manager.block_pool.num_published == 3


def test_a_request_at_the_longest_length_gets_no_more() -> None:
    manager = manager_of(20, BLOCK, max_model_len=10)
    request = generate(0, 9)
    admit(manager, request)
    request.append_output_token(1)
    assert ids(manager.allocate_slots(request, 5, num_draft_tokens=4, num_lookahead_tokens=4)) == []
    assert manager.get_block_ids(0) == ([1, 2, 3],)


def test_a_hit_without_new_tokens_is_enough() -> None:
    manager = manager_of(20, BLOCK)
    admit(manager, generate(0, range(8)))
    request = generate(1, range(9))
    hit, num_hit = manager.get_computed_blocks(request)
    assert ids(manager.allocate_slots(request, 0, num_hit, hit)) == []
    assert manager.get_block_ids(1) == ([1, 2],)


# ---- what arrives later


def test_cache_blocks_publishes_only_what_is_full_and_new() -> None:
    manager = manager_of(5, BLOCK)
    request = generate(0, 14)
    manager.allocate_slots(request, 0, num_external_computed_tokens=14, delay_cache_blocks=True)
    for num_computed_tokens, num_published in ((0, 0), (3, 0), (8, 2), (8, 2), (4, 2), (12, 3), (14, 3), (100, 3)):
        manager.cache_blocks(request, num_computed_tokens)
        assert manager.block_pool.num_published == num_published
    assert num_hit_tokens(manager, request) == 12


def test_what_arrives_later_is_found_when_it_has() -> None:
    manager = manager_of(20, 16)
    waiting, reader = with_tail(0, 7), with_tail(1, 7)
    manager.allocate_slots(waiting, 0, num_external_computed_tokens=48, delay_cache_blocks=True)
    assert num_hit_tokens(manager, reader) == 0
    manager.cache_blocks(waiting, 48)
    assert num_hit_tokens(manager, reader) == 48
    waiting.num_computed_tokens = 48
    assert run(manager, waiting, 7) == [4]


@pytest.mark.parametrize(("num_slots", "num_tokens"), [(0, 4), (4, 8), (8, 12)])
def test_what_has_no_slots_cannot_have_arrived(num_slots: int, num_tokens: int) -> None:
    manager = manager_of(20, BLOCK)
    request = generate(0, 14)
    if num_slots:
        manager.allocate_slots(request, 0, num_external_computed_tokens=num_slots, delay_cache_blocks=True)
    with pytest.raises(LocalProtocolError, match="0"):
        manager.cache_blocks(request, num_tokens)
    assert manager.block_pool.num_published == 0


def test_what_is_no_full_block_is_left_out_wherever_its_slots_are() -> None:
    manager, request = manager_of(20, BLOCK), generate(0, 14)
    manager.cache_blocks(request, 3)
    manager.allocate_slots(request, 0, num_external_computed_tokens=8, delay_cache_blocks=True)
    manager.cache_blocks(request, 9)
    assert manager.block_pool.num_published == 2


def test_without_caching_nothing_is_published_whoever_asks() -> None:
    manager, request = manager_of(20, BLOCK, enable_caching=False), generate(0, 40)
    manager.cache_blocks(request, 40)
    manager.allocate_slots(request, 4)
    manager.cache_blocks(request, 40)
    assert manager.block_pool.num_published == 0


def test_what_windows_have_passed_when_it_arrives_takes_no_blocks() -> None:
    manager = manager_of(24, (8, 3), 8, 8)
    new = manager.allocate_slots(generate(1, 75), 3, num_external_computed_tokens=72)
    assert tables(new) == ([1, 2], [*range(3, 13)], [*range(13, 23)])
    assert manager.get_block_ids(1)[0] == [NULL] * 8 + [1, 2]
    assert manager.block_pool.num_held == 22


def test_a_hit_that_windows_have_passed_is_not_held() -> None:
    manager = manager_of(40, (8, 17), 8)
    known = generate(0, 17)
    admit_to_groups(manager, known)
    manager.free(known)
    request = generate(1, [*known.token_ids[:16], *range(64)])
    hit, num_hit = manager.get_computed_blocks(request)
    assert num_hit == 16
    manager.allocate_slots(request, 8, num_hit, hit, num_external_computed_tokens=56)
    window, full = manager.get_block_ids(1)
    assert window[:7] == [NULL] * 7
    assert NULL not in window[7:] + full
    assert tables(hit)[1] == full[:2]
    assert manager.block_pool.num_held == 3 + 10
    manager.free(request)


def test_without_caching_no_token_is_looked_at() -> None:
    manager = manager_of(20, BLOCK, enable_caching=False)
    request = generate(0, [-1] * 8)
    assert admit(manager, request) == ([], [1, 2])
    manager.new_epoch()
    request.token_ids += [-1] * 8
    assert run(manager, request, 8) == [3, 4]
    manager.cache_blocks(request, 16)
    assert request.block_hashes == []


# ---- several groups at once


@pytest.mark.parametrize("specs", MIXES, ids=str)
def test_external_blocks_take_no_block_of_another_groups_hit(specs: tuple[Spec, ...]) -> None:
    """All groups keep their hits before any of them is given new blocks: here those of the hit would come first."""
    manager = manager_of(1 + 6 * len(specs), *specs)
    first, second = generate(0, COMMON), generate(1, 48)
    for request in (first, second):
        admit_to_groups(manager, request)
    for request in (first, second):
        manager.free(request)
    request = with_tail(2, 40)
    hit, num_hit = manager.get_computed_blocks(request)
    assert num_hit == 48
    new = manager.allocate_slots(request, 8, num_hit, hit, num_external_computed_tokens=32, delay_cache_blocks=True)
    assert [len(group) for group in tables(new)] == [3] * len(specs)
    held = [block_id for table in manager.get_block_ids(2) for block_id in table if block_id != NULL]
    num_passed = sum((80 - window + 1) // 16 for window in (spec[1] for spec in specs if isinstance(spec, tuple)))
    assert len(set(held)) == len(held) == 6 * len(specs) - num_passed
    assert set(ref_counts(manager, held)) == {1}
    manager.free(request)
    assert manager.block_pool.num_held == 0
