"""Keeps records under string keys in a ring: the writer's index.

A record's size is known before a byte of it is written, so it is written once, in place: by this writer into the ring,
or by a client into its nursery, and then it is published where it lies. Eviction is the ring's; a key goes with its
chunk. Behind each record a note is kept, of what a successor of the writer must know (`record_note`).

What is adopted was written by another process: a record is kept only if the digest beside its slot, by which readers
find it, is that of the key behind it.

Invariant: each key has one current handle of the ring, and no two keys the same; in a ring with an index readers find
under a key what its writer has under it.
"""

from __future__ import annotations

from collections.abc import Callable

from mmcached.shm.crash_points import crash_point
from mmcached.shm.ring.departed import Departed
from mmcached.shm.ring.key_index import key_digest
from mmcached.shm.ring.nursery_table import PlacedRecord
from mmcached.shm.ring.ring import Claim, RingWriter
from mmcached.shm.ring.slot_table import NO_KEY, KeyDigest
from mmcached.shm.segment.layout import chunk_bytes
from mmcached.shm.store.codec import EncodedRecord, Record, encode
from mmcached.shm.store.record_note import note_bytes, pack_note, parse_note
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import InvariantError, LocalProtocolError, StaleHandle
from mmcached.wire.handle import Handle
from mmcached.wire.stats import RingStats


