"""Says what each verb of the store asks, in which order, and what becomes of errors.

    look into the ring ──a hit; or a miss, and no second level──> done, without a message
        └──> in contact ──the ring's session──> RegisterReader ──> look; or the verb's own request

A service that is gone, full or late is a miss, unless the client is strict. A claim is dropped when its verb ends in
any other way than with a put. What a session can see for itself is not asked for.

Knows nothing of sockets and event loops. Any number of verbs may run at a time, in any thread.
"""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from mmcached.client.contact import Contact, Deadline
from mmcached.client.results import expect
from mmcached.client.store.bare import TensorLike, as_record, from_record
from mmcached.client.store.claims import Claim, Grant, Pending
from mmcached.client.store.fail_open import FailOpen
from mmcached.client.store.hits import Hit, Reading
from mmcached.client.store.offers import Offers
from mmcached.client.store.put_result import PutResult, refused
from mmcached.client.store.session import StoreSession
from mmcached.client.store.sessions import StoreSessions
from mmcached.client.store.tokens import LeaseToken
from mmcached.client.verb import Call, Done, Verb
from mmcached.shm.store.codec import EncodedRecord, Record, encode
from mmcached.shm.store.tensor_bytes import Bytes1D
from mmcached.wire.errors import (
    InvalidRequest,
    MmcachedError,
    RemoteProtocolError,
    SegmentError,
)
from mmcached.wire.handle import Handle
from mmcached.wire.messages.client import (
    DROPPED,
    EXISTED,
    Claimed,
    Claims,
    Present,
    ReaderRegistered,
    Records,
    Stored,
)
from mmcached.wire.messages.frontend import (
    MAX_KEYS,
    ClaimRecord,
    ClaimRecords,
    DropClaim,
    DropRecord,
    GetRecords,
    HaveRecords,
    PutRecord,
    RegisterReader,
)
from mmcached.wire.messages.parts import Inline
from mmcached.wire.sockets.frames import Frame

NO_STORE = "the service keeps no records (store_gb = 0, or there is no room for the store)"
GREET_AGAIN_S = 5.0
"""How long a service that has no store is taken to have none."""

T = TypeVar("T")


