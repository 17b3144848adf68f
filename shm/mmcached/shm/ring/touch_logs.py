"""Reads what readers have found by themselves: which slots, for the order of eviction, and how often and how fast, for
the figures.

A reader writes the slots that it has found into a small ring of words, and counts. The writer takes in what is new;
what has been overwritten meanwhile, or is torn, is a touch less. The words of a reader may hold anything: a touch of
what is not there changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mmcached.shm.segment.layout import (
    HITS_WORD,
    MISSES_WORD,
    RETURNED_BYTES_WORD,
    SLOT_BITS,
    TAKEN_BYTES_WORD,
    TOUCH_LOG_WORDS,
    TOUCHES_WORD,
)
from mmcached.shm.segment.mapped import Control
from mmcached.wire.latency import NUM_BUCKETS, NUM_WORDS, Latency

MAX_NEW = 1 << 32
"""More hits or misses than one reader can have between two looks; what has more was overwritten."""
MAX_NEW_NS = 1 << 36
"""The same of the time that they took, a minute; so no reader can fill a word of the stats page in a year."""
_MODULUS = 1 << 64
_SLOT_MASK = (1 << SLOT_BITS) - 1
_GENERATION_MASK = (1 << (64 - SLOT_BITS)) - 1


class TouchLogs:
    """The logs of all entries of one ring.

    Args:
        touch: told the slot, and the lower bits of the generation, of each hit that was seen.
    Attributes:
        on_count: told the incarnation of a reader, and how many hits and misses of it are new.
        on_end: told an incarnation of which nothing more comes.
        num_hits, num_misses: of all readers since this writer began.
        latency: how long their look-ups took that they have measured.
    """

    def __init__(self, control: Control, touch: Callable[[int, int], None]) -> None:
        self._control = control
        self._touch = touch
        self.on_count: Callable[[int, int, int], None] | None = None
        self.on_end: Callable[[int], None] | None = None
        self._incarnations: dict[int, int] = {}
        self._last: dict[int, list[int]] = {}
        self.num_hits = self.num_misses = 0
        self.latency = Latency()

    def begin(self, reader_id: int, incarnation: int) -> None:
        """Count from here on what this incarnation counts, after the rest of what a former one of the entry has."""
        former = self._incarnations.get(reader_id, incarnation)
        if former != incarnation:
            self.end(reader_id, former)
        if reader_id not in self._last:
            self._last[reader_id] = self._read(reader_id)
        self._incarnations[reader_id] = incarnation

    def end(self, reader_id: int, incarnation: int) -> None:
        """Take in what an incarnation has counted last, if it is still its entry; all its processes are dead."""
        if self._incarnations.get(reader_id) == incarnation:
            self._look(reader_id)
            del self._incarnations[reader_id]
            if self.on_end is not None:
                self.on_end(incarnation)

    def take_in(self, reader_ids: Iterable[int], max_held_bytes: int) -> int:
        """Take in what is new in the entries of these readers.

        Args:
            max_held_bytes: the most that one of them may hold; one that says more has it.
        Returns:
            the bytes that they hold under lease.
        """
        held_bytes = 0
        words, entry = self._control.words, self._control.layout
        for reader_id in reader_ids:
            first = entry.entry_offset(reader_id) // 8
            of_one = words[first + TAKEN_BYTES_WORD] - words[first + RETURNED_BYTES_WORD]
            held_bytes += min(max(0, of_one), max_held_bytes)
            self._look(reader_id)
        return held_bytes

    def holds_nothing(self, reader_id: int) -> bool:
        """Return whether a reader says that it holds no lease."""
        words, first = self._control.words, self._control.layout.entry_offset(reader_id) // 8
        return words[first + TAKEN_BYTES_WORD] == words[first + RETURNED_BYTES_WORD]

    def _look(self, reader_id: int) -> None:
        new, old = self._read(reader_id), self._last[reader_id]
        if new == old:
            return
        self._last[reader_id] = new
        more_hits, more_misses, *more_latency = (
            (now - then) % _MODULUS for now, then in zip(new[1:], old[1:], strict=True)
        )
        if max(more_latency[:NUM_BUCKETS]) <= MAX_NEW and more_latency[NUM_BUCKETS] <= MAX_NEW_NS:
            self.latency.add_words(more_latency)
        if max(more_hits, more_misses) <= MAX_NEW:
            self.num_hits += more_hits
            self.num_misses += more_misses
            if self.on_count is not None:
                self.on_count(self._incarnations[reader_id], more_hits, more_misses)
        first = self._control.layout.entry_offset(reader_id) // 8
        num_new = min((new[0] - old[0]) % _MODULUS, TOUCH_LOG_WORDS)
        for number in range(new[0] - num_new, new[0]):
            word = self._control.words[first + self._control.layout.first_touch_word + number % TOUCH_LOG_WORDS]
            self._touch(word & _SLOT_MASK, word >> SLOT_BITS)

    def _read(self, reader_id: int) -> list[int]:
        """Return the counts of touches, hits and misses, and the words of the latency."""
        words, layout = self._control.words, self._control.layout
        first = layout.entry_offset(reader_id) // 8
        latency = first + layout.first_latency_word
        counts = (words[first + word] for word in (TOUCHES_WORD, HITS_WORD, MISSES_WORD))
        return [*counts, *words[latency : latency + NUM_WORDS]]


def is_of_generation(generation: int, bits: int) -> bool:
    """Return whether the lower bits of a generation, as a log has them, are of this one."""
    return generation & _GENERATION_MASK == bits
