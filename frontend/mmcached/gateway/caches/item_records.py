"""Processed items as records of the frontend's store, in their own share of the ring."""

from __future__ import annotations

from mmcached.cache.store_keys import ITEMS_TENANT, about_item, num_embeds_of, store_key
from mmcached.frontend.store.ring_records import RingRecords
from mmcached.shm import EncodedRecord, ObjectStoreWriter, RingWriter
from mmcached.shm.ring.slot_table import boot_ns
from mmcached.wire.errors import CacheFull, ItemTooLarge
from mmcached.wire.handle import Handle
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.vocabulary import Modality


class ItemRecords:
    """The items of one store, by `mm_hash`; `num_puts` only rises."""

    def __init__(self, records: RingRecords) -> None:
        self._records = records
        self.num_puts = 0

    def __len__(self) -> int:
        return len(self._records.books.items.key_to_bytes)

    @property
    def num_bytes(self) -> int:
        return self._records.books.items.num_bytes

    @property
    def has_ring(self) -> bool:
        return isinstance(self._records.ring, RingWriter)

    @property
    def num_evictions(self) -> int:
        """Number of items that were evicted; it only rises."""
        return self._records.num_item_evictions

    def find(self, mm_hash: str) -> tuple[Handle, int] | None:
        """Return an item's handle and number of embeddings; None if missing. Does not mark it as used."""
        objects = self._records.objects
        handle = objects.find(store_key(ITEMS_TENANT, mm_hash))
        if handle is None or not isinstance(objects, ObjectStoreWriter):
            return None
        num_embeds = num_embeds_of(objects.about(handle))
        return None if num_embeds is None else (handle, num_embeds)

    def has(self, mm_hash: str) -> bool:
        return self._records.objects.find(store_key(ITEMS_TENANT, mm_hash)) is not None

    def put(self, mm_hash: str, encoded: EncodedRecord, num_embeds: int, cost_s: float = 0.0) -> Handle | None:
        """Keep a missing item; return its handle, or None if there is no space for it now, or ever.

        Args:
            cost_s: Seconds that processing it took; 0.0: unknown.
        """
        records = self._records
        if not isinstance(records.objects, ObjectStoreWriter):
            return None
        name, about = store_key(ITEMS_TENANT, mm_hash), about_item(mm_hash, num_embeds, boot_ns(), cost_s)
        num_bytes = records.objects.chunk_bytes(name, encoded, about)
        if not records.make_room(num_bytes, for_item=True):
            return None
        try:
            handle = records.objects.put_encoded(name, encoded, about)
        except (ItemTooLarge, CacheFull):
            return None
        records.books.charge(ITEMS_TENANT, name, num_bytes)
        if cost_s:
            records.learn(name, ITEMS_TENANT, mm_hash, cost_s, handle)
        self.num_puts += 1
        return handle

    def touch(self, mm_hash: str, handle: Handle) -> None:
        """Mark an item as used."""
        self._records.ring.records.touch(handle)
        self._records.books.touch(store_key(ITEMS_TENANT, mm_hash))

    def count_saved(self, mm_hash: str, modality: Modality, tenant: str) -> None:
        """Count the seconds that an item in the store has saved a tenant's request."""
        saved, name = self._records.books.saved, store_key(ITEMS_TENANT, mm_hash)
        saved.set_modality(name, modality)
        saved.hit(name, tenant)

    def frames(self, handle: Handle) -> list[Frame]:
        """Copy an item out as message frames; raise StaleHandle if the handle is not current."""
        return self._records.frames(handle)

    def pin(self, handle: Handle) -> None:
        """Keep an item from eviction until `unpin`; pins are counted."""
        if isinstance(ring := self._records.ring, RingWriter):
            ring.records.pin(handle)

    def unpin(self, handle: Handle) -> None:
        if isinstance(ring := self._records.ring, RingWriter):
            ring.records.unpin(handle)

    def is_leased(self, handle: Handle) -> bool:
        """Return whether a reader has a lease on an item."""
        ring = self._records.ring
        return isinstance(ring, RingWriter) and ring.records.is_leased(handle)

    def drop(self, mm_hash: str) -> None:
        """Drop an item; readers with a lease read on. A missing item changes nothing."""
        name = store_key(ITEMS_TENANT, mm_hash)
        if self._records.objects.find(name) is not None:
            self._records.discard(name)

    def clear(self) -> None:
        """Drop all items."""
        for name in self._records.books.items.key_to_bytes:
            self._records.discard(name)
