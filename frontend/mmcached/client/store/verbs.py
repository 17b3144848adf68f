"""The verbs of the store, without sockets: what each says, in which order, and what becomes of errors.

    not greeted ──Greet──> Welcome(ring) ──row taken, TakeRow──> in contact: leases come, or records inline
         ^                                                            │
         └────────────── connection lost, or the writer's lock free ──┘

Every verb begins with that contact, so it comes back by itself after any restart; a ring other than before means
another frontend, and a new session. All of it has one deadline. Leases are counted as they arrive (`arrived`), in that
order; whatever nobody waits for any more goes through `hear`: its leases are given back, its claim is dropped. A claim
is dropped too when its verb ends in any other way than with a put.

Knows nothing of sockets and event loops. Any number of verbs may run at a time, in any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from mmcached.client.links.conversation import Conversation, expect
from mmcached.client.links.uninterrupted import uninterrupted
from mmcached.client.store.fail_open import FailOpen
from mmcached.client.store.hits import Hit, Reading
from mmcached.client.store.session import StoreSession
from mmcached.client.store.steps import Compute, Exchange, Greet, Verb
from mmcached.shm import ReaderRow
from mmcached.shm.store.codec import EncodedRecord, Record, encode
from mmcached.wire.errors import MmcachedError, RemoteProtocolError, RequestAborted, ServiceUnavailable
from mmcached.wire.handle import RingAnnouncement
from mmcached.wire.messages.client import Claimed, Present, Records, RowTaken, Stored, ToClient, Welcome
from mmcached.wire.messages.frontend import MAX_KEYS, Cancel, DropClaim, Reconcile
from mmcached.wire.messages.parts import Barrier, Inline
from mmcached.wire.sockets.channels import Frame

RETRY_INTERVAL_S = 1.0
"""How long a failed contact is taken for an answer before the next is tried."""
GREET_AGAIN_S = 5.0
"""How long a service that has no store is taken to have none."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Claim:
    """A key that is ours to compute, and which frontend has said so."""

    token: int
    store_epoch: int
    ring: RingAnnouncement | None


