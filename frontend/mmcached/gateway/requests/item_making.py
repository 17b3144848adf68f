"""Has the items of requests made that the cache misses, until each request can be sent.

    keys ──> the keys of its files, the slices of its clips       once: see `item_keys`
    make ──> what does the cache miss?                            nothing: the request can be sent
         ──> join the work on these                               begun by whichever misses first: see `item_work`
         ──> all of it has landed?                                the request can be sent, with what has landed

A request asks again after each wait, so it is sent on what the cache says at that moment. One that misses nothing waits
for no other: requests overtake each other, those of one client too.

An image that came as an id only is a hit, or its request ends with a `CacheMiss`. It joins no work: work is begun
again after a flush, with the file of a request that waits for it.

Knows nothing of sockets, engines or leases. Belongs to the loop's thread.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager

import msgspec

from mmcached.gateway.caches.item_cache import ItemCache
from mmcached.gateway.processing.decoder_pool import DecoderPool
from mmcached.gateway.processing.item_processor import Processing
from mmcached.gateway.processing.pool import Done, Mailbox
from mmcached.gateway.processing.processor import Processed
from mmcached.gateway.requests.clip_queue import Refused
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
        items: says what is missing, and takes what was processed without being used. What was missing for a former
            cache may be there, and is taken all the same.
        records: what the store knows of clips.
        mailbox: takes what threads make, for `take`.
        decoders: makes what decodes images.
    Attributes:
        counts: of items by modality; what sends a request counts its items there.
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
        """Refuse what can be refused without looking into the files; see `Processing.check`."""
        for medium in request.media:
            self._processing.check(medium)

    @contextmanager
    def joining(self, request: OpenRequest) -> Iterator[Joined]:
        """Let a request join work; at the end it leaves all that it has joined."""
        joined = Joined(request.message.tenant, request.message.client_id)
        try:
            yield joined
        finally:
            self._keep(self._work.leave(joined))

    def keys(self, request: OpenRequest, joined: Joined) -> Verb[None]:
        """See `ItemKeys.find`."""
        return self._keys.find(request, joined)

    def make(self, request: OpenRequest, joined: Joined, but: Container[str] = ()) -> Mapping[str, Processed] | None:
        """Return what was processed for a request if it can be sent now; None: it has to wait for what it has joined.

        Args:
            but: keys of items that need not be processed.
        Raises:
            InvalidRequest: (often a subclass) the request's first bad image; names its index.
            CacheMiss: images that came as ids only, and are not cached (any more); names the ids.
            ServiceUnavailable: more would wait than may; this request has begun nothing.
            RequestAborted: another file that came with the same id, at the same time, could not be processed; or what
                the store said of a clip was wrong.
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
            # What it has just joined had landed before, for another request.

    # ---- for all

    def take(self, done: Done) -> None:
        """Take what a thread has done, and wake who waits for it."""
        if isinstance(done.token, FileToHash):
            done.token.take(done.outcome)
            self._waits.wake(done.token)
        elif isinstance(done.token, str):
            self._keep(self._work.land(done.token, done))

    def let_in(self) -> None:
        """Begin what there is room for; to be called after `take`."""
        self._work.let_in()

    def flush(self) -> None:
        """Let nothing that was begun until now be cached or sent; what is waited for is begun again."""
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
        """Drop what is not begun, and what is; a file that is hashed is waited for."""
        self._keys.close()
        self._work.close()

    # ---- how

    def _work_for(self, request: OpenRequest, joined: Joined, keys: Sequence[str]) -> list[Work]:
        """Return what has to be done so that items with these keys are made.

        A clip that is being cut, or was for a request that still waits, is waited for: what is made of it then need not
        be made again.

        Raises:
            CacheMiss: images that came as ids only; names the ids.
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
        """Have the clips cut anew, next time, of which slices with these keys could not be made."""
        for medium in request.media:
            if medium.options is not None and not lost.isdisjoint(medium.keys):
                self._records.drop(request.message.tenant, medium.key)

    def _keep(self, items: Mapping[str, Processed]) -> None:
        for key, item in items.items():
            self._items.keep(key, item)


def _check(request: OpenRequest, outcomes: Mapping[str, object]) -> None:
    """Raise what the first bad file of this request is refused with."""
    for medium in request.media:
        of_medium = (each for key, each in outcomes.items() if key.partition(":")[0] == medium.key)
        for outcome in of_medium:
            if not isinstance(outcome, Refused):
                continue
            if outcome.data == medium.data:
                raise named(outcome.error, medium.field)
            # A request that gives one id to two files does not make another one fail with its damage.
            raise RequestAborted(f"another file with the id of {medium.field} cannot be processed; try again")
