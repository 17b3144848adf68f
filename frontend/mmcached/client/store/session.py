"""Makes a client a reader of one ring of the store, and keeps the leases that come. Knows nothing of sockets.

    StoreSession(ring)          becomes a reader of the ring and maps it; cannot? then records come inline
        receive(records)        leases in, in the order of arrival
        open(records)           hits out, or discard(records)
        contains(keys)          a look into the ring's index, nobody is asked
        close()                 no more hits; reader and mapping go when the last view has died

A ring dies with its frontend; the next frontend has another, and so the next session. Views of the former stay valid.

Any thread may call anything; `receive` and `answer` come from the one that reads the socket, so a question which leases
have arrived is answered with those that came before it.

Invariant: every lease of this incarnation that arrives is given back exactly once, by the death of its views or at
once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

import msgspec

from mmcached.cache.store_keys import store_key
from mmcached.client.store.hits import Hit, Reading, inline_record
from mmcached.client.store.lease_returns import LeaseReturns
from mmcached.shm import ObjectStoreReader, ReaderEntry, RingReader
from mmcached.wire.errors import LocalProtocolError, MmcachedError, RemoteProtocolError, RequestAborted
from mmcached.wire.handle import Handle, RingAnnouncement
from mmcached.wire.messages.client import Records
from mmcached.wire.messages.frontend import Reconcile
from mmcached.wire.messages.parts import Barrier, Inline
from mmcached.wire.sockets.channels import Frame

Place = Handle | Inline | None


class StoreSession:
    """One ring, or the lack of one.

    Args:
        ring: None if the service keeps no records.
    Attributes:
        why_inline: the reason that it is no reader; empty if it is one, or if there is no ring.
        is_attached: the service has said that leases come over the present connection.
    """

    def __init__(self, ring: RingAnnouncement | None) -> None:
        self.ring = ring
        self.is_attached = self._is_announced = False
        self.why_inline = ""
        self._lock = threading.RLock()
        self._reader: ReaderEntry | None = None
        if ring is not None:
            try:
                self._become_reader(ring)
            except (MmcachedError, OSError) as error:  # no place, another user's ring, no shared /dev/shm, …
                self.why_inline = str(error)

    @property
    def is_reader(self) -> bool:
        return self._reader is not None

    def take_announcement(self) -> ReaderEntry | None:
        """Return the reader that is to be announced; None if there is none, or somebody announces it or has done so."""
        with self._lock:
            if self._is_announced:
                return None
            self._is_announced = self._reader is not None
            return self._reader

    @property
    def incarnation(self) -> int:
        """The incarnation that leases may be granted to; 0 for none."""
        reader = self._reader
        return reader.incarnation if reader is not None and self.is_attached else 0

    def lost_contact(self) -> None:
        """Take note that the connection over which the reader was announced is no more."""
        self.is_attached = self._is_announced = False

    # ---- records

    def receive(self, answer: Records) -> Records:
        """Count every lease that has come; a handle that is not under one of ours becomes None, as good as none."""
        with self._lock:
            reader = self._reader
            places: list[Place] = []
            for index, place in enumerate(answer.records):
                lease = answer.leases[index] if index < len(answer.leases) else None
                is_lost = isinstance(place, Handle) and (
                    reader is None or lease is None or not reader.receive(place, lease)
                )
                places.append(None if is_lost else place)
        return msgspec.structs.replace(answer, records=places)

    def open(self, answer: Records, payload: Sequence[Frame], reading: Reading) -> list[Hit | None]:
        """Turn a received answer into hits, in its order; on an error all its leases are given back.

        Raises:
            RemoteProtocolError, StaleHandle, ChecksumMismatch: it is not what it should be.
            InvalidRequest: a dtype that the wanted library does not have.
        """
        places = answer.records
        hits: list[Hit | None] = []
        try:
            if len(answer.leases) != len(answer.records):
                raise RemoteProtocolError(f"{len(answer.leases)} leases for {len(answer.records)} records", "leases")
            for place in places:
                hits.append(self._hit(place, payload, reading))  # noqa: PERF401 (the handler needs those made so far)
        except BaseException as error:
            self._give_back(places[len(hits) :])
            hits.clear()  # the error's traceback would keep them, and their leases, for as long as somebody keeps it
            if isinstance(error, LocalProtocolError):  # the mapping was closed by another thread
                raise RequestAborted("the client was closed, or its service is another by now") from None
            raise
        return hits

    def discard(self, answer: Records) -> None:
        """Give back the leases of a received answer for which nobody waits any more."""
        self._give_back(answer.records)

    def answer(self, barrier: Barrier) -> Reconcile | None:
        """Say which leases have arrived; None if another incarnation is asked."""
        with self._lock:
            if self._reader is None:
                return None
            received = self._reader.answer_barrier(barrier.incarnation, barrier.last_seq, barrier.slots)
        return None if received is None else Reconcile(barrier.incarnation, barrier.barrier_id, received)

    # ---- the index

    @property
    def is_writer_alive(self) -> bool:
        with self._lock:
            return self._reader is not None and self._reader.is_writer_alive()

    def contains(self, keys: Sequence[str], tenant: str) -> list[bool] | None:
        """Return which keys the store shows just now; None if its index cannot be seen from here."""
        names = [store_key(tenant, key) for key in keys]
        with self._lock:
            index = None if self._reader is None else self._store.reader.index
            return None if index is None else [index.contains(name) for name in names]

    # ---- the end

    def close(self) -> None:
        """Take no more leases; those that views hold stay. A second call changes nothing."""
        with self._lock:
            if self._reader is None:
                return
            self._reader = None
            self._store.close()  # with the last view the mapping goes, and with it the reader

    def abandon(self) -> None:
        """In a forked child: let go without giving back; the parent's leases stay its own."""
        self._lock = threading.RLock()  # the thread that held it may not exist here
        if self._reader is not None:
            self._reader = None
            self._returns.abandon()
            self._store.close()

    def _become_reader(self, ring: RingAnnouncement) -> None:
        reader = ReaderEntry.attach(ring)
        try:
            mapping = RingReader.open(ring)
        except BaseException:
            reader.close()
            raise
        self._reader = reader
        self._returns = LeaseReturns(reader)
        self._store = ObjectStoreReader(mapping)
        mapping.when_unmapped(self._returns.close_reader)

    def _give_back(self, places: Sequence[Place]) -> None:
        for place in places:
            if isinstance(place, Handle):
                self._returns.give_back(place)

    def _hit(self, place: Place, payload: Sequence[Frame], reading: Reading) -> Hit | None:
        match place:
            case Handle():
                done = partial(self._returns.give_back, place)
                return Hit(self._store.get(place, tensors=reading.tensors, copy=not reading.view, on_release=done))
            case Inline():
                return Hit(inline_record(place, payload, reading))
            case None:
                return None
