"""Places a store of several segments in the modelled memory, and puts the product's slot table and readers on it.

    frontend writes     slot table, index, last generation, floor, epoch, last nursery; its answers to each writer; the
                        bytes of the main segment; which names lead to files
    a writer writes     the bytes of its nurseries, its messages
    a reader writes     its counts of leases
    the kernel writes   which processes live

A *segment* is one file with room for a few records, all of one size: the *main* one is the frontend's own, each
*nursery* has one writer. A *place* is room for one record, numbered over all segments; in the product a slot names the
id of a nursery and an offset. Files have numbers of their own, so that a name can lead to another file than before.

A message or an answer is a word that is stored once, with a release store, and read when the receiver gets to it: a
socket orders what was done before a message before all that follows its receipt.

The index has two words for each key, in the order in which a look reads them, as a run of linear probing has; keys do
not share runs. Some words stand for nothing in the product: what each generation holds, for the checks alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any
from unittest import mock

from mmcached.shm.ring import lookup, reader_entry, slot_table
from mmcached.shm.ring.lookup import Lookup
from mmcached.shm.ring.reader_entry import ReaderEntry
from mmcached.shm.ring.slot_table import (
    CHECK,
    FIRST_KEY,
    GENERATION,
    NBYTES,
    NOTE_BYTES,
    OFFSET,
    SECOND_KEY,
    KeyDigest,
    SlotTable,
)
from mmcached.shm.segment.layout import (
    ALIGNMENT,
    ATTACHED_WORD,
    FIRST_COUNT_WORD,
    INCARNATION_WORD,
    SLOT_WORDS,
    Layout,
)
from mmcached.wire.handle import RingAnnouncement
from scripts.verification.self_lease_words import RUNNING, ModelStore, ModelWords

KEYS: tuple[KeyDigest, ...] = ((1 << 63 | 1, 7), (1 << 63 | 2, 7), (1 << 63 | 3, 7))
MAIN = 0
MAX_UNITS = 2
MAX_GENERATION = 8
INDEX_WORDS = 2
"""Of each key."""
MAX_LOOKS = 2
"""Of the product's lookup, for one key: no record here is copied twice while a reader looks."""
INCARNATION = 1
"""Of every reader: all are attached from the start on."""


def pack(*digits: int) -> int:
    """Return a number that holds small numbers, and is not 0."""
    value = 1
    for digit in digits:
        value = 16 * value + digit
    return value


def unpack(value: int, num_digits: int) -> list[int]:
    return [value >> 4 * position & 15 for position in reversed(range(num_digits))]


