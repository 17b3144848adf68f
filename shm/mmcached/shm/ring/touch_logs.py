"""Collects the hits that readers count themselves: slots for the eviction order, counts and latency for the statistics.

A reader writes the slots of its hits into a small ring of words, and counts. The writer takes in the new ones; a word
that was overwritten meanwhile, or is torn, is a lost touch. A reader's words may hold any value: a touch of a
generation that is not current changes nothing.
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
"""Upper bound on hits or misses of one reader between two polls; a larger difference was overwritten."""
MAX_NEW_NS = 1 << 36
"""Upper bound on their total duration, about a minute: no reader can overflow a word of the stats page in a year."""
_MODULUS = 1 << 64
_SLOT_MASK = (1 << SLOT_BITS) - 1
_GENERATION_MASK = (1 << (64 - SLOT_BITS)) - 1


class TouchLogs:
    """The logs of all entries of one ring.

    Args:
        touch: Called with the slot, and the lower bits of the generation, of each hit that was seen.

    Attributes:
        on_count: Called with a reader's incarnation and its numbers of new hits and new misses.
        on_end: Called with an incarnation that will report no more.
        num_hits, num_misses: Totals of all readers since this writer began.
        latency: Durations of the hits that readers have measured.
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
        """Start counting for an incarnation, after taking in the rest of the entry's former incarnation."""
        former = self._incarnations.get(reader_id, incarnation)
        if former != incarnation:
            self.end(reader_id, former)
        if reader_id not in self._last:
            self._last[reader_id] = self._read(reader_id)
        self._incarnations[reader_id] = incarnation

    def end(self, reader_id: int, incarnation: int) -> None:
        """Take in the last counts of an incarnation, if the entry is still its own; all its processes are dead."""
        if self._incarnations.get(reader_id) == incarnation:
            self._look(reader_id)
            del self._incarnations[reader_id]
            if self.on_end is not None:
                self.on_end(incarnation)

    def take_in(self, reader_ids: Iterable[int], max_held_bytes: int) -> int:
        """Take in the new counts of these readers' entries.

        Args:
            max_held_bytes: The most that one of them may hold; a larger figure is reduced to it.

        Returns:
            The bytes that they hold under lease.
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
        """Return whether a reader's own counts say that it holds no lease."""
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
    """Return whether the lower bits of a generation, as a log has them, match this one."""
    return generation & _GENERATION_MASK == bits