class StoreVerbs:
    """The store as one client id sees it.

    Args:
        guard: counts errors, and decides which are a miss.
    """

    def __init__(self, contact: Contact, sessions: StoreSessions, guard: FailOpen) -> None:
        self._contact = contact
        self._sessions = sessions
        self._guard = guard
        self._offers = Offers(contact, sessions.nurseries, guard)
        self._greet_again_at = time.monotonic()

    # ---- the verbs; their arguments are checked

    def get(
        self, key: str, reading: Reading, timeout_s: float | None, tenant: str | None = None, *, local: bool = False
    ) -> Call[Hit | None]:
        tenant = self._tenant(tenant)
        deadline = None if timeout_s is None else self._contact.deadline(timeout_s)
        asks = self._sessions.has_second_level and not local
        hits = self._find_and_count([key], reading, tenant, asks)
        if hits is not None and (hits[0] is not None or not asks):
            return Done(hits[0])
        return _only(self._ask_and_count([key], reading, deadline, tenant, local=local))

    def get_many(
        self,
        keys: list[str],
        reading: Reading,
        timeout_s: float | None,
        tenant: str | None = None,
        *,
        local: bool = False,
        counts: bool = True,
    ) -> Call[list[Hit | None]]:
        tenant = self._tenant(tenant)
        deadline = None if timeout_s is None else self._contact.deadline(timeout_s)
        asks = self._sessions.has_second_level and not local
        hits = self._find_and_count(keys, reading, tenant, asks, counts=counts)
        if hits is not None and (None not in hits or not asks):
            return Done(hits)
        return self._ask_for_missing(
            keys, hits or [None] * len(keys), reading, deadline, tenant, local=local, counts=counts
        )

    @property
    def is_reader(self) -> bool:
        """Whether records of the present store are found without asking for them."""
        session = self._sessions.present
        return session is not None and session.incarnation > 0

    def look(
        self, keys: list[str], reading: Reading, deadline: Deadline, *, counts_hits: bool = True
    ) -> Verb[list[Hit | None]]:
        """Return those records that are seen in the ring; the service is told of this reader, but asked for nothing.

        Args:
            counts_hits: False if they are an answer, for the sake of which they need not stay.
        """
        try:
            hits = self._find(keys, reading, counts_hits=counts_hits)
            if hits is None:
                yield from self._in_contact(deadline)
                hits = self._find(keys, reading, counts_hits=counts_hits)
        except MmcachedError as error:
            self._is_miss("look", error)
            hits = None
        return [None] * len(keys) if hits is None else hits

    def sees(self, keys: list[str]) -> bool:
        """Return whether all of these records are seen in the ring just now; takes no lease of any."""
        session = self._sessions.present
        seen = None if session is None else session.contains(keys, self._contact.options.tenant)
        return seen is not None and all(seen)

    def open(
        self, token: LeaseToken, reading: Reading, timeout_s: float | None, *, counts: bool = True
    ) -> Verb[Hit | None]:
        verb = self._open_token(token, reading, self._contact.deadline(timeout_s), counts)
        hit = yield from self._guarded("open", verb, None)
        if counts:
            self._guard.count_queries(1, int(hit is not None))
        return hit

    def contains_many(self, keys: list[str], timeout_s: float | None, tenant: str | None = None) -> Call[list[bool]]:
        tenant = self._tenant(tenant)
        deadline = None if timeout_s is None else self._contact.deadline(timeout_s)
        known = self._sessions.present
        if known is not None and (seen := known.contains(keys, tenant)) is not None:
            return Done(seen)
        verb = self._contains(keys, deadline or self._contact.deadline(None), tenant)
        return self._guarded("contains_many", verb, [False] * len(keys))

    def exists(self, key: str, timeout_s: float | None, tenant: str | None = None) -> Call[bool]:
        found = self.contains_many([key], timeout_s, tenant)
        return Done(found.result[0]) if isinstance(found, Done) else _only(found)

    def keys(self, match: str, timeout_s: float | None, tenant: str | None = None) -> Verb[list[str]]:
        tenant = self._tenant(tenant)
        verb = self._keys(tenant, self._contact.deadline(timeout_s))
        return fnmatch.filter((yield from self._guarded("keys", verb, [])), match)

    def claim_many(
        self, keys: list[str], reading: Reading, timeout_s: float | None
    ) -> Verb[list[Hit | Claim | Pending]]:
        verb = self._claim_many(keys, reading, self._contact.deadline(timeout_s))
        found = yield from self._guarded("claim_many", verb, [])
        found = found or [Claim(key) for key in keys]  # no service: it keeps nobody from computing
        num_hits, num_claims = (sum(isinstance(each, kind) for each in found) for kind in (Hit, Claim))
        self._guard.count_queries(num_hits + num_claims, num_hits)  # a pending key is asked for again
        return found

    def put(
        self,
        key: str,
        record: Record | TensorLike,
        claim: Claim | None,
        timeout_s: float | None,
        *,
        overwrites: bool = False,
        ttl_s: float = 0.0,
        tenant: str | None = None,
        store_epoch: int | None = None,
    ) -> Verb[PutResult]:
        encoded, deadline = encode(as_record(record)), self._contact.deadline(timeout_s)
        grant = None if claim is None else claim.take()
        if grant is not None and grant.client_id != self._contact.client_id:
            grant = None  # of a former connection: it has ended
        result = None
        try:
            options = {"overwrites": overwrites, "ttl_s": ttl_s, "tenant": tenant, "store_epoch": store_epoch}
            result = yield from self._offer(key, encoded, deadline, grant, **options)
        finally:
            if grant is not None and not result:
                self._drop_claim(grant)
        return result

    def put_encoded(
        self,
        key: str,
        encoded: EncodedRecord,
        timeout_s: float | None,
        *,
        tenant: str,
        store_epoch: int,
        ttl_s: float = 0.0,
    ) -> Verb[PutResult]:
        """As `put`, of a record that somebody else has encoded; why the service did not answer is raised."""
        deadline = self._contact.deadline(timeout_s)
        return self._put(key, encoded, deadline, tenant=tenant, store_epoch=store_epoch, ttl_s=ttl_s)

    def lend(self, place: Handle, timeout_s: float | None) -> Verb[Bytes1D | None]:
        """Return what lies in the ring at a place, as `StoreSession.lend`; why the service did not answer is raised."""
        session = yield from self._in_contact(self._contact.deadline(timeout_s))
        return session.lend(place)

    def drop(self, key: str, timeout_s: float | None, tenant: str | None = None) -> Verb[bool]:
        verb = self._drop(key, self._contact.deadline(timeout_s), self._tenant(tenant))
        return (yield from self._guarded("drop", verb, None)) is not None

    def delete(self, keys: list[str], timeout_s: float | None, tenant: str | None = None) -> Verb[int]:
        deadline, tenant, num_dropped = self._contact.deadline(timeout_s), self._tenant(tenant), 0
        for key in keys:
            was_there = yield from self._guarded("delete", self._drop(key, deadline, tenant), None)
            if was_there is None:
                break
            num_dropped += was_there
        return num_dropped

    def get_or_compute(
        self,
        key: str,
        fn: Callable[[], Any],
        reading: Reading,
        timeout_s: float | None,
        *,
        ttl_s: float = 0.0,
        tenant: str | None = None,
        store_epoch: int | None = None,
    ) -> Verb[Any]:
        deadline = self._contact.deadline(timeout_s)
        self._guard.count_queries(1, 0)
        found = yield from self._guarded(
            "get_or_compute", self._claim(key, reading, deadline, self._tenant(tenant)), None
        )
        grant = found if isinstance(found, Grant) else None
        epoch = self._sessions.store_epoch if grant is None else grant.store_epoch
        is_of_epoch = store_epoch in (None, epoch)
        if isinstance(found, Hit) and is_of_epoch:
            self._guard.count(hits=1)
            return from_record(found.record)
        is_stored = False
        try:
            self._guard.count(computed=1)
            record = yield fn
            encoded = encode(as_record(record))  # judges it, whether it can be stored or not
            # In a child that `fn` has forked it is the parent's.
            if grant is not None and is_of_epoch and not self._contact.is_over:
                put_deadline = self._contact.deadline(timeout_s)
                result = yield from self._offer(key, encoded, put_deadline, grant, ttl_s=ttl_s, tenant=tenant)
                is_stored = bool(result)
            return record
        finally:
            if grant is not None and not is_stored:
                self._drop_claim(grant)

    def _find_and_count(
        self, keys: list[str], reading: Reading, tenant: str, asks: bool, *, counts: bool = True
    ) -> list[Hit | None] | None:
        """Look into the ring, as a whole verb; None: it cannot be seen, or not yet.

        Args:
            asks: the service is asked for what is missing, and that is counted then.
        """
        hits: list[Hit | None] | None
        try:
            hits = self._find(keys, reading, tenant, counts_misses=counts and not asks, counts_hits=counts)
        except MmcachedError as error:
            if not self._is_miss("get", error):
                raise
            hits = [None] * len(keys)
        if hits is not None and counts:
            num_hits = len(keys) - hits.count(None)
            self._guard.count_queries(num_hits if asks else len(keys), num_hits)
        return hits

    def _ask_for_missing(
        self,
        keys: list[str],
        hits: list[Hit | None],
        reading: Reading,
        deadline: Deadline | None,
        tenant: str,
        *,
        local: bool,
        counts: bool,
    ) -> Verb[list[Hit | None]]:
        missing = [index for index, hit in enumerate(hits) if hit is None]
        try:
            found = yield from self._ask_and_count(
                [keys[index] for index in missing], reading, deadline, tenant, local=local, counts=counts
            )
        except BaseException:
            hits.clear()  # the error's traceback would keep them, and their leases
            raise
        for index, hit in zip(missing, found, strict=True):
            hits[index] = hit
        return hits

    def _ask_and_count(
        self,
        keys: list[str],
        reading: Reading,
        deadline: Deadline | None,
        tenant: str,
        *,
        local: bool,
        counts: bool = True,
    ) -> Verb[list[Hit | None]]:
        misses: list[Hit | None] = [None] * len(keys)
        verb = self._get(keys, reading, deadline or self._contact.deadline(None), tenant, local=local, counts=counts)
        hits = yield from self._guarded("get", verb, misses)
        if counts:
            self._guard.count_queries(len(keys), len(keys) - hits.count(None))
        return hits

    # ---- each verb as it is while the service is there

    def _get(
        self, keys: list[str], reading: Reading, deadline: Deadline, tenant: str, *, local: bool, counts: bool
    ) -> Verb[list[Hit | None]]:
        session = yield from self._in_contact(deadline)
        if session.ring is None or not keys:
            return [None] * len(keys)
        asks = self._sessions.has_second_level and not local
        found = self._find(keys, reading, tenant, counts_misses=counts and not asks, counts_hits=counts)
        if found is not None and not asks:
            return found
        hits = found or [None] * len(keys)
        for batch in _batches([index for index, hit in enumerate(hits) if hit is None]):
            ask = GetRecords(*self._ids(), [keys[index] for index in batch], tenant, session.incarnation, local)
            message, payload = yield from self._contact.exchange(ask, deadline)
            opened = self._open(session, expect(message, Records), payload, reading, keys=ask.keys, tenant=tenant)
            for index, hit in zip(batch, opened, strict=True):
                hits[index] = hit
        return hits

    def _open_token(self, token: LeaseToken, reading: Reading, deadline: Deadline, counts: bool) -> Verb[Hit | None]:
        session = self._sessions.present
        found = None
        if session is not None and token.is_of(session.ring):
            found = session.open_token(token, reading, counts=counts)
        if found is None:  # not attached yet, or to the ring of a former frontend
            session = yield from self._in_contact(deadline)
            found = session.open_token(token, reading, counts=counts)
        return None if found is None else found[0]

    def _contains(self, keys: list[str], deadline: Deadline, tenant: str) -> Verb[list[bool]]:
        session = yield from self._in_contact(deadline)
        if session.ring is None or not keys:
            return [False] * len(keys)
        if (seen := session.contains(keys, tenant)) is not None:
            return seen
        found: list[bool] = []
        for batch in _batches(keys):
            ask = HaveRecords(self._contact.next_id(), batch, tenant)
            message, _ = yield from self._contact.exchange(ask, deadline)
            present = expect(message, Present).are_present
            if len(present) != len(batch):
                raise RemoteProtocolError(f"{len(present)} answers for {len(batch)} keys", "are_present")
            found += present
        return found

    def _offer(
        self,
        key: str,
        encoded: EncodedRecord,
        deadline: Deadline,
        claim: Grant | None,
        **options: Any,
    ) -> Verb[PutResult]:
        """As `_put`; an error of the service is a refusal, unless the client is strict."""
        try:
            return (yield from self._put(key, encoded, deadline, claim, **options))
        except MmcachedError as error:
            if not self._is_miss("put", error):
                raise
            return refused(key, encoded.nbytes, f"{error.code}: {error}")

    def _put(
        self,
        key: str,
        encoded: EncodedRecord,
        deadline: Deadline,
        claim: Grant | None = None,
        *,
        overwrites: bool = False,
        ttl_s: float = 0.0,
        tenant: str | None = None,
        store_epoch: int | None = None,
    ) -> Verb[PutResult]:
        self._guard.count(puts=1)
        session = yield from self._in_contact(deadline)
        if claim is None and (session.ring is None or not self._sessions.takes_records):
            return self._refused(key, encoded, NO_STORE)
        if claim is not None and claim.ring != session.ring:
            return refused(key, encoded.nbytes, "the service that gave the claim has ended")  # its epoch, too
        token = 0
        if claim is not None:
            store_epoch, token = claim.store_epoch, claim.token
        elif store_epoch is None:
            store_epoch = self._sessions.store_epoch
        ask = PutRecord(*self._ids(), key, store_epoch, self._tenant(tenant), token, overwrites=overwrites, ttl_s=ttl_s)
        try:
            stored = yield from self._offers.send(ask, encoded, deadline)
        except InvalidRequest as error:  # a refusal like that of any record that is too large, and no reason to lose it
            return self._refused(key, encoded, str(error), cause="too large")
        self._guard.count(stored=int(stored.is_stored))
        if not stored.is_stored:
            return self._refused(key, encoded, stored.reason)
        return PutResult(key, "exists" if stored.reason == EXISTED else "kept", encoded.nbytes)

    def _refused(self, key: str, encoded: EncodedRecord, why: str, cause: str | None = None) -> PutResult:
        """Return the result of a refused put, and count it by its cause, which must be the same for many records."""
        result = refused(key, encoded.nbytes, why)
        self._guard.note_refusal(cause or why, result.reason)
        return result

    def _drop(self, key: str, deadline: Deadline, tenant: str) -> Verb[bool]:
        """Return whether the key had a record."""
        session = yield from self._in_contact(deadline)
        if session.ring is None:
            return False
        ask = DropRecord(self._contact.next_id(), key, tenant)
        message, _ = yield from self._contact.exchange(ask, deadline)
        return expect(message, Stored).reason == DROPPED

    def _keys(self, tenant: str, deadline: Deadline) -> Verb[list[str]]:
        known = self._sessions.present
        if known is not None and (seen := known.keys(tenant)) is not None:
            return seen
        session = yield from self._in_contact(deadline)
        seen = session.keys(tenant)
        if seen is None and session.ring is not None:
            raise SegmentError(f"the store's memory cannot be seen from here: {session.why_inline or 'not attached'}")
        return seen or []

    def _claim(self, key: str, reading: Reading, deadline: Deadline, tenant: str) -> Verb[Hit | Grant | None]:
        """Return a record or the right to compute it; None: neither, compute it without storing."""
        hits = self._find_before_asking(key, reading, tenant)
        if hits is not None and hits[0] is not None:
            return hits[0]
        session = yield from self._in_contact(deadline)
        if (
            hits is None
            and (hits := self._find_before_asking(key, reading, tenant)) is not None
            and hits[0] is not None
        ):
            return hits[0]
        ask = ClaimRecord(*self._ids(), key, deadline.timeout_s, tenant, session.incarnation)
        message, payload = yield from self._contact.exchange(ask, deadline)
        if isinstance(message, Claimed):
            return Grant(self._contact.client_id, message.claim, message.store_epoch, session.ring)
        (found,) = self._open(session, expect(message, Records), payload, reading, keys=[key], tenant=tenant)
        return found

    def _claim_many(self, keys: list[str], reading: Reading, deadline: Deadline) -> Verb[list[Hit | Claim | Pending]]:
        # What is missing here the service counts: it knows which of it is pending.
        hits = self._find(keys, reading, counts_misses=False)
        if hits is None or None in hits:
            session = yield from self._in_contact(deadline)
            hits = self._find(keys, reading, counts_misses=False) if hits is None else hits
        found: list[Hit | Claim | Pending | None] = list(hits or [None] * len(keys))
        missing = [index for index, hit in enumerate(found) if hit is None]
        try:
            for batch in _batches(missing):
                ask = ClaimRecords(
                    *self._ids(), [keys[index] for index in batch], self._contact.options.tenant, session.incarnation
                )
                if session.ring is None:
                    break
                message, payload = yield from self._contact.exchange(ask, deadline)
                answer = expect(message, Claims)
                if len(answer.found) != len(batch):
                    raise RemoteProtocolError(f"{len(answer.found)} answers for {len(batch)} keys", "found")
                for index, place in zip(batch, answer.found, strict=True):
                    if isinstance(place, int):
                        grant = Grant(ask.client_id, place, answer.store_epoch, session.ring)
                        found[index] = Claim(keys[index], grant, self._drop_claim)
                places = [None if isinstance(place, int) else place for place in answer.found]
                records = Records(answer.request_id, answer.store_epoch, places)
                opened = self._open(session, records, payload, reading, keys=ask.keys, tenant=ask.tenant)
                for index, hit in zip(batch, opened, strict=True):
                    found[index] = found[index] or hit or Pending(keys[index])
        except BaseException:
            for each in found:
                if isinstance(each, Claim):
                    each.drop()
            found.clear()  # the error's traceback would keep the hits, and their leases
            hits = None
            raise
        return [each or Claim(keys[index]) for index, each in enumerate(found)]

    def _drop_claim(self, grant: Grant) -> None:
        """Say that it will not be computed: somebody else may be waiting for it."""
        if grant.token:
            self._contact.tell(DropClaim(grant.client_id, grant.token))

    # ---- helpers

    def _tenant(self, tenant: str | None) -> str:
        return self._contact.options.tenant if tenant is None else tenant

    def _find(
        self, keys: list[str], reading: Reading, tenant: str | None = None, **counts: bool
    ) -> list[Hit | None] | None:
        """Look into the ring; None: it cannot be seen, or not yet. `counts` as for `StoreSession.find`."""
        session = self._sessions.present
        if session is None:
            return None
        return session.find(keys, self._tenant(tenant), reading, **counts)

    def _find_before_asking(self, key: str, reading: Reading, tenant: str) -> list[Hit | None] | None:
        """As `_find`; where what is missing may become a hit, the service counts it."""
        return self._find([key], reading, tenant, counts_misses=not self._sessions.has_second_level)

    def _in_contact(self, deadline: Deadline) -> Verb[StoreSession]:
        """Greet, become a reader and announce it, as far as that has not been done.

        A service without a store is greeted again now and then: it may have found room for one.
        """
        known, now = self._contact.welcome, time.monotonic()
        if known is not None and known.store_ring is None and now >= self._greet_again_at:
            self._contact.greet_again()
            self._greet_again_at = now + GREET_AGAIN_S
        welcome = yield from self._contact.connect(deadline, is_patient=not self._guard.is_open)
        session = self._sessions.of(welcome.store_ring)
        if session is None:
            raise self._contact.refusal()
        if session.why_inline:
            warning = f"records come through the socket, which is slower: {session.why_inline}"
            self._guard.warn_once("no reader", "" if session.ring is None else session.ring.ring_id, warning)
        if (reader := session.take_announcement()) is not None:
            try:
                ask = RegisterReader(*self._ids(), reader.announcement.epoch, reader.reader_id, reader.incarnation)
                message, _ = yield from self._contact.exchange(ask, deadline)
                session.is_attached = expect(message, ReaderRegistered).is_attached
            except BaseException:
                session.lost_contact()
                raise
        return session

    def _ids(self) -> tuple[str, int]:
        return self._contact.client_id, self._contact.next_id()

    def _guarded(self, operation: str, verb: Verb[T], nothing: T) -> Verb[T]:
        try:
            return (yield from verb)
        except MmcachedError as error:
            if not self._is_miss(operation, error):
                raise
        return nothing

    def _is_miss(self, operation: str, error: MmcachedError) -> bool:
        if self._contact.is_closed:
            raise self._contact.refusal() from None  # what became of the call is not a miss
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


def _only(verb: Verb[list[T]]) -> Verb[T]:
    (found,) = yield from verb
    return found


def _batches(keys: list[T]) -> Iterator[list[T]]:
    """Yield keys, as many at a time as one message may have."""
    for start in range(0, len(keys), MAX_KEYS):
        yield keys[start : start + MAX_KEYS]
