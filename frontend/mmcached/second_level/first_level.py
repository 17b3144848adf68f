"""Connects the second level with the store of its host, as a client: orders, puts and leases.

Calls reconnect by themselves after a restart of the frontend; orders of the former frontend are void. Any thread may
call. Invariant: a lease lasts no longer than references to the bytes that it covers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mmcached.client.arguments import Options
from mmcached.client.contact import Contact
from mmcached.client.links.thread_link import ThreadLink
from mmcached.client.results import expect
from mmcached.client.store.fail_open import FailOpen
from mmcached.client.store.hits import Reading
from mmcached.client.store.sessions import StoreSessions
from mmcached.client.store.verbs import StoreVerbs
from mmcached.client.verb import Verb, drive
from mmcached.shm.store.codec import EncodedRecord
from mmcached.shm.store.tensor_bytes import Bytes1D
from mmcached.wire.closeable import Closeable
from mmcached.wire.messages.second_level import (
    MAX_REPORTED,
    AnotherHostFlushed,
    DropEnded,
    FetchEnd,
    FetchesEnded,
    Orders,
    RecentNames,
    RecordsDropped,
    Save,
    SecondLevelFlushed,
    TakeOrders,
)
from mmcached.wire.paths import RunDir

NAME = "second-level"
_READING = Reading("bytes", view=True)
CALL_S = 10.0
SLACK_S = 5.0
"""Additional time to wait for the frontend's answer beyond the requested `timeout_s`."""
LOOK_INTERVAL_S = 10.0
"""The longest sleep of a thread that waits for an answer; events of the connection end it earlier."""


class FirstLevel(Closeable):
    """The store of one run directory.

    Args:
        call_s: Timeout of a put or a greeting.
    """

    def __init__(self, directory: RunDir, *, call_s: float = CALL_S) -> None:
        self._call_s = call_s
        sessions = self._sessions = StoreSessions()
        link = partial(ThreadLink, look_interval_s=LOOK_INTERVAL_S)
        options = Options(call_s, call_s, tenant="", fail_open=False, name=NAME)
        self._contact = Contact(directory, options, link, sessions)
        self._verbs = StoreVerbs(self._contact, sessions, FailOpen(is_open=False))

    def take_orders(self, timeout_s: float) -> Orders:
        """Wait up to `timeout_s` for orders, connecting first if necessary; MmcachedError without a frontend."""
        return drive(self._take_orders(timeout_s))

    def put(
        self, tenant: str, key: str, record: EncodedRecord, store_epoch: int, *, ttl_s: float = 0.0, cost_s: float = 0.0
    ) -> bool:
        """Offer a record; return whether its key has a record now.

        Args:
            ttl_s: Seconds until it expires; 0.0 for never.
            cost_s: Seconds that computing it took on its first host; 0.0: unknown.

        Raises:
            MmcachedError: The frontend has not answered.
        """
        put = self._verbs.put_encoded(
            key, record, self._call_s, tenant=tenant, store_epoch=store_epoch, ttl_s=ttl_s, cost_s=cost_s
        )
        return bool(drive(put))

    def lend(self, save: Save) -> Bytes1D | None:
        """Return the encoded record of an order in place, under a lease that ends with the array; None if it is gone.

        A record that has moved since the order is found where it lies now.

        Raises:
            MmcachedError: There is no connection, or the record is invalid.
        """
        return drive(self._verbs.lend(save.place, self._call_s, key=save.key, tenant=save.tenant))

    @property
    def store_epoch(self) -> int:
        """The newest epoch of the store that was seen, at the latest by the last `lend`."""
        return self._sessions.store_epoch

    def ended(self, fetches: Sequence[FetchEnd]) -> None:
        for start in range(0, len(fetches), MAX_REPORTED):
            self._contact.tell(FetchesEnded(self._contact.client_id, list(fetches[start : start + MAX_REPORTED])))

    def flushed(self, token: int, error: str) -> None:
        """Report the end of a flush; an empty `error` means success."""
        self._contact.tell(SecondLevelFlushed(self._contact.client_id, token, error))

    def drop_ended(self, number: int, error: str) -> None:
        """Report the end of a drop; an empty `error` means success."""
        self._contact.tell(DropEnded(self._contact.client_id, number, error))

    def records_dropped(self, names: Sequence[str], *, are_all: bool) -> None:
        """Report records that other hosts have dropped, by `store_key`; `are_all`: it is unknown which."""
        for start in range(0, max(len(names), are_all), MAX_REPORTED):
            some = list(names[start : start + MAX_REPORTED])
            self._contact.tell(RecordsDropped(self._contact.client_id, some, are_all=are_all and not start))

    def names_told(self, names: Sequence[str]) -> None:
        """Report the names that other hosts have told; none is an answer, too."""
        for start in range(0, max(len(names), 1), MAX_REPORTED):
            some = list(names[start : start + MAX_REPORTED])
            self._contact.tell(RecentNames(self._contact.client_id, some))

    def another_host_flushed(self, reason: str) -> None:
        """Report that the second level is not used until this host is flushed."""
        self._contact.tell(AnotherHostFlushed(self._contact.client_id, reason))

    def close(self) -> None:
        """End all calls, and give back unreferenced leases. A second call does nothing."""
        self._contact.close()

    def _take_orders(self, timeout_s: float) -> Verb[Orders]:
        contact = self._contact
        deadline = contact.deadline(timeout_s + SLACK_S)
        yield from contact.connect(deadline)
        yield from self._verbs.look([], _READING, deadline)  # register as a reader of the store before orders come
        ask = TakeOrders(contact.client_id, contact.next_id(), timeout_s)
        message, _ = yield from contact.exchange(ask, deadline)
        return expect(message, Orders)
