"""Client calls that claim keys without a record, and with them all calls of a client on the store: `StoreVerbs`.

    StoreAccess ──> StoreReads ──> StorePuts ──> StoreKeeping ──> StoreVerbs

A claim is dropped when its call ends in any way other than with a put.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from mmcached.cache.verification import compare, is_sampled
from mmcached.client.arguments import check_function, checked_key, checked_keys, checked_ttl
from mmcached.client.contact import Deadline
from mmcached.client.results import expect
from mmcached.client.store.access import batches
from mmcached.client.store.bare import TensorLike, as_record, from_record
from mmcached.client.store.claims import Claim, Grant, Pending
from mmcached.client.store.hits import Hit, Reading, reading_of
from mmcached.client.store.keeping import StoreKeeping
from mmcached.client.store.puts import checked_epoch
from mmcached.client.verb import ReadyResult, Verb
from mmcached.shm.store.codec import DEFAULT_LIBRARY, Library, Record, encode
from mmcached.wire.errors import RemoteProtocolError
from mmcached.wire.messages.client import Claimed, Claims, Records
from mmcached.wire.messages.frontend import MAX_COST_S, ClaimRecord, ClaimRecords
from mmcached.wire.messages.verification import Verification, Verified, Verify

_LOG = logging.getLogger("mmcached.client")
_MAX_TEXT = 256
_NOTHING: ReadyResult[frozenset[str]] = ReadyResult(frozenset())
ValueT = TypeVar("ValueT", bound=Record | TensorLike)
"""Value of a function that computes a key's record: a record, or one tensor."""


class StoreVerbs(StoreKeeping):
    """All calls of one client id on the store."""

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
        too: the answer waits for them at most `limits.l2_timeout_ms`. The record may be put by another process, which
        also ends the claim. A claim passes to another caller when this client drops it or dies, or after
        `limits.claim_timeout_s`. Ask again later for a pending key. Too little memory or a missing service raises no
        error: the result is then a claim that is not exclusive, because no service would end the wait of other callers.

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
        takes its place. A caller that has waited for `timeout_s`, or finds no service, calls `fn` itself and stores
        nothing; with `fail_open=False` the error is raised.

        Args:
            key: Key of the record.
            fn: Returns the record, as for `put`; for a record of one bare tensor a hit returns the tensor, too. An
                exception of `fn` is raised here, and the next waiting caller computes. `AsyncClient` also takes a
                coroutine function; a plain function blocks its event loop.
            view, tensors: Form of a found record, as for `get`; the value of `fn` is returned unchanged.
            timeout_s: How long to wait for another caller's `fn`, and, once `fn` has returned here, for the service to
                take its record. The time that `fn` takes here is unlimited.
            ttl_s: Expiry of the value of `fn`, as for `put`.
            tenant: As for `get`.
            store_epoch: Store epoch in which `fn` computes, if another process knows it: in any other epoch no record
                is found or stored.
        """
        check_function(fn)
        key, reading, epoch = checked_key(key), reading_of(tensors, view), checked_epoch(store_epoch)
        ttl, tenant = checked_ttl(ttl_s), self._tenant(tenant)

        def make() -> Verb[ValueT]:
            value: ValueT = yield fn
            return value

        return self._get_or_make(key, make, reading, timeout_s, ttl_s=ttl, tenant=tenant, store_epoch=epoch)

    # ---- the calls, without error handling

    def _get_or_make(
        self,
        key: str,
        make: Callable[[], Verb[ValueT]],
        reading: Reading,
        timeout_s: float | None,
        *,
        ttl_s: float,
        tenant: str,
        store_epoch: int | None = None,
    ) -> Verb[ValueT]:
        """Return the record of a key as `get_or_compute`; `make` computes it as a verb."""
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
            began = time.monotonic()
            record = yield from make()
            cost_s = min(time.monotonic() - began, MAX_COST_S)
            encoded = encode(as_record(record))  # raises for an invalid record even if it will not be stored
            # In a child that `make` has forked, the contact is the parent's.
            if grant is not None and is_of_epoch and not self.contact.is_over:
                put_deadline = self.contact.deadline(timeout_s)
                verb = self._put(key, encoded, put_deadline, tenant, grant, ttl_s=ttl_s, cost_s=cost_s)
                is_stored = bool((yield from self._guarded("put", verb, None)))
            return record
        finally:
            if grant is not None and not is_stored:
                self._drop_claim(grant)

    # ---- verification of hits

    def sampled(self, keys: Sequence[str]) -> ReadyResult[frozenset[str]]:
        """Return those keys whose hits the caller should recompute now, and compare by `verified`.

        Without `mmcached verify` there are none. Sends no message.
        """
        sample = self._sample
        return ReadyResult(frozenset(key for key in keys if is_sampled(sample, key))) if sample else _NOTHING

    def is_verifying(self) -> ReadyResult[bool]:
        """Return whether `mmcached verify` runs. Sends no message."""
        return ReadyResult(self._sample > 0)

    @property
    def _sample(self) -> int:
        session = self._sessions.present
        return 0 if session is None else session.sample

    def verified(
        self, key: str, found: Mapping[str, Any], computed: Mapping[str, Any], *, tenant: str | None = None
    ) -> ReadyResult[bool]:
        """Compare a found record with the recomputed one, and report the result to the service; return whether they are
        equal. Of another one no record is shared under this name any more: use the recomputed record.

        A record is compared bit for bit, except an encoder output whose name is not known to be exact: its rows may
        differ by `TOLERANCE`.

        Args:
            found, computed: Records with tensors of one library.
            tenant: As for `get`.
        """
        from mmcached.cache.name_files import name_in, read_name  # needs packages that most clients do not
        from mmcached.cache.output_names import is_exact

        name = name_in(key)
        rows = None if name is None else read_name(self.contact.directory.path, name)
        difference = compare(found, computed, is_exact=name is None or (rows is not None and is_exact(rows)))
        if difference:
            _LOG.warning("the record of %s differs from its recomputation: %s", key, difference)
        self.contact.tell(Verified(key, self._tenant(tenant), difference[:_MAX_TEXT]))
        return ReadyResult(not difference)

    def verify(self, share: float, *, timeout_s: float = 10.0) -> Verb[Verification]:
        """Have all programs that use the store recompute a share of their hits during the next `VERIFY_S` seconds.

        Args:
            share: From 0.0 to 1.0.

        Returns:
            The numbers of verified and different hits since the service has started, and the names that it refuses.
        """
        deadline = self.contact.deadline(timeout_s)
        yield from self.contact.connect(deadline)
        message, _ = yield from self.contact.exchange(Verify(self.contact.next_id(), share), deadline)
        return expect(message, Verification)

    # ---- the calls, without error handling

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
                num_claims = sum(isinstance(place, int) for place in answer.found)
                for index, place in zip(batch, answer.found, strict=True):
                    if isinstance(place, int):
                        named = ask.client_id, place, answer.store_epoch, session.ring
                        grant = Grant(*named, num_together=num_claims)
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

    def _find_before_asking(self, key: str, reading: Reading, tenant: str) -> list[Hit | None] | None:
        """Look into the ring as `_find`; with a second level the service counts the misses, because they may become
        hits.
        """
        return self._find([key], reading, tenant, counts_misses=not self._sessions.has_second_level)
