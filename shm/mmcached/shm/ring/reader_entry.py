"""A reader's entry in the ring's control object: its incarnation, to which leases belong, and its lease counts.

An entry belongs to a client, an engine or a worker, which takes its leases by itself once the writer has attached it.
Taking an entry, in this order:

    1. lock the entry's byte          proves that no process of an earlier incarnation reads. Busy: try the next entry
    2. give back the former leases    no count falls: the writer still checks them against the earlier incarnation
    3. write a random incarnation     from here on the entry belongs to this process
    4. tell the writer both numbers   done by the caller; the writer checks them against the entry

Only this entry is mapped, so a stray write of this process reaches no other entry. Not thread-safe, except that `take`
may run beside `give_back` and `end`: they write other words.

A forked child shares the locks: they stay until parent and child have released them. So the leases that were out at
the fork stay in force for both, if neither gives one back.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence

import numpy as np

from mmcached.shm.crash_points import crash_point
from mmcached.shm.files import locks
from mmcached.shm.ring.lookup import Lookup
from mmcached.shm.ring.self_lease import SelfLease, end, give_back, take, take_beside
from mmcached.shm.segment.layout import (
    FIRST_COUNT_WORD,
    HITS_WORD,
    INCARNATION_WORD,
    MAX_COUNT,
    MISSES_WORD,
    PID_WORD,
    RETURNED_BYTES_WORD,
    SLOT_BITS,
    TAKEN_BYTES_WORD,
    TOUCH_LOG_WORDS,
    TOUCHES_WORD,
)
from mmcached.shm.segment.mapped import Control, open_control
from mmcached.shm.segment.words import require_word_store
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import LocalProtocolError, SegmentError
from mmcached.wire.handle import Handle, RingAnnouncement
from mmcached.wire.latency import NUM_BUCKETS, NUM_WORDS, bucket_of

_WORD_MASK = (1 << 64) - 1


def random_incarnation() -> int:
    """Return 63 random bits, never 0, which marks an entry that was never taken."""
    return secrets.randbelow(2**63 - 1) + 1


class ReaderEntry(Closeable):
    """Entry that this process has taken; made by `attach`, released by `close` or death."""

    def __init__(self, announcement: RingAnnouncement, control: Control, reader_id: int, incarnation: int) -> None:
        self.announcement = announcement
        self.reader_id = reader_id
        self.incarnation = incarnation
        self._control: Control | None = control
        self._inherited: Control | None = None
        self._first_touch_word = control.layout.first_touch_word
        self._first_latency_word = control.layout.first_latency_word
        self._words = require_word_store()

    @classmethod
    def attach(
        cls, announcement: RingAnnouncement, new_incarnation: Callable[[], int] = random_incarnation
    ) -> ReaderEntry:
        """Take the first free entry.

        Raises:
            SegmentError: The ring is missing, all entries are in use, there is no memory for an entry, or this machine
                has no release store.
            LayoutMismatch: The ring's header contradicts the announcement or this version.
        """
        words = require_word_store()
        control = open_control(announcement)
        layout = control.layout
        try:
            for reader_id in range(layout.max_readers):
                if locks.try_exclusive(control.fd, locks.reader_byte(reader_id)):
                    crash_point("entry.after_lock")
                    incarnation = new_incarnation()
                    control.map_entry(reader_id)
                    _end_former_life(control)
                    control.words[PID_WORD] = os.getpid()
                    words.store_release(control.words, INCARNATION_WORD, incarnation)
                    crash_point("entry.after_incarnation")
                    return cls(announcement, control, reader_id, incarnation)
            raise SegmentError(
                f"all {layout.max_readers} entries of the ring are in use; raise store_max_clients, or stop a reader",
                max_readers=layout.max_readers,
            )
        except BaseException:
            control.close()
            raise

    def is_of_this_ring(self, handle: Handle) -> bool:
        """Return whether a handle names a slot of this entry's ring."""
        return handle.ring_id == self.announcement.ring_id and handle.epoch == self.announcement.epoch

    def give_back(self, handle: Handle) -> None:
        """Return one lease of the handle's slot; call it when nothing reads under the lease any more.

        Raises:
            LocalProtocolError: The handle is of another ring, or the entry is closed; nothing was written.
        """
        control = self._open_control()
        names = self.announcement
        if handle.ring_id != names.ring_id or handle.epoch != names.epoch or not 0 <= handle.slot < names.num_slots:
            raise LocalProtocolError(f"slot {handle.slot} of ring {handle.ring_id} is not of ring {names.ring_id}")
        crash_point("give_back.before")
        give_back(self._words, control.words, handle.slot)
        control.words[RETURNED_BYTES_WORD] += handle.nbytes
        crash_point("give_back.after")

    # ---- leases that this process takes by itself

    def take_leases(self, leases: Sequence[SelfLease], look: Lookup) -> list[bool]:
        """Take leases on found records; return for each whether the record was still there, so that the lease holds.

        Call `end` once for each lease, also if it does not hold, when nothing reads under it any more.

        Args:
            look: Lookup into the ring of this entry, which the writer has attached.
        """
        are_taken = take(self._words, self._open_control().words, look, (self.reader_id, self.incarnation), leases)
        crash_point("take.after")
        return are_taken

    def take_beside(self, lease: SelfLease, look: Lookup) -> bool:
        """Take a lease on a record that another reader holds; succeeds until that reader gives its own lease back."""
        words = self._open_control().words
        return take_beside(self._words, words, look, (self.reader_id, self.incarnation), lease)

    def end(self, lease: SelfLease) -> None:
        """Give back a lease that was taken, unless that is done already; see `self_lease.end`."""
        crash_point("give_back.before")
        end(self._words, self._open_control().words, lease)
        crash_point("give_back.after")

    @property
    def words(self) -> memoryview:
        """The words of the entry; raises `LocalProtocolError` once it is closed."""
        return self._open_control().words

    @property
    def taken_bytes(self) -> int:
        """Bytes of chunks under leases that this process has taken by itself; a chunk counts once for each lease."""
        words = self._open_control().words
        return words[TAKEN_BYTES_WORD] - words[RETURNED_BYTES_WORD]

    def report_lookups(self, hits: list[Handle], num_misses: int) -> None:
        """Report hits and the number of misses to the writer, for the order of eviction; the writer may miss a hit."""
        words, first = self._open_control().words, self._first_touch_word
        num_touches = words[TOUCHES_WORD]
        for handle in hits:
            touch = (handle.generation << SLOT_BITS | handle.slot) & _WORD_MASK
            words[first + num_touches % TOUCH_LOG_WORDS] = touch
            num_touches += 1
        self._words.store_release(words, TOUCHES_WORD, num_touches)
        words[HITS_WORD] += len(hits)
        words[MISSES_WORD] += num_misses

    def count_latency(self, duration_ns: int) -> None:
        """Report the duration of a lookup that found a record."""
        words, first = self._open_control().words, self._first_latency_word
        words[first + bucket_of(duration_ns)] += 1
        words[first + NUM_BUCKETS] += duration_ns

    def stop(self) -> None:
        """In a forked child: write nothing from now on; the locks are kept until `abandon`."""
        control, self._control = self._control, None
        if control is not None:
            control.unmap()
            self._inherited = control

    def abandon(self) -> None:
        """Release an entry that parent and child share since a fork; the last of them to do so ends it.

        They share the locks' file description, so `close` would drop the locks for the other process too.
        """
        self.stop()
        control, self._inherited = self._inherited, None
        if control is not None:
            os.close(control.fd)
            control.fd = -1

    def close(self) -> None:
        """End the incarnation: its leases are void. A second call changes nothing."""
        if self._control is not None:
            self._control.close()
            self._control = None

    def _open_control(self) -> Control:
        if self._control is None:
            raise LocalProtocolError(f"entry {self.reader_id} is closed")
        return self._control


def _end_former_life(control: Control) -> None:
    """Give back all leases of the entry's earlier incarnations.

    Counts that a stray write has made too large for the writer to attach, or for this reader to raise, are set to 0.
    """
    words, layout = np.frombuffer(control.words, np.uint64), control.layout
    latency = slice(layout.first_latency_word, layout.first_latency_word + NUM_WORDS)
    for counts in (words[TAKEN_BYTES_WORD : layout.first_touch_word], words[latency]):
        counts[counts > MAX_COUNT] = 0
    words[RETURNED_BYTES_WORD] = words[TAKEN_BYTES_WORD]
    returned, taken = words[FIRST_COUNT_WORD : layout.first_touch_word].reshape(-1, 2).T
    returned[:] = taken[:] = np.maximum(returned, taken)  # no count falls, even if more was returned than taken
