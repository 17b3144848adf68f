"""Records in the ring under keys, each with a note that stays in this process and is removed with the record's chunk.

The ring decides which records are cached, and evicts; its slots limit the notes. A record without a note was put by
another object, such as a cache that was closed; it counts as absent. Notes that can be packed are stored in the ring
too, so that they are restored from an adopted ring.

Invariant: every note belongs to a chunk that the ring has. Not thread-safe: it belongs to the thread that owns the
ring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from mmcached.shm import ObjectStoreWriter
from mmcached.shm.store.codec import EncodedRecord
from mmcached.wire.errors import CacheFull, ItemTooLarge
from mmcached.wire.handle import Handle

N = TypeVar("N")


class RingItems(Generic[N]):
    """Key -> record in the ring, with a note that is not None.

    Args:
        store: Store in the ring that this process writes; closed by its owner, after this object. From now on all puts
            and removals go through this object.
        pack, unpack: Convert a note to bytes, and back, None for invalid bytes; by default no notes are stored.
    """

    def __init__(
        self,
        store: ObjectStoreWriter,
        pack: Callable[[N], bytes] = lambda note: b"",
        unpack: Callable[[bytes], N | None] = lambda about: None,
    ) -> None:
        self._store = store
        self._pack = pack
        self._notes: dict[Handle, N] = {}
        for key, (_, about) in store.adopted.items():
            handle, note = store.find(key), unpack(about)
            if handle is not None and note is not None:
                self._notes[handle] = note
            else:
                store.discard(key)
        store.adopted.clear()
        self._next_on_evict = store.ring.records.on_evict
        self._is_closed = False
        store.ring.records.on_evict = self._forget

    def __contains__(self, key: str) -> bool:
        return self._store.find(key) in self._notes

    def find(self, key: str) -> tuple[Handle, N] | None:
        """Return a record's place in the ring and its note; changes nothing."""
        handle = self._store.find(key)
        note = None if handle is None else self._notes.get(handle)
        return None if handle is None or note is None else (handle, note)

    def put(self, key: str, encoded: EncodedRecord, note: N) -> Handle | None:
        """Write a record under a key that is absent; return None if it does not fit now, or never."""
        self._store.discard(key)  # a record without a note
        try:
            handle = self._store.put_encoded(key, encoded, self._pack(note))
        except (ItemTooLarge, CacheFull):
            return None
        self._notes[handle] = note
        return handle

    def touch(self, key: str) -> None:
        """Count a hit of a present key, and protect it from eviction until `release_touches`."""
        self._store.touch(key)

    def keep(self, key: str) -> None:
        """Protect a present key from eviction until `release_touches`."""
        self._store.keep(key)

    def release_touches(self) -> None:
        self._store.release_touches()

    def discard(self, key: str) -> None:
        """Remove a key, touched or not; an absent one changes nothing. Readers with a lease go on reading."""
        handle = self._store.find(key)
        if handle is not None:
            self._store.discard(key)
            self._notes.pop(handle, None)

    def clear(self) -> None:
        self._store.clear()
        self._notes.clear()

    def handles(self) -> Iterator[Handle]:
        return iter(self._notes)

    def close(self) -> None:
        """End the touches and detach from the store, which stays open and keeps its records."""
        if not self._is_closed:
            self._is_closed = True
            self._store.release_touches()
            self._store.ring.records.on_evict = self._next_on_evict
            self._notes.clear()

    def _forget(self, handle: Handle) -> None:
        self._notes.pop(handle, None)
        if self._next_on_evict is not None:
            self._next_on_evict(handle)
