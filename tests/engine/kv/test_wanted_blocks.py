"""Beside larger blocks, most of a window's blocks can serve no hit: these are not published; nothing else is lost."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from mmcached.engine import KVCacheManager, Request
from tests.engine.builders import generate
from tests.engine.kv.builders import NULL, Spec, admit_to_groups, manager_of, num_hit_tokens
from tests.engine.kv.integrity import check_kv

MIXES: list[tuple[Spec, ...]] = [
    (8, (2, 4)),
    ((2, 5), 8),
    (4, (2, 2), (2, 7)),
    (2, (8, 9)),
    (6, (2, 3), 3),
    ((4, 6), (2, 5)),
    (8, (2, 1)),
    (2, 8),
]


def publishes_everything(manager: KVCacheManager) -> KVCacheManager:
    """Let a manager publish every full block, as if each could serve a hit."""
    for group in manager.coordinator.groups:
        object.__setattr__(group, "stride", 1)
        kind: Any = group.kind
        kind.runs_for_hits = lambda start, stop: ((start, stop),)
    return manager


def published_positions(manager: KVCacheManager, request_id: int) -> list[list[int]]:
    key_of = manager.block_pool.block_key
    tables = manager.get_block_ids(request_id)
    return [[i for i, block_id in enumerate(table) if key_of(block_id) is not None] for table in tables]


def test_blocks_that_no_hit_can_use_leave_room_for_those_that_one_can() -> None:
    manager = manager_of(60, 64, (16, 16))

    def play(request_id: int, token_ids: Sequence[int]) -> int:
        request = generate(request_id, token_ids, max_tokens=9)
        hit, num_hit = manager.get_computed_blocks(request)
        manager.allocate_slots(request, len(token_ids) - num_hit, num_hit, hit)
        manager.free(request)
        return num_hit

    prompts = [list(range(1000 * family, 1000 * family + 320)) for family in range(5)]
    for request_id, prompt in enumerate(prompts):
        play(request_id, prompt)
    # 25 blocks each; of the first prompt's last blocks, three had to make room for the tail of another one.
    assert [play(10 + i, [*prompts[i], 7]) for i in (4, 3, 2, 1, 0)] == [320, 320, 320, 320, 0]


@pytest.mark.parametrize(
    ("specs", "use_eagle", "positions"),
    [
        ((8, (2, 4)), False, [[0, 1, 2], [2, 3, 6, 7, 10, 11]]),
        ((8, (2, 4)), True, [[0, 1, 2], [2, 3, 4, 6, 7, 8, 10, 11, 12]]),
        ((8, (2, 1)), False, [[0, 1, 2], [3, 7, 11]]),
        ((8, (2, 1)), True, [[0, 1, 2], [4, 8, 12]]),
        ((8, (2, 8)), False, [[0, 1, 2], [*range(12)]]),
        ((2, 8), False, [[*range(12)], [0, 1, 2]]),
        ((2, (2, 4)), False, [[*range(15)], [*range(15)]]),
    ],
    ids=str,
)
def test_what_a_prompt_of_thirty_tokens_publishes(
    specs: tuple[Spec, ...], use_eagle: bool, positions: list[list[int]]
) -> None:
    manager = manager_of(60, *specs, use_eagle=use_eagle)
    admit_to_groups(manager, generate(0, 30))
    assert published_positions(manager, 0) == positions


def test_blocks_behind_the_last_place_for_a_hit_are_published_when_the_next_one_is_reached() -> None:
    manager, request = manager_of(60, 8, 2), generate(0, 30)
    for num_tokens, num_published in ((15, 4), (15, 12)):
        manager.allocate_slots(request, num_tokens)
        request.num_computed_tokens += num_tokens
        assert published_positions(manager, 0)[1] == [*range(num_published)]


def test_a_window_that_passes_such_a_place_with_guesses_has_left_its_blocks_findable() -> None:
    manager, request = manager_of(60, 8, (2, 8)), generate(0, range(7))
    for num_tokens, num_drafts in ((6, 0), (4, 3)):
        manager.allocate_slots(request, num_tokens, num_draft_tokens=num_drafts)
        request.num_computed_tokens += num_tokens
    for token_id in range(7, 11):  # all guesses were right
        request.append_output_token(token_id)
    manager.allocate_slots(request, 1)
    assert manager.get_block_ids(0)[1][0] == NULL
    assert num_hit_tokens(manager, generate(1, range(11))) == 8


class Twins:
    """Two managers, one of which publishes everything, led through the same history in pools that never evict."""

    def __init__(self, specs: tuple[Spec, ...], rng: random.Random) -> None:
        options: dict[str, Any] = {"use_eagle": rng.random() < 0.4}
        if not options["use_eagle"]:
            options["num_hash_lookahead_tokens"] = rng.choice([0, 0, 1])
        self.rng = rng
        self.managers = (
            manager_of(8_000, *specs, **options),
            publishes_everything(manager_of(8_000, *specs, **options)),
        )
        self.running: list[tuple[Request, ...]] = []
        self.num_added = self.num_hits = 0

    def new_twins(self) -> tuple[Request, ...]:
        self.num_added += 1
        family, length = self.rng.randrange(3), self.rng.randint(1, 60)
        token_ids = [p if p < 20 else 100 * family + p for p in range(length)]
        return tuple(generate(self.num_added, token_ids, max_tokens=50) for _ in self.managers)

    def admit(self) -> None:
        twins = self.new_twins()
        hits = [manager.get_computed_blocks(each) for manager, each in zip(self.managers, twins, strict=True)]
        assert hits[0][1] == hits[1][1], twins[0]
        assert [len(ids) for ids in hits[0][0].ids] == [len(ids) for ids in hits[1][0].ids]
        self.num_hits += hits[0][1] > 0
        num_new = self.rng.randint(1, twins[0].num_tokens - hits[0][1])
        for manager, each, (hit, num_hit) in zip(self.managers, twins, hits, strict=True):
            manager.allocate_slots(each, num_new, num_hit, hit)
            each.num_computed_tokens = num_hit + num_new
        self.running.append(twins)

    def run(self) -> None:
        """Compute a chunk, or a token and guesses of which some prove right."""
        twins = self.rng.choice(self.running)
        family = twins[0].token_ids[-1] // 100
        for each in twins:
            if each.num_tokens == each.num_computed_tokens:
                each.append_output_token(100 * family + each.num_tokens)
        num_left = twins[0].num_tokens - twins[0].num_computed_tokens
        num_drafts = self.rng.choice([0, 0, 3, 9]) if num_left == 1 else 0
        num_new = self.rng.randint(1, num_left) + num_drafts
        num_lookahead, num_right = self.rng.choice([0, 3]), self.rng.randint(0, num_drafts)
        for manager, each in zip(self.managers, twins, strict=True):
            manager.allocate_slots(each, num_new, num_draft_tokens=num_drafts, num_lookahead_tokens=num_lookahead)
            each.num_computed_tokens += num_new - num_drafts + num_right
            while each.num_tokens <= each.num_computed_tokens:
                each.append_output_token(100 * family + each.num_tokens)

    def free(self) -> None:
        for manager, each in zip(self.managers, self.running.pop(self.rng.randrange(len(self.running))), strict=True):
            manager.free(each)


@pytest.mark.parametrize("specs", MIXES, ids=str)
def test_nothing_that_could_be_hit_is_lost(specs: tuple[Spec, ...]) -> None:
    num_hits = 0
    for seed in range(4):
        twins = Twins(specs, random.Random(seed))
        for _ in range(150):
            twins.admit() if not twins.running or twins.rng.random() < 0.3 else twins.run()
            if len(twins.running) > 5:
                twins.free()
        num_hits += twins.num_hits
        for manager in twins.managers:
            check_kv(manager)
        first, second = (manager.block_pool.num_published for manager in twins.managers)
        assert first <= second
    assert num_hits > 50
