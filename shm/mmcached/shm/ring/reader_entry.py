"""Takes an entry of the ring's reader table and writes its words: the incarnation that leases belong to, and counts.

An entry belongs to a client, an engine or a worker, which takes its leases by itself, once the writer has attached it.
Taking an entry, in this order:

    1. lock the entry's byte          proves that no process of a former life reads any more. Busy: the next entry
    2. give back the former leases    no count falls: the writer still judges them by what it knows of the former life
    3. write a random incarnation     from here on the entry is not the former life's
    4. tell the writer both numbers   the caller's part; the writer checks them against the entry

Only this entry is mapped, so a stray write of this process reaches no other. Knows nothing of messages. Not
thread-safe, but for `take` beside `give_back` and `end`: they write other words.

A forked child shares the locks: they stay until parent and child have let go of them. So the leases that were out at
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
from mmcached.shm.ring.self_lease import Lease, end, give_back, take, take_beside
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
    """Return 63 random bits, never 0, which is the incarnation of an entry that was never taken."""
    return secrets.randbelow(2**63 - 1) + 1


class ReaderEntry(Closeable):
    """An entry that this process has taken; made by `attach`, given up by `close` or death."""

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
        """Take the first entry that nobody uses.

        Raises:
            SegmentError: the ring is gone, all entries are in use, there is no memory for one, or this machine has no
                release store.
            LayoutMismatch: the ring's header contradicts the announcement or this version.
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
        """Return whether a handle names a slot of the ring of this entry."""
        return handle.ring_id == self.announcement.ring_id and handle.epoch == self.announcement.epoch

    def give_back(self, handle: Handle) -> None:
        """Return one lease of the handle's slot, when nothing reads under it any more.

        Raises:
            LocalProtocolError: the handle is of another ring, or the entry is closed; nothing was written.
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

    def take(self, leases: Sequence[Lease], look: Lookup) -> list[bool]:
        """Take leases on what a lookup has found; return which of them is still there, and stays.

        For each `end` must follow, also if it has gone, when nothing reads under the lease any more.

        Args:
            look: into the ring of this entry, by a process that has been attached.
        """
        are_taken = take(self._words, self._open_control().words, look, (self.reader_id, self.incarnation), leases)
        crash_point("take.after")
        return are_taken

    def take_beside(self, lease: Lease, look: Lookup) -> bool:
        """As `take`, of what another reader has under lease; that succeeds until it gives its own back."""
        words = self._open_control().words
        return take_beside(self._words, words, look, (self.reader_id, self.incarnation), lease)

    def end(self, lease: Lease) -> None:
        """Give back a lease that was taken, unless that is done; see `self_lease.end`."""
        crash_point("give_back.before")
        end(self._words, self._open_control().words, lease)
        crash_point("give_back.after")

    @property
    def taken_bytes(self) -> int:
        """Bytes of chunks under leases that this process has taken by itself; a chunk counts once for each."""
        words = self._open_control().words
        return words[TAKEN_BYTES_WORD] - words[RETURNED_BYTES_WORD]

    def count(self, hits: list[Handle], num_misses: int) -> None:
        """Tell the writer what was found, so that it stays, and how often nothing was; it may overlook a hit."""
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
        """Tell the writer how long a look-up took that has found something."""
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
        """Let go of an entry that parent and child share since a fork; the last of them that does so ends it.

        They share the locks' file description, so `close` would unlock for the other one too.
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
    """Give back what a former life of the entry had under lease.

    Zero each count that, left by a stray write, the writer would refuse to attach, or this reader cannot raise.
    """
    words, layout = np.frombuffer(control.words, np.uint64), control.layout
    latency = slice(layout.first_latency_word, layout.first_latency_word + NUM_WORDS)
    for counts in (words[TAKEN_BYTES_WORD : layout.first_touch_word], words[latency]):
        counts[counts > MAX_COUNT] = 0
    words[RETURNED_BYTES_WORD] = words[TAKEN_BYTES_WORD]
    returned, taken = words[FIRST_COUNT_WORD : layout.first_touch_word].reshape(-1, 2).T
    returned[:] = taken[:] = np.maximum(returned, taken)  # no count falls, also if more came back than was taken
