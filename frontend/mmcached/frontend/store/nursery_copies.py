"""Copies records of nurseries into the ring, one slice at a time.

    begin ──> space in the ring is claimed ──step──> a slice is copied ──> … ──> published in place of the record
                                              └── the record was dropped, or its nursery cut short: the copy is dropped

A record whose note does not match its key is not copied: contents of the ring are trusted.
"""

from __future__ import annotations

from dataclasses import dataclass

from mmcached.cache.store_keys import parse_about
from mmcached.frontend.store.ring_records import RingRecords, is_about
from mmcached.shm import ObjectStoreWriter
from mmcached.shm.crash_points import crash_point
from mmcached.shm.ring.chunks import RingClaim
from mmcached.shm.store.record_note import parse_note
from mmcached.wire.errors import CacheFull, ItemTooLarge, StaleHandle
from mmcached.wire.handle import Handle

SLICE_BYTES = 1 << 20
"""Bytes copied at a time: about a fifth of a millisecond."""


@dataclass(slots=True)
class _Copy:
    """A record that is being copied into the ring."""

    handle: Handle
    claim: RingClaim
    was_hit: bool
    num_bytes: int = 0


class NurseryCopies:
    """The copies from the nurseries of one store, at most one at a time.

    Attributes:
        num_bytes: Bytes copied; it only rises.
        num_done: Records copied.
    """

    def __init__(self, records: RingRecords) -> None:
        self._records = records
        self._copy: _Copy | None = None
        self.num_bytes = 0
        self.num_done = 0

    @property
    def is_open(self) -> bool:
        """Whether `step` has something to copy."""
        return self._copy is not None

    def begin(self, handle: Handle) -> bool:
        """Begin to copy a record; return False without space for it.

        For a record that readers have asked for, others are evicted; else only free space is used.
        """
        objects = self._records.objects
        if not isinstance(objects, ObjectStoreWriter):
            return False
        was_hit = objects.ring.placed.was_hit(handle)
        claim = self._claim(objects, handle, evicts=was_hit)
        if claim is not None:
            self._copy = _Copy(handle, claim, was_hit)
        return claim is not None

    def step(self) -> None:
        """Copy the next slice."""
        copy, objects = self._copy, self._records.objects
        if copy is None or not isinstance(objects, ObjectStoreWriter):
            return
        begin, end = copy.num_bytes, min(copy.num_bytes + SLICE_BYTES, copy.handle.nbytes)
        try:
            objects.ring.records.read_into(copy.handle, begin, copy.claim.buffer[begin:end])
        except StaleHandle:  # the record was dropped, or its nursery was cut short
            self.abort()
            return
        copy.num_bytes = end
        self.num_bytes += end - begin
        if end == copy.handle.nbytes:
            self._copy = None
            self.num_done += self._records.end_copy(copy.handle, copy.claim, is_proven=copy.was_hit)

    def abort(self) -> None:
        """Release the space of the copy, and drop the record, if it is still there: it cannot be read."""
        copy, objects = self._copy, self._records.objects
        self._copy = None
        if copy is not None and isinstance(objects, ObjectStoreWriter):
            objects.ring.abort(copy.claim)
            self._records.drop_spoiled(copy.handle)

    def _claim(self, objects: ObjectStoreWriter, handle: Handle, *, evicts: bool) -> RingClaim | None:
        """Claim space in the ring for a copy; None without space, or for a record with an invalid note."""
        name, books = objects.key_of(handle), self._records.books
        try:
            note = objects.ring.records.note(handle)
        except StaleHandle:
            return None
        parsed = parse_note(note)
        known = None if parsed is None or parsed[0] != name else parse_about(parsed[1])
        if known is None or not is_about(known, name, in_ring=False):
            return None
        num_bytes = books.bytes_of(name)
        if not evicts and not (books.fits_share(num_bytes) and objects.ring.records.has_free_place(num_bytes)):
            return None
        if not self._records.make_room(num_bytes):
            return None
        try:
            claim = objects.ring.claim(handle.nbytes, note)
        except (ItemTooLarge, CacheFull):
            return None
        crash_point("promote.after_claim")
        books.charge_share(name, num_bytes)
        if books.clients.has(name):
            books.clients.touch(name)
        return claim
