"""Maps the rings in which clients lay large records, one for each client, and reads records there.

    RegisterEgressRing ──> mapped, in place of the client's former ring ──the client is gone──> let go
    PutRecord(place)   ──> the record, in place, to be copied before the answer

A client may write into its ring at any instant, also while a record is read: what it changes is its own values. What is
announced is believed of no client. Writes nothing, and keeps no name: a ring ends with the last process that maps it.
"""

from __future__ import annotations

import mmap
import os
import resource
from typing import NamedTuple

import numpy as np

from mmcached.shm import EncodedRecord
from mmcached.shm.files.own_file import open_own
from mmcached.shm.segment.mapped import SHM_DIR, open_data
from mmcached.shm.segment.segment import unlink
from mmcached.shm.store import codec
from mmcached.wire.config import MIB
from mmcached.wire.errors import InvalidRequest, SegmentError, ServiceUnavailable, StaleHandle
from mmcached.wire.handle import RingAnnouncement
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages.parts import EgressPlace

MAX_SLOTS = 4096
"""Of a client's ring: so much is mapped beside its bytes."""


class _Ring(NamedTuple):
    names: RingAnnouncement
    peer: bytes
    mapping: mmap.mmap


class EgressRings:
    """The rings of all clients, by client id; `num_records` were read so far."""

    def __init__(self, limits: LimitsConfig) -> None:
        self.max_ring_bytes = limits.max_egress_ring_mb * MIB if limits.max_egress_rings else 0
        self.num_records = 0
        self._max_rings = limits.max_egress_rings
        self._reserved_descriptors = limits.reserved_descriptors
        self._rings: dict[str, _Ring] = {}

    def __len__(self) -> int:
        return len(self._rings)

    @property
    def num_bytes(self) -> int:
        return sum(ring.names.data_bytes for ring in self._rings.values())

    def clients(self) -> set[str]:
        return set(self._rings)

    def register(self, client_id: str, peer: bytes, ring: RingAnnouncement) -> None:
        """Map a client's ring in place of its former one.

        Args:
            peer: the connection over which the client has said it.
        Raises:
            InvalidRequest: no client has such a ring.
            ServiceUnavailable: too many are mapped.
            SegmentError, LayoutMismatch: it is not there, another user's, or of another size.
        """
        if ring.ring_id != client_id:
            raise InvalidRequest("ring.ring_id", ring.ring_id, f"must be {client_id}, as its client")
        for field, value, low, high in (
            ("ring.uid", ring.uid, os.geteuid(), os.geteuid()),
            ("ring.data_bytes", ring.data_bytes, 1, self.max_ring_bytes),
            ("ring.num_slots", ring.num_slots, 1, MAX_SLOTS),
            ("ring.max_readers", ring.max_readers, 1, 1),
            ("ring.index_words", ring.index_words, 0, 0),
        ):
            if not low <= value <= high:
                raise InvalidRequest(field, value, f"must be between {low} and {high}")
        self.leave(client_id)
        if len(self) >= self._max_rings or not self._has_descriptor():
            reason = f"{len(self)} clients have a ring (limits.max_egress_rings), or no descriptors are left for more"
            raise ServiceUnavailable(reason, field="limits.max_egress_rings", limit=self._max_rings)
        try:
            os.close(open_own(SHM_DIR / ring.data_name.lstrip("/")))
        except OSError as error:
            raise SegmentError(f"ring {ring.ring_id} cannot be opened: {error.strerror or error}") from error
        self._rings[client_id] = _Ring(ring, peer, open_data(ring))

    def read(self, client_id: str, place: EgressPlace) -> EncodedRecord:
        """Return a record as it lies in its client's ring, ready to be copied.

        Raises:
            StaleHandle: this client has registered another ring, or none, or has cut it short; it may send frames.
            RemoteProtocolError: there is no record of that size.
        """
        ring = self._rings.get(client_id)
        if ring is None or ring.names.epoch != place.epoch:
            raise StaleHandle(f"this client has no ring of epoch {place.epoch}")
        if place.offset + place.nbytes > ring.names.data_bytes:
            raise StaleHandle(f"bytes {place.offset} to {place.offset + place.nbytes} are not of the ring")
        if ring.mapping.size() != len(ring.mapping):  # to touch what was cut off would end this process
            self.leave(client_id)
            raise StaleHandle(f"the ring of epoch {place.epoch} has been cut short")
        encoded = codec.adopt(np.frombuffer(ring.mapping, np.uint8, place.nbytes, place.offset))
        self.num_records += 1
        return encoded

    def leave(self, client_id: str, *, but_over: bytes | None = None) -> None:
        """Let go of a client's ring, unless it was registered over one connection; without one it changes nothing."""
        ring = self._rings.get(client_id)
        if ring is not None and ring.peer != but_over:
            del self._rings[client_id]

    def remove_names(self, client_id: str) -> None:
        """Remove what a client that is dead may have left: it was killed before its ring was mapped."""
        for kind in ("data", "ctl"):
            unlink(f"/mmc.{os.geteuid()}.{client_id}.{kind}")

    def close(self) -> None:
        self._rings.clear()

    def _has_descriptor(self) -> bool:
        """Return whether one more mapping, which keeps a descriptor, leaves the reserve alone."""
        fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        os.close(fd)
        return fd < resource.getrlimit(resource.RLIMIT_NOFILE)[0] - self._reserved_descriptors
