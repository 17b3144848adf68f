"""Puts the product's ring writer, lookup and reader entries on the words of a modelled memory.

Every object of the product that a program makes is made on `RUNNING.machine`: the memory of the replay that runs now,
or a plain one while the scene is set. In place of mapped words there are `ModelWords`, in place of arrays of counts
`ModelCounts`: each single look and store is an access. Figures that decide nothing (limits, byte and hit counts, the
touch log) are not modelled: they read 0.

The key index is not modelled either, since it is a hint: it names any slot.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import numpy as np
import numpy.typing as npt

from mmcached.shm.files import locks
from mmcached.shm.ring import adoption, current_records, leases, lookup, reader_entry, reader_watch, ring, slot_table
from mmcached.shm.ring.key_index import KeyIndexWriter
from mmcached.shm.ring.lookup import Lookup
from mmcached.shm.ring.reader_entry import ReaderEntry
from mmcached.shm.ring.ring import RingWriter
from mmcached.shm.ring.slot_table import CHECK, FIRST_KEY, GENERATION, NBYTES, NOTE_BYTES, OFFSET, SECOND_KEY, KeyDigest
from mmcached.shm.segment import board
from mmcached.shm.segment.board import FLOOR, LAST_GENERATION
from mmcached.shm.segment.layout import (
    ALIGNMENT,
    ATTACHED_WORD,
    FIRST_COUNT_WORD,
    INCARNATION_WORD,
    SLOT_WORDS,
    Layout,
)
from mmcached.wire.handle import RingAnnouncement
from scripts.verification.replay import Machine

KEYS: tuple[KeyDigest, ...] = ((1 << 63 | 1, 7), (1 << 63 | 2, 7))
PAYLOAD_WORDS = 2
"""Of one unit of a payload, which is `ALIGNMENT` bytes in the product's eyes."""


class Running:
    """Names the memory on which the product's objects work at this moment."""

    machine: Machine


RUNNING = Running()


class PlainMemory:
    """Keeps words without buffers and other threads, to set a scene on."""

    reads_late = False

    def __init__(self, size: int) -> None:
        self.words = [0] * size

    def load(self, word: int) -> int:
        return self.words[word]

    def store(self, word: int, value: int) -> None:
        self.words[word] = int(value)

    store_release = store

    def fence(self) -> None:
        pass

    def expect(self, word: int, value: int) -> None:
        raise NotImplementedError

    def wait(self, word: int, value: int) -> None:
        raise NotImplementedError

    def locked(self, word: int) -> contextlib.AbstractContextManager[None]:
        raise NotImplementedError

    def choose(self, num_choices: int) -> int:
        raise NotImplementedError


class ModelWords:
    """Stands for words of the product, by their index there.

    Args:
        fixed: words that only ever get this value; a store of another one is an error of the scene.
    """

    def __init__(self, words: dict[int, int], fixed: dict[int, int] | None = None) -> None:
        self._words = words
        self._fixed = fixed or {}

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            indices = range(index.start, index.stop)
            backwards = RUNNING.machine.reads_late and RUNNING.machine.choose(2)
            values = [self[each] for each in (reversed(indices) if backwards else indices)]
            return values[::-1] if backwards else values
        word = self._words.get(index)
        return self._fixed.get(index, 0) if word is None else RUNNING.machine.load(word)

    def __setitem__(self, index: int, value: int) -> None:
        word = self.word(index, value)
        if word is not None:
            RUNNING.machine.store(word, value)

    def word(self, index: int, value: int) -> int | None:
        """Return where to store a value; None for what is not modelled."""
        if self._fixed.get(index, value) != value:
            raise ValueError(f"word {index} is said to be {self._fixed[index]} for ever, and is to be {value}")
        return self._words.get(index)

    def release(self) -> None:
        pass


class ModelCounts:
    """Stands for the array of counts, `(readers, slots, 2)`; what is taken out of it is a copy."""

    def __init__(self, words: npt.NDArray[np.int64]) -> None:
        self._words = words
        self.shape = words.shape

    def item(self, *index: int) -> int:
        return RUNNING.machine.load(int(self._words[index]))

    def __getitem__(self, index: Any) -> Any:
        words = self._words[index]
        values = [RUNNING.machine.load(int(word)) for word in words.ravel()] if words.shape else None
        if values is None:
            return np.uint64(RUNNING.machine.load(int(words)))
        return np.array(values, np.uint64).reshape(words.shape)

    def __setitem__(self, index: Any, value: Any) -> None:
        words = self._words[index]
        for word, each in zip(np.ravel(words), np.ravel(np.broadcast_to(value, words.shape)), strict=True):
            RUNNING.machine.store(int(word), int(each))


