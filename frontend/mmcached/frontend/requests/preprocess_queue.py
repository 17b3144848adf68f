"""Has the items of requests processed that the cache misses, until each request can be sent.

    advance ──> the keys of its files         see `item_keys`
            ──> the slices of its clips       known, or cut: see `clip_work`
            ──> what does the cache miss?     nothing: the request can be sent
            ──> join the work on these        begun by whoever misses first: see `item_work`
            ──> all of it has landed?         the request can be sent, with what has landed
    collect ──> requests to be advanced again

A request is asked about as a whole each time, so it is sent on what the cache says at that moment. One that misses
nothing waits for nobody: requests overtake each other, those of one client too.

An image that came as an id only is a hit, or its request ends with a `CacheMiss`. It joins no work: work is begun
again after a flush, with the file of a request that waits for it.

Knows nothing of sockets, engines or leases. Belongs to the loop's thread.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from mmcached.frontend.caches.item_cache import ItemCache
from mmcached.frontend.processing.decoder_pool import DecoderPool
from mmcached.frontend.processing.item_processor import Processing
from mmcached.frontend.processing.pool import Mailbox
from mmcached.frontend.processing.processor import Processed
from mmcached.frontend.requests.clip_queue import Refused
from mmcached.frontend.requests.clip_records import ClipRecords
from mmcached.frontend.requests.clip_work import Cut
from mmcached.frontend.requests.item_counts import ItemCounts
from mmcached.frontend.requests.item_keys import FileOf, ItemKeys
from mmcached.frontend.requests.item_work import ItemWork, MakeDecoders, Work, items_in
from mmcached.frontend.requests.open_requests import OpenRequest
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import CacheMiss, InvalidRequest, InvariantError, MmcachedError, RequestAborted
from mmcached.wire.stats import ProcessorCacheStats


class PreprocessQueue:
    """The requests that are not sent yet, and the work that they wait for.

    Args:
        records: what the store knows of clips.
        decoders: makes what decodes images.
    Attributes:
        items: says what is missing, and takes what was processed for nobody. What was missing for a former cache may be
            there, and is taken all the same.
        counts: of items by modality; whoever sends a request tells it.
    """

    def __init__(
        self,
        config: ServiceConfig,
        processing: Processing,
        items: ItemCache,
        records: ClipRecords,
        *,
        decoders: MakeDecoders = DecoderPool,
    ) -> None:
        self._processing = processing
        self.item_fingerprints = processing.fingerprints
        self.items = items
        self._records = records
        self._requests: dict[int, OpenRequest] = {}
        self._mailbox = Mailbox()
        self._keys = ItemKeys(processing, self._mailbox)
        self._work = ItemWork(config, processing, records, self._mailbox, decoders=decoders)
        self.counts: ItemCounts = self._work.counts

    def fileno(self) -> int:
        """Return what becomes readable when `collect` has something."""
        return self._mailbox.fileno()

    def check(self, request: OpenRequest) -> None:
        """Refuse what can be refused without looking into the files; see `Processing.check`."""
        for medium in request.media:
            self._processing.check(medium)

    def has_keys(self, request: OpenRequest) -> bool:
        """Return whether a request has the keys of its items; if not, `collect` will name it. It has to `leave` at
        last.

        Raises:
            InvalidRequest: (often a subclass) a bad id, or a bad clip; names its index.
            ServiceUnavailable: more would wait than may.
        """
        self._requests[request.number] = request
        return self._keys.find(request) and self._are_cut(request)

    def advance(self, request: OpenRequest, but: Container[str] = ()) -> Mapping[str, Processed] | None:
        """Return what was processed for a request if it can be sent now; or None: `collect` will name it.

        Either way, and if this raises, it has to `leave` at last.

        Args:
            but: keys of items that need not be processed.
        Raises:
            InvalidRequest: (often a subclass) the request's first bad image, or a bad id; names its index.
            CacheMiss: images that came as ids only, and are not cached (any more); names the ids.
            ServiceUnavailable: more would wait than may; this request has begun nothing.
            RequestAborted: another file that came with the same id, at the same time, could not be processed; or what
                the store said of a clip was wrong.
        """
        if not self.has_keys(request):
            return None
        missing = self.items.missing([key for key in request.keys if key not in but])
        if missing:
            self._work.share(request.number, frozenset(missing))
        while True:
            outcomes = self._work.outcomes(request.number)
            given = items_in(outcomes)
            lost = [key for key in missing if key not in given]
            work = self._work_for(request, lost)
            self._join(request, work)
            if not self._work.is_complete(request.number):
                return None
            if all(each.key in outcomes for each in work):
                self._forget(request, frozenset(lost))
                _check(request, outcomes)
                if lost:
                    raise RequestAborted("a clip has other slices than the store said; try again")
                return given
            # What it has just joined had landed before, for another request.

    def collect(self) -> list[OpenRequest]:
        """Take what the threads have done; return the requests that may have all they need now."""
        ready: dict[int, None] = {}
        for done in self._mailbox.take_all():
            match done.token:
                case FileOf() as file:
                    if self._keys.take(file, done.outcome):
                        ready[file.number] = None
                case str() as key:
                    complete, unclaimed = self._work.land(key, done)
                    ready |= dict.fromkeys(complete)
                    self._keep(unclaimed)
        ready |= dict.fromkeys(self._records.take_fetched())
        self._work.let_in()
        return [self._requests[number] for number in ready]

    def leave(self, number: int, *, has_used: bool) -> None:
        """Forget a request that is sent, or has ended; a second call changes nothing.

        Args:
            has_used: the cache was given all its items.
        """
        if self._requests.pop(number, None) is None:
            return
        self._keys.leave(number)
        self._records.leave(number)
        self._keep(self._work.leave(number, has_used=has_used))

    def flush(self) -> None:
        """Let nothing that was begun until now be cached or sent; what is waited for is begun again."""
        self._work.flush()

    def numbers(self) -> AbstractSet[int]:
        """Return the requests that have come here, and not left."""
        return self._requests.keys()

    def stats(self, of_cache: ProcessorCacheStats) -> ProcessorCacheStats:
        """Return a cache's figures with those of the work for it."""
        return msgspec.structs.replace(
            of_cache,
            items_processed=self.counts.num_processed,
            by_modality=self.counts.by_modality(),
            items_waiting=self._work.num_waiting,
            busy_refusals=self._work.num_refusals,
        )

    def check_integrity(self) -> None:
        self._work.check_integrity(self._requests)
        if not self._requests and len(self._keys):
            raise InvariantError("keys are looked for, but no request is here")

    def close(self) -> None:
        """Drop what is not begun, and what is; a file that is hashed is waited for."""
        self._keys.close()
        self._work.close()
        self._mailbox.close()

    # ---- how

    def _are_cut(self, request: OpenRequest) -> bool:
        """Return whether the slices of a request's clips are known; have the others cut."""
        uncut = [medium for medium in request.media if medium.options is not None and not medium.slices]
        if not uncut:
            return True
        work = []
        for medium in uncut:
            medium.slices = self._work.known(medium, request.message.tenant)
            if not medium.slices:
                work.append(Work(medium))
        to_fetch = [each.key for each in work if each.key not in self._work]
        if to_fetch and self._records.has_to_fetch(request.number, request.message.tenant, to_fetch):
            return False
        self._join(request, work)
        outcomes = self._work.outcomes(request.number)  # one that it has just joined may have landed before
        for medium, _ in work:
            outcome = outcomes.get(medium.key)
            if isinstance(outcome, Refused):
                raise _named(outcome.error, medium.field)
            if isinstance(outcome, Cut):
                medium.slices = list(outcome.slices)
        return all(medium.slices for medium in uncut)

    def _work_for(self, request: OpenRequest, keys: Sequence[str]) -> list[Work]:
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
                is_cut = medium.key in self._work and not self._work.has_joined(request.number, medium.key)
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

    def _join(self, request: OpenRequest, work: Sequence[Work]) -> None:
        message = request.message
        self._work.join(request.number, work, tenant=message.tenant, client=message.client_id)

    def _keep(self, items: Mapping[str, Processed]) -> None:
        for key, item in items.items():
            self.items.keep(key, item)


def _check(request: OpenRequest, outcomes: Mapping[str, object]) -> None:
    """Raise what the first bad file of this request is refused with."""
    for medium in request.media:
        of_medium = (each for key, each in outcomes.items() if key.partition(":")[0] == medium.key)
        for outcome in of_medium:
            if not isinstance(outcome, Refused):
                continue
            if outcome.data == medium.data:
                raise _named(outcome.error, medium.field)
            # Who gives one id to two files is not to fail for the other one's damage.
            raise RequestAborted(f"another file with the id of {medium.field} cannot be processed; try again")


def _named(error: Exception, field: str) -> MmcachedError:
    """Return an error as it concerns one request: several may wait for one file, and count it differently."""
    if isinstance(error, InvalidRequest):
        return type(error)(field, error.details["value"], str(error.details["limit"]))
    if isinstance(error, MmcachedError):
        return error
    return InvariantError(f"{field} cannot be processed: {type(error).__name__}: {error}")
