"""Segmented LRU beside a naive model, and what it is for: scans pass by what was asked for again."""

from __future__ import annotations

import pickle  # noqa: TID251 (only to see how much there is)
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcached.engine.kv.pool.block_pool import BlockPool
from mmcached.engine.kv.pool.eviction import EvictionOrder, LruOrder
from mmcached.engine.kv.pool.segmented_lru import SegmentedLruOrder
from tests.engine.kv.integrity import check_pool

ORDERS: dict[str, Callable[[int], EvictionOrder]] = {
    "LRU": lambda num_blocks: LruOrder(),
    "segmented LRU": SegmentedLruOrder,
}


class NaiveSegmented:
    """The same policy on lists, one block at a time.

    Attributes:
        seen: how often each situation has occurred.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.seen: Counter[str] = Counter()
        self.clear()

    def clear(self) -> None:
        self.segments: dict[bool, list[int]] = {False: [], True: []}  # by whether it is protected
        self.wanted: set[int] = set()
        self.older: set[bytes] = set()
        self.newer: set[bytes] = set()

    def add(self, block_ids: Sequence[int]) -> None:
        self._note_mixture("add", block_ids)
        for block_id in block_ids:
            self.segments[block_id in self.wanted].append(block_id)
        while len(self.segments[True]) > self.num_blocks // 3:
            demoted = self.segments[True].pop(0)
            self.wanted.remove(demoted)
            self.segments[False].append(demoted)
            self.seen["demotion"] += 1

    def remove(self, block_ids: Sequence[int]) -> None:
        self._note_mixture("remove", block_ids)
        for block_id in block_ids:
            self.segments[block_id in self.wanted].remove(block_id)

    def take(self, num_blocks: int) -> list[int]:
        taken = self.order()[:num_blocks]
        self._note_mixture("take", taken)
        for block_id in taken:
            self.segments[block_id in self.wanted].remove(block_id)
        self.wanted -= set(taken)
        return taken

    def order(self) -> list[int]:
        return self.segments[False] + self.segments[True]

    def stored(self, block_ids: Sequence[int], keys: Sequence[bytes]) -> None:
        for block_id, key in zip(block_ids, keys, strict=True):
            if key in self.older | self.newer:
                self.seen["came back"] += 1
                self.seen["came back late"] += key not in self.newer
                self.wanted.add(block_id)

    def hit(self, block_ids: Sequence[int]) -> None:
        self.wanted |= set(block_ids)

    def forgotten(self, keys: Sequence[bytes]) -> None:
        self.newer |= set(keys)
        if len(self.newer) >= self.num_blocks:
            self.older, self.newer = self.newer, set()

    def _note_mixture(self, call: str, block_ids: Sequence[int]) -> None:
        self.seen[f"{call}, both segments"] += 0 < len(self.wanted.intersection(block_ids)) < len(block_ids)


class Compared:
    """Both at once, as one order; they must not differ in anything that can be seen."""

    def __init__(self, num_blocks: int) -> None:
        self.real = SegmentedLruOrder(num_blocks)
        self.naive = NaiveSegmented(num_blocks)

    @property
    def observer(self) -> Compared:
        return self

    def __len__(self) -> int:
        return len(self.real)

    def add(self, block_ids: Sequence[int]) -> None:
        self._call("add", block_ids)

    def remove(self, block_ids: Sequence[int]) -> None:
        self._call("remove", block_ids)

    def take(self, num_blocks: int) -> list[int]:
        taken = self.naive.take(num_blocks)
        assert self.real.take(num_blocks) == taken
        self._compare()
        return taken

    def order(self) -> list[int]:
        return self.real.order()

    def clear(self) -> None:
        self._call("clear")

    def stored(self, block_ids: Sequence[int], keys: Sequence[bytes]) -> None:
        self._call("stored", block_ids, keys)

    def hit(self, block_ids: Sequence[int]) -> None:
        self._call("hit", block_ids)

    def forgotten(self, keys: Sequence[bytes]) -> None:
        self._call("forgotten", keys)

    def _call(self, name: str, *arguments: object) -> None:
        for order in (self.real, self.naive):
            getattr(order, name)(*arguments)
        self._compare()

    def _compare(self) -> None:
        assert self.real.order() == self.naive.order()
        assert len(self.real) == len(self.naive.order())


class Cache:
    """A pool that prompts go through. A prompt is a path: a block's content is its name behind those before it."""

    def __init__(self, num_blocks: int, order: EvictionOrder) -> None:
        self.pool = BlockPool(num_blocks + 1, order)
        self.tables: list[list[int]] = []

    def hold(self, prompt: Sequence[str], *, is_shared_early: bool = False) -> int:
        """Give a prompt its blocks, if there is room, and return how many were found.

        Args:
            is_shared_early: others share the new blocks before these are published.
        """
        keys = keys_of(prompt)
        found = self.pool.find_prefix(keys)
        if len(keys) - len(found) + self.pool.num_unreferenced(found) > self.pool.num_free:
            return len(found)
        self.pool.touch(found)
        new = self.pool.get_new_blocks(len(keys) - len(found))
        if is_shared_early:
            self.pool.touch(new)
            self.tables.append(new)
        self.pool.publish(new, keys[len(found) :])
        self.tables.append([*found, *new])
        return len(found)

    def free(self, index: int = -1) -> None:
        self.pool.free_blocks(self.tables.pop(index)[::-1])

    def ask(self, prompt: Sequence[str]) -> int:
        """Let a prompt come and go; return how many of its blocks were found."""
        found = self.hold(prompt)
        self.free()
        return found

    def num_found(self, prompt: Sequence[str]) -> int:
        return len(self.pool.find_prefix(keys_of(prompt)))


