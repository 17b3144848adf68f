"""The LRU cache: the walk-through of vLLM's suite, what differs from it, and a state machine against a plain model."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mmcached.cache import CacheInfo, LRUCache
from mmcached.wire.errors import CacheFull, ItemTooLarge
from tests.compat.integrity import check_lru
from tests.house.drawing import examples


class RemovalsNoted(LRUCache[int, str]):
    """Notes every key that the removal hook is told of."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.removed: list[int] = []

    def _on_remove(self, key: int, value: str) -> None:
        self.removed.append(key)


def sized(capacity: int) -> LRUCache[str, str]:
    """A cache of strings, whose size is their length."""
    return LRUCache(capacity, len)


def test_walk_through() -> None:
    cache = RemovalsNoted(3)
    cache.put(1, "one")
    cache.put(1, "one again")
    assert len(cache) == 1
    cache.put(2, "two")
    cache.put(3, "three")
    assert set(cache.cache) == {1, 2, 3}
    cache.put(4, "four")
    assert set(cache.cache) == {2, 3, 4}
    assert cache.removed == [1]

    assert cache.get(2) == "two"
    assert cache.stat() == CacheInfo(1, 1)
    assert cache[3] == "three"
    assert cache.stat(delta=True) == CacheInfo(2, 2)
    cache.put(5, "five")
    assert set(cache.cache) == {2, 3, 5}
    assert cache.pop(5) == "five"
    assert cache.pop(5, "default") == "default"
    assert cache.pop(5) is None
    assert cache.stat(delta=True) == CacheInfo(0, 0)

    assert cache.get(99) is None
    assert cache.get(99, "default") == "default"
    assert cache.stat(delta=True) == CacheInfo(0, 2)
    assert cache.stat() == CacheInfo(2, 4)
    assert cache.stat().hit_ratio == 0.5

    cache.remove_oldest()
    assert list(cache.order) == [3]
    cache.removed.clear()
    cache[6] = "six"
    cache.clear()
    assert cache.removed == [3, 6]
    assert len(cache) == 0
    assert cache.stat() == cache.stat(delta=True) == CacheInfo(0, 0)
    cache.remove_oldest()


def test_item_syntax() -> None:
    cache = RemovalsNoted(2)
    cache[1] = "one"
    cache[2] = "two"
    assert cache[1] == "one"
    assert 1 in cache
    assert list(cache) == [2, 1]
    del cache[2]
    assert 2 not in cache
    assert cache.removed == [2]
    with pytest.raises(KeyError):
        cache[2]
    with pytest.raises(KeyError):
        del cache[2]
    assert cache.stat() == CacheInfo(1, 1), "a miss by item syntax counts nothing"


def test_hit_ratio_of_nothing_is_zero() -> None:
    assert CacheInfo(0, 0).hit_ratio == 0.0


def test_views_are_read_only() -> None:
    cache = sized(10)
    with pytest.raises(TypeError):
        cache.cache["a"] = "x"  # type: ignore[index]


def test_too_large_changes_nothing() -> None:
    cache = sized(4)
    cache.put("a", "aa")
    with pytest.raises(ItemTooLarge) as caught:
        cache.put("a", "aaaaa")
    assert caught.value.details["limit"] == 4
    assert not cache.put_if_fits("b", "bbbbb")
    assert cache.cache == {"a": "aa"}
    assert cache.put_if_fits("b", "bb")


KEYS = st.sampled_from("abcdef")
VALUES = st.integers(0, 6).map(lambda size: "x" * size)


class LRUMachine(RuleBasedStateMachine):
    """Every operation, beside a list of `[key, value, pinned]` from old to new that says what should be."""

    @initialize(capacity=st.integers(0, 12))
    def start(self, capacity: int) -> None:
        self.capacity = capacity
        self.cache = sized(capacity)
        self.model: list[tuple[str, str]] = []
        self.pins: set[str] = set()
        self.hits = self.total = 0
        self.last = CacheInfo(0, 0)

    def find(self, key: str) -> str | None:
        return dict(self.model).get(key)

    def remove(self, key: str) -> None:
        self.model = [entry for entry in self.model if entry[0] != key]

    def make_young(self, key: str) -> None:
        entry = next(entry for entry in self.model if entry[0] == key)
        self.remove(key)
        self.model.append(entry)

    @rule(key=KEYS, value=VALUES)
    def put(self, key: str, value: str) -> None:
        if len(value) > self.capacity:
            with pytest.raises(ItemTooLarge):
                self.cache.put(key, value)
            return
        others = [entry for entry in self.model if entry[0] != key]
        kept = list(others)
        for entry in others:
            if sum(len(other) for _, other in kept) + len(value) <= self.capacity:
                break
            if entry[0] not in self.pins:
                kept.remove(entry)
        if sum(len(other) for _, other in kept) + len(value) > self.capacity:
            with pytest.raises(CacheFull):
                self.cache.put(key, value)
            return
        self.cache.put(key, value)
        self.model = [*kept, (key, value)]
        self.pins &= {entry[0] for entry in self.model}

    @rule(key=KEYS)
    def get(self, key: str) -> None:
        expected = self.find(key)
        assert self.cache.get(key) == expected
        self.total += 1
        if expected is not None:
            self.hits += 1
            self.make_young(key)

    @rule(key=KEYS)
    def touch(self, key: str) -> None:
        self.cache.touch(key)
        if self.find(key) is not None:
            self.make_young(key)

    @rule(key=KEYS)
    def pop(self, key: str) -> None:
        assert self.cache.pop(key) == self.find(key)
        self.remove(key)
        self.pins.discard(key)

    @rule(key=KEYS)
    def pin(self, key: str) -> None:
        if self.find(key) is None:
            with pytest.raises(ValueError, match="pin"):
                self.cache.pin(key)
        else:
            self.cache.pin(key)
            self.pins.add(key)

    @rule(key=KEYS)
    def unpin(self, key: str) -> None:
        self.cache.unpin(key)
        self.pins.discard(key)

    @precondition(lambda self: self.model)
    @rule(remove_pinned=st.booleans())
    def popitem(self, remove_pinned: bool) -> None:
        free = [entry for entry in self.model if remove_pinned or entry[0] not in self.pins]
        if not free:
            with pytest.raises(CacheFull):
                self.cache.popitem(remove_pinned)
            return
        assert self.cache.popitem(remove_pinned) == free[0]
        self.remove(free[0][0])
        self.pins.discard(free[0][0])

    @rule()
    def delta(self) -> None:
        now = CacheInfo(self.hits, self.total)
        assert self.cache.stat(delta=True) == now - self.last
        self.last = now

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.model, self.pins = [], set()
        self.hits = self.total = 0
        self.last = CacheInfo(0, 0)

    @invariant()
    def agree(self) -> None:
        assert list(self.cache.cache.items()) == self.model
        assert self.cache.pinned_items == self.pins
        assert self.cache.usage == sum(len(value) for _, value in self.model)
        assert self.cache.stat() == CacheInfo(self.hits, self.total)
        check_lru(self.cache)


TestLRUMachine = LRUMachine.TestCase
TestLRUMachine.settings = settings(max_examples=examples(60), stateful_step_count=40)
