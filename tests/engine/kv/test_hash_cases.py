"""What digests mean for hits: items, tenants and adapters keep requests apart, drafters look a few tokens ahead.

Figures of vLLM 0.33's tests (PC17, PC18, PC35, PC39, KU13, KU17, SC2). What goes into a digest is tested beside
`block_hash`; here a manager publishes and looks up.
"""

from __future__ import annotations

from typing import Any

import pytest

from mmcached.cache.hashing.block_hash import hash_block
from mmcached.cache.hashing.block_keys import LoraKey, MultiModalKey
from mmcached.engine import KVCacheManager, Request
from tests.engine.builders import generate, image
from tests.engine.kv.builders import COMMON, Spec, admit, manager_of, num_hit_tokens, run
from tests.engine.kv.integrity import check_kv


def append(request: Request, *token_ids: int) -> None:
    for token_id in token_ids:
        request.append_output_token(token_id)


# ---- who shares with whom


def test_multimodal_items_decide_hits() -> None:
    def request_with(request_id: int, *mm_hashes: str) -> Request:
        a, b, c = mm_hashes
        return generate(request_id, range(59), [image(a, 11, 10), image(b, 30, 18), image(c, 48, 7)])

    manager = manager_of(30)
    first = request_with(0, "aaa", "bbb", "ccc")
    assert admit(manager, first) == ([], [1, 2, 3, 4])
    items_of_blocks = [
        [MultiModalKey("aaa", 11)],
        [MultiModalKey("aaa", -5), MultiModalKey("bbb", 14)],
        [MultiModalKey("bbb", -2)],
        [MultiModalKey("ccc", 0)],
    ]
    assert [manager.block_pool.block_key(block_id) for block_id in (1, 2, 3, 4)] == [*first.block_hashes, None]
    append(first, *range(5))
    assert run(manager, first, 5) == []
    parent = b""
    for index, items in enumerate(items_of_blocks):
        digest = first.block_hashes[index]
        assert manager.block_pool.block_key(index + 1) == digest
        if parent:
            assert digest == hash_block(parent, first.token_ids[16 * index : 16 * index + 16], items)
        parent = digest

    for request_id, mm_hashes, num_blocks in (
        (1, ("aaa", "bbb", "ccc"), 3),
        (2, ("aaa", "bbb", "other"), 3),
        (3, ("aaa", "other", "ccc"), 1),
        (4, ("other", "bbb", "ccc"), 0),
        (5, ("bbb", "aaa", "ccc"), 0),
    ):
        assert admit(manager, request_with(request_id, *mm_hashes))[0] == [1, 2, 3][:num_blocks]


STYLE = LoraKey("style", "/adapters/style")


@pytest.mark.parametrize(
    ("first", "second", "num_hit"),
    [
        ({}, {}, 48),
        ({"tenant": "a"}, {"tenant": "a"}, 48),
        ({"tenant": "a"}, {"tenant": "b"}, 0),
        ({"tenant": "a"}, {}, 0),
        ({"lora": STYLE}, {"lora": STYLE}, 48),
        ({"lora": STYLE}, {}, 0),
        ({"lora": STYLE}, {"lora": LoraKey("style", "/adapters/other")}, 0),
        ({"lora": LoraKey("a", "")}, {"tenant": "a"}, 0),
        ({"tenant": "a", "lora": STYLE}, {"tenant": "a", "lora": STYLE}, 48),
        ({"tenant": "a", "lora": STYLE}, {"tenant": "b", "lora": STYLE}, 0),
        ({"prompt_embeds": {20: b"row"}}, {"prompt_embeds": {20: b"row"}}, 48),
        ({"prompt_embeds": {20: b"row"}}, {"prompt_embeds": {20: b"other"}}, 16),
        ({"prompt_embeds": {20: b"row"}}, {"prompt_embeds": {21: b"row"}}, 16),
        ({"prompt_embeds": {20: b"row"}}, {}, 16),
        ({"prompt_embeds": {50: b"row"}}, {}, 48),
    ],
    ids=str,
)
def test_who_shares_with_whom(first: dict[str, Any], second: dict[str, Any], num_hit: int) -> None:
    def request_with(request_id: int, fields: dict[str, Any]) -> Request:
        request = generate(request_id, COMMON + [7] * 8, tenant=fields.get("tenant", ""))
        request.lora = fields.get("lora")
        request.prompt_embeds = fields.get("prompt_embeds", {})
        return request

    manager = manager_of(20)
    admit(manager, request_with(0, first))
    assert num_hit_tokens(manager, request_with(1, second)) == num_hit


def test_a_salt_is_in_the_first_block_only() -> None:
    manager = manager_of(20)
    request = generate(0, COMMON + [7] * 11, tenant="a")
    admit(manager, request)
    append(request, *[8] * 5)
    run(manager, request, 5)
    digests = [manager.block_pool.block_key(block_id) for block_id in (1, 2, 3, 4)]
    assert None not in digests
    for index in (1, 2, 3):
        parent, token_ids = digests[index - 1], request.token_ids[16 * index : 16 * index + 16]
        assert parent is not None
        assert digests[index] == hash_block(parent, token_ids)


# ---- drafters


