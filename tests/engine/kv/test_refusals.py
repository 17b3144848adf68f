"""What `allocate_slots` refuses, for lack of blocks or as wrong, has changed nothing (M3).

Four tokens to a block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mmcached.engine import KVCacheManager
from mmcached.wire.errors import InvalidRequest, LocalProtocolError
from tests.engine.builders import generate
from tests.engine.kv.builders import (
    admit,
    books,
    ids,
    manager_of,
)

BLOCK = 4


def held_by(manager: KVCacheManager) -> None:
    """Let request 0 hold three blocks of eleven, two of them published, and leave two published ones free."""
    other, first = generate(9, 8), generate(0, range(10))
    admit(manager, other)
    admit(manager, first)
    manager.free(other)


REFUSALS: dict[str, dict[str, Any]] = {
    "new": {"num_new_tokens": 29},
    "lookahead": {"num_new_tokens": 1, "num_lookahead_tokens": 28},
    "drafts": {"num_new_tokens": 29, "num_draft_tokens": 28},
    "external": {"num_new_tokens": 0, "num_external_computed_tokens": 29},
    "external, later": {"num_new_tokens": 0, "num_external_computed_tokens": 29, "delay_cache_blocks": True},
    "all together": {"num_new_tokens": 10, "num_external_computed_tokens": 10, "num_lookahead_tokens": 9},
}


@pytest.mark.parametrize("is_in_step", [False, True])
@pytest.mark.parametrize("arguments", REFUSALS.values(), ids=REFUSALS.keys())
def test_a_refused_newcomer_changes_nothing(arguments: dict[str, Any], is_in_step: bool) -> None:
    manager = manager_of(11, BLOCK)
    held_by(manager)
    if is_in_step:
        manager.begin_step(0)
    before = books(manager)
    assert manager.allocate_slots(generate(1, 40), **arguments) is None
    assert books(manager) == before
    assert manager.allocate_slots(generate(2, 28), 28) is not None  # one block less would have fitted


@pytest.mark.parametrize("num_lookahead", [0, 29])
def test_a_refused_running_request_changes_nothing(num_lookahead: int) -> None:
    manager = manager_of(11, BLOCK)
    held_by(manager)
    request = generate(1, 60)
    manager.allocate_slots(request, 4)
    request.num_computed_tokens = 4
    before = books(manager)
    assert manager.allocate_slots(request, 30 - num_lookahead, num_lookahead_tokens=num_lookahead) is None
    assert books(manager) == before
    assert len(ids(manager.allocate_slots(request, 24))) == 6


# ---- wrong arguments


WRONG: dict[str, tuple[Callable[[KVCacheManager], object], str]] = {
    "nothing asked for": (lambda kv: kv.allocate_slots(generate(1, 9), 0), "num_new_tokens"),
    "nothing asked for but lookahead": (
        lambda kv: kv.allocate_slots(generate(1, 9), 0, num_lookahead_tokens=4),
        "num_new_tokens",
    ),
    "a hit for one who holds blocks": (
        lambda kv: (
            kv.allocate_slots(request := generate(1, [*range(8), 1, 1]), 2),
            kv.allocate_slots(request, 1, 8, kv.get_computed_blocks(generate(2, range(9)))[0]),
        ),
        "1",
    ),
    "tokens that are not those of the hit": (
        lambda kv: kv.allocate_slots(generate(1, range(9)), 1, 7, kv.get_computed_blocks(generate(1, range(9)))[0]),
        "7",
    ),
    "tokens of a hit without its blocks": (lambda kv: kv.allocate_slots(generate(1, range(9)), 1, 8), "8"),
    "a hit that another prompt has": (
        lambda kv: kv.allocate_slots(generate(1, 9), 1, 8, kv.get_computed_blocks(generate(2, range(9)))[0]),
        "1",
    ),
    "more drafts than new tokens": (
        lambda kv: kv.allocate_slots(generate(1, 9), 3, num_draft_tokens=4),
        "num_draft_tokens = 4: at most num_new_tokens = 3",
    ),
    "fewer than no new tokens": (lambda kv: kv.allocate_slots(generate(1, 9), -1), "num_new_tokens = -1"),
    "fewer than no drafts": (
        lambda kv: kv.allocate_slots(generate(1, 9), 1, num_draft_tokens=-1),
        "num_draft_tokens = -1",
    ),
    "fewer than no lookahead": (
        lambda kv: kv.allocate_slots(generate(1, 9), 1, num_lookahead_tokens=-1),
        "num_lookahead_tokens = -1",
    ),
    "fewer than no external tokens": (
        lambda kv: kv.allocate_slots(generate(1, 9), 1, num_external_computed_tokens=-4),
        "num_external_computed_tokens = -4",
    ),
    "a hit of fewer than no tokens": (lambda kv: kv.allocate_slots(generate(1, 9), 1, -4), "-4"),
    "blocks of a hit without their tokens": (
        lambda kv: kv.allocate_slots(
            generate(1, range(9)), 1, new_computed_blocks=kv.get_computed_blocks(generate(1, range(9)))[0]
        ),
        "0",
    ),
}


@pytest.mark.parametrize(("call", "named"), WRONG.values(), ids=WRONG.keys())
def test_wrong_arguments_are_refused(call: Callable[[KVCacheManager], object], named: str) -> None:
    manager = manager_of(20, BLOCK)
    admit(manager, generate(0, range(8)))
    with pytest.raises(ValueError, match=named):
        call(manager)


@pytest.mark.parametrize("is_in_step", [False, True])
def test_a_placeholder_in_a_full_block_is_refused_and_changes_nothing(is_in_step: bool) -> None:
    manager = manager_of(20, BLOCK)
    newcomer, running = generate(0, [1, 2, 3, -1, 5]), generate(1, range(100, 106))
    admit(manager, running)
    running.token_ids += [-1, 1, 1]
    if is_in_step:
        manager.begin_step(0)
    for request, num_tokens in ((newcomer, 5), (newcomer, 4), (running, 3), (running, 2)):
        before = books(manager)
        with pytest.raises(InvalidRequest, match="-1"):
            manager.allocate_slots(request, num_tokens)
        assert books(manager) == before
    with pytest.raises(InvalidRequest, match="-1"):
        manager.get_computed_blocks(newcomer)


def test_blocks_behind_reserved_ones_are_not_published_before_them() -> None:
    """Were the step withdrawn, the blocks before would be empty, and those behind published a second time."""
    manager = manager_of(10, BLOCK)
    request = generate(0, 20)
    manager.begin_step(0)
    assert manager.allocate_slots(request, 8, num_lookahead_tokens=8) is not None
    before = books(manager)
    with pytest.raises(LocalProtocolError, match="wait for a step"):
        manager.cache_blocks(request, 12)
    assert books(manager) == before
    manager.cache_blocks(request, 11)  # nothing more is full
    manager.commit(0)
    manager.cache_blocks(request, 12)
    assert manager.block_pool.num_published == 3


def test_a_hit_of_another_request_is_refused() -> None:
    """Also one that is longer than all that the request has."""
    manager = manager_of(20, BLOCK)
    admit(manager, generate(0, range(12)))
    hit, num_tokens = manager.get_computed_blocks(generate(1, range(20)))
    assert num_tokens == 12
    for token_ids in (range(5), range(100, 120)):
        other = generate(2, token_ids)
        before = books(manager)
        with pytest.raises(ValueError, match="look it up again"):
            manager.allocate_slots(other, 1, num_tokens, hit)
        assert books(manager) == before


@pytest.mark.parametrize("num_draft_tokens", [-3, 2, 5])
def test_counts_are_checked_where_nothing_else_happens_too(num_draft_tokens: int) -> None:
    manager, request = manager_of(20), generate(0, 8)
    manager.allocate_slots(request, 4)
    request.num_computed_tokens = 4
    with pytest.raises(ValueError, match=f"num_draft_tokens = {num_draft_tokens}"):
        manager.allocate_slots(request, 1, num_draft_tokens=num_draft_tokens)
    assert manager.allocate_slots(request, 2, num_draft_tokens=2) is not None