@dataclass(frozen=True)
class Map:
    """Names the words.

    Attributes:
        num_main, num_units: records that fit into the main segment, and into each nursery.
        num_nurseries: that there can ever be.
        num_messages: that a writer sends at most.
    """

    num_main: int = 0
    num_units: int = 1
    num_nurseries: int = 1
    num_writers: int = 1
    num_readers: int = 1
    num_slots: int = 2
    num_messages: int = 2

    @property
    def nurseries(self) -> range:
        """Their ids."""
        return range(1, 1 + self.num_nurseries)

    @property
    def writers(self) -> range:
        return range(1, 1 + self.num_writers)

    def places(self, segment: int) -> range:
        first = MAX_UNITS * segment
        return range(first, first + (self.num_units if segment else self.num_main))

    def mask(self, places: Iterable[int]) -> int:
        """Return a digit that says which places of one segment these are."""
        return sum(1 << place % MAX_UNITS for place in places)

    def places_of(self, segment: int, mask: int) -> frozenset[int]:
        return frozenset(place for place in self.places(segment) if mask >> place % MAX_UNITS & 1)

    def word(self, *name: object) -> int:
        return self._words[name]

    def names(self) -> list[str]:
        return [" ".join(map(str, name)) for name in self._words]

    def owners(self) -> list[tuple[int, int] | None]:
        """Return for each word the one thread that ever stores to it, if there is only one."""
        return list(self._words_and_owners.values())

    # ---- roles

    def reader(self, reader_id: int) -> int:
        """Return the role of a reader; that of a writer is its number."""
        return 1 + self.num_writers + reader_id

    @property
    def num_roles(self) -> int:
        return self.reader(self.num_readers)

    # ---- the product's objects

    def slots(self) -> ModelWords:
        words, fixed = dict[int, int](), dict[int, int]()
        for slot in range(self.num_slots):
            first = SLOT_WORDS * slot
            words |= {first + field: self.word(name, slot) for field, name in _SLOT_FIELDS.items()}
            fixed |= {
                first + SECOND_KEY: KEYS[0][1],
                first + NOTE_BYTES: 0,
                first + CHECK: 0,
                first + NBYTES: ALIGNMENT,
            }
        return ModelWords(words, fixed)

    def slot_table(self) -> SlotTable:
        return SlotTable(self.slots())  # type: ignore[arg-type]

    def lookup(self) -> Lookup:
        board = ModelWords({}, {ATTACHED_WORD + reader_id: INCARNATION for reader_id in range(self.num_readers)})
        tables: Any = SimpleNamespace(board=board, slots=self.slots(), index=self)
        return Lookup(tables, self._announcement())

    def reader_entry(self, reader_id: int) -> ReaderEntry:
        words = {INCARNATION_WORD: self.word("returned", reader_id, 0)}
        for slot in range(self.num_slots):
            first = FIRST_COUNT_WORD + 2 * slot
            words |= {first: self.word("returned", reader_id, slot), first + 1: self.word("taken", reader_id, slot)}
        names = self._announcement()
        layout = Layout(names.data_bytes, names.num_slots, names.max_readers)
        control: Any = SimpleNamespace(fd=-1, layout=layout, words=ModelWords(words))
        return ReaderEntry(names, control, reader_id, INCARNATION)

    def _announcement(self) -> RingAnnouncement:
        num_places = MAX_UNITS * (1 + self.num_nurseries)
        return RingAnnouncement(0, "0" * 32, 1, ALIGNMENT * num_places, self.num_slots, self.num_readers)

    # ---- all words

    @cached_property
    def _words(self) -> dict[tuple[object, ...], int]:
        return {name: index for index, name in enumerate(self._words_and_owners)}

    @cached_property
    def _words_and_owners(self) -> dict[tuple[object, ...], tuple[int, int] | None]:
        frontend, slots = (0, 0), range(self.num_slots)
        words: dict[tuple[object, ...], tuple[int, int] | None] = {}
        words |= {(name,): frontend for name in ("last generation", "floor", "epoch", "flushed")}
        words |= {(name,): frontend for name in ("last nursery", "files")}
        words |= {(field, slot): frontend for slot in slots for field in _SLOT_FIELDS.values()}
        words |= {("index", key, each): frontend for key in range(len(KEYS)) for each in range(INDEX_WORDS)}
        words |= {("content", generation): frontend for generation in range(1, MAX_GENERATION + 1)}
        words |= {("bytes", place): frontend for place in self.places(MAIN)}
        for nursery in self.nurseries:
            words |= {("bytes", place): None for place in self.places(nursery)}
            words[("name", nursery)] = frontend
        for writer in self.writers:
            for number in range(self.num_messages):
                words |= {("message", writer, number): (writer, 0), ("answer", writer, number): frontend}
            words[("owned", writer)] = (writer, 0)
        words |= {("acknowledged", key): None for key in range(len(KEYS))}
        for reader_id in range(self.num_readers):
            thread = (self.reader(reader_id), 0)
            words |= {(count, reader_id, slot): thread for slot in slots for count in ("returned", "taken")}
        words |= {("ended", role): (role, 0) for role in range(self.num_roles)}
        return words | {("alive", role): None for role in range(self.num_roles)}


_SLOT_FIELDS = {GENERATION: "mark", OFFSET: "place", FIRST_KEY: "key"}


def shown_slots(the_map: Map, key: KeyDigest) -> list[int]:
    """Return the slots at which the index shows a key, of a frontend that may be changing it."""
    shown = list[int]()
    for each in range(INDEX_WORDS):
        word = RUNNING.machine.load(the_map.word("index", KEYS.index(key), each))
        if not word:
            break
        shown.append(word - 1)
    return shown


@contextlib.contextmanager
def modelled_words() -> Iterator[None]:
    """Let the product's modules order memory and look keys up as the model does."""
    with contextlib.ExitStack() as stack:
        for module in (reader_entry, slot_table):
            stack.enter_context(mock.patch.object(module, "require_word_store", ModelStore))
        stack.enter_context(mock.patch.object(lookup, "slots_of", shown_slots))
        stack.enter_context(mock.patch.object(lookup, "MAX_LOOKS", MAX_LOOKS))
        yield
