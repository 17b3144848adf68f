"""Client calls that bring records into this host's store before they are needed, or keep them there: `StoreKeeping`."""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.client.arguments import checked_keys, checked_pin_ttl
from mmcached.client.contact import Deadline
from mmcached.client.results import expect
from mmcached.client.store.access import batches
from mmcached.client.store.puts import StorePuts
from mmcached.client.verb import Verb
from mmcached.wire.messages.client import Prefetching, Present
from mmcached.wire.messages.frontend import PinRecords, PrefetchRecords


class StoreKeeping(StorePuts):
    """Calls of one client id for records that are needed later, besides those of `StorePuts`."""

    def prefetch(self, keys: Sequence[str], *, timeout_s: float | None = None, tenant: str | None = None) -> Verb[int]:
        """Have the service fetch records from the second level, for later calls; return how many it has begun to fetch.

        Does not wait for the records: one that arrives is a record of this host's store, and may be evicted like any
        other. Records that are here already, or are being fetched or computed here, are not fetched. Fetches that a
        client waits for go first. A call that needs a record before it has arrived fetches it at once.

        A client has at most `limits.max_prefetches_per_client` under way; further keys are not fetched, and counted in
        `mmcached_l2_prefetches_total{outcome="refused"}`. Without a second level, or while it does not answer, none is.

        Args:
            keys: Up to 4096 keys, the most urgent first.
            timeout_s: Deadline of this call.
            tenant: As for `get`.

        Raises:
            InvalidRequest: A key is invalid; none has been fetched.
            MmcachedError: With `fail_open=False`: why the service did not answer.
        """
        names, tenant, deadline = checked_keys(keys), self._tenant(tenant), self.contact.deadline(timeout_s)
        return (yield from self._guarded("prefetch", self._prefetch(names, tenant, deadline), 0))

    def pin(
        self, keys: Sequence[str], *, ttl_s: float, timeout_s: float | None = None, tenant: str | None = None
    ) -> Verb[list[bool]]:
        """Keep the records of some keys from eviction for `ttl_s`; return for each key whether it has a record.

        A pin ends with its time, `unpin`, and with its record: a drop, a flush, its expiry, `put(…, overwrite=True)`.
        It also ends with the service's frontend. It does not end with this client, and it is of this host alone. A
        record that is pinned again, by any client, keeps the later end. Pinning counts as a use of the record, not as a
        hit. Nothing is fetched from the second level.

        Pinned records take at most a quarter of the store, and those of a tenant with a quota at most a quarter of it.

        Args:
            keys: Up to 4096 keys.
            ttl_s: Seconds until the pins end; at most 86,400.
            timeout_s: Deadline of this call.
            tenant: As for `get`.

        Raises:
            InvalidRequest: An argument is invalid, or a limit would be exceeded, also with `fail_open`. Keys go in
                batches of 256: no record of this batch is pinned, those of earlier batches are.
            MmcachedError: With `fail_open=False`: why the service did not answer.
        """
        names, ttl, tenant = checked_keys(keys), checked_pin_ttl(ttl_s), self._tenant(tenant)
        verb = self._pin(names, ttl, tenant, self.contact.deadline(timeout_s))
        return (yield from self._guarded("pin", verb, [False] * len(names)))

    def unpin(self, keys: Sequence[str], *, timeout_s: float | None = None, tenant: str | None = None) -> Verb[int]:
        """End the pins of some keys, also those of other clients; return how many there were. The records stay.

        Args:
            keys: Up to 4096 keys.
            timeout_s: Deadline of this call.
            tenant: As for `get`.

        Raises:
            InvalidRequest: A key is invalid.
            MmcachedError: With `fail_open=False`: why the service did not answer.
        """
        names, tenant = checked_keys(keys), self._tenant(tenant)
        verb = self._pin(names, 0.0, tenant, self.contact.deadline(timeout_s))
        were_pinned = yield from self._guarded("unpin", verb, [])
        return len({name for name, was_pinned in zip(names, were_pinned, strict=False) if was_pinned})

    def _pin(self, keys: list[str], ttl_s: float, tenant: str, deadline: Deadline) -> Verb[list[bool]]:
        session = yield from self._in_contact(deadline)
        if session.ring is None:
            return [False] * len(keys)
        answers: list[bool] = []
        for batch in batches(keys):
            message, _ = yield from self.contact.exchange(
                PinRecords(self.contact.next_id(), batch, ttl_s, tenant), deadline
            )
            answers += expect(message, Present).are_present
        return answers

    def _prefetch(self, keys: list[str], tenant: str, deadline: Deadline) -> Verb[int]:
        session = yield from self._in_contact(deadline)
        if session.ring is None or not self._sessions.has_second_level:
            return 0
        num_begun = 0
        for batch in batches(keys):
            message, _ = yield from self.contact.exchange(PrefetchRecords(*self._ids(), batch, tenant), deadline)
            num_begun += expect(message, Prefetching).num_begun
        return num_begun
