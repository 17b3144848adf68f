"""Client calls that put and drop records of the store.

A claim is dropped when its put ends without a stored record. For a put that the service refuses or does not answer the
call returns a result with the reason, unless the client is strict.
"""

from __future__ import annotations

from typing import Any

from mmcached.client.arguments import check_bool, checked_cost, checked_int, checked_key, checked_keys, checked_ttl
from mmcached.client.contact import Contact, Deadline
from mmcached.client.results import expect
from mmcached.client.store.bare import TensorLike, as_record
from mmcached.client.store.claims import Claim, Grant, checked_claim
from mmcached.client.store.fail_open import FailOpen
from mmcached.client.store.offers import Offers
from mmcached.client.store.put_result import PutResult, refused
from mmcached.client.store.reads import StoreReads
from mmcached.client.store.sessions import StoreSessions
from mmcached.client.store.tokens import MAX_EPOCH
from mmcached.client.verb import Verb
from mmcached.shm.store.codec import EncodedRecord, Record, encode
from mmcached.wire.errors import InvalidRequest, MmcachedError
from mmcached.wire.messages.client import DROPPED, EXISTED, Stored
from mmcached.wire.messages.frontend import DropClaim, DropRecord, PutRecord
from mmcached.wire.messages.parts import MIN_PLACED_BYTES

NO_STORE = "the service keeps no records (store_gb = 0, or there is no room for the store)"


