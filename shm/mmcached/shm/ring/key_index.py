"""Shows the keys that a writer holds, in a table of words that its readers look into without asking anybody.

    words   [ fp | 0 | 0 | fp | fp | 0 | … ]     one 64-bit fingerprint for each key, 0 = free; a power of two of words
            home of a key = fingerprint mod size; if that is taken, the next word, and so on (linear probing)

The writer believes its own copy and never reads what it shows. One process writes, any number look, with no lock: each
word is stored whole. A removal moves later words of its run back into the hole, each copied *before* its old place is
freed, so that between any two stores every key that stays can be found; only a look that is under way may pass it by.
Two keys may share a fingerprint (once in 2^64). So the answer is a hint; a request for the record brings the truth.

Invariant: every word lies in the run that begins at its home; at least half of them are 0.

>>> words = memoryview(bytearray(8 * 8)).cast("Q")
>>> index, look = KeyIndexWriter(words), KeyIndexReader(words)
>>> index.add("a"); index.add("b"); [look.contains(key) for key in ("a", "b", "c")]
[True, True, False]
>>> index.discard("a"); look.contains("a"), look.contains("b"), len(index)
(False, True, 1)
"""

from __future__ import annotations

import hashlib
from array import array

from mmcached.wire.errors import CacheFull, InvariantError, LocalProtocolError


def index_words(num_keys: int) -> int:
    """Return the number of words for `num_keys` keys: a power of two, at least twice as many."""
    return 1 << (2 * num_keys - 1).bit_length()


def fingerprint(key: str) -> int:
    """Return 64 bits of the key's digest, never 0."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


class KeyIndexReader:
    """Looks into a table that another process may be writing."""

    def __init__(self, words: memoryview) -> None:
        _check_size(words)
        self._words = words
        self._mask = len(words) - 1

    def contains(self, key: str) -> bool:
        """Return whether the writer held the key a moment ago; a hint in both directions."""
        return _find(self._words, self._mask, fingerprint(key)) is not None

    def close(self) -> None:
        self._words.release()


class KeyIndexWriter:
    """The one writer of a table, which must be all zeros."""

    def __init__(self, words: memoryview) -> None:
        _check_size(words)
        self._shown = words
        self._words = array("Q", bytes(words.nbytes))  # the truth
        self._mask = len(words) - 1
        self._num_keys = 0

    def __len__(self) -> int:
        return self._num_keys

    def add(self, key: str) -> None:
        """Show a key that is not shown; raise CacheFull if half of the words are taken."""
        if 2 * (self._num_keys + 1) > len(self._words):
            raise CacheFull(1, len(self._words) // 2, self._num_keys)
        mark = fingerprint(key)
        place = mark & self._mask
        while self._words[place]:
            place = (place + 1) & self._mask
        self._set(place, mark)
        self._num_keys += 1

    def discard(self, key: str) -> None:
        """Hide a key; one that is not shown changes nothing."""
        hole = _find(self._words, self._mask, fingerprint(key))
        if hole is None:
            return
        place = hole
        while mark := self._words[place := (place + 1) & self._mask]:
            # A word may go back into the hole unless its home lies behind the hole: then no reader would find it there.
            if (place - mark) & self._mask >= (place - hole) & self._mask:
                self._set(hole, mark)
                hole = place
        self._set(hole, 0)
        self._num_keys -= 1

    def clear(self) -> None:
        self._words = array("Q", bytes(8 * len(self._words)))
        self._shown[:] = memoryview(self._words)
        self._num_keys = 0

    def close(self) -> None:
        """Let go of the words; they stay as they are."""
        self._shown.release()

    def check_integrity(self) -> None:
        """Raise InvariantError if a word cannot be found from its home, or the count is wrong."""
        taken = [place for place in range(len(self._words)) if self._words[place]]
        if len(taken) != self._num_keys:
            raise InvariantError(f"the index holds {len(taken)} words for {self._num_keys} keys")
        for place in taken:
            home = self._words[place] & self._mask
            run = ((home + step) & self._mask for step in range((place - home) & self._mask))
            if not all(self._words[before] for before in run):
                raise InvariantError(f"word {place} of the index is cut off from its home {home}")

    def _set(self, place: int, mark: int) -> None:
        self._words[place] = mark
        self._shown[place] = mark


def _find(words: memoryview | array[int], mask: int, mark: int) -> int | None:
    place = mark & mask
    for _ in range(mask + 1):  # a bound, should the table be torn under our eyes
        found = words[place]
        if found == mark:
            return place
        if not found:
            return None
        place = (place + 1) & mask
    return None


def _check_size(words: memoryview) -> None:
    if words.format != "Q" or len(words) < 2 or len(words) & (len(words) - 1):
        raise LocalProtocolError(f"an index is a power of two of words, not {len(words)} of format {words.format}")
