"""Writes a ring: claims room, fills it in place, commits, grants leases, takes the bytes back.

    claim(nbytes) ── fill ──> commit ──> Handle ── grant(reader) ──> send the descriptor
          └──> abort                        │
                                            └─ discard, or evicted by a later claim

Never waits for a reader: what does not fit now is `CacheFull`, and the item travels another way. Not thread-safe: one
thread owns a ring. Who writes which word of its memory: see `layout`.

Invariants: no byte of a chunk under an un-returned lease of a living reader is written; a refused claim has changed
nothing.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mmcached.shm.crash_points import crash_point
from mmcached.shm.ring.allocator import Extent
from mmcached.shm.ring.chunks import ChunkTable
from mmcached.shm.ring.key_index import KeyIndexWriter, index_words
from mmcached.shm.ring.leases import LeaseTable
from mmcached.shm.ring.reader_watch import ReaderStopped, ReaderVoided, ReaderWatch
from mmcached.shm.segment.layout import (
    ALIGNMENT,
    CHUNK_HEADER,
    CHUNK_HEADER_BYTES,
    CHUNK_MAGIC,
    HAS_CRC32,
    Layout,
    chunk_bytes,
)
from mmcached.shm.segment.mapped import index_of
from mmcached.shm.segment.segment import Host, WriterSegment
from mmcached.shm.segment.words import require_word_store
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import CacheFull, InvalidRequest, InvariantError, ItemTooLarge, LocalProtocolError
from mmcached.wire.handle import Handle, LeaseId
from mmcached.wire.messages.parts import Barrier
from mmcached.wire.stats import RingStats


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """Room for one payload that only the writer knows yet.

    Attributes:
        offset: of the payload in the data object, bytes.
        buffer: `(nbytes,)` uint8, writable, in the ring itself; not to be touched after commit or abort.
    """

    slot: int
    generation: int
    offset: int
    nbytes: int
    buffer: npt.NDArray[np.uint8]


class RingWriter(Closeable):
    """One ring and its two shared-memory objects; they are unlinked by `close`.

    Args:
        segment: owned from here on.
        max_object_bytes: the largest payload that is taken.
        reader_quota_bytes, shared_quota_bytes: quotas of leased bytes, see `LeaseTable`; None for no limit.
        has_checksums: put a crc32 of each payload into its header; readers then check every view (about 4 GB/s).
        on_evict: called with the handle of each chunk that a claim evicts, before the claim returns; must not raise
            and must not call the ring.
        tenant: goes into every handle.
    Attributes:
        index: the keys that readers can look up; kept by the store, None if the ring was made without.
    """

    def __init__(
        self,
        segment: WriterSegment,
        *,
        max_object_bytes: int,
        reader_quota_bytes: int | None = None,
        shared_quota_bytes: int | None = None,
        has_checksums: bool = False,
        on_evict: Callable[[Handle], None] | None = None,
        tenant: str = "",
    ) -> None:
        layout = segment.control.layout
        self.announcement = segment.announcement
        self.on_evict = on_evict
        self.max_object_bytes = min(max_object_bytes, layout.data_bytes - CHUNK_HEADER_BYTES)
        self._tenant = tenant
        self._has_checksums = has_checksums
        self._segment: WriterSegment | None = segment
        self._data = segment.data
        self._leases = LeaseTable(
            segment.control.cells(), quota_bytes=reader_quota_bytes, shared_bytes=shared_quota_bytes
        )
        self._watch = ReaderWatch(segment.control, self._leases)
        self._chunks = ChunkTable(
            layout.data_bytes,
            layout.num_slots,
            is_leased=self._leases.is_pinned,
            leased_slots=self._leases.pinned_slots,
        )
        self.index = KeyIndexWriter(index_of(segment.data, segment.announcement)) if layout.index_words else None
        self._num_evictions = self._num_refusals = self._num_puts = self._put_bytes = self._num_grants = 0

    @classmethod
    def create(
        cls,
        *,
        data_bytes: int,
        num_slots: int = 4096,
        max_readers: int = 8,
        max_object_bytes: int,
        reader_quota_bytes: int | None = None,
        shared_quota_bytes: int | None = None,
        has_checksums: bool = False,
        has_index: bool = False,
        on_evict: Callable[[Handle], None] | None = None,
        tenant: str = "",
        clock_ns: Callable[[], int] = time.time_ns,
        host: Host | None = None,
    ) -> RingWriter:
        """Make a new ring, under a new random id, in a new epoch; its pages are populated in the background.

        Args:
            data_bytes: size of the data object, rounded down to the alignment.
            num_slots: chunks that can exist at a time.
            max_readers: readers that can be attached at a time.
        Raises:
            SegmentError: no room; the text says how much is needed and what to do. Nothing is left behind.
            InvalidRequest: a size outside what is possible.
        """
        if max_object_bytes < 1:
            raise InvalidRequest("max_object_bytes", max_object_bytes, "must be at least 1")
        if reader_quota_bytes is not None and reader_quota_bytes < 1:
            raise InvalidRequest("reader_quota_bytes", reader_quota_bytes, "must be at least 1")
        layout = Layout(
            data_bytes - data_bytes % ALIGNMENT, num_slots, max_readers, index_words(num_slots) if has_index else 0
        )
        segment = WriterSegment.create(layout, epoch=clock_ns(), host=host or Host())
        return cls(
            segment,
            max_object_bytes=max_object_bytes,
            reader_quota_bytes=reader_quota_bytes,
            shared_quota_bytes=shared_quota_bytes,
            has_checksums=has_checksums,
            on_evict=on_evict,
            tenant=tenant,
        )

    # ---- writing

    def claim(self, nbytes: int) -> Claim:
        """Find room for `nbytes` of payload, evicting what is in the way and not more.

        Raises:
            ItemTooLarge: it never fits.
            CacheFull: it does not fit while what is leased, pinned or claimed stays; nothing was evicted.
        """
        self._check_open()
        if nbytes < 1:
            raise InvalidRequest("nbytes", nbytes, "a payload has at least 1 byte")
        if nbytes > self.max_object_bytes or chunk_bytes(nbytes) > self._chunks.capacity:
            raise ItemTooLarge(nbytes, self.max_object_bytes, "payload")
        plan = self._chunks.plan(nbytes)
        if plan is None:
            self._num_refusals += 1
            raise CacheFull(nbytes, self._chunks.capacity, self._chunks.pinned_bytes())
        # Against the readers of the victims: their cells were read in `plan`; no write may start before those reads.
        require_word_store().acquire_fence()
        for victim in plan.evicted:
            self._invalidate(victim)
        self._invalidate(plan.extent)
        generation, evicted = self._chunks.claim(plan)
        self._num_evictions += len(evicted)
        crash_point("put.after_evict")
        if self.on_evict is not None:
            for handle in evicted:
                self.on_evict(handle)
        offset = plan.extent.offset + CHUNK_HEADER_BYTES
        return Claim(plan.extent.slot, generation, offset, nbytes, np.frombuffer(self._data, np.uint8, nbytes, offset))

    def commit(self, claim: Claim) -> Handle:
        """Publish a filled claim. From here on its buffer must not be written."""
        self._chunks.check_claimed(claim.slot, claim.generation)
        crash_point("put.before_commit")
        check = (HAS_CRC32, zlib.crc32(claim.buffer.data)) if self._has_checksums else (0, 0)
        start = claim.offset - CHUNK_HEADER_BYTES
        # The magic was zeroed when the room was claimed, and readers learn of the chunk by a message that is sent
        # later; so no reader can see this header half-written.
        CHUNK_HEADER.pack_into(self._data, start, CHUNK_MAGIC, claim.generation, claim.slot, claim.nbytes, *check)
        crash_point("put.after_commit")
        names = self.announcement
        handle = Handle(
            names.ring_id, names.epoch, claim.slot, claim.generation, claim.offset, claim.nbytes, self._tenant
        )
        self._chunks.publish(handle)
        self._num_puts += 1
        self._put_bytes += claim.nbytes
        return handle

    def abort(self, claim: Claim) -> None:
        """Give the room of a claim back, unpublished. What was evicted for it stays evicted."""
        self._chunks.check_claimed(claim.slot, claim.generation)
        self._chunks.abort(claim.slot)

    def read(self, handle: Handle) -> npt.NDArray[np.uint8]:
        """Return the payload of a current chunk in place, `(nbytes,)`, read-only; only until the next claim."""
        self._check_open()
        self._chunks.check_current(handle)
        view = np.frombuffer(self._data, np.uint8, handle.nbytes, handle.offset)
        view.flags.writeable = False
        return view

    def discard(self, handle: Handle) -> None:
        """Forget a chunk: no more grants. Leased bytes stay until they are given back. Unknown: nothing."""
        if not self._chunks.is_current(handle):
            return
        extent = self._chunks.extent(handle)
        if self._chunks.forget(handle):
            require_word_store().acquire_fence()  # against its last readers, as in `claim`
            self._invalidate(extent)

    def clear(self) -> None:
        """Forget every chunk, as `discard` does. Open claims and generations go on."""
        for handle in self._chunks:
            self.discard(handle)

    # ---- keeping

    def is_current(self, handle: Handle) -> bool:
        """Return whether the handle names a chunk of this ring that is committed and not evicted or discarded."""
        return self._chunks.is_current(handle)

    def is_leased(self, handle: Handle) -> bool:
        return self._leases.is_pinned(handle.slot)

    def touch(self, handle: Handle) -> None:
        """Make a chunk young: others are evicted before it. Not current: nothing."""
        if self._chunks.is_current(handle):
            self._chunks.touch(handle)

    def pin(self, handle: Handle) -> None:
        """Keep a chunk from being evicted until `unpin`; pins count. StaleHandle if it is not current."""
        self._chunks.check_current(handle)
        self._chunks.pin(handle)

    def unpin(self, handle: Handle) -> None:
        """Take one pin off; nothing happens if the chunk was discarded meanwhile, its pins with it."""
        if self._chunks.is_current(handle):
            self._chunks.unpin(handle)

    # ---- readers

    def attach(self, reader_id: int, incarnation: int) -> bool:
        """Accept a reader that says it has taken entry `reader_id`, see `ReaderWatch.attach`."""
        self._check_open()
        return self._watch.attach(reader_id, incarnation)

    def grantable_readers(self) -> list[int]:
        """Return the readers that take leases now."""
        return self._leases.grantable_readers()

    def fenced_readers(self) -> list[int]:
        """Return the readers that take no leases any more, because they counted what cannot be."""
        return self._leases.fenced_readers()

    def grant(self, reader_id: int, handle: Handle) -> LeaseId:
        """Count a lease for a reader; then the caller sends the descriptor, or calls `undo_grant` if it could not.

        The count comes first. The other way round the reader could give back before the writer has counted, and
        between the two the chunk would look free while it is read.

        Raises:
            StaleHandle: the chunk is not current; put it again.
            PeerGone, LeaseRefused: the reader takes no more leases, or none just now; see `LeaseTable.grant`.
        """
        self._check_open()
        self._chunks.check_current(handle)
        lease = self._leases.grant(reader_id, handle.slot, chunk_bytes(handle.nbytes))
        self._num_grants += 1
        return lease

    def undo_grant(self, reader_id: int, handle: Handle, lease: LeaseId) -> None:
        """Take back the last grant of a reader; only when its descriptor was provably not queued."""
        self._leases.undo(reader_id, handle.slot, lease)

    def open_barrier(self, reader_id: int) -> Barrier | None:
        """Stop granting to a reader and return what to ask it, see `LeaseTable.open_barrier`."""
        self._check_open()
        return self._leases.open_barrier(reader_id)

    def reconcile(self, reader_id: int, incarnation: int, barrier_id: int, received: Mapping[int, int]) -> int | None:
        """Take the answer to a reader's last barrier, see `LeaseTable.reconcile`."""
        self._check_open()
        return self._leases.reconcile(reader_id, incarnation, barrier_id, received)

    def poll_deaths(self) -> list[ReaderStopped | ReaderVoided]:
        """Look which readers have died; their leases become void or stay, see the two events."""
        self._check_open()
        return self._watch.poll_deaths()

    # ---- the object

    def stats(self) -> RingStats:
        segment = self._check_open()
        return RingStats(
            data_bytes=self._chunks.capacity,
            used_bytes=self._chunks.used_bytes,
            pinned_bytes=self._chunks.pinned_bytes(),
            populated_bytes=segment.populated_bytes,
            chunks=len(self._chunks),
            leases=self._leases.num_leases(),
            fenced_readers=len(self._leases.fenced_readers()),
            puts=self._num_puts,
            put_bytes=self._put_bytes,
            evictions=self._num_evictions,
            refusals=self._num_refusals,
            grants=self._num_grants,
            lost_leases=self._leases.num_lost,
        )

    def wait_populated(self, timeout_s: float) -> bool:
        """Wait until no page of the ring costs a fault any more; False if that will not be, or not in time."""
        return self._check_open().wait_populated(timeout_s)

    def check_integrity(self) -> None:
        """Raise InvariantError if the books contradict each other or the headers, or a reader gave back too much."""
        self._check_open()
        self._chunks.check_integrity()
        self._leases.check_integrity()
        for handle in self._chunks:
            found = CHUNK_HEADER.unpack_from(self._data, self._chunks.extent(handle).offset)
            if found[:4] != (CHUNK_MAGIC, handle.generation, handle.slot, handle.nbytes):
                raise InvariantError(f"chunk header {found} of {handle}")

    def close(self) -> None:
        """Unlink both objects. Attached readers keep what they have mapped. A second call changes nothing."""
        if self._segment is None:
            return
        segment, self._segment = self._segment, None
        self._chunks.close()
        if self.index is not None:
            self.index.close()
        del self._data, self._leases, self._watch  # they hold the mappings
        segment.close()

    def _invalidate(self, extent: Extent) -> None:
        """Zero the chunk header, so that a handle without a lease finds no old content between the new."""
        CHUNK_HEADER.pack_into(self._data, extent.offset, 0, 0, 0, 0, 0, 0)

    def _check_open(self) -> WriterSegment:
        if self._segment is None:
            raise LocalProtocolError("this ring is closed")
        return self._segment
