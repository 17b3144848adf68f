"""Client calls that bring records into this host's store before they are needed: `StoreKeeping`."""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.client.arguments import checked_keys
from mmcached.client.contact import Deadline
from mmcached.client.results import expect
from mmcached.client.store.access import batches
from mmcached.client.store.puts import StorePuts
from mmcached.client.verb import Verb
from mmcached.wire.messages.client import Prefetching
from mmcached.wire.messages.frontend import PrefetchRecords


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

    def _prefetch(self, keys: list[str], tenant: str, deadline: Deadline) -> Verb[int]:
        session = yield from self._in_contact(deadline)
        if session.ring is None or not self._sessions.has_second_level:
            return 0
        num_begun = 0
        for batch in batches(keys):
            message, _ = yield from self.contact.exchange(PrefetchRecords(*self._ids(), batch, tenant), deadline)
            num_begun += expect(message, Prefetching).num_begun
        return num_begun
