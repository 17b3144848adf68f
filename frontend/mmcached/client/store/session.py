"""A client as a reader of one ring of the store, which finds records and takes leases without a message.

    StoreSession(ring)          a `ReaderSession`: takes an entry of the ring and maps it; if that fails, records come
                                inline
        find(keys)              hits out of shared memory, once the service has attached the entry
        open(records)           hits out of an answer
        open_token(token)       a record that another process has found
        contains(keys)          a look into the ring's index
        keys(tenant)            all keys of a tenant in the store
        close()                 no more hits; entry and mapping go when the last view has died

It outlives its frontend: found records stay readable, and can be found, until a frontend ends the ring.

Any thread may call any method. Invariant: every lease that was taken is returned exactly once, by the death of its
views or at once, whatever a signal handler raises in the middle of a call.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from mmcached.cache.store_keys import store_key
from mmcached.client.store.hits import Hit, Reading, inline_record
from mmcached.client.store.lease_returns import Lease
from mmcached.client.store.reader_session import ReaderSession
from mmcached.client.store.tokens import LeaseToken
from mmcached.shm import ReaderEntry
from mmcached.shm.ring.key_index import key_digest
from mmcached.shm.ring.lookup import MAX_LOOKS
from mmcached.shm.ring.slot_table import KeyDigest
from mmcached.shm.store.tensor_bytes import Bytes1D
from mmcached.wire.errors import LocalProtocolError, RequestAborted, SegmentError, StaleHandle
from mmcached.wire.handle import Handle
from mmcached.wire.messages.client import Records
from mmcached.wire.messages.parts import Inline
from mmcached.wire.sockets.frames import Frame

Place = Handle | Inline | None
Held = tuple[Bytes1D, Lease]
"""The holder of a chunk, and the lease on it that ends with the holder."""
UNREADABLE = (StaleHandle, SegmentError)
"""Errors of reading a place: its nursery is missing, was cut short, or cannot be mapped."""
BLIND_S = 1.0
"""Seconds for which the frontend is asked for records after a failed mapping: descriptors or addresses are short."""


class StoreSession(ReaderSession):
    """A session with one ring, or without a ring; see `ReaderSession` for the arguments."""

    def find(
        self,
        keys: list[str],
        tenant: str,
        reading: Reading,
        *,
        counts_misses: bool = True,
        counts_hits: bool = True,
    ) -> list[Hit | None] | None:
        """Return the records of keys, None for each missing one; None if the ring cannot be seen from here.

        Args:
            counts_misses: False if the service is asked for missing records, and counts them.
            counts_hits: False if this look must not keep records longer.

        Raises:
            RemoteProtocolError, ChecksumMismatch: A record is damaged.
            InvalidRequest: The requested library does not have a dtype of a record.
        """
        started_ns = time.perf_counter_ns() if next(self._turns) else 0
        digests = [_digest_of(tenant, key) for key in keys]
        held: list[Held | Inline | None] = []

        def take(reader: ReaderEntry | None) -> bool | None:
            if reader is None or not self._may_take(reader):
                return None
            look = self._store.reader.look
            self.seen_epoch = look.store_epoch
            found = self._take([look.find(digest) for digest in digests], held, reader, digests=digests)
            if self._is_blind:
                return None
            reader.report_lookups(
                found if counts_hits and self._counts_hits else [], len(held) - len(found) if counts_misses else 0
            )
            # This reader's views would leave too little space to other records: copy instead.
            return reading.view and bool(found) and not look.may_hold(reader.taken_bytes)

        try:
            if (is_copied := self._alone(take)) is None:
                return None
            hits = self._hits(held, (), replace(reading, view=False) if is_copied else reading, are_found=True)
        except BaseException:
            self._end(held)
            raise
        if started_ns and hits.count(None) < len(hits):
            self._count_latency(time.perf_counter_ns() - started_ns)
        return hits

    def open(
        self, answer: Records, payload: Sequence[Frame], reading: Reading, *, keys: Sequence[str], tenant: str
    ) -> list[Hit | None]:
        """Turn an answer into hits, in its order; records that have left the ring meanwhile are None.

        Args:
            keys, tenant: The requested keys, in order: a record that was replaced meanwhile is looked up again.

        Raises:
            RemoteProtocolError, StaleHandle, ChecksumMismatch: The answer or a record is invalid.
            InvalidRequest: The requested library does not have a dtype of a record.
        """
        held: list[Held | Inline | None] = []

        def take(reader: ReaderEntry | None) -> None:
            usable: list[Place] = []
            for place in answer.records:
                if isinstance(place, Handle):
                    if reader is None or not reader.is_of_this_ring(place):
                        usable.append(None)
                        continue
                    self._store.reader.check_place(place)
                usable.append(place)
            self._take(usable, held, reader, digests=[_digest_of(tenant, key) for key in keys])

        try:
            self._alone(take)
            return self._hits(held, payload, reading, are_found=False)
        except BaseException:
            self._end(held)
            raise

    def open_token(self, token: LeaseToken, reading: Reading, *, counts: bool = True) -> list[Hit | None] | None:
        """Return the record that another reader has under lease, in a list; None if the ring cannot be seen from here.

        Raises:
            InvalidRequest: The ring has no such slot, or the requested library does not have a dtype of the record.
            RemoteProtocolError, ChecksumMismatch: The record is damaged.
        """
        held: list[Held | Inline | None] = []

        def take(reader: ReaderEntry | None) -> bool:
            if reader is None or not self._may_take(reader):
                return False
            place = None
            if token.is_of(self.ring):
                token.check_slot(reader.announcement.num_slots)
                look = self._store.reader.look
                place = look.find_generation(token.slot, token.generation)
            found = self._take([place], held, reader, is_beside=True)
            if counts:
                self._report(found, held, reader)
            return True

        try:
            return self._hits(held, (), reading, are_found=True) if self._alone(take) else None
        except BaseException:
            self._end(held)
            raise

    def lend(self, place: Handle, *, key: str, tenant: str) -> Bytes1D | None:
        """Return an encoded record in place, under a lease that ends with the array; None if missing or not visible
        from here.

        It does not count as a hit, and does not keep the record longer.

        Args:
            place: Last known place of the record.
            key, tenant: Name of the record: one that has moved or was replaced is looked up again.
        """
        held: list[Held | Inline | None] = []

        def take(reader: ReaderEntry | None) -> bool:
            if reader is None or not reader.is_of_this_ring(place) or not self._may_take(reader):
                return False
            look, digest = self._store.reader.look, _digest_of(tenant, key)
            found = look.find_generation(place.slot, place.generation)
            if found != place:
                found = look.find(digest)
            is_there = bool(self._take([found], held, reader, digests=[digest]))
            self.seen_epoch = look.store_epoch  # afterwards: a record of a later epoch is found only once that is shown
            return is_there

        try:
            if not self._alone(take):
                return None
            ((holder, lease),) = held  # type: ignore[misc]  # the one record was taken
            self._store.reader.check(lease.handle, holder)
        except BaseException:
            self._end(held)
            raise
        return np.asarray(holder)

    def contains(self, keys: list[str], tenant: str) -> list[bool] | None:
        """Return which keys the store shows just now; None if the ring cannot be seen from here."""
        digests = [_digest_of(tenant, key) for key in keys]
        with self._lock:
            reader = self._reader
            if reader is None or not self._may_take(reader):
                return None
            look = self._store.reader.look
            return [look.find(digest) is not None for digest in digests]

    @property
    def sample(self) -> int:
        """Which hits are recomputed, see `cache.verification`; 0: none, or the ring cannot be seen from here."""
        with self._lock:
            return 0 if self._reader is None else self._store.reader.look.sample

    def keys(self, tenant: str) -> list[str] | None:
        """Return the tenant's keys that the store shows just now, the newest first; None as `contains`.

        Raises:
            SegmentError, LayoutMismatch: The ring is missing.
        """
        if self.ring is None or self.contains([], tenant) is None:
            return None
        from mmcached.cache.stored_names import newest_first, stored_names
        from mmcached.shm.ring.onlooker import RingOnlooker

        with RingOnlooker(self.ring) as ring:
            rows = ring.rows()
            found = [about for _, _, about in stored_names(ring, newest_first(rows), rows)]
        keys = [about.key for about in found if about.tenant == tenant]
        seen = self.contains(keys, tenant)  # leaves out keys dropped meanwhile
        return None if seen is None else [key for key, is_there in zip(keys, seen, strict=True) if is_there]

    # ---- internals

    def _take(
        self,
        places: Sequence[Place],
        held: list[Held | Inline | None],
        reader: ReaderEntry | None,
        *,
        is_beside: bool = False,
        digests: Sequence[KeyDigest] = (),
    ) -> list[Handle]:
        """Take leases of the places in the ring; return the places whose records are still there.

        Args:
            held: Receives, before it is counted, the holder and lease of each place, in order; None for a missing
                record.
            is_beside: Whether another reader holds the records.
            digests: Keys of the places: a missing record may have been replaced, and is looked up again.
        """
        self._is_blind = False
        handles, leases = [], []
        for place in places:
            if isinstance(place, Handle):
                handles.append(place)
                try:
                    holder = self._store.reader.holder(place)
                except UNREADABLE:
                    held.append(None)
                    continue
                lease = self._returns.bind(holder, place)
                leases.append(lease)
                held.append((holder, lease))
            else:
                held.append(place)
        if not handles or reader is None:  # the second is for the type checker: without a reader nothing is found
            return []
        look = self._store.reader.look
        if is_beside:
            are_taken = [reader.take_beside(lease, look) for lease in leases]
        else:
            are_taken = reader.take_leases(leases, look)
        if len(leases) == len(handles) and all(are_taken):
            return handles
        handles = [lease.handle for lease in leases]
        of_each = iter(are_taken)  # a holder that is dropped dies, and gives its lease back
        held[:] = [each if not isinstance(each, tuple) or next(of_each) else None for each in held]
        taken = [handle for handle, is_taken in zip(handles, are_taken, strict=True) if is_taken]
        for index, digest in enumerate(digests):
            if held[index] is None and places[index] is not None:
                taken += self._take_again(digest, held, index, reader)
        return taken

    def _take_again(
        self, digest: KeyDigest, held: list[Held | Inline | None], index: int, reader: ReaderEntry
    ) -> list[Handle]:
        mapping = self._store.reader
        for _ in range(MAX_LOOKS):
            place = mapping.look.find(digest)
            if place is None:
                return []
            try:
                holder = mapping.holder(place)
            except UNREADABLE:
                continue
            lease = self._returns.bind(holder, place)
            held[index] = (holder, lease)
            if all(reader.take_leases([lease], mapping.look)):
                return [place]
            held[index] = None
        # The index shows a record that cannot be read: ask the frontend for a while, which has the record or drops it.
        self._is_blind, self._blind_until = True, time.monotonic() + BLIND_S
        return []

    def _report(self, found: list[Handle], held: Sequence[Held | Inline | None], reader: ReaderEntry) -> None:
        """Report the hit or miss of one place."""
        reader.report_lookups(found if self._counts_hits else [], 1 - len(found))

    def _hits(
        self, held: Sequence[Held | Inline | None], payload: Sequence[Frame], reading: Reading, *, are_found: bool
    ) -> list[Hit | None]:
        """Turn held and inline records into hits.

        Args:
            are_found: Whether this session looked up the places itself, instead of reading them from an answer.
        """
        hits: list[Hit | None] = []
        try:
            for each in held:
                if each is None:
                    hits.append(None)
                elif isinstance(each, Inline):
                    hits.append(Hit(inline_record(each, payload, reading)))
                else:
                    holder, lease = each
                    place = lease.handle
                    if not are_found:
                        self._store.reader.check_content(place)
                    record = self._store.decode_held(place, holder, tensors=reading.tensors, copy=not reading.view)
                    hits.append(Hit(record, place if reading.view else None))
        except BaseException as error:
            hits.clear()  # the error's traceback would keep them and their leases
            if isinstance(error, LocalProtocolError):  # the mapping was closed by another thread
                raise RequestAborted("the client was closed, or its service is another by now") from None
            raise
        return hits

    def _end(self, held: list[Held | Inline | None]) -> None:
        """Return, after an error, the leases that its traceback would keep."""
        for each in held:
            if isinstance(each, tuple):
                self._returns.end(each[1])


@lru_cache(maxsize=4096)
def _digest_of(tenant: str, key: str) -> KeyDigest:
    return key_digest(store_key(tenant, key))
