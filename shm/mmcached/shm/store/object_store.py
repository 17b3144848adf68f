"""Stores records under string keys in a ring: the writer's index.

A record's size is known before a byte of it is written, so it is written once, in place: by this writer into the ring,
or by a client into its nursery (the client's own shared-memory file), and then it is published where it lies. The ring
evicts; a key is removed with its chunk. Behind each record lies a note for a successor of the writer (`record_note`).

Adopted records were written by another process: a record is kept only if the digest beside its slot, by which readers
find it, is that of the key in its note.

Invariant: each key has one current handle of the ring, and each handle one key; in a ring with an index readers find
under a key the record that its writer has under it.
"""

from __future__ import annotations

from collections.abc import Callable

from mmcached.shm.crash_points import crash_point
from mmcached.shm.ring.chunks import RingClaim
from mmcached.shm.ring.departed import Departed
from mmcached.shm.ring.key_index import key_digest
from mmcached.shm.ring.nursery_table import PlacedRecord
from mmcached.shm.ring.ring import RingWriter
from mmcached.shm.ring.slot_table import NO_KEY, KeyDigest
from mmcached.shm.segment.layout import chunk_bytes
from mmcached.shm.store.codec import EncodedRecord, Record, encode
from mmcached.shm.store.record_note import note_bytes, pack_note, parse_note
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import LocalProtocolError, StaleHandle
from mmcached.wire.handle import Handle
from mmcached.wire.stats import RingStats


