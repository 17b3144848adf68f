"""The writer's end of a ring: claim room, fill it in place, commit, grant leases, take the bytes back.

    claim(nbytes) ── fill ──> commit ──> Handle ── grant(row) ──> send the descriptor
          └──> abort                        │
                                            └─ discard, or evicted by a later claim
    a chunk is   claimed   its buffer is out, nobody else knows it
                 current   committed; may be granted, pinned, evicted
                 island    forgotten (discarded), but leased: its bytes stay until the last reader is done

Never waits for a reader: what does not fit now is `CacheFull`, and the item travels another way. Not thread-safe: one
thread owns a ring. What a slot id counts and who writes which word: `layout`.

Invariants: no byte of a chunk under an un-returned lease of a living row is written; a (slot, generation) pair names
one content for the life of the ring; a refused claim has changed nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from mmcached.shm.allocator import Extent, RingAllocator
from mmcached.shm.layout import ALIGNMENT, CHUNK_HEADER, CHUNK_HEADER_BYTES, CHUNK_MAGIC, Layout, chunk_bytes
from mmcached.shm.segment import Host, WriterSegment
from mmcached.shm.words import require_word_store
from mmcached.shm.writer_rows import RowStopped, RowVoided, WriterRows
from mmcached.wire.errors import (
    CacheFull,
    InvalidRequest,
    InvariantError,
    ItemTooLarge,
    LocalProtocolError,
    StaleHandle,
)
from mmcached.wire.handle import Handle, LeaseId
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


class RingWriter:
    """One ring and its two shared-memory objects; they are unlinked by `close`.

    Args:
        segment: owned from here on.
        max_object_bytes: no larger payload is taken.
        on_evict: called with the handle of each chunk that a claim evicts, before the claim returns; must not raise
            and must not call the ring.
        tenant: goes into every handle.
    """

    def __init__(
        self,
        segment: WriterSegment,
        *,
        max_object_bytes: int,
        on_evict: Callable[[Handle], None] | None = None,
        tenant: str = "",
    ) -> None:
        layout = segment.control.layout
        self.announcement = segment.announcement
        self.on_evict = on_evict
        self.max_object_bytes = min(max_object_bytes, layout.data_bytes - CHUNK_HEADER_BYTES)
        self._tenant = tenant
        self._segment: WriterSegment | None = segment
        self._data = segment.data
        self._rows = WriterRows(segment.control)
        self._allocator = RingAllocator(layout.data_bytes, layout.num_slots)
        self._generation = 0
        self._claims: dict[int, Claim] = {}
        self._slot_to_handle: dict[int, Handle] = {}
        self._pins: Counter[int] = Counter()
        self._num_evictions = self._num_refusals = self._num_puts = self._put_bytes = self._num_grants = 0

    @classmethod
    def create(
        cls,
        *,
        data_bytes: int,
        num_slots: int = 4096,
        max_rows: int = 8,
        max_object_bytes: int,
        on_evict: Callable[[Handle], None] | None = None,
        tenant: str = "",
        clock_ns: Callable[[], int] = time.time_ns,
        host: Host | None = None,
    ) -> RingWriter:
        """Make a new ring, under a new random id, in a new epoch.

        Args:
            data_bytes: size of the data object, rounded down to the alignment.
            num_slots: chunks that can exist at a time.
            max_rows: readers that can be attached at a time.
        Raises:
            SegmentError: no room; the text says how much is needed and what to do. Nothing is left behind.
            InvalidRequest: a size outside what is possible.
        """
        if max_object_bytes < 1:
            raise InvalidRequest("max_object_bytes", max_object_bytes, "must be at least 1")
        layout = Layout(data_bytes - data_bytes % ALIGNMENT, num_slots, max_rows)
        segment = WriterSegment.create(layout, epoch=clock_ns(), host=host or Host())
        return cls(segment, max_object_bytes=max_object_bytes, on_evict=on_evict, tenant=tenant)

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
        size = chunk_bytes(nbytes)
        if nbytes > self.max_object_bytes or size > self._allocator.capacity:
            raise ItemTooLarge(nbytes, self.max_object_bytes, "payload")
        plan = self._allocator.plan(size, self._is_pinned)
        if plan is None:
            self._num_refusals += 1
            raise CacheFull(nbytes, self._allocator.capacity, self._pinned_bytes())
        # Against the readers of the victims: their cells were read in `plan`; no write may start before those reads.
        require_word_store().acquire_fence()
        evicted = [handle for victim in plan.victims if (handle := self._take_back(victim)) is not None]
        self._allocator.apply(plan)
        self._num_evictions += len(evicted)
        claim = self._open_claim(plan.extent, nbytes)
        if self.on_evict is not None:
            for handle in evicted:
                self.on_evict(handle)
        return claim

    def commit(self, claim: Claim) -> Handle:
        """Publish a filled claim. From here on its buffer must not be written."""
        self._end_claim(claim)
        start = claim.offset - CHUNK_HEADER_BYTES
        # The magic was zeroed when the room was claimed, and readers learn of the chunk by a message that is sent
        # later; so no reader can see this header half-written.
        CHUNK_HEADER.pack_into(self._data, start, CHUNK_MAGIC, claim.generation, claim.slot, claim.nbytes)
        names = self.announcement
        handle = Handle(
            names.ring_id, names.epoch, claim.slot, claim.generation, claim.offset, claim.nbytes, self._tenant
        )
        self._slot_to_handle[claim.slot] = handle
        self._num_puts += 1
        self._put_bytes += claim.nbytes
        return handle

    def abort(self, claim: Claim) -> None:
        """Give the room of a claim back, unpublished. What was evicted for it stays evicted."""
        self._end_claim(claim)
        self._allocator.free(claim.slot)

    def discard(self, handle: Handle) -> None:
        """Forget a chunk: no more grants. Leased bytes stay until they are given back. Unknown: nothing."""
        if not self.is_current(handle):
            return
        extent = self._allocator.extent(handle.slot)
        if self._rows.is_pinned(handle.slot):
            del self._slot_to_handle[handle.slot]
            self._pins.pop(handle.slot, None)
            return
        require_word_store().acquire_fence()
        self._take_back(extent)
        self._allocator.free(handle.slot)

    def clear(self) -> None:
        """Forget every chunk, as `discard` does. Open claims and generations go on."""
        for handle in list(self._slot_to_handle.values()):
            self.discard(handle)

    # ---- keeping

    def is_current(self, handle: Handle) -> bool:
        """Return whether the handle names a chunk of this ring that is committed and not evicted or discarded."""
        return self._slot_to_handle.get(handle.slot) == handle

    def is_leased(self, handle: Handle) -> bool:
        """Return whether a living reader has not given back a lease of this slot."""
        return self._rows.is_pinned(handle.slot)

    def pin(self, handle: Handle) -> None:
        """Keep a chunk from being evicted until `unpin`; pins count. Readers are not concerned.

        Raises:
            StaleHandle: it is not current.
        """
        self._check_current(handle)
        self._pins[handle.slot] += 1

    def unpin(self, handle: Handle) -> None:
        """Take one pin off; nothing happens if the chunk was discarded meanwhile, its pins with it.

        Raises:
            LocalProtocolError: it is not pinned.
        """
        if not self.is_current(handle):
            return
        if not self._pins[handle.slot]:
            raise LocalProtocolError(f"slot {handle.slot} is not pinned")
        self._pins[handle.slot] -= 1

    # ---- readers

    def attach(self, row: int, nonce: int) -> bool:
        """Accept a reader that says it has taken `row`, see `WriterRows.attach`; return whether it is attached."""
        self._check_open()
        return self._rows.attach(row, nonce)

    def attached_rows(self) -> list[int]:
        """Return the rows that take leases now."""
        return self._rows.grantable_rows()

    def grant(self, row: int, handle: Handle) -> LeaseId:
        """Count a lease for a row; then the caller sends the descriptor, or calls `undo_grant` if it could not.

        The count comes first. The other way round the reader could give back before the writer has counted, and
        between the two the chunk would look free while it is read.

        Raises:
            StaleHandle: the chunk is not current; put it again.
            PeerGone: the row is not attached, or takes no more leases.
        """
        self._check_open()
        self._check_current(handle)
        lease = self._rows.grant(row, handle.slot)
        self._num_grants += 1
        return lease

    def undo_grant(self, row: int, handle: Handle, lease: LeaseId) -> None:
        """Take back the last grant of a row; only when its descriptor was provably not queued."""
        self._rows.undo_grant(row, handle.slot, lease)

    def poll_deaths(self) -> list[RowStopped | RowVoided]:
        """Look which readers have died; their leases become void or stay, see the two events."""
        self._check_open()
        return self._rows.poll_deaths()

    # ---- the object

    def stats(self) -> RingStats:
        self._check_open()
        return RingStats(
            data_bytes=self._allocator.capacity,
            used_bytes=self._allocator.used_bytes,
            pinned_bytes=self._pinned_bytes(),
            chunks=len(self._slot_to_handle),
            leases=self._rows.num_leases(),
            puts=self._num_puts,
            put_bytes=self._put_bytes,
            evictions=self._num_evictions,
            refusals=self._num_refusals,
            grants=self._num_grants,
        )

    def check_integrity(self) -> None:
        """Raises:
        InvariantError: the books contradict each other or the chunk headers, or a reader gave back too much.
        """
        self._check_open()
        self._allocator.check_integrity()
        self._rows.check_integrity()
        slots = set(self._allocator.slots())
        if not self._slot_to_handle.keys() | self._claims.keys() <= slots:
            raise InvariantError("a chunk or a claim has no room in the ring")
        if self._slot_to_handle.keys() & self._claims.keys():
            raise InvariantError("a slot is both claimed and committed")
        if not {slot for slot, pins in self._pins.items() if pins} <= self._slot_to_handle.keys():
            raise InvariantError("a pin is on a slot without a chunk")
        for slot, handle in self._slot_to_handle.items():
            extent = self._allocator.extent(slot)
            found = CHUNK_HEADER.unpack_from(self._data, extent.offset)
            if found != (CHUNK_MAGIC, handle.generation, slot, handle.nbytes) or extent.size != chunk_bytes(
                handle.nbytes
            ):
                raise InvariantError(f"chunk header {found} of {handle} in {extent}")

    def close(self) -> None:
        """Unlink both objects. Attached readers keep what they have mapped. A second call changes nothing."""
        if self._segment is None:
            return
        segment, self._segment = self._segment, None
        self._claims.clear()
        del self._data, self._rows  # they hold the mappings
        segment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_claim(self, extent: Extent, nbytes: int) -> Claim:
        self._generation += 1
        self._invalidate(extent)
        offset = extent.offset + CHUNK_HEADER_BYTES
        buffer = np.frombuffer(self._data, np.uint8, nbytes, offset)
        claim = Claim(extent.slot, self._generation, offset, nbytes, buffer)
        self._claims[extent.slot] = claim
        return claim

    def _end_claim(self, claim: Claim) -> None:
        if self._claims.get(claim.slot) is not claim:
            raise LocalProtocolError(f"claim of slot {claim.slot}, generation {claim.generation} is not open")
        del self._claims[claim.slot]

    def _take_back(self, extent: Extent) -> Handle | None:
        """Make the chunk in `extent` unreadable; return its handle unless it was forgotten before."""
        self._invalidate(extent)
        self._pins.pop(extent.slot, None)
        return self._slot_to_handle.pop(extent.slot, None)

    def _invalidate(self, extent: Extent) -> None:
        """Zero the chunk header, so that a handle without a lease finds no old content between the new."""
        CHUNK_HEADER.pack_into(self._data, extent.offset, 0, 0, 0, 0)

    def _is_pinned(self, slot: int) -> bool:
        return slot in self._claims or self._pins[slot] > 0 or self._rows.is_pinned(slot)

    def _pinned_bytes(self) -> int:
        pinned = self._rows.pinned_slots() | self._claims.keys() | {slot for slot, pins in self._pins.items() if pins}
        return sum(self._allocator.extent(slot).size for slot in pinned if self._allocator.has(slot))

    def _check_current(self, handle: Handle) -> None:
        if not self.is_current(handle):
            raise StaleHandle(f"slot {handle.slot} does not hold generation {handle.generation} any more")

    def _check_open(self) -> None:
        if self._segment is None:
            raise LocalProtocolError("this ring is closed")
