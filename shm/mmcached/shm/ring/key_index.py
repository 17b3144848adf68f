"""Hash table from keys to slots, in shared words that readers look into without a message to the writer.

    words   [ mark | 0 | 0 | mark | mark | 0 | … ]     one for each key, 0 = free; the number of words is a power of two
    mark    44 bits of the key's digest, then 20 of the slot
            home of a mark = its digest bits mod size; if that is taken, the next word, and so on (linear probing)

The writer trusts its private copy and never reads the shared words again, except in `adopt`. One process writes, any
number look up, without a lock: each word is stored whole. A key that moves to another slot keeps its word, which then
names that slot. A removal moves later words of its run back into the hole, each copied *before* its old place is freed,
so that between any two stores every remaining key can be found; only a lookup that is in progress may miss it.
Many keys share 44 bits, and a word may be out of date: so a lookup yields slots where the key may be, and the slot's
record decides.

Invariant: every word lies in the run that begins at its home; at least half of the words are 0.

>>> words = memoryview(bytearray(8 * 8)).cast("Q")
>>> index, a, b = KeyIndexWriter(words), key_digest("a"), key_digest("b")
>>> index.add(a, 5); index.add(b, 7); slots_of(words, a), slots_of(words, b), slots_of(words, (0, 0))
([5], [7], [])
>>> index.discard(b, 7); slots_of(words, b), len(index)
([], 1)
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections import Counter

import numpy as np
import numpy.typing as npt

from mmcached.shm.crash_points import crash_point
from mmcached.shm.ring.slot_table import KeyDigest
from mmcached.shm.segment.layout import SLOT_BITS
from mmcached.shm.segment.words import require_word_store
from mmcached.wire.errors import CacheFull, InvariantError, LocalProtocolError

_TWO_WORDS = struct.Struct("<QQ")
_SLOT_MASK = (1 << SLOT_BITS) - 1


def index_words(num_keys: int) -> int:
    """Return the number of words for `num_keys` keys: a power of two, at least twice as many."""
    return 1 << (2 * num_keys - 1).bit_length()


def key_digest(key: str) -> KeyDigest:
    """Return a key's 128-bit digest, never `NO_KEY`."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    first, second = _TWO_WORDS.unpack(digest)
    return first | 1 << 63, second  # a mark is never 0 = free


def slots_of(words: memoryview | array[int], key: KeyDigest) -> list[int]:
    """Return the slots where a key may be, from a table that another process may be writing."""
    slots: list[int] = []
    mask = len(words) - 1
    bits = key[0] >> SLOT_BITS
    place = bits & mask
    for _ in range(mask + 1):  # a bound, in case the table changes during the lookup or is damaged
        word = words[place]
        if not word:
            break
        if word >> SLOT_BITS == bits:
            slots.append(word & _SLOT_MASK)
        place = (place + 1) & mask
    return slots


