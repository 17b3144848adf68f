"""Keeps records in the ring under keys, each with a note that stays in this process and goes with its chunk.

The ring says what is cached, and evicts; its slots bound the notes. A record without a note was put by somebody else,
such as a cache that was closed; it counts as absent. Notes that can be packed lie in the ring too, so that a ring that
was adopted has them again.

Invariant: every note belongs to a chunk that the ring has. Knows nothing of what a record or a note is, or of leases.
Not thread-safe: it belongs to the thread that owns the ring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from mmcached.shm import ObjectStoreWriter
from mmcached.shm.store.codec import EncodedRecord
from mmcached.wire.errors import CacheFull, InvariantError, ItemTooLarge
from mmcached.wire.handle import Handle

N = TypeVar("N")


class RingItems(Generic[N]):
    """Key -> record in the ring, with a note that is not None.

    Args:
        store: of the ring that this process writes; closed by its owner, after this. From now on everything is put and
            forgotten through this object.
        pack, unpack: a note as bytes, and back, None for bytes that are none; by default there are no bytes of any.
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
        self._next_on_evict = store.ring.on_evict
        self._is_closed = False
        store.ring.on_evict = self._forget

    def __contains__(self, key: str) -> bool:
        return self._store.find(key) in self._notes

    def find(self, key: str) -> tuple[Handle, N] | None:
        """Return a record's place in the ring and its note; changes nothing."""
        handle = self._store.find(key)
        note = None if handle is None else self._notes.get(handle)
        return None if handle is None or note is None else (handle, note)

    def put(self, key: str, encoded: EncodedRecord, note: N) -> Handle | None:
        """Write a record under a key that is absent; return None if there is no room for it now, or never."""
        self._store.discard(key)  # a record without a note
        try:
            handle = self._store.put_encoded(key, encoded, self._pack(note))
        except (ItemTooLarge, CacheFull):
            return None
        self._notes[handle] = note
        return handle

    def touch(self, key: str) -> None:
        """Make a present key young, and keep it from being evicted until `release_touches`."""
        self._store.touch(key)

    def keep(self, key: str) -> None:
        """Keep a present key from being evicted until `release_touches`."""
        self._store.keep(key)

    def release_touches(self) -> None:
        self._store.release_touches()

    def discard(self, key: str) -> None:
        """Forget a key, touched or not; an absent one changes nothing. Readers with a lease go on reading."""
        handle = self._store.find(key)
        if handle is not None:
            self._store.discard(key)
            self._notes.pop(handle, None)

    def clear(self) -> None:
        self._store.clear()
        self._notes.clear()

    def handles(self) -> Iterator[Handle]:
        return iter(self._notes)

    def check_integrity(self) -> None:
        """Raise InvariantError when a note has lost its chunk, or the store contradicts itself."""
        self._store.check_integrity()
        lost = [handle for handle in self._notes if not self._store.ring.is_current(handle)]
        if lost:
            raise InvariantError(f"ring items: notes on {len(lost)} chunks that the ring does not have: {lost[:3]}")

    def close(self) -> None:
        """End the touches and let go of the store, which stays open and keeps its records."""
        if not self._is_closed:
            self._is_closed = True
            self._store.release_touches()
            self._store.ring.on_evict = self._next_on_evict
            self._notes.clear()

    def _forget(self, handle: Handle) -> None:
        self._notes.pop(handle, None)
        if self._next_on_evict is not None:
            self._next_on_evict(handle)
