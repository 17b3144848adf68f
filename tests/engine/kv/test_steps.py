"""Reserve, commit, publish: what a step makes findable and when, and in which order a step begins and ends.

Sixteen tokens to a block where nothing else is said. Who may count on a step is tested in `test_sharing`, until when
its blocks are in use in `test_fences`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mmcached.wire.errors import LocalProtocolError
from tests.engine.builders import generate
from tests.engine.kv.builders import (
    admit,
    books,
    go_on,
    manager_of,
    num_hit_tokens,
    schedule,
    with_tail,
)


def test_a_step_publishes_at_commit() -> None:
    manager = manager_of(11)
    manager.begin_step(5)
    assert schedule(manager, with_tail(0, 7)) == ([], [1, 2, 3, 4])
    assert manager.block_pool.num_published == 0
    manager.launch_step(5)
    assert manager.block_pool.num_published == 0
    manager.commit(5)
    assert manager.block_pool.num_published == 3
    assert num_hit_tokens(manager, with_tail(1, 7)) == 48


def test_what_is_final_is_decided_when_slots_are_given() -> None:
    """What stands in for a token that nobody knew then is a guess; the worker may have gone on with another."""
    manager = manager_of(11, 4)
    request = generate(0, range(7))
    manager.begin_step(0)
    manager.allocate_slots(request, 8)
    request.append_output_token(7)
    manager.commit(0)
    assert manager.block_pool.num_published == 1


def test_what_has_arrived_is_published_at_once_even_in_a_step() -> None:
    manager = manager_of(20)
    arriving, sharer = with_tail(0, 7), with_tail(1, 5)
    manager.begin_step(0)
    assert manager.allocate_slots(arriving, 0, num_external_computed_tokens=48, delay_cache_blocks=True) is not None
    assert num_hit_tokens(manager, sharer) == 0
    manager.cache_blocks(arriving, 48)
    assert manager.block_pool.num_published == 3
    assert schedule(manager, sharer)[0] == [1, 2, 3]
    manager.withdraw(0)
    assert manager.block_pool.num_published == 3
    manager.free(arriving)  # nobody waits for it: what it shares has been there all along
    manager.begin_step(1)
    assert go_on(manager, sharer, 48, 5) == []
    manager.commit(1)


# ---- withdrawal


def test_a_withdrawn_step_publishes_nothing_and_can_be_done_again() -> None:
    manager = manager_of(11)
    request = with_tail(0, 7)
    manager.begin_step(0)
    schedule(manager, request)
    manager.withdraw(0)
    assert num_hit_tokens(manager, with_tail(1, 7)) == 0

    manager.begin_step(1)
    assert go_on(manager, request, 0, 55) == []  # it still has the slots, with nothing in them
    manager.commit(1)
    assert num_hit_tokens(manager, with_tail(1, 7)) == 48


@pytest.mark.parametrize("is_in_steps", [False, True])
def test_a_resumed_request_finds_its_own_output(is_in_steps: bool) -> None:
    manager = manager_of(11, 4)
    request = generate(0, [1, 2, 3])
    for step_id, token_id in enumerate((4, 5, 6, 7, 8, 9)):
        if is_in_steps:
            manager.begin_step(step_id)
        go_on(manager, request, request.num_computed_tokens, request.num_tokens - request.num_computed_tokens)
        if is_in_steps:
            manager.commit(step_id)
        request.num_computed_tokens = request.num_tokens
        request.append_output_token(token_id)
    manager.free(request)
    request.num_computed_tokens = 0
    assert num_hit_tokens(manager, request) == 8
    assert admit(manager, request) == ([1, 2], [3])


# ---- order


OUT_OF_TURN: dict[str, tuple[list[str], str]] = {
    "committed before it began": ([], "commit 0"),
    "withdrawn before it began": (["begin 0"], "withdraw 1"),
    "launched before it began": ([], "launch 0"),
    "launched twice": (["begin 0", "launch 0"], "launch 0"),
    "begun twice": (["begin 3"], "begin 3"),
    "begun while another is in flight": (["begin 0", "launch 0"], "begin 1"),
    "committed twice": (["begin 0", "commit 0"], "commit 0"),
    "withdrawn after its commit": (["begin 0", "commit 0", "begin 1"], "withdraw 0"),
    "committed after its withdrawal": (["begin 0", "withdraw 0"], "commit 0"),
}


@pytest.mark.parametrize(("history", "call"), OUT_OF_TURN.values(), ids=OUT_OF_TURN.keys())
def test_a_step_out_of_turn_is_refused(history: list[str], call: str) -> None:
    manager = manager_of(11)

    def do(text: str) -> None:
        verb, number = text.split()
        methods: dict[str, Callable[[int], object]] = {
            "begin": manager.begin_step,
            "launch": manager.launch_step,
            "commit": manager.commit,
            "withdraw": manager.withdraw,
        }
        methods[verb](int(number))

    for text in history:
        do(text)
        if text.startswith("begin"):
            schedule(manager, generate(int(text.split()[1]), 20))
    before = books(manager)
    with pytest.raises(LocalProtocolError, match=f"step {call.split()[1]} cannot"):
        do(call)
    assert books(manager) == before


def test_slots_are_given_in_a_step_that_is_being_built() -> None:
    manager = manager_of(40)
    running, waiting = with_tail(0, 7), with_tail(1, 7)
    manager.begin_step(0)
    manager.allocate_slots(running, 50)
    manager.launch_step(0)
    running.num_computed_tokens = 50
    before = books(manager)
    for request, num_tokens in ((running, 1), (running, 5), (waiting, 5)):
        with pytest.raises(LocalProtocolError, match="step 0 is in flight"):
            manager.allocate_slots(request, num_tokens)
    assert books(manager) == before
    manager.commit(0)
    manager.begin_step(1)
    assert go_on(manager, running, 50, 5) == []
    manager.commit(1)
    assert go_on(manager, running, 55, 10) == [5]  # no steps at all: the seed's face
