"""Client calls on the store: those of `reads`, and calls that claim, put and drop records.

A claim is dropped when its call ends in any way other than with a put. For a put that the service refuses or does not
answer the call returns a result with the reason, unless the client is strict.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from mmcached.client.arguments import check_bool, check_function, checked_int, checked_key, checked_keys, checked_ttl
from mmcached.client.contact import Contact, Deadline
from mmcached.client.results import expect
from mmcached.client.store.bare import TensorLike, as_record, from_record
from mmcached.client.store.claims import Claim, Grant, Pending, checked_claim
from mmcached.client.store.fail_open import FailOpen
from mmcached.client.store.hits import Hit, Reading, reading_of
from mmcached.client.store.offers import Offers
from mmcached.client.store.put_result import PutResult, refused
from mmcached.client.store.reads import StoreReads, batches
from mmcached.client.store.sessions import StoreSessions
from mmcached.client.store.tokens import MAX_EPOCH
from mmcached.client.verb import Verb
from mmcached.shm.store.codec import DEFAULT_LIBRARY, EncodedRecord, Library, Record, encode
from mmcached.wire.errors import InvalidRequest, MmcachedError, RemoteProtocolError
from mmcached.wire.messages.client import DROPPED, EXISTED, Claimed, Claims, Records, Stored
from mmcached.wire.messages.frontend import ClaimRecord, ClaimRecords, DropClaim, DropRecord, PutRecord
from mmcached.wire.messages.parts import MIN_PLACED_BYTES

NO_STORE = "the service keeps no records (store_gb = 0, or there is no room for the store)"

ValueT = TypeVar("ValueT", bound=Record | TensorLike)
"""Value of a function that computes a key's record: a record, or one tensor."""