class ObjectStoreWriter(Closeable):
    """Index of one ring, owned by the ring's writer; `close` closes the ring too.

    Of an adopted ring it takes over all records; a chunk that is not a record is forgotten.

    Source: vLLM's `SingleWriterShmObjectStorage`, the writer's half. `find` there adds a reader's reference; here
    readers take leases.

    Args:
        ring: From now on all puts and removals go through this store.
        on_evict: Called with each key whose chunk the ring has evicted; must not raise and must not call the store.
        on_hit: Called with each key that a reader has found by itself, some time later; the same restrictions apply.
        nursery_bytes: Upper limit of the bytes in nurseries, in addition to the ring.

    Attributes:
        adopted: Records of a former writer: key -> bytes that it takes in the ring, and `about`; the oldest first. The
            owner may clear it after reading it.
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
        self._on_evict_handle = ring.records.on_evict
        ring.records.on_evict = self._forget
        if on_hit is not None:
            ring.on_hit = lambda handle: on_hit(self._slot_to_key[handle.slot])
        self._key_to_handle: dict[str, Handle] = {}
        self._slot_to_key: dict[int, str] = {}
        self._touched: set[str] = set()
        self._departed = Departed(ring.announcement.data_bytes + nursery_bytes, ring.announcement.num_slots)
        self.adopted: dict[str, tuple[int, bytes]] = {}
        for handle, digest, note in ring.records:
            self._adopt(handle, digest, note)

    def put(self, key: str, record: Record) -> Handle:
        """Write a record into the ring under a new key.

        Raises:
            LocalProtocolError: The key already exists.
            InvalidRequest: The record contains an unsupported value; names the path.
            ItemTooLarge, CacheFull: As `RingWriter.claim`; nothing was evicted, and no tensor was copied.
        """
        self._check_new(key)
        return self.put_encoded(key, encode(record, max_bytes=self.ring.max_object_bytes))

    def put_encoded(
        self, key: str, encoded: EncodedRecord | PlacedRecord, about: bytes = b"", *, expires_at: int = 0
    ) -> Handle:
        """Write an encoded record under a new key, with one copy of its tensors; a record in a nursery stays there.

        Args:
            about: Data for a successor of this writer, in addition to the key; a record in a nursery has it in its note
                there.
            expires_at: As for `RingWriter.commit`.
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
        """Write an encoded record in place of the key's present one; readers with a lease of that one go on reading.

        A reader finds the old record or the new one at every moment. For a moment both take space.

        Raises:
            LocalProtocolError: The key does not exist.
            ItemTooLarge, CacheFull: As `RingWriter.claim`; the key keeps the old record, and nothing was evicted.
        """
        former = self._key_to_handle.get(key)
        if former is None:
            raise LocalProtocolError(f"key {key!r} does not exist in the store")
        digest = NO_KEY if self.ring.index is None else key_digest(key)
        self.ring.records.pin(
            former
        )  # else it might be evicted for the new record, and the key would be missing meanwhile
        try:
            handle = self._write(key, digest, encoded, about, expires_at)
        finally:
            self.ring.records.unpin(former)
        self._show_instead(key, former, handle)
        return handle

    @staticmethod
    def chunk_bytes(key: str, encoded: EncodedRecord | PlacedRecord, about: bytes = b"") -> int:
        """Return the bytes that a record takes in the ring, or in its nursery."""
        if isinstance(encoded, PlacedRecord):
            return encoded.size
        return chunk_bytes(encoded.nbytes + note_bytes(key, about))

    # ---- from a nursery into the ring

    def end_copy(self, former: Handle, claim: RingClaim, *, is_proven: bool) -> Handle | None:
        """Publish a copy in place of the record from which it was made; return None, unpublished, if that is gone.

        A reader finds the record at every moment, as with `replace`; a lease of the former place stays valid.
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
        """Return the handle of a key's record, without counting a hit or keeping it from eviction."""
        return self._key_to_handle.get(key)

    def about(self, handle: Handle) -> bytes:
        """Return the `about` of a record; raise StaleHandle if the record is gone."""
        parsed = parse_note(self.ring.records.note(handle))
        if parsed is None:
            raise StaleHandle(f"slot {handle.slot} has no record")
        return parsed[1]

    def touch(self, key: str) -> None:
        """Count a hit of a record, and keep it from eviction until `release_touches`; ignores unknown keys."""
        handle = self._key_to_handle.get(key)
        if handle is not None:
            self.ring.records.touch(handle)
            self.keep(key)

    def keep(self, key: str) -> None:
        """Keep a record from eviction until `release_touches`; ignores unknown keys."""
        handle = self._key_to_handle.get(key)
        if handle is not None and key not in self._touched:
            self.ring.records.pin(handle)
            self._touched.add(key)

    def release_touches(self) -> None:
        """Undo every `touch` and `keep`, once the request was sent and its leases pin the records."""
        for key in self._touched:
            self.ring.records.unpin(self._key_to_handle[key])
        self._touched.clear()

    def discard(self, key: str) -> None:
        """Forget a record, touched or not; ignores unknown keys. Readers with a lease go on reading."""
        handle = self._key_to_handle.pop(key, None)
        if handle is not None:
            del self._slot_to_key[handle.slot]
            self._touched.discard(key)
            if self.ring.index is not None:
                self.ring.index.discard(key_digest(key), handle.slot)
            self.ring.records.discard(handle)

    def discard_expired(self, limit: int) -> list[str]:
        """Forget at most `limit` expired records, as `RingWriter.expired` finds them; return their keys."""
        keys = [self._slot_to_key[handle.slot] for handle in self.ring.records.expired(limit)]
        for key in keys:
            self.discard(key)
        return keys

    def clear(self) -> None:
        """Forget all records and touches. Generations continue: a former handle is stale, never another record's."""
        self.ring.board.raise_floor()  # first: if this process dies during the loop, its successor drops all records
        crash_point("flush.after_floor")
        for key in list(self._key_to_handle):
            self.discard(key)

    def __len__(self) -> int:
        return len(self._key_to_handle)

    def stats(self) -> RingStats:
        return self.ring.stats()

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
            if self._departed.take_departed(key) and self.ring.records.admits_return():
                self.ring.records.touch(
                    handle
                )  # evicted too early before: a hit makes it a candidate for a copy into the ring
        else:
            claim = self.ring.claim(encoded.nbytes, pack_note(key, about))
            try:
                encoded.write_into(claim.buffer)
            except BaseException:
                self.ring.abort(claim)
                raise
            is_proven = self._departed.take_departed(key) and self.ring.records.admits_return()
            handle = self.ring.commit(claim, digest, is_proven=is_proven, expires_at=expires_at)
        self._enter(key, handle)
        return handle

    def _enter(self, key: str, handle: Handle) -> None:
        self._key_to_handle[key] = handle
        self._slot_to_key[handle.slot] = key

    def _show_instead(self, key: str, former: Handle, handle: Handle) -> None:
        del self._slot_to_key[former.slot]
        self._touched.discard(key)
        crash_point("replace.before_index")
        if self.ring.index is not None:
            self.ring.index.move(key_digest(key), former.slot, handle.slot)
        crash_point("replace.after_index")
        self.ring.records.discard(former)

    def _check_new(self, key: str) -> None:
        if key in self._key_to_handle:
            raise LocalProtocolError(f"key {key!r} already exists in the store")

    def _adopt(self, handle: Handle, digest: KeyDigest, note: bytes) -> None:
        parsed, index = parse_note(note), self.ring.index
        is_another = parsed is not None and index is not None and key_digest(parsed[0]) != digest
        if parsed is None or is_another or parsed[0] in self._key_to_handle:
            if index is not None:
                index.discard(digest, handle.slot)
            self.ring.records.discard(handle)
            return
        key, about = parsed
        self._enter(key, handle)
        self.adopted[key] = chunk_bytes(handle.nbytes + len(note)), about

    def _forget(self, handle: Handle) -> None:
        """Remove the key of a chunk that the ring has evicted; it is not a touched one, because those are pinned."""
        key = self._slot_to_key.pop(handle.slot)
        del self._key_to_handle[key]
        if self.ring.index is not None:
            self.ring.index.discard(key_digest(key), handle.slot)
        self._departed.add(key, chunk_bytes(handle.nbytes))
        if self._on_evict_handle is not None:
            self._on_evict_handle(handle)
        if self._on_evict_key is not None:
            self._on_evict_key(key)
