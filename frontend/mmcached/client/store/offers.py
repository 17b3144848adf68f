"""Sends puts: large records through the client's nursery; other records, or without a free place, as frames.

small, or no nursery ──frames──> Stored
large ──OpenNursery, once──> written to a place of the nursery ──the place──> Stored: it is published there
└── no free place, refused, or another frontend ──> frames
"""

from __future__ import annotations

from msgspec.structs import replace

from mmcached.cache.store_keys import about_record, store_key
from mmcached.client.contact import Contact, Deadline
from mmcached.client.results import expect
from mmcached.client.store.fail_open import FailOpen
from mmcached.client.store.nursery import ClientNurseries
from mmcached.client.verb import Verb
from mmcached.shm.ring.slot_table import boot_ns
from mmcached.shm.store.codec import EncodedRecord
from mmcached.shm.store.record_note import pack_note
from mmcached.wire.errors import ChannelFull, LocalProtocolError, MmcachedError, StaleHandle
from mmcached.wire.messages.client import NurseryOpened, Stored, Welcome
from mmcached.wire.messages.frontend import OpenNursery, PutRecord

MIN_ASKED_BYTES = 512 << 10
"""Of a record for which room is asked, if there is none."""


class Offers:
    """The puts of one client id."""

    def __init__(self, contact: Contact, nurseries: ClientNurseries, guard: FailOpen) -> None:
        self._contact = contact
        self._nurseries = nurseries
        self._guard = guard

    def send(self, ask: PutRecord, encoded: EncodedRecord, deadline: Deadline) -> Verb[Stored]:
        """Send a put of `MIN_PLACED_BYTES` or more and return its answer; raise as `Contact.exchange`."""
        nurseries, welcome = self._nurseries, self._contact.welcome
        if welcome is not None:
            note = pack_note(store_key(ask.tenant, ask.key), about_record(ask.tenant, ask.key, boot_ns(), ask.cost_s))
            nbytes = encoded.nbytes + len(note)
            if nbytes <= welcome.max_placed_bytes:
                yield from self._open(nbytes, deadline, welcome)
                place = nurseries.lay(ask.request_id, encoded, note, welcome.store_ring)
                if place is None and nbytes >= MIN_ASKED_BYTES and (number := nurseries.number):
                    # A message more costs less than to send it through the socket.
                    more = OpenNursery(self._contact.client_id, self._contact.next_id(), nbytes, number)
                    yield from self._contact.exchange(more, deadline)
                    place = nurseries.lay(ask.request_id, encoded, note, welcome.store_ring)
                if place is not None:
                    try:
                        message, _ = yield from self._contact.exchange(replace(ask, place=place), deadline)
                        return expect(message, Stored)
                    except (ChannelFull, LocalProtocolError):  # it was not sent
                        nurseries.free(ask.request_id)
                        raise
                    except StaleHandle:  # the frontend has drained the nursery, or is another
                        nurseries.lose(place.nursery)
                        ask = replace(ask, request_id=self._contact.next_id())
        message, _ = yield from self._contact.exchange(ask, deadline, encoded.frames())
        return expect(message, Stored)

    def _open(self, nbytes: int, deadline: Deadline, welcome: Welcome) -> Verb[None]:
        """Have a nursery opened, if there is none and one can be had, for a record of `nbytes` bytes."""
        nurseries, contact = self._nurseries, self._contact
        if nurseries.begin():
            try:
                ask = OpenNursery(contact.client_id, contact.next_id(), nbytes)
                message, _ = yield from contact.exchange(ask, deadline)
                expect(message, NurseryOpened)
            except BaseException as error:
                nurseries.end(str(error))
                if not isinstance(error, MmcachedError):
                    raise
            else:
                nurseries.end()
        if nurseries.why_inline:
            store = welcome.store_ring
            warning = f"large puts go through the socket: {nurseries.why_inline}"
            self._guard.warn_once("no nursery", "" if store is None else store.ring_id, warning)
