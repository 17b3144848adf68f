"""No block is ever hit that no worker has written, or will have by then: random schedules.

With preemption, abort in flight, withdrawal of steps, sharing inside a step. The same schedules show
that no block is handed out while a step still uses it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmcached.engine import KVCacheManager
from mmcached.engine.kv.config import KVCacheConfig
from mmcached.wire.errors import LocalProtocolError
from tests.engine.builders import generate
from tests.engine.kv.bare_engine import BareEngine, Slots
from tests.engine.kv.builders import manager_of
from tests.engine.kv.dice import NUMBERS
from tests.house.drawing import examples
from tests.models.kv_model import Group

BLOCK = 4
FULL = Group(BLOCK)
ACTIONS = [
    *("admit", "run") * 24,
    *("add", "begin", "send", "commit") * 8,
    *("preempt", "preempt", "abort", "withdraw") * 2,
    *("epoch", "reset"),
]
SITUATIONS = [
    *("hits", "hits on what is not written yet", "refused", "preempted later", "victims of their own step"),
    *("freed in flight", "freed with others", "withdrawn", "lost", "new epochs with holders"),
]
MIXES = [
    (FULL,),
    (Group(BLOCK, window=6),),
    (FULL, Group(BLOCK, window=9)),
    (Group(2, window=3), FULL, Group(2, window=7)),
    (Group(8), Group(BLOCK, window=5), FULL),
]
HISTORIES = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, NUMBERS - 1)), min_size=30, max_size=60)


class WithoutSteps(KVCacheManager):
    """The mistake that this module is about: what a step is going to compute can be found before it has."""

    def begin_step(self, step_id: int) -> None: ...

    def launch_step(self, step_id: int) -> None: ...

    def commit(self, step_id: int) -> None: ...


def engine_of(num_blocks: int, groups: tuple[Group, ...]) -> BareEngine:
    specs = [group.block_size if group.window is None else (group.block_size, group.window) for group in groups]
    return BareEngine(manager_of(num_blocks, *specs), groups)


@pytest.mark.timeout(280)  # a failure is first made small, which takes minutes
@settings(max_examples=examples(150))
@given(st.integers(2, 30), st.sampled_from(MIXES), HISTORIES)
def test_every_hit_was_written(num_blocks: int, groups: tuple[Group, ...], history: list[tuple[str, int]]) -> None:
    engine = engine_of(num_blocks, groups)
    for action, number in history:
        engine.do(action, number)


def lead(seed: int, groups: tuple[Group, ...], num_engines: int, num_actions: int) -> Counter[str]:
    """Lead so many engines through so many actions each; return how often what happened."""
    rng = random.Random(seed)
    seen: Counter[str] = Counter()
    for _ in range(num_engines):
        engine = engine_of(rng.randint(4, 10) * len(groups) + 4, groups)
        for _ in range(num_actions):
            engine.do(rng.choice(ACTIONS), rng.randrange(NUMBERS))
        seen += engine.seen
    return seen


@pytest.mark.parametrize("groups", MIXES)
def test_long_schedules_reach_everything(groups: tuple[Group, ...]) -> None:
    """The same by plain chance, and a count of what the schedules went through."""
    seen = lead(7, groups, 6, 2000)
    assert {what: seen[what] for what in SITUATIONS if seen[what] < 5} == {}


@pytest.mark.soak
@pytest.mark.parametrize("groups", MIXES)
def test_every_hit_was_written_for_minutes(groups: tuple[Group, ...], draw_seeds: Callable[[int], range]) -> None:
    seen = lead(draw_seeds(1)[0], groups, 200, 2000)
    assert seen["hits on what is not written yet"] > 1000


def resume_a_victim(manager: KVCacheManager) -> int:
    """Let a request be preempted in the step that was to compute tokens 16 to 27; return how many it finds then."""
    engine = BareEngine(manager, [FULL])
    victim = engine.add(range(30))
    engine.admit(victim, 16)
    engine.send()
    engine.commit()
    engine.begin()
    engine.schedule(victim, 12)
    engine.preempt(victim)
    engine.commit()
    engine.begin()
    engine.admit(victim, 30)
    return engine.chunks[0].positions.start


def test_a_victim_of_its_own_step_finds_only_what_was_computed() -> None:
    assert resume_a_victim(manager_of(20, BLOCK)) == 16


def test_publishing_at_allocation_is_found_out() -> None:
    with pytest.raises(AssertionError, match="holds None"):
        resume_a_victim(WithoutSteps(KVCacheConfig.of_one_group(20, BLOCK), 100))


def test_a_guess_that_was_refused_is_not_published_as_the_token_that_replaced_it() -> None:
    manager, slots = manager_of(20, BLOCK), Slots([FULL])
    request = generate(0, range(7))
    manager.begin_step(0)
    manager.allocate_slots(request, 8, num_draft_tokens=1)
    tables = manager.get_block_ids(0)
    request.append_output_token(70)
    slots.write(request, tables, range(8))  # the worker goes on with what the drafter guessed
    request.token_ids[-1] = 7
    manager.commit(0)
    request.append_output_token(8)
    hit, num_hit_tokens = manager.get_computed_blocks(request)
    assert num_hit_tokens == 4
    slots.check(request, hit.get_block_ids(), num_hit_tokens)


def test_a_hit_that_was_evicted_since_its_lookup_is_refused() -> None:
    manager = manager_of(3, BLOCK)
    first, other, late = generate(0, range(4)), generate(1, 8), generate(2, range(6))
    manager.allocate_slots(first, 4)
    manager.free(first)
    hit, num_hit_tokens = manager.get_computed_blocks(late)
    assert num_hit_tokens == 4
    manager.allocate_slots(other, 8)
    manager.free(other)
    with pytest.raises((ValueError, LocalProtocolError)):
        manager.allocate_slots(late, 2, num_hit_tokens, hit)