@pytest.mark.parametrize("specs", [(16,), ((16, 1 << 10),), (16, (16, 32))], ids=str)
@pytest.mark.parametrize(
    ("options", "num_hit_blocks"),
    [
        ({}, {48: 2, 37: 2, 49: 3, 17: 1, 16: 0}),
        ({"use_eagle": True}, {48: 1, 37: 1, 49: 2, 17: 0, 16: 0}),
        ({"num_hash_lookahead_tokens": 1}, {48: 2, 37: 2, 49: 3, 17: 1, 16: 0}),
        ({"num_hash_lookahead_tokens": 2}, {48: 2, 37: 2, 49: 2, 50: 3, 17: 0, 18: 1}),
        # The digest says what the drafter has seen: nothing is left to drop.
        ({"num_hash_lookahead_tokens": 1, "use_eagle": True}, {48: 2, 37: 2}),
    ],
    ids=str,
)
def test_the_same_prompt_again(
    specs: tuple[Spec, ...], options: dict[str, Any], num_hit_blocks: dict[int, int]
) -> None:
    for num_tokens, expected in num_hit_blocks.items():
        manager = manager_of(20, *specs, **options)
        first = generate(0, range(num_tokens))
        assert manager.allocate_slots(first, num_tokens) is not None
        assert num_hit_tokens(manager, generate(1, range(num_tokens))) == 16 * expected, num_tokens


@pytest.mark.parametrize("num_lookahead", [1, 2, 3])
@pytest.mark.parametrize("num_equal", [0, 1, 2, 3])
def test_lookahead_tokens_decide_the_hit(num_lookahead: int, num_equal: int) -> None:
    """The tokens behind the block must be those that the drafter saw when the block was computed."""
    manager = manager_of(20, 4, num_hash_lookahead_tokens=num_lookahead)
    admit(manager, generate(0, [*range(8), 20, 21, 22, 23]))
    prompt = [*range(8), *[20, 21, 22][:num_equal], *[99] * (4 - num_equal)]
    assert num_hit_tokens(manager, generate(1, prompt)) == (8 if num_equal >= num_lookahead else 4)


@pytest.mark.parametrize("num_lookahead", [1, 2, 3])
def test_a_block_is_published_when_its_lookahead_tokens_are_known(num_lookahead: int) -> None:
    manager = manager_of(20, 4, num_hash_lookahead_tokens=num_lookahead)
    request = generate(0, range(8))
    admit(manager, request)
    for num_more in range(1, 5):
        assert manager.block_pool.num_published == (2 if num_more > num_lookahead else 1)
        append(request, 100 + num_more)
        run(manager, request, 1)
    assert manager.block_pool.num_published == 2
    assert len(request.block_hashes) == 2


@pytest.mark.parametrize("is_in_steps", [False, True])
def test_the_next_token_decides_which_block_is_found(is_in_steps: bool) -> None:
    manager = manager_of(20, 2, num_hash_lookahead_tokens=1)
    request = generate(0, [0, 1, 2, 3])

    def compute(step_id: int, num_tokens: int) -> None:
        if is_in_steps:
            manager.begin_step(step_id)
        assert manager.allocate_slots(request, num_tokens) is not None
        if is_in_steps:
            manager.commit(step_id)
        request.num_computed_tokens += num_tokens
        check_kv(manager)

    compute(0, 4)
    assert num_hit_tokens(manager, generate(1, [0, 1, 2, 3, 5, 6])) == 2
    append(request, 5)
    compute(1, 1)
    assert num_hit_tokens(manager, generate(2, [0, 1, 2, 3, 5, 6])) == 4
    assert num_hit_tokens(manager, generate(3, [0, 1, 2, 3, 7, 6])) == 2


def test_items_behind_a_block_are_part_of_its_content() -> None:
    """With lookahead, the drafter has seen what comes next: the same tokens before another image are other content."""
    manager = manager_of(20, 4, num_hash_lookahead_tokens=1)
    admit(manager, generate(0, range(12), [image("a", 8, 3)]))
    assert num_hit_tokens(manager, generate(1, range(12), [image("a", 8, 3)])) == 8
    assert num_hit_tokens(manager, generate(2, range(12), [image("b", 8, 3)])) == 4


def test_digests_do_not_depend_on_when_they_are_made() -> None:
    """In one go, or token by token while the request is looked up, published and preempted."""
    for options in ({}, {"num_hash_lookahead_tokens": 2}):
        manager, other = (manager_of(40, 4, (8, 8), **options) for _ in range(2))
        request, again = (generate(0, range(9), [image("a", 3, 4)], tenant="me") for _ in range(2))
        admit_slowly(manager, request)
        again.token_ids += request.output_token_ids
        other.get_computed_blocks(again)
        assert request.block_hashes == again.block_hashes[: len(request.block_hashes)]
        assert len(request.block_hashes) >= 5


def admit_slowly(manager: KVCacheManager, request: Request) -> None:
    for step in range(18):
        hit, num_hit = manager.get_computed_blocks(request) if step % 6 == 0 else (None, 0)
        assert (
            manager.allocate_slots(request, request.num_tokens - request.num_computed_tokens - num_hit, num_hit, hit)
            is not None
        )
        request.num_computed_tokens = request.num_tokens
        append(request, 1000 + step)
        if step % 6 == 5:
            manager.free(request)
            request.num_computed_tokens = 0
    check_kv(manager)
