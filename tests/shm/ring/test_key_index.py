from __future__ import annotations

import doctest
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mmcached.shm.ring import key_index
from mmcached.shm.ring.key_index import KeyIndexReader, KeyIndexWriter, fingerprint, index_words
from mmcached.wire.errors import CacheFull, LocalProtocolError
from tests.house.drawing import examples


def table(num_words: int) -> memoryview:
    return memoryview(bytearray(8 * num_words)).cast("Q")


def test_the_drawing() -> None:
    assert doctest.testmod(key_index).failed == 0


@pytest.mark.parametrize(("num_keys", "expected"), [(1, 2), (2, 4), (3, 8), (4096, 8192), (4097, 16384)])
def test_a_table_is_at_most_half_full(num_keys: int, expected: int) -> None:
    assert index_words(num_keys) == expected


def test_what_is_not_a_power_of_two_of_words_is_refused() -> None:
    for words in (table(3), table(1), memoryview(bytearray(8))):
        with pytest.raises(LocalProtocolError):
            KeyIndexReader(words)
        with pytest.raises(LocalProtocolError):
            KeyIndexWriter(words)


def test_a_torn_table_ends_a_look() -> None:
    """No word is free: a reader that only stops at a free one would go round for ever."""
    words = table(8)
    for place in range(8):
        words[place] = 1
    assert not KeyIndexReader(words).contains("a")


def colliding(num_words: int, count: int) -> list[str]:
    """Keys that all have one home, at the end of the table, so that their run goes round."""
    found = (str(n) for n in range(10**6) if fingerprint(str(n)) & (num_words - 1) == num_words - 1)
    return [next(found) for _ in range(count)]


def test_a_key_that_stays_can_be_found_between_any_two_stores() -> None:
    """Looked at between any two stores of a removal."""
    keys = colliding(16, 6)
    words = table(16)
    index = KeyIndexWriter(words)
    for key in keys:
        index.add(key)

    class Watched:
        """The table, with a look at every key that stays before and after each store."""

        def __len__(self) -> int:
            return len(words)

        def __getitem__(self, place: int) -> int:
            return int(words[place])

        def __setitem__(self, place: int, mark: int) -> None:
            words[place] = mark
            assert all(KeyIndexReader(words).contains(key) for key in staying)

    index._words = Watched()  # type: ignore[assignment]
    for key in [keys[2], keys[0], keys[5]]:
        staying = [other for other in keys if other != key and KeyIndexReader(words).contains(other)]
        index.discard(key)
        assert not KeyIndexReader(words).contains(key)


class IndexModel(RuleBasedStateMachine):
    """Against a set; half of the keys share one home."""

    KEYS: ClassVar = [*colliding(16, 6), *map(str, range(6))]

    def __init__(self) -> None:
        super().__init__()
        words = table(16)
        self.index, self.reader = KeyIndexWriter(words), KeyIndexReader(words)
        self.shown: set[str] = set()

    @rule(key=st.sampled_from(KEYS))
    def add(self, key: str) -> None:
        if key in self.shown:
            return
        if len(self.shown) == 8:
            with pytest.raises(CacheFull):
                self.index.add(key)
            return
        self.index.add(key)
        self.shown.add(key)

    @rule(key=st.sampled_from(KEYS))
    def discard(self, key: str) -> None:
        self.index.discard(key)
        self.shown.discard(key)

    @rule()
    def clear(self) -> None:
        self.index.clear()
        self.shown.clear()

    @invariant()
    def agrees(self) -> None:
        assert {key for key in self.KEYS if self.reader.contains(key)} == self.shown
        assert len(self.index) == len(self.shown)
        self.index.check_integrity()


TestIndexModel = IndexModel.TestCase
TestIndexModel.settings = settings(max_examples=examples(60), stateful_step_count=40)