class KeyIndexWriter:
    """The only writer of a table. Starts with an empty private copy; `adopt` takes over words shown before."""

    def __init__(self, words: memoryview) -> None:
        if words.format != "Q" or len(words) < 2 or len(words) & (len(words) - 1):
            raise LocalProtocolError(f"an index is a power of two of words, not {len(words)} of format {words.format}")
        self._shown = words
        self._words = array("Q", bytes(words.nbytes))  # authoritative
        self._mask = len(words) - 1
        self._num_keys = 0

    def __len__(self) -> int:
        return self._num_keys

    def add(self, key: KeyDigest, slot: int) -> None:
        """Show the slot of a key; raise CacheFull if half of the words are taken."""
        if 2 * (self._num_keys + 1) > len(self._words):
            raise CacheFull(1, len(self._words) // 2, self._num_keys)
        self._insert(_mark(key, slot))

    def discard(self, key: KeyDigest, slot: int) -> None:
        """Remove a key at a slot; a key that is not shown there changes nothing."""
        self._remove(_mark(key, slot))

    def move(self, key: KeyDigest, slot: int, new_slot: int) -> None:
        """Show a key at another slot, with one store: a lookup finds the old or the new slot.

        Raises:
            LocalProtocolError: The key is not shown at `slot`.
        """
        place = self._find(_mark(key, slot))
        if place is None:
            raise LocalProtocolError(f"the index does not show this key at slot {slot}")
        mark = self._words[place] = _mark(key, new_slot)
        # A release store: a reader that finds the new slot here also sees its record as valid.
        require_word_store().store_release(self._shown, place, mark)

    def adopt(self, marks: npt.NDArray[np.uint64]) -> None:
        """Make the table show exactly these marks; marks that the former writer has shown can be found meanwhile.

        A writer that dies may leave a word twice, in the middle of a removal, or show a key whose record was removed,
        or not yet show a key whose record was added. A table with any other damage is cleared and rebuilt.
        """
        shown = np.frombuffer(self._shown, np.uint64).copy()
        if not _is_whole(shown):
            shown[:] = 0
            np.frombuffer(self._shown, np.uint64)[:] = 0
        self._words = array("Q", shown.tobytes())
        present, marks = np.sort(shown[shown != 0]), np.sort(marks)
        self._num_keys = len(present)
        if np.array_equal(present, marks):
            return
        surplus = Counter(present.tolist())
        surplus.subtract(marks.tolist())
        for (
            mark,
            number,
        ) in surplus.items():  # first: a key whose slot has changed is found at one of the two
            if number < 0:
                self._insert(mark)
        for mark, number in surplus.items():
            for _ in range(number):
                self._remove(mark)

    def _insert(self, mark: int) -> None:
        place = (mark >> SLOT_BITS) & self._mask
        while self._words[place]:
            place = (place + 1) & self._mask
        self._set(place, mark)
        self._num_keys += 1

    def _remove(self, mark: int) -> None:
        hole = self._find(mark)
        if hole is None:
            return
        place = hole
        while later := self._words[place := (place + 1) & self._mask]:
            # A word may move into the hole unless its home lies behind the hole: no reader would find it there.
            if (place - (later >> SLOT_BITS)) & self._mask >= (place - hole) & self._mask:
                self._set(hole, later)
                crash_point("index.moved")
                hole = place
        self._set(hole, 0)
        self._num_keys -= 1

    def check_integrity(self) -> None:
        """Raise InvariantError if a word cannot be found from its home, or the count is wrong."""
        taken = [place for place in range(len(self._words)) if self._words[place]]
        if len(taken) != self._num_keys:
            raise InvariantError(f"the index holds {len(taken)} words for {self._num_keys} keys")
        for place in taken:
            home = (self._words[place] >> SLOT_BITS) & self._mask
            run = ((home + step) & self._mask for step in range((place - home) & self._mask))
            if not all(self._words[before] for before in run):
                raise InvariantError(f"word {place} of the index is cut off from its home {home}")

    def _find(self, mark: int) -> int | None:
        place = (mark >> SLOT_BITS) & self._mask
        while word := self._words[place]:
            if word == mark:
                return place
            place = (place + 1) & self._mask
        return None

    def _set(self, place: int, mark: int) -> None:
        self._words[place] = mark
        self._shown[place] = mark


def _is_whole(words: npt.NDArray[np.uint64]) -> bool:
    """Return whether each word can be found from its home, and at least half of the words are free."""
    size = len(words)
    places = np.arange(2 * size)
    is_free = np.tile(words == 0, 2)
    if 2 * np.count_nonzero(is_free) < len(places):
        return False
    last_free = np.maximum.accumulate(np.where(is_free, places, -1))[size:]
    taken = np.flatnonzero(words)
    homes = words[taken].astype(np.int64) >> SLOT_BITS & (size - 1)
    return bool(((taken - homes) % size < taken + size - last_free[taken]).all())


def marks_of(first_words: npt.NDArray[np.uint64], slots: npt.NDArray[np.intp]) -> npt.NDArray[np.uint64]:
    """Return the marks of keys at slots, from the first words of their digests; all arrays are `(n,)`."""
    bits = np.uint64(SLOT_BITS)
    return first_words >> bits << bits | slots.astype(np.uint64)


def _mark(key: KeyDigest, slot: int) -> int:
    return key[0] >> SLOT_BITS << SLOT_BITS | slot
