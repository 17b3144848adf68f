"""Holds a client's session of the store's present ring, and takes in what arrives for it.

A ring other than before means another frontend, and a new session. Leases are counted as they arrive, in that order.
What nobody waits for any more is given back: the leases of late records, and late claims.

Any thread may call anything; `arrived` comes from the one that reads the socket.
"""

from __future__ import annotations

import threading
from functools import partial

from mmcached.client.links.uninterrupted import uninterrupted
from mmcached.client.store.egress import Egress
from mmcached.client.store.session import StoreSession
from mmcached.wire.errors import RequestAborted
from mmcached.wire.handle import RingAnnouncement
from mmcached.wire.messages.client import Claimed, Failed, Records, Stored, ToClient, Welcome
from mmcached.wire.messages.frontend import DropClaim, Reconcile
from mmcached.wire.messages.parts import Barrier


class StoreSessions:
    """The present session, if there is one.

    Attributes:
        store_epoch: the newest that has arrived; results that are older are not kept.
        egress: the client's ring for large puts.
    """

    def __init__(self) -> None:
        self.store_epoch = 0
        self.egress = Egress()
        self._lock = threading.RLock()
        self._session: StoreSession | None = None
        self._is_over = False

    def of(self, ring: RingAnnouncement | None) -> StoreSession:
        """Return the session of a ring, a new one if that is not the present ring.

        Raises:
            RequestAborted: the client was closed.
        """
        with self._lock:
            if self._is_over:
                raise RequestAborted("the client was closed")
            former = self._session
            if former is not None and former.ring == ring:
                return former
            if former is not None:
                former.close()
            self._session = uninterrupted(partial(StoreSession, ring))
            return self._session

    def arrived(self, message: ToClient) -> ToClient:
        """Take note of a message before anything else is done with it; return it without leases that are not ours."""
        match message:
            case Welcome():
                self.store_epoch = message.store_epoch
            case Records() | Claimed() | Stored():
                self.store_epoch = max(self.store_epoch, message.store_epoch)
        if isinstance(message, Stored | Failed):
            self.egress.free(message.request_id)
        if isinstance(message, Records) and (session := self._session) is not None:
            return session.receive(message)
        return message

    def unsolicited(self, message: ToClient, client_id: str) -> DropClaim | Reconcile | None:
        """Take in a message that answers no open call; return what to reply."""
        session = self._session
        match message:
            case Barrier() if session is not None:
                return session.answer(message)
            case Records() if session is not None:
                session.discard(message)
            case Claimed():
                return DropClaim(client_id, message.claim)
        return None

    def lose_contact(self) -> None:
        """Take note that the connection was lost."""
        self.egress.lose()
        if (session := self._session) is not None:
            session.lost_contact()

    def close(self) -> None:
        """Take no more leases; those of living views stay. A second call changes nothing."""
        with self._lock:
            self._is_over = True
            session, self._session = self._session, None
        self.egress.close()
        if session is not None:
            session.close()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's session."""
        self._lock = threading.RLock()  # the thread that held it may not exist here
        self._is_over = True
        self.egress.abandon()
        session, self._session = self._session, None
        if session is not None:
            session.abandon()
