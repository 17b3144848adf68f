"""Holds a client's row and mapping of one ring of the store, and the leases that come. Knows nothing of sockets.

    StoreSession(ring)          takes a row of the ring and maps it; cannot? then records come inline
        receive(records)        leases in, in the order of arrival
        open(records)           hits out, or discard(records)
        contains(keys)          a look into the ring's index, nobody is asked
        close()                 no more hits; row and mapping go when the last view has died

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
from mmcached.shm import ObjectStoreReader, ReaderRow, RingReader
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
        why_inline: why there is no row; empty if there is one, or no ring.
        is_attached: whether the service has said that leases will come over the present connection.
    """

    def __init__(self, ring: RingAnnouncement | None) -> None:
        self.ring = ring
        self.is_attached = self._is_announced = False
        self.why_inline = ""
        self._lock = threading.RLock()
        self._row: ReaderRow | None = None
        if ring is not None:
            try:
                self._take_row(ring)
            except (MmcachedError, OSError) as error:  # no row, another user's ring, no shared /dev/shm, …
                self.why_inline = str(error)

    @property
    def has_row(self) -> bool:
        return self._row is not None

    def take_announcement(self) -> ReaderRow | None:
        """Return the row for its announcement; None if there is none, or somebody announces it or has done so."""
        with self._lock:
            if self._is_announced:
                return None
            self._is_announced = self._row is not None
            return self._row

    @property
    def nonce(self) -> int:
        """Whom leases may be granted to; 0 for nobody."""
        row = self._row
        return row.nonce if row is not None and self.is_attached else 0

    def lost_contact(self) -> None:
        """The connection over which the row was announced is no more."""
        self.is_attached = self._is_announced = False

    # ---- records

    def receive(self, answer: Records) -> Records:
        """Count every lease that has come; a handle that is not under one of ours becomes None, as good as none."""
        with self._lock:
            row = self._row
            places: list[Place] = []
            for index, place in enumerate(answer.records):
                lease = answer.leases[index] if index < len(answer.leases) else None
                is_lost = isinstance(place, Handle) and (row is None or lease is None or not row.receive(place, lease))
                places.append(None if is_lost else place)
        return msgspec.structs.replace(answer, records=places)

    def open(self, answer: Records, payload: Sequence[Frame], reading: Reading) -> list[Hit | None]:
        """Turn a received answer into hits, in its order.

        Raises:
            RemoteProtocolError, StaleHandle, ChecksumMismatch: it is not what it should be; all leases are given back.
            InvalidRequest: a dtype that the wanted library does not have; likewise.
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
            if self._row is None:
                return None
            received = self._row.answer_barrier(barrier.nonce, barrier.last_seq, barrier.slots)
        return None if received is None else Reconcile(barrier.nonce, barrier.barrier_id, received)

    # ---- the index

    @property
    def is_writer_alive(self) -> bool:
        with self._lock:
            return self._row is not None and self._row.is_writer_alive()

    def contains(self, keys: Sequence[str], tenant: str) -> list[bool] | None:
        """Return which keys the store shows just now; None if its index cannot be seen from here."""
        names = [store_key(tenant, key) for key in keys]
        with self._lock:
            index = None if self._row is None else self._store.reader.index
            return None if index is None else [index.contains(name) for name in names]

    # ---- the end

    def close(self) -> None:
        """Take no more leases; those that views hold stay. A second call changes nothing."""
        with self._lock:
            if self._row is None:
                return
            self._row = None
            self._store.close()  # with the last view the mapping goes, and with it the row

    def abandon(self) -> None:
        """In a forked child: let go without giving back; the parent's leases stay its own."""
        self._lock = threading.RLock()  # the thread that held it may not exist here
        if self._row is not None:
            self._row = None
            self._returns.abandon()
            self._store.close()

    def _take_row(self, ring: RingAnnouncement) -> None:
        row = ReaderRow.attach(ring)
        try:
            reader = RingReader.open(ring)
        except BaseException:
            row.close()
            raise
        self._row = row
        self._returns = LeaseReturns(row)
        self._store = ObjectStoreReader(reader)
        reader.when_unmapped(self._returns.close_row)

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