class StoreVerbs(StoreReads):
    """Access of one client id to the store; see `StoreReads` for the arguments."""

    def __init__(self, contact: Contact, sessions: StoreSessions, guard: FailOpen) -> None:
        super().__init__(contact, sessions, guard)
        self._offers = Offers(contact, sessions.nurseries, guard)

    # ---- the calls

    def claim_many(
        self,
        keys: Sequence[str],
        *,
        view: bool = False,
        tensors: Library = DEFAULT_LIBRARY,
        timeout_s: float | None = None,
    ) -> Verb[list[Hit | Claim | Pending]]:
        """Return for each key its record, a claim to compute it, or `Pending` if another caller computes it; never
        waits for one.

        For a scheduler, which claims the keys that it will have computed. Records of a second level count as found,
        too: the
        answer waits for them at most `limits.l2_timeout_ms`. The record may be put by another process, which also ends
        the
        claim. A claim passes to another caller when this client drops it or dies, or after `limits.claim_timeout_s`.
        Ask again
        later for a pending key. Too little memory or a missing service raises no error: the result is then a claim that
        is not
        exclusive, because no service would end the wait of other callers.

        Args:
            keys: Up to 4096 keys.
            view, tensors, timeout_s: As for `get`.

        Raises:
            InvalidRequest: As for `get_many`.
            MmcachedError: With `fail_open=False`: why the service did not answer; no key has been claimed then.
        """
        names, reading = checked_keys(keys), reading_of(tensors, view)
        verb = self._claim_many(names, reading, self.contact.deadline(timeout_s))
        found = yield from self._guarded("claim_many", verb, [])
        found = found or [Claim(key) for key in names]  # no service: not exclusive
        num_hits, num_claims = (sum(isinstance(each, kind) for each in found) for kind in (Hit, Claim))
        self._guard.count_queries(num_hits + num_claims, num_hits)  # a pending key is asked for again
        return found

    def put(
        self,
        key: str,
        record: Record | TensorLike,
        *,
        overwrite: bool = False,
        ttl_s: float | None = None,
        claim: Claim | None = None,
        timeout_s: float | None = None,
        tenant: str | None = None,
        store_epoch: int | None = None,
    ) -> Verb[PutResult]:
        """Offer a record to the store; the result is true if the key has a record afterwards.

        **The first writer wins: a key that has a record keeps it**, and the result says "exists", unless `overwrite`
        replaces
        that record. A "refused" result gives the reason, with size and limit; the log repeats it now and then.

        A record computed before `invalidate` is not kept, as far as this client could know of the invalidation.

        Args:
            key: Key of the record.
            record: Nested dicts and lists of CPU tensors, arrays, numbers, strings, bytes and None; or one tensor or
                array,
                which `hit.tensor()` returns. Its record is `{"__tensor__": …}`; no other record may have that name at
                its top.
            overwrite: Replace the record that the key has. A call that begins after this one has returned finds the new
                record; a call that runs at the same time finds the old or the new one, never a part of either, and
                never a
                miss. A view of the old record keeps its bytes. For a moment both take memory; if the result is
                "refused", the
                key keeps the old one. With a second level other hosts may still find the old one: see its page.
            ttl_s: Seconds from the moment that the service keeps the record until no call finds it any more, on a
                monotonic
                clock; None: it does not expire. A view that was taken before keeps its bytes. A key that keeps its
                earlier
                record also keeps the expiry of that record. On other hosts of a second level it expires at the same
                time of
                day.
            claim: Claim on this key; it ends, whether the record is kept or not. A record that was computed before
                `invalidate` is certainly not kept then.
            timeout_s: Deadline of this call.
            tenant: As for `get`.
            store_epoch: Store epoch in which another process computed the record: a record of an older epoch is
                certainly not
                kept then, either.

        Raises:
            InvalidRequest: An argument is invalid, or the record contains another type; names its path.
            MmcachedError: With `fail_open=False`: why the service did not answer.
        """
        check_bool("overwrite", overwrite)
        key, claim, ttl, tenant = checked_key(key), checked_claim(claim, key), checked_ttl(ttl_s), self._tenant(tenant)
        epoch = _checked_epoch(store_epoch)
        encoded, deadline = encode(as_record(record)), self.contact.deadline(timeout_s)
        grant = None if claim is None else claim.take()
        if grant is not None and grant.client_id != self.contact.client_id:
            grant = None  # the claim of a former connection has ended
        result = None
        try:
            result = yield from self._put(
                key, encoded, deadline, tenant, grant, overwrites=overwrite, ttl_s=ttl, store_epoch=epoch
            )
        except MmcachedError as error:
            if not self._is_miss("put", error):
                raise
            result = refused(key, encoded.nbytes, f"{error.code}: {error}")
        finally:
            if grant is not None and not result:
                self._drop_claim(grant)
        return result

    def get_or_compute(
        self,
        key: str,
        fn: Callable[[], ValueT | Awaitable[ValueT]],
        *,
        view: bool = False,
        tensors: Library = DEFAULT_LIBRARY,
        timeout_s: float | None = None,
        ttl_s: float | None = None,
        tenant: str | None = None,
        store_epoch: int | None = None,
    ) -> Verb[ValueT]:
        """Return the record of a key; if it is missing, one caller on this host computes it while the others wait.

        With a second level, as a rule, one caller on all its hosts computes it. If that caller dies, a waiting one
        takes its
        place. A caller that has waited for `timeout_s`, or finds no service, calls `fn` itself and stores nothing; with
        `fail_open=False` the error is raised.

        Args:
            key: Key of the record.
            fn: Returns the record, as for `put`; for a record of one bare tensor a hit returns the tensor, too. An
                exception
                of `fn` is raised here, and the next waiting caller computes. `AsyncClient` also takes a coroutine
                function; a
                plain function blocks its event loop.
            view, tensors: Form of a found record, as for `get`; the value of `fn` is returned unchanged.
            timeout_s: How long to wait for another caller's `fn`, and, once `fn` has returned here, for the service to
                take
                its record. The time that `fn` takes here is unlimited.
            ttl_s: Expiry of the value of `fn`, as for `put`.
            tenant: As for `get`.
            store_epoch: Store epoch in which `fn` computes, if another process knows it: in any other epoch no record
                is found
                or stored.
        """
        check_function(fn)
        key, reading = checked_key(key), reading_of(tensors, view)
        ttl, tenant, store_epoch = checked_ttl(ttl_s), self._tenant(tenant), _checked_epoch(store_epoch)
        deadline = self.contact.deadline(timeout_s)
        self._guard.count_queries(1, 0)
        found = yield from self._guarded("get_or_compute", self._claim(key, reading, deadline, tenant), None)
        grant = found if isinstance(found, Grant) else None
        epoch = self._sessions.store_epoch if grant is None else grant.store_epoch
        is_of_epoch = store_epoch in (None, epoch)
        if isinstance(found, Hit) and is_of_epoch:
            self._guard.count(hits=1)
            return from_record(found.record)  # type: ignore[no-any-return]  # as was put under the key
        is_stored = False
        try:
            self._guard.count(computed=1)
            record: ValueT = yield fn
            encoded = encode(as_record(record))  # raises for an invalid record even if it will not be stored
            # In a child that `fn` has forked, the contact is the parent's.
            if grant is not None and is_of_epoch and not self.contact.is_over:
                put_deadline = self.contact.deadline(timeout_s)
                verb = self._put(key, encoded, put_deadline, tenant, grant, ttl_s=ttl)
                is_stored = bool((yield from self._guarded("put", verb, None)))
            return record
        finally:
            if grant is not None and not is_stored:
                self._drop_claim(grant)

    def drop(self, key: str, *, timeout_s: float | None = None, tenant: str | None = None) -> Verb[bool]:
        """Drop the record of a key on this host; return whether that is certain. Readers keep their leases."""
        verb = self._drop(checked_key(key), self.contact.deadline(timeout_s), self._tenant(tenant))
        return (yield from self._guarded("drop", verb, None)) is not None

    def delete(self, *keys: str, timeout_s: float | None = None, tenant: str | None = None) -> Verb[int]:
        """Drop the records of up to 4096 keys on this host; return how many of them had one. Readers keep their leases.

        Sends one message per key. If the service stops answering, the remaining keys stay and do not count.

        Raises:
            InvalidRequest: A key is invalid; no record has been deleted.
            MmcachedError: With `fail_open=False`: why the service did not answer.
        """
        names, deadline, tenant = checked_keys(keys), self.contact.deadline(timeout_s), self._tenant(tenant)
        num_dropped = 0
        for key in names:
            was_there = yield from self._guarded("delete", self._drop(key, deadline, tenant), None)
            if was_there is None:
                break
            num_dropped += was_there
        return num_dropped

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
        """Put a record that is already encoded; raises why the service did not answer."""
        deadline = self.contact.deadline(timeout_s)
        return self._put(key, encoded, deadline, tenant, store_epoch=store_epoch, ttl_s=ttl_s)

    # ---- the calls, without error handling

    def _put(
        self,
        key: str,
        encoded: EncodedRecord,
        deadline: Deadline,
        tenant: str,
        claim: Grant | None = None,
        *,
        overwrites: bool = False,
        ttl_s: float = 0.0,
        store_epoch: int | None = None,
    ) -> Verb[PutResult]:
        self._guard.count(puts=1)
        session = self._session_at_hand()
        if session is None:
            session = yield from self._in_contact(deadline)
        if claim is None and (session.ring is None or not self._sessions.takes_records):
            return self._refused(key, encoded, NO_STORE)
        if claim is not None and claim.ring != session.ring:
            return refused(key, encoded.nbytes, "the service that gave the claim has ended")  # so has its epoch
        token = 0
        if claim is not None:
            store_epoch, token = claim.store_epoch, claim.token
        elif store_epoch is None:
            store_epoch = self._sessions.store_epoch
        ask = PutRecord(*self._ids(), key, store_epoch, tenant, token, overwrites=overwrites, ttl_s=ttl_s)
        try:
            if encoded.nbytes < MIN_PLACED_BYTES:
                # One frame takes less time to read and write than several, which makes up for the copy.
                message, _ = yield from self.contact.exchange(ask, deadline, [encoded.joined()])
                stored = expect(message, Stored)
            else:
                stored = yield from self._offers.send(ask, encoded, deadline)
        except InvalidRequest as error:  # the record is too large for a message: refused, as if for too large a record
            return self._refused(key, encoded, str(error), cause="too large")
        self._guard.count(stored=int(stored.is_stored))
        if not stored.is_stored:
            return self._refused(key, encoded, stored.reason)
        return PutResult(key, "exists" if stored.reason == EXISTED else "kept", encoded.nbytes)

    def _refused(self, key: str, encoded: EncodedRecord, why: str, cause: str | None = None) -> PutResult:
        """Return the result of a refused put, and count it by its cause, a text shared by many records."""
        result = refused(key, encoded.nbytes, why)
        self._guard.note_refusal(cause or why, result.reason)
        return result

    def _drop(self, key: str, deadline: Deadline, tenant: str) -> Verb[bool]:
        """Return whether the key had a record."""
        session = yield from self._in_contact(deadline)
        if session.ring is None:
            return False
        ask = DropRecord(self.contact.next_id(), key, tenant)
        message, _ = yield from self.contact.exchange(ask, deadline)
        return expect(message, Stored).reason == DROPPED

    def _claim(self, key: str, reading: Reading, deadline: Deadline, tenant: str) -> Verb[Hit | Grant | None]:
        """Return a record or the right to compute it; None: compute it without storing."""
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
        message, payload = yield from self.contact.exchange(ask, deadline)
        if isinstance(message, Claimed):
            return Grant(self.contact.client_id, message.claim, message.store_epoch, session.ring)
        (found,) = self._open(session, expect(message, Records), payload, reading, keys=[key], tenant=tenant)
        return found

    def _claim_many(self, keys: list[str], reading: Reading, deadline: Deadline) -> Verb[list[Hit | Claim | Pending]]:
        # The service counts misses: it knows which keys are pending.
        tenant = self.contact.options.tenant
        hits = self._find(keys, reading, tenant, counts_misses=False)
        if hits is None or None in hits:
            session = yield from self._in_contact(deadline)
            hits = self._find(keys, reading, tenant, counts_misses=False) if hits is None else hits
        found: list[Hit | Claim | Pending | None] = list(hits or [None] * len(keys))
        missing = [index for index, hit in enumerate(found) if hit is None]
        try:
            for batch in batches(missing):
                ask = ClaimRecords(*self._ids(), [keys[index] for index in batch], tenant, session.incarnation)
                if session.ring is None:
                    break
                message, payload = yield from self.contact.exchange(ask, deadline)
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
        """Tell the service that the record will not be computed: another caller may be waiting for it."""
        if grant.token:
            self.contact.tell(DropClaim(grant.client_id, grant.token))

    def _find_before_asking(self, key: str, reading: Reading, tenant: str) -> list[Hit | None] | None:
        """Look into the ring as `_find`; with a second level the service counts the misses, because they may become
        hits.
        """
        return self._find([key], reading, tenant, counts_misses=not self._sessions.has_second_level)


def _checked_epoch(store_epoch: int | None) -> int | None:
    return None if store_epoch is None else checked_int("store_epoch", store_epoch, 0, MAX_EPOCH)