def keys_of(prompt: Sequence[str]) -> list[bytes]:
    return ["/".join(prompt[: end + 1]).encode() for end in range(len(prompt))]


def path(name: str, length: int) -> list[str]:
    return [name, *map(str, range(1, length))]


def one_offs(length: int) -> Iterator[list[str]]:
    """Yield prompts that share nothing with anything."""
    return (path(f"one-off {number}", length) for number in count())


# ---- beside the naive model

ACTIONS = ("hold", "hold", "hold", "share early", "free", "free", "free", "reset")
Step = tuple[str, str, int]
STEPS = st.tuples(st.sampled_from(ACTIONS), st.text("abc", min_size=1, max_size=4), st.integers(0, 9))


def play(cache: Cache, step: Step) -> None:
    action, prompt, number = step
    if action == "free":
        if cache.tables:
            cache.free(number % len(cache.tables))
    elif action == "reset":
        if number == 0:
            cache.pool.unpublish_all()
    else:
        cache.hold(prompt, is_shared_early=action == "share early")
    check_pool(cache.pool, cache.tables)


@given(st.integers(1, 14), st.lists(STEPS, min_size=20, max_size=120))
def test_agrees_with_the_naive_model(num_blocks: int, history: list[Step]) -> None:
    cache = Cache(num_blocks, Compared(num_blocks))
    for step in history:
        play(cache, step)


def test_agrees_with_the_naive_model_in_every_situation() -> None:
    rng = Random(0)
    seen: Counter[str] = Counter()
    for num_blocks in (1, 3, 9, 12, 14):
        order = Compared(num_blocks)
        cache = Cache(num_blocks, order)
        for _ in range(1500):
            prompt = "".join(rng.choices("abc", k=rng.randint(1, 4)))
            play(cache, (rng.choice(ACTIONS), prompt, rng.randrange(10)))
        seen += order.naive.seen
    mixtures = {f"{call}, both segments" for call in ("add", "remove", "take")}
    assert seen.keys() == mixtures | {"demotion", "came back", "came back late"}
    assert min(seen.values()) >= 20, seen


# ---- what it is for


@given(st.lists(st.integers(1, 200), max_size=30))
def test_no_scan_pushes_out_what_was_asked_for_again(lengths: list[int]) -> None:
    num_blocks = 300
    cache = Cache(num_blocks, SegmentedLruOrder(num_blocks))
    chats = [path(f"chat {number}", 20) for number in range(5)]  # 100 blocks, a third
    for chat in [*chats, *chats]:
        cache.ask(chat)
    for number, length in enumerate(lengths):
        cache.ask(path(f"scan {number}", length))
    assert [cache.num_found(chat) for chat in chats] == [20] * 5


