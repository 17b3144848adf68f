"""ShmObjectStoreReceiverCache reads items in place, from a ring whose writer accepts its entry by a plain call.

It keeps no item itself: the ring is the cache, and the sender decides what is in it. Each receiver has an entry of the
ring; the sender grants a lease to every attached reader with each item. Knows nothing of what is in an item.

    sender                                   receiver
    writer.attach(receiver.reader_id, receiver.incarnation)
    get_and_update_item -> ShmItem(handle, {reader_id: lease}) ──> get_and_update_item -> tensors in place
                                                             … the last view dies: its finalizer appends to a deque
                                             flush()      -> the lease is given back

Invariant: a lease is given back once, and only after its last view has died. Finalizers run in any thread, so they only
append; the thread that owns the receiver gives back, at every call of the cache and in `flush`.

Source: vLLM's `ShmObjectStoreReceiverCache`. There is no lock between receivers and no shared count.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from mmcached.cache.compat.base import BaseMultiModalReceiverCache, ReceiverInput
from mmcached.cache.compat.items import MultiModalKwargsItem
from mmcached.shm import ObjectStoreReader, ReaderEntry, RingReader
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import CacheMiss, InvariantError, LocalProtocolError, StaleHandle
from mmcached.wire.handle import Handle, LeaseId, RingAnnouncement
from mmcached.wire.messages.parts import Barrier
from mmcached.worker.compat.taken_leases import TakenLeases


class ShmObjectStoreReceiverCache(BaseMultiModalReceiverCache):
    """A reader of a ring, with an entry of its own. Not thread-safe.

    Args:
        announcement: of the ring, from its writer.
        shared_worker_lock: accepted for callers of vLLM's class, and not used: there is no lock in any path.
    Raises:
        SegmentError: the ring is gone, or all its entries are in use.
        LayoutMismatch: it is not what was announced.
    """

    def __init__(self, announcement: RingAnnouncement, shared_worker_lock: object = None) -> None:
        self._entry = ReaderEntry.attach(announcement)
        self._reader = RingReader.open(announcement)
        # A share of the entry that lasts as long as the last view: `close` with a view alive must not void its lease.
        self._reader.join_entry(self._entry.reader_id, self._entry.incarnation, rank=0)
        self._store = ObjectStoreReader(self._reader)
        self._taken = TakenLeases(self._entry.incarnation)
        self._held: dict[LeaseId, Handle] = {}
        self._released: deque[LeaseId] = deque()
        self._is_closed = False

    @property
    def reader_id(self) -> int:
        """The entry that the writer has to attach."""
        return self._entry.reader_id

    @property
    def incarnation(self) -> int:
        """The incarnation that the writer has to attach."""
        return self._entry.incarnation

    def get_and_update_item(self, mm_item: ReceiverInput, mm_hash: str) -> MultiModalKwargsItem:
        """Return the item itself.

        Args:
            mm_item: an item, which is passed through; or where it lies, with a lease of this reader.
        Returns:
            the item; what came from the ring are views of read-only memory: never write to them.
        Raises:
            CacheMiss: there is no item, or no lease of this incarnation: without one its bytes may be overwritten any
                time.
            LocalProtocolError: the lease is on another chunk; nothing was taken, and nothing is given back.
        """
        self.flush()
        if isinstance(mm_item, MultiModalKwargsItem):
            return mm_item
        lease = mm_item.leases.get(self.reader_id) if mm_item is not None else None
        if mm_item is None or lease is None or lease.incarnation != self.incarnation:
            raise CacheMiss([mm_hash])
        if lease.slot != mm_item.handle.slot:
            raise LocalProtocolError(f"this lease is on slot {lease.slot}, the item lies in {mm_item.handle.slot}")
        if not self._entry.owns(mm_item.handle, lease):
            raise CacheMiss([mm_hash])
        if not self._taken.take(mm_item.handle.slot, lease):  # read before: it may have been given back since
            raise CacheMiss([mm_hash])
        self._held[lease] = mm_item.handle
        try:
            release = partial(self._released.append, lease)
            record = self._store.get(mm_item.handle, tensors="torch", on_release=release)
            return MultiModalKwargsItem.from_record(record)
        except BaseException as error:
            self._give_back_unread(lease)
            if isinstance(error, StaleHandle):
                raise CacheMiss([mm_hash]) from error
            raise

    def touch_receiver_cache_item(self, mm_hash: str, mm_item: ReceiverInput = None) -> None:
        """Do nothing: the sender alone keeps the ring's order."""

    def answer_barrier(self, barrier: Barrier) -> dict[int, int] | None:
        """Return what the writer's `reconcile` wants to know: items handed out so far that are still to come are given
        up, and will be missed. None if another incarnation is asked.
        """
        return self._taken.answer(barrier.incarnation, barrier.last_seq, barrier.slots)

    def flush(self) -> int:
        """Give back the leases whose views have died; return how many. Call it at every turn of the owner's loop."""
        count = 0
        while self._released:
            handle = self._held.pop(self._released.popleft(), None)
            if handle is not None:
                self._entry.give_back(handle)
                count += 1
        return count

    def clear_cache(self) -> None:
        """Give back what is free. Nothing else is kept here."""
        self.flush()

    def close(self) -> None:
        """Give back what is free and leave the entry. Views that live keep their bytes until they die."""
        if not self._is_closed:
            self._is_closed = True
            self.flush()
            self._reader.close()
            self._entry.close()

    @property
    def num_held(self) -> int:
        """Leases under which items are read."""
        return len(self._held)

    def check_integrity(self) -> None:
        if any(lease.incarnation != self.incarnation for lease in self._held):
            raise InvariantError("a lease is held that is not of this incarnation")

    def _give_back_unread(self, lease: LeaseId) -> None:
        """End a lease under which nothing is read; its finalizer may or may not run later."""
        handle = self._held.pop(lease, None)
        if handle is not None:
            self._entry.give_back(handle)


def worker_receiver_cache_from_config(
    config: ServiceConfig,
    announcement: RingAnnouncement | None,
    shared_worker_lock: object = None,
    *,
    mm_registry: object = None,
) -> ShmObjectStoreReceiverCache | None:
    """Return the receiver that a configuration asks of a worker, or None: no cache, or no ring.

    Args:
        shared_worker_lock, mm_registry: accepted for callers of vLLM's function, and not used: there is no lock in any
            path, and the configuration says it all.
    """
    if not config.is_multimodal_model or config.ring_data_bytes == 0 or announcement is None:
        return None
    return ShmObjectStoreReceiverCache(announcement, shared_worker_lock)
