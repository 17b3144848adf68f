"""Receiver cache (P1) that reads items in place, from a ring whose writer attaches it by a plain call.

It keeps no item itself: the ring is the cache, and the sender decides its content. Each receiver has an entry of the
ring, and takes a lease on each item that it receives.

    sender                                   receiver
    writer.attach(receiver.reader_id, receiver.incarnation)
    get_and_update_item -> ShmItem(handle)  ──> get_and_update_item -> a lease, tensors in place
                                             … the last view dies: the lease is given back, in any thread

Invariant: a lease is given back once, and only after its last view has died.

Source: vLLM's `ShmObjectStoreReceiverCache`. There is no lock between receivers and no shared count.
"""

from __future__ import annotations

from mmcached.client.store.lease_returns import LeaseReturns
from mmcached.compat.multimodal.base import BaseMultiModalReceiverCache, ReceiverInput
from mmcached.compat.multimodal.items import MultiModalKwargsItem
from mmcached.shm import ObjectStoreReader, ReaderEntry, RingReader
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import CacheMiss, StaleHandle
from mmcached.wire.handle import Handle, RingAnnouncement


class ShmObjectStoreReceiverCache(BaseMultiModalReceiverCache):
    """Reader of a ring, with an entry of its own. Not thread-safe.

    Args:
        announcement: Of the ring, from its writer.
        shared_worker_lock: Accepted for callers of vLLM's class, and ignored.

    Raises:
        SegmentError: The ring is missing, or all its entries are in use.
        LayoutMismatch: The ring differs from the announcement.
    """

    def __init__(self, announcement: RingAnnouncement, shared_worker_lock: object = None) -> None:
        self._entry = ReaderEntry.attach(announcement)
        self._reader = RingReader.open(announcement)
        self._store = ObjectStoreReader(self._reader)
        self._returns = LeaseReturns(self._entry)
        self._reader.when_unmapped(self._returns.close_reader)  # with the last view
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
            mm_item: An item, which is passed through, or its place in the ring.

        Returns:
            The item; its tensors from the ring are views of read-only memory: never write to them.

        Raises:
            CacheMiss: No item is given, it is no longer in the ring, or the writer has not attached this reader.
        """
        if isinstance(mm_item, MultiModalKwargsItem):
            return mm_item
        if mm_item is None:
            raise CacheMiss([mm_hash])
        try:
            return self._read(mm_item.handle)
        except StaleHandle as error:
            raise CacheMiss([mm_hash]) from error

    def touch_receiver_cache_item(self, mm_hash: str, mm_item: ReceiverInput = None) -> None:
        """Do nothing: the sender alone maintains the ring's order."""

    def clear_cache(self) -> None:
        """Do nothing: no item is kept here."""

    def close(self) -> None:
        """Release the entry. Living views keep their bytes until they die."""
        if not self._is_closed:
            self._is_closed = True
            self._reader.close()

    @property
    def num_held(self) -> int:
        """Leases under which items are read."""
        return len(self._returns)

    def _read(self, handle: Handle) -> MultiModalKwargsItem:
        self._reader.check_place(handle)
        holder = self._reader.holder(handle)
        lease = self._returns.bind(holder, handle)
        try:
            (is_taken,) = self._entry.take_leases([lease], self._reader.look)
            if not is_taken:
                raise StaleHandle(f"slot {handle.slot} does not hold generation {handle.generation}, for this reader")
            self._reader.check_content(handle)
        except BaseException:
            self._returns.end(lease)  # its holder lives as long as the traceback
            raise
        return MultiModalKwargsItem.from_record(self._store.decode_held(handle, holder, tensors="torch", copy=False))


def worker_receiver_cache_from_config(
    config: ServiceConfig,
    announcement: RingAnnouncement | None,
    shared_worker_lock: object = None,
    *,
    mm_registry: object = None,
) -> ShmObjectStoreReceiverCache | None:
    """Create the receiver cache of a worker; return None without a cache or a ring.

    Args:
        shared_worker_lock, mm_registry: Accepted for callers of vLLM's function, and ignored.
    """
    if config.ring_data_bytes == 0 or announcement is None:
        return None
    return ShmObjectStoreReceiverCache(announcement, shared_worker_lock)