@pytest.mark.parametrize(("name", "expected"), [("LRU", 0), ("segmented LRU", 100)])
def test_one_prompt_as_large_as_all_else_empties_lru(name: str, expected: int) -> None:
    cache = Cache(300, ORDERS[name](300))
    chat = path("chat", 100)
    assert (cache.ask(chat), cache.ask(chat)) == (0, 100)
    cache.ask(path("scan", 300 - expected))
    assert cache.num_found(chat) == expected


def test_what_is_not_asked_for_any_longer_loses_its_protection() -> None:
    cache = Cache(300, SegmentedLruOrder(300))
    old, young = path("old", 100), path("young", 100)
    for chat in (old, old, young, young):
        cache.ask(chat)
    assert cache.num_found(old) == 100  # on probation again, but there is room
    for scan in islice(one_offs(20), 10):
        cache.ask(scan)
    assert (cache.num_found(old), cache.num_found(young)) == (0, 100)


def test_what_comes_back_soon_after_it_was_evicted_is_protected() -> None:
    cache = Cache(90, SegmentedLruOrder(90))
    scans = one_offs(15)
    chat = path("chat", 20)
    cache.ask(chat)
    for scan in islice(scans, 6):
        cache.ask(scan)
    assert cache.ask(chat) == 0  # never found, but known
    for scan in islice(scans, 60):
        cache.ask(scan)
    assert cache.num_found(chat) == 20


def test_what_comes_back_long_after_it_was_evicted_is_new() -> None:
    cache = Cache(90, SegmentedLruOrder(90))
    scans = one_offs(15)
    chat = path("chat", 20)
    cache.ask(chat)
    for scan in islice(scans, 20):  # 300 blocks, more than three times the pool
        cache.ask(scan)
    cache.ask(chat)
    for scan in islice(scans, 6):
        cache.ask(scan)
    assert cache.num_found(chat) == 0


@pytest.mark.parametrize("name", ORDERS)
@given(st.lists(st.text("ab", min_size=1, max_size=8), min_size=10, max_size=80))
def test_a_head_outlives_its_tails(name: str, prompts: list[str]) -> None:
    cache = Cache(12, ORDERS[name](12))
    for prompt in prompts:
        cache.ask(prompt)
        for known in prompts:
            is_there = [cache.pool.find(key) is not None for key in keys_of(known)]
            assert is_there == sorted(is_there, reverse=True), "a tail is there without its head"


# ---- its own limits


def test_memory_is_bounded() -> None:
    order, sizes = SegmentedLruOrder(30), list[int]()
    cache = Cache(30, order)
    for number, scan in enumerate(islice(one_offs(10), 500)):
        cache.ask(scan)
        if number % 2:
            cache.ask(scan)
        sizes.append(len(pickle.dumps(order)))
    assert max(sizes[250:]) <= max(sizes[:250])


def test_a_reset_forgets_what_was_asked_for() -> None:
    cache = Cache(90, SegmentedLruOrder(90))
    scans = one_offs(30)
    kept, lost = path("kept", 20), path("lost", 20)
    for prompt in (lost, next(scans), next(scans), next(scans), kept, kept):
        cache.ask(prompt)
    assert (cache.num_found(kept), cache.num_found(lost)) == (20, 0)
    cache.pool.unpublish_all()
    cache.ask(kept)
    cache.ask(lost)
    for scan in islice(scans, 3):
        cache.ask(scan)
    assert (cache.num_found(kept), cache.num_found(lost)) == (0, 0)


def test_a_reset_forgets_what_holders_have_found() -> None:
    cache = Cache(9, SegmentedLruOrder(9))
    chat = path("chat", 2)
    cache.ask(chat)
    cache.hold(chat)
    cache.pool.unpublish_all()
    cache.free()
    cache.ask(chat)
    cache.ask(path("scan", 9))
    assert cache.num_found(chat) == 0


def test_a_pool_too_small_to_protect_anything_is_lru() -> None:
    caches = [Cache(2, make(2)) for make in ORDERS.values()]
    rng = Random(0)
    for _ in range(200):
        prompt = rng.choices("abc", k=rng.randint(1, 2))
        found, ours = (cache.ask(prompt) for cache in caches)
        assert found == ours
        assert caches[0].pool.free_order() == caches[1].pool.free_order()
