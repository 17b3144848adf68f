"""No block is ever hit that no worker has written: random schedules with preemption, abort and withdrawal."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmcached.engine import KVCacheBlocks, KVCacheManager, Request
from mmcached.wire.errors import LocalProtocolError
from tests.engine.builders import generate
from tests.engine.kv.bare_engine import BLOCK, BareEngine, Slots

ACTIONS = [*("add", "admit", "run") * 4, *("send", "commit") * 3, *("preempt", "abort", "withdraw") * 2, "reset"]
SITUATIONS = ["hit", "refused", "victims of their own step", "aborted in flight", "withdrawn", "preempted later"]
HISTORIES = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 255)), min_size=30, max_size=60)


class PublishesAtAllocation(KVCacheManager):
    """The mistake that this module is about: what a step is going to compute can be found before it has."""

    def allocate_slots(self, request: Request, *args: Any, **kwargs: Any) -> KVCacheBlocks | None:
        given = super().allocate_slots(request, *args, **kwargs)
        (table,) = self.get_block_ids(request.request_id)
        self.cache_blocks(request, len(table) * BLOCK)
        return given


@pytest.mark.timeout(280)  # a failure is first made small, which takes minutes
@settings(max_examples=200)
@given(st.integers(2, 14), HISTORIES)
def test_every_hit_was_written(num_blocks: int, history: list[tuple[str, int]]) -> None:
    engine = BareEngine(KVCacheManager(num_blocks, BLOCK))
    for action, number in history:
        engine.do(action, number)


def test_long_schedules_reach_everything() -> None:
    """The same by plain chance, and a count of what the schedules went through."""
    rng = random.Random(7)
    seen: Counter[str] = Counter()
    for _ in range(10):
        engine = BareEngine(KVCacheManager(rng.randint(4, 14), BLOCK))
        for _ in range(2000):
            engine.do(rng.choice(ACTIONS), rng.randrange(256))
        seen += engine.seen
    assert {what: seen[what] for what in SITUATIONS if seen[what] < 20} == {}


def resume_a_victim(manager: KVCacheManager) -> int:
    """Let a request be preempted in the step that was to compute tokens 16 to 27; return how many it finds then."""
    engine = BareEngine(manager)
    victim = engine.add(range(30))
    engine.admit(victim, 16)
    engine.commit()
    engine.schedule(victim, 12)
    engine.preempt(victim)
    engine.commit()
    engine.admit(victim, 30)
    return engine.chunks[0].positions.start


def test_a_victim_of_its_own_step_finds_only_what_was_computed() -> None:
    assert resume_a_victim(KVCacheManager(20, BLOCK)) == 16


def test_publishing_at_allocation_is_found_out() -> None:
    with pytest.raises(AssertionError, match="holds None"):
        resume_a_victim(PublishesAtAllocation(20, BLOCK))


def test_a_guess_that_was_refused_is_not_published_as_the_token_that_replaced_it() -> None:
    manager, slots = KVCacheManager(20, BLOCK), Slots()
    request = generate(0, range(7))
    manager.begin_step(0)
    manager.allocate_slots(request, 8)
    (table,) = manager.get_block_ids(0)
    request.append_output_token(70)
    slots.write(request, table, range(8))  # the worker goes on with what the drafter guessed
    request.token_ids[-1] = 7
    manager.commit(0)
    request.append_output_token(8)
    hit, num_hit_tokens = manager.get_computed_blocks(request)
    slots.check(request, hit.get_block_ids()[0], num_hit_tokens)


def test_a_hit_that_was_evicted_since_its_lookup_is_refused() -> None:
    manager = KVCacheManager(3, BLOCK)
    first, other, late = generate(0, range(4)), generate(1, 8), generate(2, range(6))
    manager.allocate_slots(first, 4)
    manager.free(first)
    hit, num_hit_tokens = manager.get_computed_blocks(late)
    assert num_hit_tokens == 4
    manager.allocate_slots(other, 8)
    manager.free(other)
    with pytest.raises((ValueError, LocalProtocolError)):
        manager.allocate_slots(late, 2, num_hit_tokens, hit)
