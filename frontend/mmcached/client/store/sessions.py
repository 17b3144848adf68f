"""Holds a client's session of the store's current ring, and applies messages that concern it.

Another ring means another frontend, and a new session; after a fork with leases out there is a new session of the same
ring. A late claim whose call has ended is dropped.

Any thread may call any method; `arrived` is called by the thread that reads the socket.
"""

from __future__ import annotations

import threading
from functools import partial

from mmcached.client.links.uninterrupted import uninterrupted
from mmcached.client.store.native_session import session_type
from mmcached.client.store.nursery import ClientNurseries
from mmcached.client.store.session import StoreSession
from mmcached.wire.handle import RingAnnouncement
from mmcached.wire.messages.client import (
    Claimed,
    Claims,
    Failed,
    NurseryOpened,
    Records,
    Stored,
    ToClient,
    Welcome,
)
from mmcached.wire.messages.frontend import Cancel, DropClaim


class StoreSessions:
    """The current session, if there is one.

    Attributes:
        present: The session; None before the first contact.
        nurseries: The nursery that the client writes large records into.
        has_second_level: Whether missing records are asked for, as far as is known.
        takes_records: Whether the service keeps records, as far as is known.
    """

    def __init__(self, *, counts_hits: bool = True) -> None:
        self._counts_hits = counts_hits
        self._store_epoch = 0
        self.nurseries = ClientNurseries()
        self.has_second_level = False
        self.takes_records = True
        self._lock = threading.RLock()
        self.present: StoreSession | None = None
        self._is_over = False

    def of(self, ring: RingAnnouncement | None) -> StoreSession | None:
        """Return the session of a ring; make a new one for another ring, or if it is shared with a forked child.

        Returns:
            None once these sessions are closed.
        """
        with self._lock:
            if self._is_over:
                return None
            former = self.present
            if former is not None and former.ring == ring and not former.is_shared:
                return former
            if former is not None:
                former.close()
            self.present = uninterrupted(partial(session_type(), ring, counts_hits=self._counts_hits))
            return self.present

    def arrived(self, message: ToClient) -> ToClient:
        """Apply a message before it is handled further; return it."""
        match message:
            case Stored():
                self._store_epoch = max(self._store_epoch, message.store_epoch)
                self.nurseries.answered(message.request_id, message.grants)
            case Records() | Claimed() | Claims():
                self._store_epoch = max(self._store_epoch, message.store_epoch)
            case Welcome():
                self._store_epoch = message.store_epoch
                self.has_second_level = message.has_second_level
                self.takes_records = message.takes_records
            case Failed():
                self.nurseries.answered(message.request_id)
            case NurseryOpened():
                self.nurseries.opened(message.grants, has_checksums=message.has_checksums)
        return message

    @property
    def store_epoch(self) -> int:
        """The newest store epoch that this client knows; results of older epochs are not kept."""
        return self._store_epoch if self.present is None else max(self._store_epoch, self.present.seen_epoch)

    def unsolicited(self, message: ToClient, client_id: str) -> DropClaim | Cancel | None:
        """Handle a message that answers no open call; return the reply, if one is needed."""
        match message:
            case Claimed():
                return DropClaim(client_id, message.claim)
            case Claims():
                return Cancel(client_id, message.request_id)
        return None

    def lose_contact(self) -> None:
        """Drop the nursery, and have the reader announced again, after the connection was lost."""
        self.nurseries.lose()
        if (session := self.present) is not None:
            session.lost_contact()

    def close(self) -> None:
        """Take no more leases; leases of living views stay. A second call changes nothing."""
        with self._lock:
            self._is_over = True
            session, self.present = self.present, None
        self.nurseries.close()
        if session is not None:
            session.close()

    def abandon(self) -> None:
        """In a forked child: release the parent's session."""
        self._lock = threading.RLock()  # the thread that held it may not exist here
        self._is_over = True
        self.nurseries.abandon()
        session, self.present = self.present, None
        if session is not None:
            session.abandon()
