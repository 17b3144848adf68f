"""The KV cache manager and its plain model, led through the same random histories, agree after every action.

Agree on: block ids handed out, hits and their lengths, refusals, free order, references, tables, what is published, and
what every living request would be told. The model knows content as written-out prefixes, the product as digests, so
agreement also says that digests are equal exactly where prefixes are.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmcached.engine import KVCacheBlocks, KVCacheManager, Request
from mmcached.engine.kv.block_keys import LoraKey
from mmcached.wire.vocabulary import IMAGE_TOKEN_ID
from tests.engine.builders import generate, image
from tests.models.kv_model import KVModel

MAX_ALIVE = 6
ACTIONS = [
    *("add", "admit", "run", "sample") * 3,
    *("begin", "commit", "withdraw", "preempt", "preempt", "finish", "cache", "reset"),
]
ITEMS = {0: ("a", 2), 1: ("a", 3), 2: ("b", 2)}  # by variant of a request: content key, offset
SITUATIONS = ["hit", "refused", "evicted", "duplicates", "preempted within its step", "was reset"]
Setting = tuple[int, int, bool]
SETTINGS = st.tuples(st.integers(1, 14), st.integers(1, 4), st.booleans() | st.just(True))
HISTORIES = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 575)), min_size=30, max_size=60)


def token_at(position: int, family: int) -> int:
    """Three families of sequences, equal up to position 7, so that prefixes are shared, and outputs meet prompts."""
    return position if position < 7 else 100 * family + position


def request_of(request_id: int, number: int) -> Request:
    """Return a prompt of 1 to 24 tokens; most have something besides their tokens that decides what they may share."""
    family, length, variant = number % 3, 1 + number // 3 % 24, number // 72 % 8
    token_ids = [token_at(position, family) for position in range(length)]
    items = [image(*ITEMS[variant], 3)] if variant in ITEMS and length > 5 else []
    if items:
        token_ids[2:6] = [IMAGE_TOKEN_ID] * 4  # so that the place of the item is all that differs
    tenant, is_blind = "x" if variant == 3 else "", variant == 6
    request = generate(request_id, token_ids, items, tenant=tenant, skip_reading_prefix_cache=is_blind)
    request.lora = LoraKey("x", "") if variant == 4 else None
    request.prompt_embeds = {5: b"row"} if variant == 5 and length > 5 else {}
    return request


class Pair:
    """The product and the model side by side, with the requests that both are asked about.

    Attributes:
        seen: how often what happened.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_caching: bool) -> None:
        self.manager = KVCacheManager(num_blocks, block_size, enable_caching)
        self.model = KVModel(num_blocks, block_size, enable_caching=enable_caching)
        self.requests: list[Request] = []
        self.in_step: dict[int, tuple[Request, int]] = {}  # tokens computed if the open step is committed
        self.num_added = self.num_steps = 0
        self.seen: Counter[str] = Counter()

    def do(self, action: str, number: int) -> None:
        """Do it if it can be done now, to a request that the number chooses; compare everything."""
        held, idle, is_open = self.model.tables.keys(), self._idle(), self.model.is_step_open
        to_one = {
            "admit": (self._admit, [each for each in self.requests if each.request_id not in held]),
            "run": (self._run, [each for each in idle if each.num_computed_tokens < each.num_tokens]),
            "sample": (self._sample, [each for each in idle if each.num_computed_tokens == each.num_tokens]),
            "preempt": (self._preempt, [each for each in self.requests if each.request_id in held]),
            "finish": (self._finish, self.requests),
            "cache": (self._cache, idle),
        }
        to_all = {
            "add": (self._add, len(self.requests) < MAX_ALIVE),
            "begin": (self._begin, not is_open),
            "commit": (self._commit, is_open),
            "withdraw": (self._withdraw, is_open),
            "reset": (self._reset, True),
        }
        if action in to_one:
            act_on, requests = to_one[action]
            if not requests:
                return
            act_on(requests[number % len(requests)], number // MAX_ALIVE)
        else:
            act, can_act = to_all[action]
            if not can_act:
                return
            act(number)
        self.seen[action] += 1
        self._compare()

    def _idle(self) -> list[Request]:
        """Return those who hold blocks and take no part in the open step."""
        held = self.model.tables.keys() - self.in_step.keys()
        return [each for each in self.requests if each.request_id in held]

    # ---- requests

    def _add(self, number: int) -> None:
        self.requests.append(request_of(self.num_added, number))
        self.num_added += 1

    def _admit(self, request: Request, number: int) -> None:
        hit, num_hit_tokens = self.manager.get_computed_blocks(request)
        self.seen["hit"] += num_hit_tokens > 0
        self._allocate(request, number, hit, num_hit_tokens)

    def _run(self, request: Request, number: int) -> None:
        self._allocate(request, number, None, 0)

    def _allocate(self, request: Request, number: int, hit: KVCacheBlocks | None, num_hit_tokens: int) -> None:
        """Ask for a chunk, now and then with a drafter's guesses behind the last known token."""
        start = request.num_computed_tokens + num_hit_tokens
        num_new_tokens = min(request.num_tokens - start, 1 + number % 16)
        if start + num_new_tokens == request.num_tokens and number // 16 % 4 == 0:
            num_new_tokens += 1 + number % 3
        hit_ids = self.model.lookup(request) if hit is not None else []
        num_published = len(self.model.published)
        expected = self.model.allocate(request, num_new_tokens, hit_ids)
        given = self.manager.allocate_slots(request, num_new_tokens, num_hit_tokens, hit)
        assert (given and given.get_block_ids()) == (None if expected is None else (expected,))
        if expected is None:
            self.seen["refused"] += 1
            return
        self.seen["evicted"] += len(self.model.published) < num_published
        end = min(start + num_new_tokens, request.num_tokens)
        if self.model.is_step_open:
            self.in_step[request.request_id] = request, end
        request.num_computed_tokens = start if self.model.is_step_open else end

    def _sample(self, request: Request, number: int) -> None:
        """Let the next tokens be known: one, or as many as a drafter guessed right, the last of them a surprise."""
        for _ in range(1 + number % 3):
            request.append_output_token(token_at(request.num_tokens, number // 3 % 3))
        if number % 5 == 0:
            request.token_ids[-1] = 999

    def _preempt(self, request: Request, number: int) -> None:
        self.seen["preempted within its step"] += self.in_step.pop(request.request_id, None) is not None
        self.manager.free(request)
        self.model.free(request)
        request.num_computed_tokens = 0

    def _finish(self, request: Request, number: int) -> None:
        self._preempt(request, number)
        self.requests.remove(request)

    def _cache(self, request: Request, number: int) -> None:
        num_slots = len(self.model.tables[request.request_id]) * self.model.block_size
        for each in (self.manager, self.model):
            each.cache_blocks(request, number % (num_slots + 1))

    # ---- steps and the whole

    def _begin(self, number: int) -> None:
        self.num_steps += 1
        self.manager.begin_step(self.num_steps)
        self.model.begin_step()

    def _commit(self, number: int) -> None:
        self.manager.commit(self.num_steps)
        self.model.commit()
        for request, num_computed_tokens in self.in_step.values():
            request.num_computed_tokens = num_computed_tokens
        self.in_step.clear()

    def _withdraw(self, number: int) -> None:
        """Half of the time as the scheduler does, which has all that took part wait again."""
        self.manager.withdraw(self.num_steps)
        self.model.withdraw()
        took_part = [request for request, _ in self.in_step.values()]
        self.in_step.clear()
        for request in took_part if number % 2 else ():
            self._preempt(request, number)

    def _reset(self, number: int) -> None:
        was_reset = self.model.reset()
        assert self.manager.reset_prefix_cache() == was_reset
        self.seen["was reset"] += was_reset

    def _compare(self) -> None:
        manager, model, pool = self.manager, self.model, self.manager.block_pool
        manager.check_integrity()
        block_ids = range(model.num_blocks)
        assert pool.free_order() == model.free_order
        assert {each: manager.get_block_ids(each) for each in manager.holders()} == {
            request_id: (table,) for request_id, table in model.tables.items()
        }
        assert [pool.ref_cnt(block_id) for block_id in block_ids] == [model.ref_cnt(block_id) for block_id in block_ids]
        assert {block_id for block_id in block_ids if pool.block_hash(block_id)} == model.published.keys()
        for request in self.requests:
            hit, num_hit_tokens = manager.get_computed_blocks(request)
            expected = model.lookup(request)
            assert (hit.get_block_ids(), num_hit_tokens) == ((expected,), len(expected) * model.block_size)
        self.seen["duplicates"] += len(set(model.published.values())) < len(model.published)


@pytest.mark.timeout(280)  # a failure is first made small, which takes minutes
@settings(max_examples=200)
@given(SETTINGS, HISTORIES)
def test_equal_after_any_history(setting: Setting, history: list[tuple[str, int]]) -> None:
    pair = Pair(*setting)
    for action, number in history:
        pair.do(action, number)


def test_long_histories_reach_everything() -> None:
    """The same by plain chance: fuller pools than short histories reach, and a count of what they went through."""
    rng = random.Random(7)
    seen: Counter[str] = Counter()
    for _ in range(12):
        pair = Pair(rng.randint(4, 14), rng.randint(1, 4), True)
        for _ in range(1000):
            pair.do(rng.choice(ACTIONS), rng.randrange(576))
        seen += pair.seen
    rare = {what: seen[what] for what in {*ACTIONS, *SITUATIONS} if seen[what] < 20}
    assert not rare
