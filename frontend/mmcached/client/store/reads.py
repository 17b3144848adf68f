"""Client calls that read the store: `get`, `get_many`, `open`, `contains_many`, `exists` and `keys`.

    look into the ring ──a hit; or a miss, and no second level──> done, without a message
        └──> in contact ──the ring's session──> RegisterReader ──> look; or the call's own request

A missing, full or late service counts as a miss, unless the client is strict. The service is not asked for records that
the session can see itself.

Does not use sockets or event loops. Any number of calls may run at a time, in any thread.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from mmcached.client.arguments import checked_key, checked_keys, checked_match
from mmcached.client.contact import Deadline
from mmcached.client.results import expect
from mmcached.client.store.access import StoreAccess, T, batches
from mmcached.client.store.hits import Hit, Reading, reading_of
from mmcached.client.store.tokens import LeaseToken, checked_token
from mmcached.client.verb import Call, ReadyResult, Verb
from mmcached.shm.store.codec import DEFAULT_LIBRARY, Library
from mmcached.shm.store.tensor_bytes import Bytes1D
from mmcached.wire.errors import MmcachedError, RemoteProtocolError, SegmentError
from mmcached.wire.handle import Handle
from mmcached.wire.messages.client import Present, Records
from mmcached.wire.messages.frontend import GetRecords, HaveRecords


class StoreReads(StoreAccess):
    """Calls of one client id that read the store."""

    def get(
        self,
        key: str,
        *,
        view: bool = False,
        tensors: Library = DEFAULT_LIBRARY,
        timeout_s: float | None = None,
        tenant: str | None = None,
        local: bool = False,
    ) -> Call[Hit | None]:
        """Return the record of a key, or None.

        Records in this host's store are found without a message to the service. If the service has a second level, it
        is asked for missing records, and waits at most `limits.l2_timeout_ms` for the second level.

        Args:
            key: Key of the record.
            view: Return tensors in place, without a copy, instead of owned ones. **Read them, never write**: an
                in-place operation on such a torch tensor ends this process (SIGSEGV). Their memory cannot be reused
                before the last of them has died, so do not keep many.
            tensors: Library of the tensors; by default torch where torch is installed, else numpy, which has no
                bfloat16 and no float8. "bytes": numpy arrays of the tensors' bytes.
            timeout_s: Deadline of this call.
            tenant: Tenant of the record, if other than this client's own.
            local: Do not ask the second level: a record that this host's store lacks is missing.

        Raises:
            InvalidRequest: A key or deadline is invalid, or the requested library does not have a dtype of the record.
            MmcachedError: With `fail_open=False`: why the service did not answer.
        """
        reading, key, tenant = reading_of(tensors, view), checked_key(key), self._tenant(tenant)
        deadline = None if timeout_s is None else self.contact.deadline(timeout_s)
        asks = self._sessions.has_second_level and not local
        hits = self._find_and_count([key], reading, tenant, asks)
        if hits is not None and (hits[0] is not None or not asks):
            return ReadyResult(hits[0])
        return only(self._ask_and_count([key], reading, deadline, tenant, local=local))

    def get_many(
        self,
        keys: Sequence[str],
        *,
        view: bool = False,
        tensors: Library = DEFAULT_LIBRARY,
        timeout_s: float | None = None,
        tenant: str | None = None,
        local: bool = False,
        counts: bool = True,
    ) -> Call[list[Hit | None]]:
        """Return the records of up to 4096 keys, in their order; None for each missing record. See `get`.

        Args:
            counts: False for a look that is repeated until something changes: records that this client sees itself then
                count neither as hits nor as misses, and are not kept longer because of it.
        """
        names, reading, tenant = checked_keys(keys), reading_of(tensors, view), self._tenant(tenant)
        deadline = None if timeout_s is None else self.contact.deadline(timeout_s)
        asks = self._sessions.has_second_level and not local
        hits = self._find_and_count(names, reading, tenant, asks, counts=counts)
        if hits is not None and (None not in hits or not asks):
            return ReadyResult(hits)
        hits = hits or [None] * len(names)
        return self._ask_for_missing(names, hits, reading, deadline, tenant, local=local, counts=counts)

    def open(
        self,
        token: str,
        *,
        view: bool = False,
        tensors: Library = DEFAULT_LIBRARY,
        timeout_s: float | None = None,
        counts: bool = True,
    ) -> Verb[Hit | None]:
        """Return the record that another process of this host has found with `view=True`, under a lease of this client.

        Succeeds while that hit or a tensor of it lives, even if the record has been dropped or flushed meanwhile.
        Afterwards it returns None, or still the same record.

        Args:
            token: `token` of that hit.
            view, tensors, timeout_s: As for `get`.
            counts: False to count neither a hit nor a miss, because the process that found the record has counted it.

        Raises:
            InvalidRequest: `token` is invalid.
            MmcachedError: With `fail_open=False`: why the service did not answer a client that it does not know yet.
        """
        lease, reading = checked_token(token), reading_of(tensors, view)
        verb = self._open_token(lease, reading, self.contact.deadline(timeout_s), counts)
        hit = yield from self._guarded("open", verb, None)
        if counts:
            self._guard.count_queries(1, int(hit is not None))
        return hit

    def contains_many(
        self, keys: Sequence[str], *, timeout_s: float | None = None, tenant: str | None = None
    ) -> Call[list[bool]]:
        """Return for each key whether it has a record on this host.

        Sends no message, unless the service's memory cannot be seen from here. A hint: a record may come or go before
        it is asked for, and a second level may have others.
        """
        names, tenant = checked_keys(keys), self._tenant(tenant)
        deadline = None if timeout_s is None else self.contact.deadline(timeout_s)
        known = self._sessions.present
        if known is not None and (seen := known.contains(names, tenant)) is not None:
            return ReadyResult(seen)
        verb = self._contains(names, deadline or self.contact.deadline(None), tenant)
        return self._guarded("contains_many", verb, [False] * len(names))

    def exists(self, key: str, *, timeout_s: float | None = None, tenant: str | None = None) -> Call[bool]:
        """Return whether a key has a record on this host: `contains_many` of one key. Also as `key in client`."""
        found = self.contains_many([checked_key(key)], timeout_s=timeout_s, tenant=tenant)
        return ReadyResult(found.result[0]) if isinstance(found, ReadyResult) else only(found)

    def keys(self, match: str = "*", *, timeout_s: float | None = None, tenant: str | None = None) -> Verb[list[str]]:
        """Return the keys of this host's store, the newest first; `len(client)` is the number of all.

        Each call reads all keys out of shared memory: this is for people and for cleaning up.

        Args:
            match: Pattern of the whole key: `*` any characters, `?` one, `[ab]` one of these; `[*]` is a star.
            tenant: Tenant of the keys, if other than this client's own.

        Raises:
            InvalidRequest: `match` is invalid.
            MmcachedError: With `fail_open=False`: the memory cannot be seen from here, or the service is missing;
                otherwise the list is empty then.
        """
        pattern, tenant = checked_match(match), self._tenant(tenant)
        verb = self._keys(tenant, self.contact.deadline(timeout_s))
        return fnmatch.filter((yield from self._guarded("keys", verb, [])), pattern)

    # ---- lookups for other calls

    @property
    def is_reader(self) -> bool:
        """Whether records of the current store are found without a message."""
        session = self._sessions.present
        return session is not None and session.incarnation > 0

    def look(
        self, keys: list[str], reading: Reading, deadline: Deadline, *, counts_hits: bool = True
    ) -> Verb[list[Hit | None]]:
        """Return the records that are visible in the ring; registers this reader with the service, but requests no
        record.

        Args:
            counts_hits: False if the hits must not count, nor keep the records longer.
        """
        tenant = self.contact.options.tenant
        try:
            hits = self._find(keys, reading, tenant, counts_hits=counts_hits)
            if hits is None:
                yield from self._in_contact(deadline)
                hits = self._find(keys, reading, tenant, counts_hits=counts_hits)
        except MmcachedError as error:
            self._is_miss("look", error)
            hits = None
        return [None] * len(keys) if hits is None else hits

    def sees(self, keys: list[str]) -> bool:
        """Return whether all of these records are visible in the ring just now; takes no lease."""
        session = self._sessions.present
        seen = None if session is None else session.contains(keys, self.contact.options.tenant)
        return seen is not None and all(seen)

    def lend(self, place: Handle, timeout_s: float | None, *, key: str, tenant: str) -> Verb[Bytes1D | None]:
        """Return an encoded record in place, as `StoreSession.lend`; raises why the service did not answer."""
        session = yield from self._in_contact(self.contact.deadline(timeout_s))
        return session.lend(place, key=key, tenant=tenant)

    # ---- the calls, without error handling

    def _find_and_count(
        self, keys: list[str], reading: Reading, tenant: str, asks: bool, *, counts: bool = True
    ) -> list[Hit | None] | None:
        """Look into the ring for a whole call; None: the ring cannot be seen, or not yet.

        Args:
            asks: Whether the service is asked for missing records; they are counted then.
        """
        hits: list[Hit | None] | None
        try:
            if (session := self._sessions.present) is None:
                return None
            hits = session.find(keys, tenant, reading, counts_misses=counts and not asks, counts_hits=counts)
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
        verb = self._get(keys, reading, deadline or self.contact.deadline(None), tenant, local=local, counts=counts)
        hits = yield from self._guarded("get", verb, misses)
        if counts:
            self._guard.count_queries(len(keys), len(keys) - hits.count(None))
        return hits

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
        for batch in batches([index for index, hit in enumerate(hits) if hit is None]):
            ask = GetRecords(*self._ids(), [keys[index] for index in batch], tenant, session.incarnation, local)
            message, payload = yield from self.contact.exchange(ask, deadline)
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
        for batch in batches(keys):
            ask = HaveRecords(self.contact.next_id(), batch, tenant)
            message, _ = yield from self.contact.exchange(ask, deadline)
            present = expect(message, Present).are_present
            if len(present) != len(batch):
                raise RemoteProtocolError(f"{len(present)} answers for {len(batch)} keys", "are_present")
            found += present
        return found

    def _keys(self, tenant: str, deadline: Deadline) -> Verb[list[str]]:
        known = self._sessions.present
        if known is not None and (seen := known.keys(tenant)) is not None:
            return seen
        session = yield from self._in_contact(deadline)
        seen = session.keys(tenant)
        if seen is None and session.ring is not None:
            raise SegmentError(f"the store's memory cannot be seen from here: {session.why_inline or 'not attached'}")
        return seen or []


def only(verb: Verb[list[T]]) -> Verb[T]:
    (found,) = yield from verb
    return found