class ObjectStoreWriter(Closeable):
    """The index of one ring, owned by the ring's writer; `close` closes the ring too.

    Of a ring that was adopted it has all records; a chunk that is none is forgotten.

    Source: vLLM's `SingleWriterShmObjectStorage`, the writer's half. `find` there adds a reader's reference; here
    readers take leases.

    Args:
        ring: everything is put and forgotten through this store from now on.
        on_evict: called with each key whose chunk the ring has evicted; must not raise and must not call the store.
        on_hit: called with each key that a reader has found by itself, some time later; likewise.
        nursery_bytes: what lies in nurseries beside the ring, at most.
    Attributes:
        adopted: what a former writer has put: key -> bytes that it takes in the ring, and `about`; the oldest first.
            May be cleared by whoever has taken note.
    """

    def __init__(
        self,
        ring: RingWriter,
        on_evict: Callable[[str], None] | None = None,
        on_hit: Callable[[str], None] | None = None,
        nursery_bytes: int = 0,
    ) -> None:
        self.ring = ring
        self._on_evict_key = on_evict
        self._on_evict_handle = ring.on_evict
        ring.on_evict = self._forget
        if on_hit is not None:
            ring.on_hit = lambda handle: on_hit(self._slot_to_key[handle.slot])
        self._key_to_handle: dict[str, Handle] = {}
        self._slot_to_key: dict[int, str] = {}
        self._touched: set[str] = set()
        self._departed = Departed(ring.announcement.data_bytes + nursery_bytes, ring.announcement.num_slots)
        self.adopted: dict[str, tuple[int, bytes]] = {}
        for handle, digest, note in ring:
            self._adopt(handle, digest, note)

    def put(self, key: str, record: Record) -> Handle:
        """Write a record into the ring under a new key.

        Raises:
            LocalProtocolError: the key already exists.
            InvalidRequest: the record holds something that is not carried; names the path.
            ItemTooLarge, CacheFull: as `RingWriter.claim`; nothing was evicted, and no tensor was copied.
        """
        self._check_new(key)
        return self.put_encoded(key, encode(record, max_bytes=self.ring.max_object_bytes))

    def put_encoded(
        self, key: str, encoded: EncodedRecord | PlacedRecord, about: bytes = b"", *, expires_at: int = 0
    ) -> Handle:
        """Write an encoded record, as `put` does: the only copy of its tensors. One that lies in a nursery stays there.

        Args:
            about: what a successor of this writer must know beside the key; with a record in a nursery it lies there.
            expires_at: as for `RingWriter.commit`.
        """
        self._check_new(key)
        index = self.ring.index
        digest = NO_KEY if index is None else key_digest(key)
        handle = self._write(key, digest, encoded, about, expires_at)
        if index is not None:
            index.add(digest, handle.slot)
            crash_point("put.after_index")
        return handle

    def replace(
        self, key: str, encoded: EncodedRecord | PlacedRecord, about: bytes = b"", *, expires_at: int = 0
    ) -> Handle:
        """Write an encoded record in the place of the one that the key has; who has a lease of that one reads on.

        A reader finds the old record or the new one at every moment. For a moment both take room.

        Raises:
            LocalProtocolError: the key does not exist.
            ItemTooLarge, CacheFull: as `RingWriter.claim`; the key keeps the old record, and nothing was evicted.
        """
        former = self._key_to_handle.get(key)
        if former is None:
            raise LocalProtocolError(f"key {key!r} does not exist in the store")
        digest = NO_KEY if self.ring.index is None else key_digest(key)
        self.ring.pin(former)  # else it may be evicted for the new one, and is missing until that is there
        try:
            handle = self._write(key, digest, encoded, about, expires_at)
        finally:
            self.ring.unpin(former)
        self._show_instead(key, former, handle)
        return handle

    @staticmethod
    def chunk_bytes(key: str, encoded: EncodedRecord | PlacedRecord, about: bytes = b"") -> int:
        """Return what a record takes in the ring, or in its nursery."""
        if isinstance(encoded, PlacedRecord):
            return encoded.size
        return chunk_bytes(encoded.nbytes + note_bytes(key, about))

    # ---- from a nursery into the ring

    def end_copy(self, former: Handle, claim: Claim, *, is_proven: bool) -> Handle | None:
        """Show a copy in the place of the record of which it was made; None, and nothing is shown, if that has gone.

        A reader finds the record at every moment, as with `replace`; who has a lease of the former place reads on.
        """
        key = self._slot_to_key.get(former.slot)
        if key is None or self._key_to_handle.get(key) != former:
            self.ring.abort(claim)
            return None
        crash_point("promote.before_commit")
        handle = self.ring.commit_copy(claim, former, is_proven=is_proven)
        self._enter(key, handle)
        self._show_instead(key, former, handle)
        return handle

    def key_of(self, handle: Handle) -> str:
        """Return the key of a current record."""
        return self._slot_to_key[handle.slot]

    def find(self, key: str) -> Handle | None:
        return self._key_to_handle.get(key)

    def about(self, handle: Handle) -> bytes:
        """Return what was noted with a record; raise StaleHandle if it has gone."""
        parsed = parse_note(self.ring.note(handle))
        if parsed is None:
            raise StaleHandle(f"slot {handle.slot} has no record")
        return parsed[1]

    def is_cached(self, key: str) -> bool:
        return key in self._key_to_handle

    def touch(self, key: str) -> None:
        """Make a record young, and keep it from being evicted until `release_touches`; unknown keys change nothing."""
        handle = self._key_to_handle.get(key)
        if handle is not None:
            self.ring.touch(handle)
            self.keep(key)

    def keep(self, key: str) -> None:
        """Keep a record from being evicted until `release_touches`; unknown keys change nothing."""
        handle = self._key_to_handle.get(key)
        if handle is not None and key not in self._touched:
            self.ring.pin(handle)
            self._touched.add(key)

    def release_touches(self) -> None:
        """Take back every `touch` and `keep`: the request has been sent, its leases pin from here on."""
        for key in self._touched:
            self.ring.unpin(self._key_to_handle[key])
        self._touched.clear()

    def discard(self, key: str) -> None:
        """Forget a record, touched or not; an unknown key changes nothing. Readers with a lease go on reading."""
        handle = self._key_to_handle.pop(key, None)
        if handle is not None:
            del self._slot_to_key[handle.slot]
            self._touched.discard(key)
            if self.ring.index is not None:
                self.ring.index.discard(key_digest(key), handle.slot)
            self.ring.discard(handle)

    def discard_expired(self, limit: int) -> list[str]:
        """Forget records that have expired, `limit` at most, as `RingWriter.expired` finds them; return their keys."""
        keys = [self._slot_to_key[handle.slot] for handle in self.ring.expired(limit)]
        for key in keys:
            self.discard(key)
        return keys

    def clear(self) -> None:
        """Forget all records and touches. Generations go on: a handle from before is stale, never another's bytes."""
        self.ring.board.raise_floor()  # first: who dies in the middle of it has forgotten all
        crash_point("flush.after_floor")
        for key in list(self._key_to_handle):
            self.discard(key)

    def __len__(self) -> int:
        return len(self._key_to_handle)

    def stats(self) -> RingStats:
        return self.ring.stats()

    def check_integrity(self) -> None:
        """Raise InvariantError if the index and the ring disagree, or the ring is broken."""
        self.ring.check_integrity()
        if {handle.slot: key for key, handle in self._key_to_handle.items()} != self._slot_to_key:
            raise InvariantError("keys and slots differ")
        if len(self._slot_to_key) != self.ring.stats().chunks:
            raise InvariantError(f"{len(self._slot_to_key)} keys, {self.ring.stats().chunks} chunks")
        for key, handle in self._key_to_handle.items():
            if not self.ring.is_current(handle):
                raise InvariantError(f"key {key!r} has lost its chunk")
        if not self._touched <= self._key_to_handle.keys():
            raise InvariantError("a key is touched that is not stored")
        if self.ring.index is not None:
            self.ring.index.check_integrity()
            if len(self.ring.index) != len(self._key_to_handle):
                raise InvariantError(f"{len(self._key_to_handle)} keys, the index shows {len(self.ring.index)}")

    def close(self) -> None:
        self._key_to_handle.clear()
        self._slot_to_key.clear()
        self._touched.clear()
        self.ring.close()

    def _write(
        self, key: str, digest: KeyDigest, encoded: EncodedRecord | PlacedRecord, about: bytes, expires_at: int
    ) -> Handle:
        """Write and publish a record, and enter it into the books; the index does not show it yet."""
        if isinstance(encoded, PlacedRecord):
            handle = self.ring.publish_placed(encoded, digest, expires_at=expires_at)
            if self._departed.take(key) and self.ring.admits_return():
                self.ring.touch(handle)  # it should have stayed: it goes into the ring when its turn comes
        else:
            claim = self.ring.claim(encoded.nbytes, pack_note(key, about))
            try:
                encoded.write_into(claim.buffer)
            except BaseException:
                self.ring.abort(claim)
                raise
            is_proven = self._departed.take(key) and self.ring.admits_return()
            handle = self.ring.commit(claim, digest, is_proven=is_proven, expires_at=expires_at)
        self._enter(key, handle)
        return handle

    def _enter(self, key: str, handle: Handle) -> None:
        self._key_to_handle[key] = handle
        self._slot_to_key[handle.slot] = key

    def _show_instead(self, key: str, former: Handle, handle: Handle) -> None:
        """Show a record that is valid under a key in the place of another, and forget that."""
        del self._slot_to_key[former.slot]
        self._touched.discard(key)
        crash_point("replace.before_index")
        if self.ring.index is not None:
            self.ring.index.move(key_digest(key), former.slot, handle.slot)
        crash_point("replace.after_index")
        self.ring.discard(former)

    def _check_new(self, key: str) -> None:
        if key in self._key_to_handle:
            raise LocalProtocolError(f"key {key!r} already exists in the store")

    def _adopt(self, handle: Handle, digest: KeyDigest, note: bytes) -> None:
        parsed, index = parse_note(note), self.ring.index
        is_another = parsed is not None and index is not None and key_digest(parsed[0]) != digest
        if parsed is None or is_another or parsed[0] in self._key_to_handle:
            if index is not None:
                index.discard(digest, handle.slot)
            self.ring.discard(handle)
            return
        key, about = parsed
        self._enter(key, handle)
        self.adopted[key] = chunk_bytes(handle.nbytes + len(note)), about

    def _forget(self, handle: Handle) -> None:
        """Drop the key of a chunk that the ring has evicted. It is never a touched one: those are pinned."""
        key = self._slot_to_key.pop(handle.slot)
        del self._key_to_handle[key]
        if self.ring.index is not None:
            self.ring.index.discard(key_digest(key), handle.slot)
        self._departed.add(key, chunk_bytes(handle.nbytes))
        if self._on_evict_handle is not None:
            self._on_evict_handle(handle)
        if self._on_evict_key is not None:
            self._on_evict_key(key)