class StoreVerbs:
    """The store as one client sees it.

    Args:
        guard: counts errors, and decides which are a miss.
        tell: sends a message that has no answer, or drops it; never waits.
        clock: monotonic seconds.
    Attributes:
        welcome: of the frontend that this client is in contact with; None when the contact was lost.
    """

    def __init__(
        self,
        talk: Conversation,
        guard: FailOpen,
        *,
        tell: Callable[[Cancel | DropClaim], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.welcome: Welcome | None = None
        self._talk = talk
        self._guard = guard
        self._tell = tell
        self._clock = clock
        self._lock = threading.RLock()
        self._is_closed = False
        self._session: StoreSession | None = None
        self._store_epoch = 0
        self._retry_at = self._greet_again_at = clock()

    # ---- the verbs; their keys are checked

    def get_many(self, keys: list[str], reading: Reading, timeout_s: float | None) -> Verb[list[Hit | None]]:
        limit_s = self._talk.timeout(timeout_s)
        misses: list[Hit | None] = [None] * len(keys)
        hits = yield from self._guarded("get", self._get(keys, reading, limit_s), misses)
        self._guard.count(queries=len(keys), hits=sum(hit is not None for hit in hits))
        return hits

    def contains_many(self, keys: list[str], timeout_s: float | None) -> Verb[list[bool]]:
        limit_s = self._talk.timeout(timeout_s)
        return (yield from self._guarded("contains_many", self._contains(keys, limit_s), [False] * len(keys)))

    def put(self, key: str, record: Record, timeout_s: float | None) -> Verb[bool]:
        limit_s = self._talk.timeout(timeout_s)
        return (yield from self._guarded("put", self._put(key, encode(record), limit_s), False))

    def drop(self, key: str, timeout_s: float | None) -> Verb[bool]:
        limit_s = self._talk.timeout(timeout_s)
        return (yield from self._guarded("drop", self._drop(key, limit_s), False))

    def get_or_compute(
        self, key: str, fn: Callable[[], Any], reading: Reading, timeout_s: float | None
    ) -> Verb[Record]:
        limit_s = self._talk.timeout(timeout_s)
        self._guard.count(queries=1)
        found = yield from self._guarded("get_or_compute", self._claim(key, reading, limit_s), None)
        if isinstance(found, Hit):
            self._guard.count(hits=1)
            return found.record
        is_stored = False
        try:
            self._guard.count(computed=1)
            record: Record = yield Compute(fn)
            encoded = encode(record)  # judges it, whether it can be stored or not
            if found is not None and not self._is_closed:  # in a process that `fn` has forked the claim is the parent's
                is_stored = yield from self._guarded("put", self._put(key, encoded, limit_s, found), False)
            return record
        finally:
            if found is not None and not is_stored:
                self._tell(self._talk.drop_claim(found.token))  # somebody else may be waiting for the result

    # ---- contact

    def connect(self, deadline: float, *, is_patient: bool) -> Verb[None]:
        """Greet the service unless in contact.

        Raises:
            ServiceUnavailable: nobody is there; or nobody was a moment ago, and it is not time to look again.
        """
        now = self._clock()
        if self.welcome is not None:
            return
        if now < self._retry_at and not is_patient:
            raise ServiceUnavailable("the service was not there a moment ago; it is looked for once a second")
        limit = now + self._talk.options.connect_timeout_s
        try:
            yield Greet(min(deadline, limit), is_patient)
        except MmcachedError:
            self._retry_at = self._clock() + RETRY_INTERVAL_S
            raise

    def lose_contact(self) -> None:
        """The connection was lost; the frontend may be another by now."""
        self.welcome = None
        if (session := self._session) is not None:
            session.lost_contact()

    def expect_new_epoch(self) -> None:
        """This client has asked for a new epoch: greet again before the next verb, to learn which it is."""
        self.welcome = None

    def arrived(self, message: ToClient) -> ToClient:
        """Count the leases that have come with a message; return it without those that are not ours.

        To be called for each message, in the order of arrival, before anything else is done with it.
        """
        if isinstance(message, Records) and (session := self._session) is not None:
            return session.receive(message)
        return message

    def hear(self, message: ToClient) -> DropClaim | Reconcile | None:
        """Take note of a message that answers no open call; return what to reply."""
        match message:
            case Welcome():
                self.welcome = message
                self._store_epoch = message.store_epoch
            case Barrier():
                return None if (session := self._session) is None else session.answer(message)
            case Records():
                if (session := self._session) is not None:
                    session.discard(message)
            case Claimed():
                return self._talk.drop_claim(message.claim)
        return None

    def close(self) -> None:
        """Take no more leases; those of living views stay. A second call changes nothing."""
        with self._lock:
            self._is_closed = True
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's session."""
        self._lock = threading.RLock()  # the thread that held it may not exist here
        self._is_closed = True
        session, self._session = self._session, None
        if session is not None:
            session.abandon()

    def _in_contact(self, deadline: float, limit_s: float) -> Verb[StoreSession]:
        """Greet, take a row and announce it, as far as that has not been done. A service without a store is greeted
        again now and then: it may have found room for one.
        """
        if self.welcome is not None and self.welcome.store_ring is None and self._clock() >= self._greet_again_at:
            self.welcome = None
        if self.welcome is None:
            self._greet_again_at = self._clock() + GREET_AGAIN_S
        yield from self.connect(deadline, is_patient=not self._guard.is_open)
        welcome = self.welcome
        if welcome is None:
            raise ServiceUnavailable("the service has just gone; try again")
        session = self._session_of(welcome.store_ring)
        if session.why_inline:
            warning = f"records come through the socket, which is slower: {session.why_inline}"
            self._guard.warn_once("no row", warning)
        if (row := session.take_announcement()) is not None:
            yield from self._announce(session, row, deadline, limit_s)
        return session

    def _session_of(self, ring: RingAnnouncement | None) -> StoreSession:
        with self._lock:
            if self._is_closed:
                raise RequestAborted("the client was closed")
            former = self._session
            if former is not None and former.ring == ring:
                return former
            if former is not None:
                former.close()
            self._session = uninterrupted(partial(StoreSession, ring))
            return self._session

    def _announce(self, session: StoreSession, row: ReaderRow, deadline: float, limit_s: float) -> Verb[None]:
        try:
            ask = self._talk.take_row(ring_epoch=row.announcement.epoch, row=row.row, nonce=row.nonce)
            message, _ = yield Exchange(ask, deadline, limit_s)
            session.is_attached = expect(message, RowTaken).is_attached
        except BaseException:
            session.lost_contact()
            raise

    # ---- each verb as it is while the service is there

    def _get(self, keys: list[str], reading: Reading, limit_s: float) -> Verb[list[Hit | None]]:
        deadline = self._clock() + limit_s
        session = yield from self._in_contact(deadline, limit_s)
        if session.ring is None or not keys:
            return [None] * len(keys)
        hits: list[Hit | None] = []
        for batch in _batches(keys):
            message, payload = yield Exchange(self._talk.get_records(batch, nonce=session.nonce), deadline, limit_s)
            hits += self._open(session, expect(message, Records), payload, reading, len(batch))
        return hits

    def _contains(self, keys: list[str], limit_s: float) -> Verb[list[bool]]:
        deadline = self._clock() + limit_s
        session = yield from self._in_contact(deadline, limit_s)
        if session.has_row and not session.is_writer_alive:
            self.lose_contact()
            session = yield from self._in_contact(deadline, limit_s)
        seen = session.contains(keys, self._talk.options.tenant)
        if seen is not None:
            # A look after the death of the writer would show what is nobody's any more.
            return seen if session.is_writer_alive else [False] * len(keys)
        if session.ring is None or not keys:
            return [False] * len(keys)
        found: list[bool] = []
        for batch in _batches(keys):
            message, _ = yield Exchange(self._talk.have_records(batch), deadline, limit_s)
            present = expect(message, Present).are_present
            if len(present) != len(batch):
                raise RemoteProtocolError(f"{len(present)} answers for {len(batch)} keys", "are_present")
            found += present
        return found

    def _put(self, key: str, encoded: EncodedRecord, limit_s: float, claim: _Claim | None = None) -> Verb[bool]:
        deadline = self._clock() + limit_s
        self._guard.count(puts=1)
        session = yield from self._in_contact(deadline, limit_s)
        if claim is None:
            if session.ring is None:
                self._guard.note_refusal("the service keeps no records")
                return False
            ask = self._talk.put_record(key, store_epoch=self._store_epoch)
        elif claim.ring != session.ring:
            return False  # whoever gave the claim is dead, and its epoch with it
        else:
            ask = self._talk.put_record(key, store_epoch=claim.store_epoch, claim=claim.token)
        message, _ = yield Exchange(ask, deadline, limit_s, encoded.frames())
        stored = expect(message, Stored)
        self._learn_epoch(stored.store_epoch)
        self._guard.count(stored=int(stored.is_stored))
        if not stored.is_stored:
            self._guard.note_refusal(stored.reason)
        return stored.is_stored

    def _drop(self, key: str, limit_s: float) -> Verb[bool]:
        deadline = self._clock() + limit_s
        session = yield from self._in_contact(deadline, limit_s)
        if session.ring is None:
            return True
        message, _ = yield Exchange(self._talk.drop_record(key), deadline, limit_s)
        return not expect(message, Stored).is_stored

    def _claim(self, key: str, reading: Reading, limit_s: float) -> Verb[Hit | _Claim | None]:
        """Ask for a record or the right to compute it; None: neither, compute it without storing."""
        deadline = self._clock() + limit_s
        session = yield from self._in_contact(deadline, limit_s)
        ask = self._talk.claim_record(key, timeout_s=limit_s, nonce=session.nonce)
        try:
            message, payload = yield Exchange(ask, deadline, limit_s)
        except BaseException:  # while it waited: the claim must not come to one who has given up
            self._tell(self._talk.cancel(ask.request_id))
            raise
        if isinstance(message, Claimed):
            self._learn_epoch(message.store_epoch)
            return _Claim(message.claim, message.store_epoch, session.ring)
        (found,) = self._open(session, expect(message, Records), payload, reading, 1)
        return found

    # ---- helpers

    def _guarded(self, operation: str, verb: Verb[T], nothing: T) -> Verb[T]:
        try:
            return (yield from verb)
        except MmcachedError as error:
            if not self._guard.is_miss(operation, error):
                raise
        return nothing

    def _open(
        self, session: StoreSession, answer: Records, payload: Sequence[Frame], reading: Reading, count: int
    ) -> list[Hit | None]:
        self._learn_epoch(answer.store_epoch)
        hits = session.open(answer, payload, reading)
        if len(hits) != count:
            raise RemoteProtocolError(f"{len(hits)} records for {count} keys", "records")
        self._guard.count(inline_hits=sum(isinstance(place, Inline) for place in answer.records))
        return hits

    def _learn_epoch(self, store_epoch: int) -> None:
        self._store_epoch = max(self._store_epoch, store_epoch)


def _batches(keys: list[str]) -> Iterator[list[str]]:
    """Yield the keys, as many at a time as one message may have."""
    for start in range(0, len(keys), MAX_KEYS):
        yield keys[start : start + MAX_KEYS]