class OneCount:
    """Stands for one row of them, by slot."""

    def __init__(self, counts: ModelCounts, *place: Any) -> None:
        self._counts = counts
        self._place = place

    def __getitem__(self, slot: int) -> int:
        return self._counts.item(*(slot if part is None else part for part in self._place))


def live_counts(counts: ModelCounts, reader_id: int) -> tuple[OneCount, OneCount]:
    return OneCount(counts, reader_id, None, 1), OneCount(counts, reader_id, None, 0)


class ModelStore:
    """Orders memory as the machine does."""

    name = "model"

    def store_release(self, words: Any, index: int, value: int) -> None:
        word = words.word(index, value)
        if word is not None:
            RUNNING.machine.store_release(word, value)

    def load_fence(self) -> None:
        pass  # only what is copied as a slice is read in another order

    def full_fence(self) -> None:
        RUNNING.machine.fence()


class ByteLocks:
    """Answers like `shm.files.locks`: a byte is free when its process is dead and all that it has stored has arrived.

    The file descriptor is the map of the memory.
    """

    reader_byte = staticmethod(locks.reader_byte)

    @staticmethod
    def is_free(fd: Map, byte: int) -> bool:
        return not RUNNING.machine.load(fd.alive(byte))


@dataclass(frozen=True)
class Map:
    """Places the words of a ring in the modelled memory, by who writes them.

    Attributes:
        has_sizes: records may lie anywhere and be of any size; else slot n holds the unit n.
    """

    num_readers: int
    num_slots: int
    has_sizes: bool = False

    def names(self) -> list[str]:
        readers, slots = range(self.num_readers), range(self.num_slots)
        fields = ("generation", "offset", "nbytes", "note", "key", "key'", "check", "pad")
        return [
            *("the last generation", "the floor", *(f"attached[{r}]" for r in readers)),
            *(f"{field} of slot {s}" for s in slots for field in fields),
            *(f"payload[{s}][{part}]" for s in slots for part in range(PAYLOAD_WORDS)),
            *(f"{count}[{r}][{s}]" for r in readers for s in slots for count in ("returned", "taken")),
            *(f"incarnation[{r}]" for r in readers),
            *(f"the Hello of entry {r}" for r in readers),
            *(f"the lock of {count}[{r}]" for r in readers for count in ("returned", "taken")),
            *("the writer's byte", *(f"the byte of entry {r}" for r in readers)),
        ]

    def size(self) -> int:
        return self.alive(self.num_readers) + 1

    def attached(self, reader_id: int) -> int:
        return 2 + reader_id

    def slot(self, slot: int, field: int) -> int:
        return self.attached(self.num_readers) + SLOT_WORDS * slot + field

    def payload(self, unit: int, part: int) -> int:
        return self.slot(self.num_slots, 0) + PAYLOAD_WORDS * unit + part

    def returned(self, reader_id: int, slot: int) -> int:
        return self.payload(self.num_slots, 0) + 2 * (self.num_slots * reader_id + slot)

    def taken(self, reader_id: int, slot: int) -> int:
        return self.returned(reader_id, slot) + 1

    def incarnation(self, reader_id: int) -> int:
        return self.returned(self.num_readers, 0) + reader_id

    def hello(self, reader_id: int) -> int:
        return self.incarnation(self.num_readers) + reader_id

    def returned_lock(self, reader_id: int) -> int:
        return self.hello(self.num_readers) + 2 * reader_id

    def taken_lock(self, reader_id: int) -> int:
        return self.returned_lock(reader_id) + 1

    def alive(self, role: int) -> int:
        return self.returned_lock(self.num_readers) + role

    # ---- the product's objects on it

    def layout(self) -> Layout:
        return Layout(ALIGNMENT * self.num_slots, self.num_slots, self.num_readers)

    def announcement(self) -> RingAnnouncement:
        return RingAnnouncement(0, "0" * 32, 1, ALIGNMENT * self.num_slots, self.num_slots, self.num_readers)

    def board(self) -> ModelWords:
        attached = {ATTACHED_WORD + r: self.attached(r) for r in range(self.num_readers)}
        return ModelWords({LAST_GENERATION: 0, FLOOR: 1, **attached})

    def slots(self) -> ModelWords:
        changing = [GENERATION, FIRST_KEY, *([OFFSET, NBYTES] if self.has_sizes else [])]
        words, fixed = dict[int, int](), dict[int, int]()
        for slot in range(self.num_slots):
            first = SLOT_WORDS * slot
            words |= {first + field: self.slot(slot, field) for field in changing}
            fixed |= {first + SECOND_KEY: KEYS[0][1], first + NOTE_BYTES: 0, first + CHECK: 0}
            if not self.has_sizes:
                fixed |= {first + OFFSET: ALIGNMENT * slot, first + NBYTES: ALIGNMENT}
        return ModelWords(words, fixed)

    def tables(self) -> Any:
        return SimpleNamespace(board=self.board(), slots=self.slots(), index=None)

    def counts(self) -> ModelCounts:
        first, last = self.returned(0, 0), self.returned(self.num_readers, 0)
        return ModelCounts(np.arange(first, last).reshape(self.num_readers, self.num_slots, 2))

    def entry(self, reader_id: int) -> ModelWords:
        words = {INCARNATION_WORD: self.incarnation(reader_id)}
        for slot in range(self.num_slots):
            first = FIRST_COUNT_WORD + 2 * slot
            words |= {first: self.returned(reader_id, slot), first + 1: self.taken(reader_id, slot)}
        return ModelWords(words)

    def ring_writer(self, *, is_adopted: bool = False) -> RingWriter:
        """Make the ring's writer, or its successor."""
        control = SimpleNamespace(
            fd=self,
            layout=self.layout(),
            words=ModelWords({}),
            counts=self.counts,
            incarnation=lambda reader_id: RUNNING.machine.load(self.incarnation(reader_id)),
        )
        segment = SimpleNamespace(
            control=control,
            announcement=self.announcement(),
            data=bytearray(ALIGNMENT * self.num_slots),
        )
        tables = self.tables()
        # A function, not `return_value=`: a `MagicMock` for each of thousands of replays takes a third of all time.
        with mock.patch.object(ring, "Tables", lambda *_: tables):  # noqa: PT008
            num_bytes = ALIGNMENT * self.num_slots
            if is_adopted:
                opens = SimpleNamespace(adopt=lambda announcement, layout: segment)
                with mock.patch.object(ring, "WriterSegment", opens):
                    writer = ring.adopt_ring(self.announcement(), self.layout(), max_object_bytes=num_bytes)
            else:
                writer = RingWriter(segment, max_object_bytes=num_bytes)  # type: ignore[arg-type]
        writer.index = cast(KeyIndexWriter, "not modelled")
        return writer

    def reader_entry(self, reader_id: int, incarnation: int) -> ReaderEntry:
        control: Any = SimpleNamespace(fd=self, layout=self.layout(), words=self.entry(reader_id))
        return ReaderEntry(self.announcement(), control, reader_id, incarnation)

    def lookup(self) -> Lookup:
        return Lookup(self.tables(), self.announcement())


