"""Beside larger blocks, most of a window's blocks can serve no hit: these are not published; nothing else is lost."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from mmcached.engine import KVCacheManager
from tests.engine.builders import generate
from tests.engine.kv.builders import Spec, admit_to_groups, manager_of

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


@pytest.mark.parametrize("use_eagle", [False, True])
@pytest.mark.parametrize("specs", MIXES, ids=str)
def test_nothing_that_could_be_hit_is_lost(specs: tuple[Spec, ...], *, use_eagle: bool) -> None:
    """Two managers, one of which publishes everything, find as much, in pools that never evict."""
    rng, num_hits = random.Random(3), 0
    managers = [manager_of(8_000, *specs, use_eagle=use_eagle) for _ in range(2)]
    publishes_everything(managers[1])
    for request_id in range(100):
        family, length = rng.randrange(3), rng.randint(1, 60)
        requests = [generate(request_id, [p if p < 20 else 100 * family + p for p in range(length)]) for _ in managers]
        (hit, num_hit), other = map(KVCacheManager.get_computed_blocks, managers, requests)
        assert (num_hit, list(map(len, hit.ids))) == (other[1], list(map(len, other[0].ids)))
        num_hits += num_hit > 0
        ends = [num_hit, *sorted(rng.sample(range(num_hit + 1, length), min(2, length - num_hit - 1))), length]
        for manager, request, found in zip(managers, requests, (hit, other[0]), strict=True):
            for start, end in pairwise(ends):
                is_first = start == num_hit
                manager.allocate_slots(request, end - start, num_hit * is_first, found if is_first else None)
                request.num_computed_tokens = end
            manager.free(request)
    assert managers[0].block_pool.num_published <= managers[1].block_pool.num_published
    assert num_hits > 50