class StorePuts(StoreReads):
    """Calls of one client id that change the store, besides those of `StoreReads`."""

    def __init__(self, contact: Contact, sessions: StoreSessions, guard: FailOpen) -> None:
        super().__init__(contact, sessions, guard)
        self._offers = Offers(contact, sessions.nurseries, guard)

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
        cost_s: float | None = None,
    ) -> Verb[PutResult]:
        """Offer a record to the store; the result is true if the key has a record afterwards.

        **The first writer wins: a key that has a record keeps it**, and the result says "exists", unless `overwrite`
        replaces that record. A "refused" result gives the reason, with size and limit; the log repeats it now and then.

        A record computed before `invalidate` is not kept, as far as this client could know of the invalidation.

        Args:
            key: Key of the record.
            record: Nested dicts and lists of CPU tensors, arrays, numbers, strings, bytes and None; or one tensor or
                array, which `hit.tensor()` returns. Its record is `{"__tensor__": …}`; no other record may have that
                name at its top.
            overwrite: Replace the record that the key has. A call that begins after this one has returned finds the new
                record; a call that runs at the same time finds the old or the new one, never a part of either, and
                never a miss. A view of the old record keeps its bytes. For a moment both take memory; if the result is
                "refused", the key keeps the old one. With a second level other hosts may still find the old one: see
                its page.
            ttl_s: Seconds from the moment that the service keeps the record until no call finds it any more, on a
                monotonic clock; None: it does not expire. A view that was taken before keeps its bytes. A key that
                keeps its earlier record also keeps the expiry of that record. On other hosts of a second level it
                expires at the same time of day.
            claim: Claim on this key; it ends, whether the record is kept or not. A record that was computed before
                `invalidate` is certainly not kept then.
            timeout_s: Deadline of this call.
            tenant: As for `get`.
            store_epoch: Store epoch in which another process computed the record: a record of an older epoch is
                certainly not kept then, either.
            cost_s: Seconds that computing the record took: each later hit counts them as saved. None: with a claim,
                the time since the claim, shared by the claims of the same `claim_many`; without one, unknown.

        Raises:
            InvalidRequest: An argument is invalid, or the record contains another type; names its path.
            MmcachedError: With `fail_open=False`: why the service did not answer.
        """
        check_bool("overwrite", overwrite)
        key, claim, ttl, tenant = checked_key(key), checked_claim(claim, key), checked_ttl(ttl_s), self._tenant(tenant)
        epoch, cost = checked_epoch(store_epoch), checked_cost(cost_s)
        if cost is None:
            cost = 0.0 if claim is None else claim.cost_s()
        encoded, deadline = encode(as_record(record)), self.contact.deadline(timeout_s)
        return self._put_and_end_claim(
            key, encoded, deadline, tenant, claim, overwrites=overwrite, ttl_s=ttl, store_epoch=epoch, cost_s=cost
        )

    def drop(
        self, key: str, *, timeout_s: float | None = None, tenant: str | None = None, local: bool = False
    ) -> Verb[bool]:
        """Drop the record of a key; return whether that is certain. Readers keep their leases.

        With a second level the record is dropped there and on all its hosts: from the return on no host finds it there,
        and within seconds each connected host has dropped its own copy. What a host computes meanwhile is a new record.

        Args:
            key: Key of the record.
            timeout_s: Deadline of this call.
            tenant: As for `get`.
            local: Drop the record of this host alone: the next lookup may find it in the second level.

        Raises:
            InvalidRequest: An argument is invalid.
            MmcachedError: With `fail_open=False`: why it is not certain. If the second level has not confirmed, the
                service tries again; the record of this host is dropped.
        """
        check_bool("local", local)
        verb = self._drop(checked_key(key), self.contact.deadline(timeout_s), self._tenant(tenant), local)
        return (yield from self._guarded("drop", verb, None)) is not None

    def delete(
        self, *keys: str, timeout_s: float | None = None, tenant: str | None = None, local: bool = False
    ) -> Verb[int]:
        """Drop the records of up to 4096 keys as `drop`; return how many of them this host had.

        Sends one message per key. If the service stops answering, or the second level does not confirm a drop, the
        remaining keys stay and do not count.

        Args:
            keys: Keys of the records.
            timeout_s, tenant, local: As for `drop`.

        Raises:
            InvalidRequest: A key is invalid; no record has been deleted.
            MmcachedError: With `fail_open=False`: why the service did not answer.
        """
        check_bool("local", local)
        names, deadline, tenant = checked_keys(keys), self.contact.deadline(timeout_s), self._tenant(tenant)
        num_dropped = 0
        for key in names:
            was_there = yield from self._guarded("delete", self._drop(key, deadline, tenant, local), None)
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
        cost_s: float = 0.0,
    ) -> Verb[PutResult]:
        """Put a record that is already encoded; raises why the service did not answer."""
        deadline = self.contact.deadline(timeout_s)
        return self._put(key, encoded, deadline, tenant, store_epoch=store_epoch, ttl_s=ttl_s, cost_s=cost_s)

    # ---- internals

    def _put_and_end_claim(
        self, key: str, encoded: EncodedRecord, deadline: Deadline, tenant: str, claim: Claim | None, **named: Any
    ) -> Verb[PutResult]:
        grant = None if claim is None else claim.take()
        if grant is not None and grant.client_id != self.contact.client_id:
            grant = None  # the claim of a former connection has ended
        result = None
        try:
            result = yield from self._put(key, encoded, deadline, tenant, grant, **named)
        except MmcachedError as error:
            if not self._is_miss("put", error):
                raise
            result = refused(key, encoded.nbytes, f"{error.code}: {error}")
        finally:
            if grant is not None and not result:
                self._drop_claim(grant)
        return result

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
        cost_s: float = 0.0,
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
        ask = PutRecord(
            *self._ids(), key, store_epoch, tenant, token, overwrites=overwrites, ttl_s=ttl_s, cost_s=cost_s
        )
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

    def _drop(self, key: str, deadline: Deadline, tenant: str, is_local: bool) -> Verb[bool]:
        session = yield from self._in_contact(deadline)
        if session.ring is None:
            return False
        ask = DropRecord(self.contact.next_id(), key, tenant, is_local)
        message, _ = yield from self.contact.exchange(ask, deadline)
        return expect(message, Stored).reason == DROPPED

    def _drop_claim(self, grant: Grant) -> None:
        """Tell the service that the record will not be computed: another caller may be waiting for it."""
        if grant.token:
            self.contact.tell(DropClaim(grant.client_id, grant.token))


def checked_epoch(store_epoch: int | None) -> int | None:
    return None if store_epoch is None else checked_int("store_epoch", store_epoch, 0, MAX_EPOCH)
