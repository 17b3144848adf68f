from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mmcached.shm.ring.key_index import KeyIndexWriter, index_words, key_digest, slots_of
from mmcached.shm.ring.slot_table import KeyDigest
from mmcached.shm.segment.layout import SLOT_BITS
from mmcached.wire.errors import CacheFull, LocalProtocolError
from tests.house.drawing import examples
from tests.shm.integrity import check_index


def table(num_words: int) -> memoryview:
    return memoryview(bytearray(8 * num_words)).cast("Q")


@pytest.mark.parametrize(("num_keys", "expected"), [(1, 2), (2, 4), (3, 8), (4096, 8192), (4097, 16384)])
def test_a_table_is_at_most_half_full(num_keys: int, expected: int) -> None:
    assert index_words(num_keys) == expected


def test_what_is_not_a_power_of_two_of_words_is_refused() -> None:
    for words in (table(3), table(1), memoryview(bytearray(8))):
        with pytest.raises(LocalProtocolError):
            KeyIndexWriter(words)


def test_a_torn_table_ends_a_look() -> None:
    """No word is free: a reader that only stops at a free one would go round for ever."""
    words = table(8)
    for place in range(8):
        words[place] = 1
    assert slots_of(words, key_digest("a")) == []


def colliding(num_words: int, count: int) -> list[KeyDigest]:
    """Keys that all have one home, at the end of the table, so that their run goes round."""
    digests = (key_digest(str(n)) for n in range(10**6))
    found = (key for key in digests if (key[0] >> SLOT_BITS) & (num_words - 1) == num_words - 1)
    return [next(found) for _ in range(count)]


def test_a_key_that_stays_can_be_found_between_any_two_stores() -> None:
    """Looked at between any two stores of a removal."""
    keys = colliding(16, 6)
    words = table(16)
    index = KeyIndexWriter(words)
    for slot, key in enumerate(keys):
        index.add(key, slot)

    class Watched:
        """The table, with a look at every key that stays before and after each store."""

        def __len__(self) -> int:
            return len(words)

        def __getitem__(self, place: int) -> int:
            return int(words[place])

        def __setitem__(self, place: int, mark: int) -> None:
            words[place] = mark
            assert all(keys.index(key) in slots_of(words, key) for key in staying)

    index._words = Watched()  # type: ignore[assignment]
    for slot in (2, 0, 5):
        staying = [other for other in keys if other != keys[slot] and slots_of(words, other)]
        index.discard(keys[slot], slot)
        assert slots_of(words, keys[slot]) == []


class IndexModel(RuleBasedStateMachine):
    """Against a set; half of the keys share one home."""

    KEYS: ClassVar = [*colliding(16, 6), *map(key_digest, map(str, range(6)))]

    def __init__(self) -> None:
        super().__init__()
        self.words = table(16)
        self.index = KeyIndexWriter(self.words)
        self.shown: set[int] = set()

    @rule(slot=st.integers(0, 11))
    def add(self, slot: int) -> None:
        if slot in self.shown:
            return
        if len(self.shown) == 8:
            with pytest.raises(CacheFull):
                self.index.add(self.KEYS[slot], slot)
            return
        self.index.add(self.KEYS[slot], slot)
        self.shown.add(slot)

    @rule(slot=st.integers(0, 11))
    def discard(self, slot: int) -> None:
        self.index.discard(self.KEYS[slot], slot)
        self.shown.discard(slot)

    @rule(slot=st.integers(0, 11))
    def move(self, slot: int) -> None:
        if slot not in self.shown:
            with pytest.raises(LocalProtocolError):
                self.index.move(self.KEYS[slot], slot, 100)
            return
        self.index.move(self.KEYS[slot], slot, 100 + slot)
        assert slots_of(self.words, self.KEYS[slot]) == [100 + slot]
        check_index(self.index)
        self.index.move(self.KEYS[slot], 100 + slot, slot)

    @invariant()
    def agrees(self) -> None:
        for slot, key in enumerate(self.KEYS):
            assert slots_of(self.words, key) == [slot] * (slot in self.shown)
        assert len(self.index) == len(self.shown)
        check_index(self.index)


TestIndexModel = IndexModel.TestCase
TestIndexModel.settings = settings(max_examples=examples(60), stateful_step_count=40)
