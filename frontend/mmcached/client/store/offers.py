"""Sends puts: large records through the client's own ring, others, and what has no place there, as frames.

small, or no ring ──frames──> Stored
large ──RegisterEgressRing, once──> laid into the ring ──its place──> Stored, and the place is free again
└── refused, or the frontend is another ──> frames
"""

from __future__ import annotations

from msgspec.structs import replace

from mmcached.client.contact import Contact, Deadline
from mmcached.client.results import expect
from mmcached.client.store.egress import MIN_BYTES, Egress
from mmcached.client.store.fail_open import FailOpen
from mmcached.client.verb import Verb
from mmcached.shm.store.codec import EncodedRecord
from mmcached.wire.errors import ChannelFull, LocalProtocolError, MmcachedError, StaleHandle
from mmcached.wire.messages.client import EgressRingRegistered, Stored
from mmcached.wire.messages.frontend import PutRecord, RegisterEgressRing


class Offers:
    """The puts of one client id."""

    def __init__(self, contact: Contact, egress: Egress, guard: FailOpen) -> None:
        self._contact = contact
        self._egress = egress
        self._guard = guard

    def send(self, ask: PutRecord, encoded: EncodedRecord, deadline: Deadline) -> Verb[Stored]:
        """Send a put and return its answer; raise as `Contact.exchange`."""
        egress = self._egress
        if encoded.nbytes >= MIN_BYTES:
            yield from self._register(encoded.nbytes, deadline)
            place = egress.lay(ask.request_id, encoded)
            if place is not None:
                try:
                    message, _ = yield from self._contact.exchange(replace(ask, place=place), deadline)
                    return expect(message, Stored)
                except (ChannelFull, LocalProtocolError):  # it was not sent
                    egress.free(ask.request_id)
                    raise
                except StaleHandle:  # the frontend is another, or has let go of the ring
                    egress.lose()
                    ask = replace(ask, request_id=self._contact.next_id())
        message, _ = yield from self._contact.exchange(ask, deadline, encoded.frames())
        return expect(message, Stored)

    def _register(self, nbytes: int, deadline: Deadline) -> Verb[None]:
        """Make a ring with a place for so many bytes, if there is none and it may be, and have the frontend map it."""
        egress, contact = self._egress, self._contact
        welcome = contact.welcome
        max_bytes = 0 if welcome is None else welcome.max_egress_bytes
        ring = egress.new_ring(contact.client_id, nbytes, max_bytes)
        if ring is not None:
            try:
                ask = RegisterEgressRing(contact.client_id, contact.next_id(), ring.announcement)
                message, _ = yield from contact.exchange(ask, deadline)
                expect(message, EgressRingRegistered)
            except BaseException as error:
                egress.refuse(ring, str(error))
                if not isinstance(error, MmcachedError):
                    raise
            else:
                egress.open(ring)
        if egress.why_inline:
            store = None if welcome is None else welcome.store_ring
            warning = f"large puts go through the socket: {egress.why_inline}"
            self._guard.warn_once("no egress ring", "" if store is None else store.ring_id, warning)
