"""A client id's access to the store: in contact with the service, and a registered reader of its ring.

    session at hand ──> a request can be sent at once
    in contact      ──> greets the service, attaches to the ring of its store, and registers this reader

An error of the service counts as a miss, unless the client is strict. Does not use sockets or event loops.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from mmcached.client.arguments import checked_tenant
from mmcached.client.contact import Contact, Deadline
from mmcached.client.results import expect
from mmcached.client.store.fail_open import FailOpen
from mmcached.client.store.hits import Hit, Reading
from mmcached.client.store.session import StoreSession
from mmcached.client.store.sessions import StoreSessions
from mmcached.client.verb import Verb
from mmcached.wire.errors import MmcachedError, RemoteProtocolError
from mmcached.wire.messages.client import ReaderRegistered, Records
from mmcached.wire.messages.frontend import MAX_KEYS, RegisterReader
from mmcached.wire.messages.parts import Inline
from mmcached.wire.sockets.frames import Frame

GREET_AGAIN_S = 5.0
"""Seconds after which a service without a store is greeted again."""

T = TypeVar("T")


class StoreAccess:
    """Access of one client id to the store, without its calls.

    Args:
        guard: Counts errors, and decides which count as misses.
    """

    def __init__(self, contact: Contact, sessions: StoreSessions, guard: FailOpen) -> None:
        self.contact = contact
        self._sessions = sessions
        self._guard = guard
        self._greet_again_at = time.monotonic()

    def _tenant(self, tenant: str | None) -> str:
        """Return the tenant that a call names, or else the client's own."""
        return self.contact.options.tenant if tenant is None else checked_tenant(tenant)

    def _find(
        self, keys: list[str], reading: Reading, tenant: str, *, counts_misses: bool = True, counts_hits: bool = True
    ) -> list[Hit | None] | None:
        """Look into the ring as `StoreSession.find` does; None: the ring cannot be seen, or not yet."""
        session = self._sessions.present
        if session is None:
            return None
        return session.find(keys, tenant, reading, counts_misses=counts_misses, counts_hits=counts_hits)

    def _session_at_hand(self) -> StoreSession | None:
        """Handle received messages; return the session of the store's ring if a request can be sent at once."""
        welcome, session = self.contact.catch_up(), self._sessions.present
        if welcome is None or session is None or not session.is_announced(welcome.store_ring):
            return None
        return session

    def _in_contact(self, deadline: Deadline) -> Verb[StoreSession]:
        """Greet the service, become a reader and announce it, unless that has been done.

        A service without a store is greeted again every `GREET_AGAIN_S`: it may have found memory for one.
        """
        known, now = self.contact.welcome, time.monotonic()
        if known is not None and known.store_ring is None and now >= self._greet_again_at:
            self.contact.greet_again()
            self._greet_again_at = now + GREET_AGAIN_S
        welcome = yield from self.contact.connect(deadline, is_patient=not self._guard.is_open)
        session = self._sessions.of(welcome.store_ring)
        if session is None:
            raise self.contact.refusal()
        if session.why_inline:
            warning = f"records come through the socket, which is slower: {session.why_inline}"
            self._guard.warn_once("no reader", "" if session.ring is None else session.ring.ring_id, warning)
        if (reader := session.take_announcement()) is not None:
            try:
                ask = RegisterReader(*self._ids(), reader.announcement.epoch, reader.reader_id, reader.incarnation)
                message, _ = yield from self.contact.exchange(ask, deadline)
                session.is_attached = expect(message, ReaderRegistered).is_attached
            except BaseException:
                session.lost_contact()
                raise
        return session

    def _ids(self) -> tuple[str, int]:
        return self.contact.client_id, self.contact.next_id()

    def _guarded(self, operation: str, verb: Verb[T], nothing: T) -> Verb[T]:
        try:
            return (yield from verb)
        except MmcachedError as error:
            if not self._is_miss(operation, error):
                raise
        return nothing

    def _is_miss(self, operation: str, error: MmcachedError) -> bool:
        if self.contact.is_closed:
            raise self.contact.refusal() from None  # a closed client's call is an error, not a miss
        return self._guard.is_miss(operation, error)

    def _open(
        self,
        session: StoreSession,
        answer: Records,
        payload: Sequence[Frame],
        reading: Reading,
        *,
        keys: Sequence[str],
        tenant: str,
    ) -> list[Hit | None]:
        if len(answer.records) != len(keys):
            raise RemoteProtocolError(f"{len(answer.records)} records for {len(keys)} keys", "records")
        hits = session.open(answer, payload, reading, keys=keys, tenant=tenant)
        self._guard.count(inline_hits=sum(isinstance(place, Inline) for place in answer.records))
        return hits


def batches(keys: list[T]) -> Iterator[list[T]]:
    """Yield the keys in batches of at most `MAX_KEYS`, the limit of one message."""
    for start in range(0, len(keys), MAX_KEYS):
        yield keys[start : start + MAX_KEYS]