def read_table(words: ModelWords, *, num_slots: int) -> npt.NDArray[np.uint64]:
    """Load word by word what the product copies at once; of a free slot the first alone."""
    table = np.zeros((num_slots, SLOT_WORDS), np.uint64)
    for slot in range(num_slots):
        first = SLOT_WORDS * slot
        table[slot, 0] = words[first]
        if table[slot, 0]:
            table[slot, 1:] = words[first + 1 : first + SLOT_WORDS]
    return table


@contextlib.contextmanager
def modelled_words(the_map: Map) -> Iterator[None]:
    """Let the product's modules order memory, ask for locks and look keys up as the model does."""

    def any_slot(index: object, key: KeyDigest) -> Iterator[int]:
        yield RUNNING.machine.choose(the_map.num_slots) if the_map.num_slots > 1 else 0

    with contextlib.ExitStack() as stack:
        for module in (adoption, board, reader_entry, current_records, slot_table):
            stack.enter_context(mock.patch.object(module, "require_word_store", ModelStore))
        stack.enter_context(mock.patch.object(adoption, "read_table", partial(read_table, num_slots=the_map.num_slots)))
        stack.enter_context(mock.patch.object(reader_watch, "locks", ByteLocks))
        stack.enter_context(mock.patch.object(lookup, "slots_of", any_slot))
        stack.enter_context(mock.patch.object(lookup, "MAX_LOOKS", 1))  # a look more is one more round
        stack.enter_context(mock.patch.object(leases, "live_counts", live_counts))
        yield
