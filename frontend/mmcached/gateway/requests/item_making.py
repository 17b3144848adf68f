"""Processes the items of requests that the cache misses, until each request can be sent.

    keys ──> the keys of its files, the slices of its clips       once: see `item_keys`
    make ──> are all items cached?                                yes: the request can be sent
         ──> join the work on the missing ones                    begun by the first request: see `item_work`
         ──> is all joined work done?                             yes: the request can be sent with the new items

A request calls `make` again after each wait, so it is sent according to the present content of the cache. A request
without missing items waits for no other: requests overtake each other, also those of one client.

A file that came as an id or a digest only is a hit, or its request ends with a `CacheMiss`. It joins no work, because
after a flush work is begun again with the file of a waiting request.

Belongs to the loop's thread.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager

import msgspec

from mmcached.gateway.caches.item_cache import ItemCache
from mmcached.gateway.processing.decoder_pool import DecoderPool
from mmcached.gateway.processing.item_processor import Processing
from mmcached.gateway.processing.pool import Mailbox, WorkDone
from mmcached.gateway.processing.processor import GatewayItem
from mmcached.gateway.requests.clip_queue import UnusableFile
from mmcached.gateway.requests.clip_records import ClipRecords
from mmcached.gateway.requests.item_counts import ItemCounts
from mmcached.gateway.requests.item_keys import FileToHash, ItemKeys
from mmcached.gateway.requests.item_work import ItemWork, Joined, MakeDecoders, Work, items_in, named
from mmcached.gateway.requests.open_requests import OpenRequest
from mmcached.gateway.requests.waits import Verb, Waits
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import CacheMiss, RequestAborted
from mmcached.wire.stats import ProcessorCacheStats


class ItemMaking:
    """Keys and items of the requests that are not sent yet.

    Args:
        items: The cache: tells which items are missing, and keeps processed items that were not used.
        records: Records of clips in the store.
        mailbox: Takes the results of threads, for `take`.
        decoders: Creates the decoders of images.

    Attributes:
        counts: Items by modality; also counts the items of sent requests.
        fingerprints: Fingerprints of everything that keys of items depend on beside their files, by modality.
    """

    def __init__(
        self,
        config: ServiceConfig,
        items: ItemCache,
        records: ClipRecords,
        mailbox: Mailbox,
        waits: Waits[OpenRequest],
        *,
        decoders: MakeDecoders = DecoderPool,
    ) -> None:
        self._processing = Processing(config)
        self.fingerprints = self._processing.fingerprints
        self._items = items
        self._records = records
        self._waits = waits
        self._work = ItemWork(config, self._processing, records, mailbox, waits, decoders=decoders)
        self._keys = ItemKeys(self._processing, records, self._work, mailbox)
        self.counts: ItemCounts = self._work.counts

    # ---- for one request

    def check(self, request: OpenRequest) -> None:
        """Check a request's files without decoding them; see `Processing.check`."""
        for medium in request.media:
            self._processing.check(medium)

    @contextmanager
    def joining(self, request: OpenRequest) -> Iterator[Joined]:
        """Return a context in which a request can join work; at its end the request leaves all that it has joined."""
        joined = Joined(request.message.tenant, request.message.client_id)
        try:
            yield joined
        finally:
            self._keep(self._work.leave(joined))

    def keys(self, request: OpenRequest, joined: Joined) -> Verb[None]:
        """Give a request the keys of its items; see `ItemKeys.find`."""
        return self._keys.find(request, joined)

    def make(self, request: OpenRequest, joined: Joined, but: Container[str] = ()) -> Mapping[str, GatewayItem] | None:
        """Return the processed items for a request; None if it has to wait for work that it has joined.

        Args:
            but: Keys of items that need not be processed.

        Raises:
            InvalidRequest: Often a subclass: the request's first invalid file; names its index.
            CacheMiss: Files that came as ids or digests only are not cached; names these.
            ServiceUnavailable: Too many items would wait; this request has begun no work.
            RequestAborted: Another file with the same id, of another request, could not be processed; or the store's
                list of a
                clip's slices was wrong.
        """
        missing = self._items.missing([key for key in request.keys if key not in but])
        if missing:
            self._work.share(joined, frozenset(missing))
        while True:
            outcomes = joined.outcomes()
            given = items_in(outcomes)
            lost = [key for key in missing if key not in given]
            work = self._work_for(request, joined, lost)
            self._work.join(joined, work)
            if joined.in_work():
                return None
            if all(each.key in outcomes for each in work):
                self._forget(request, frozenset(lost))
                _check(request, outcomes)
                if lost:
                    raise RequestAborted("a clip has other slices than the store said; try again")
                return given
            # The work that it has just joined had landed before, for another request.

    # ---- for all

    def take(self, done: WorkDone) -> None:
        """Take the result of a thread, and wake the requests that wait for it."""
        if isinstance(done.token, FileToHash):
            done.token.take(done.outcome)
            self._waits.wake(done.token)
        elif isinstance(done.token, str):
            self._keep(self._work.land(done.token, done))

    def let_in(self) -> None:
        """Begin work for which there is room; to be called after `take`."""
        self._work.let_in()

    def flush(self) -> None:
        """Discard all work begun until now; work that requests wait for is begun again."""
        self._work.flush()

    def stats(self, of_cache: ProcessorCacheStats) -> ProcessorCacheStats:
        """Return a cache's figures with those of the work for it."""
        return msgspec.structs.replace(
            of_cache,
            items_processed=self.counts.num_processed,
            by_modality=self.counts.by_modality(),
            items_waiting=self._work.num_waiting,
            busy_refusals=self._work.num_refusals,
        )

    def close(self) -> None:
        """Drop all work; waits for a file that is being hashed."""
        self._keys.close()
        self._work.close()

    # ---- how

    def _work_for(self, request: OpenRequest, joined: Joined, keys: Sequence[str]) -> list[Work]:
        """Return the work that makes the items with these keys.

        A clip that is being cut, or was cut for a request that still waits, is waited for: its slices need not be made
            again.

        Raises:
            CacheMiss: Images that came as ids only; names the ids.
        """
        missing = set(keys)
        work: dict[str, Work] = {}
        without_file = []
        for medium in request.media:
            first_of = {key: index for index, key in reversed(list(enumerate(medium.keys))) if key in missing}
            wanted = sorted(first_of.values())
            if wanted and not medium.data:
                without_file += [medium.keys[index] for index in wanted]
            elif wanted:
                missing.difference_update(medium.keys)
                is_cut = medium.key in self._work and medium.key not in joined.flights
                made = Work(medium, () if medium.options is None or is_cut else tuple(wanted))
                work.setdefault(made.key, made)
        if lost := [key for key in without_file if key in missing]:
            raise CacheMiss(request.ids_of(lost))
        return list(work.values())

    def _forget(self, request: OpenRequest, lost: AbstractSet[str]) -> None:
        """Drop the records of clips with slices that could not be made, so that the clips are cut again."""
        for medium in request.media:
            if medium.options is not None and not lost.isdisjoint(medium.keys):
                self._records.drop(request.message.tenant, medium.key)

    def _keep(self, items: Mapping[str, GatewayItem]) -> None:
        for key, item in items.items():
            self._items.keep(key, item)


def _check(request: OpenRequest, outcomes: Mapping[str, object]) -> None:
    """Raise the error of the request's first invalid file."""
    for medium in request.media:
        of_medium = (each for key, each in outcomes.items() if key.partition(":")[0] == medium.key)
        for outcome in of_medium:
            if not isinstance(outcome, UnusableFile):
                continue
            if outcome.data == medium.data:
                raise named(outcome.error, medium.field)
            # A request that gives one id to two files does not make another one fail with its damage.
            raise RequestAborted(f"another file with the id of {medium.field} cannot be processed; try again")
