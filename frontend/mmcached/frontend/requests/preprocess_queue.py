"""Has the items of requests processed that the cache misses, until each request can be sent.

    advance ──> its keys                      see `item_keys`
            ──> what does the cache miss?     nothing: the request can be sent
            ──> join the work on these        begun by whoever misses first; equal items wait for it
            ──> all of it has landed?         the request can be sent, with what has landed
    collect ──> requests to be advanced again

A request is asked about as a whole each time, so it is sent on what the cache says at that moment. One that misses
nothing waits for nobody: requests overtake each other, those of one client too.

An image that came as an id only is a hit, or its request ends with a `CacheMiss`. It joins no work: work is begun
again after a flush, with the file of a request that waits for it.

Whatever ends a request early (deadline, cancel, death), it leaves: work that is not begun is withdrawn unless another
request waits for it, and work that has begun ends soon: for the cache, or because its decoder is killed.

No client takes all: clients take turns, and one that has half of what the others leave has to wait.

Knows nothing of sockets, engines or leases. Belongs to the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec

from mmcached.frontend.caches.item_cache import ItemCache
from mmcached.frontend.processing.decoder_pool import DecoderPool
from mmcached.frontend.processing.decoder_process import Pixels, Tensors
from mmcached.frontend.processing.fair_queue import fair_share
from mmcached.frontend.processing.item_processor import Processing, field_of
from mmcached.frontend.processing.pixel_budget import PixelBudget
from mmcached.frontend.processing.pool import Done, IsWanted, Mailbox, NotWantedError, WorkPool
from mmcached.frontend.processing.processor import Processed
from mmcached.frontend.processing.single_flight import SingleFlight
from mmcached.frontend.requests.item_keys import FileOf, ItemKeys
from mmcached.frontend.requests.open_requests import OpenRequest
from mmcached.pictures.settings import PictureSettings
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import (
    CacheMiss,
    InvalidRequest,
    InvariantError,
    MmcachedError,
    RequestAborted,
    ServiceUnavailable,
)
from mmcached.wire.stats import ProcessorCacheStats

_NEVER = -1
"""A generation before all."""


class Decoders(Protocol):
    """What decodes files for the threads that ask it: processes, or whatever a benchmark puts beside them."""

    def decode(self, data: bytes, is_wanted: IsWanted) -> Pixels | Tensors: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Refused:
    data: bytes
    error: Exception


class PreprocessQueue:
    """The requests that are not sent yet, the work that they wait for, and the threads and processes that do it.

    Args:
        config: its `processor_workers` decode, and at most `mm_processor_max_waiting` items wait for them.
        decoders: makes what decodes files.
    Attributes:
        items: says what is missing, and takes what was processed for nobody. What was missing for a former cache may be
            there, and is taken all the same.
    """

    def __init__(
        self,
        config: ServiceConfig,
        processing: Processing,
        items: ItemCache,
        *,
        decoders: Callable[[int, PictureSettings, PixelBudget], Decoders] = DecoderPool,
    ) -> None:
        self._processing = processing
        self.item_fingerprint = processing.fingerprint
        self.items = items
        self._max_waiting = config.mm_processor_max_waiting
        self._requests: dict[int, OpenRequest] = {}
        self._flights: SingleFlight[object] = SingleFlight()
        self._num_workers = config.processor_workers
        self._num_processed = self._num_refusals = 0
        self._mailbox = Mailbox()
        self._keys = ItemKeys(processing, self._mailbox)
        self._workers = WorkPool("decoder", self._num_workers, self._mailbox)
        budget = PixelBudget(config.limits.max_decoding_pixels)
        self._decoders = decoders(self._num_workers, PictureSettings.from_config(config), budget)

    def fileno(self) -> int:
        """Return what becomes readable when `collect` has something."""
        return self._mailbox.fileno()

    def check(self, request: OpenRequest) -> None:
        """Refuse what can be refused without looking into the files; see `Processing.check`."""
        self._processing.check(request.images, request.image_ids)

    def has_keys(self, request: OpenRequest) -> bool:
        """Return whether a request has its keys; if not, `collect` will name it. It has to `leave` at last.

        Raises:
            InvalidRequest: a bad id; names the image's index.
        """
        self._requests[request.number] = request
        return self._keys.find(request)

    def advance(self, request: OpenRequest, but: Container[str] = ()) -> Mapping[str, Processed] | None:
        """Return what was processed for a request if it can be sent now; or None: `collect` will name it.

        Either way, and if this raises, it has to `leave` at last.

        Args:
            but: keys of items that need not be processed.
        Raises:
            InvalidRequest: (often a subclass) the request's first bad image, or a bad id; names its index.
            CacheMiss: images that came as ids only, and are not cached (any more); names the ids.
            ServiceUnavailable: more would wait than may; this request has begun nothing.
            RequestAborted: another file that came with the same id, at the same time, could not be processed.
        """
        if not self.has_keys(request):
            return None
        self._join(request, self.items.missing([key for key in request.keys if key not in but]))
        if not self._flights.is_complete(request.number):
            return None
        return _checked(request, self._flights.outcomes(request.number))

    def collect(self) -> list[OpenRequest]:
        """Take what the threads have done; return the requests that may have all they need now."""
        ready: dict[int, None] = {}
        for done in self._mailbox.take_all():
            match done.token:
                case FileOf() as file:
                    if self._keys.take(file, done.outcome):
                        ready[file.number] = None
                case str() as key:
                    ready |= dict.fromkeys(self._land(key, done))
        return [self._requests[number] for number in ready]

    def leave(self, number: int, *, has_used: bool) -> None:
        """Forget a request that is sent, or has ended; a second call changes nothing.

        Args:
            has_used: the cache was given all its items.
        """
        if self._requests.pop(number, None) is None:
            return
        self._keys.leave(number)
        left = self._flights.leave(number, has_used=has_used)
        for key, outcome in left.unused:
            self._keep(key, outcome)
        for key in left.in_work:
            if self._workers.withdraw(key):
                self._flights.withdraw(key)

    def flush(self) -> None:
        """Let nothing that was begun until now be cached or sent; what is waited for is begun again."""
        again = self._flights.flush()
        self._workers.generation = self._flights.generation
        for key in again:
            self._begin_again(key)

    def stats(self, of_cache: ProcessorCacheStats) -> ProcessorCacheStats:
        """Return a cache's figures with those of the work for it."""
        return msgspec.structs.replace(
            of_cache,
            items_processed=self._num_processed,
            items_waiting=self._num_waiting,
            busy_refusals=self._num_refusals,
        )

    def check_integrity(self) -> None:
        self._flights.check_integrity()
        if not self._requests and (len(self._keys) or self._flights.num_waiting):
            raise InvariantError("items are waited for, but no request is here")

    def close(self) -> None:
        """Drop what is not begun, and what is; a file that is hashed is waited for."""
        self._keys.close()
        self._workers.close()
        self._decoders.close()
        self._mailbox.close()

    # ---- work

    @property
    def _num_waiting(self) -> int:
        return max(0, self._flights.num_in_work - self._num_workers)

    def _join(self, request: OpenRequest, keys: Sequence[str]) -> None:
        files = request.files() if keys else {}
        without_file = [key for key in keys if key not in files]
        if without_file:
            raise CacheMiss(request.ids_of(without_file))
        num_new = sum(key not in self._flights for key in keys)
        client = request.message.client_id
        if num_new:
            self._check_room(num_new, client)
        for key in keys:
            if self._flights.join(request.number, key):
                self._begin(key, files[key], client)
            else:
                self._workers.join(key, client)

    def _check_room(self, num_new: int, client: str) -> None:
        num_waiting = self._num_waiting
        # Where nothing waits, a request may be larger than the limit: else it could never be served.
        if not num_waiting:
            return
        of_client = min(num_waiting, self._workers.num_waiting_of(client))
        if of_client + num_new > fair_share(self._max_waiting, num_waiting - of_client):
            self._num_refusals += 1
            reason = f"{num_waiting} items wait to be processed, {of_client} of them this client's"
            raise ServiceUnavailable(
                f"{reason} (mm_processor_max_waiting: {self._max_waiting}); try again later",
                field="mm_processor_max_waiting",
                value=num_waiting,
                limit=self._max_waiting,
            )

    def _begin_again(self, key: str) -> None:
        """Begin with the file of a request that waits; whoever joined has one."""
        waiting = [request for request in self._requests.values() if key in request.keys and key in request.files()]
        self._begin(key, waiting[0].files()[key], waiting[0].message.client_id)
        for request in waiting[1:]:
            self._workers.join(key, request.message.client_id)

    def _begin(self, key: str, data: bytes, client: str) -> None:
        self._workers.submit(key, partial(self._process, data), client)

    def _process(self, data: bytes, is_wanted: IsWanted) -> object:
        """Return the item of a file, or why there is none. Runs in a thread."""
        try:
            return self._processing.item(self._decoders.decode(data, is_wanted))
        except NotWantedError:
            raise
        except Exception as error:
            return _Refused(data, error.with_traceback(None))

    def _land(self, key: str, done: Done) -> list[int]:
        # What was given up has to be begun again for whoever has come since.
        generation = _NEVER if isinstance(done.outcome, NotWantedError) else done.generation
        self._num_processed += isinstance(done.outcome, Processed)
        landed = self._flights.land(key, generation, done.outcome)
        if landed.start_again:
            self._begin_again(key)
        if landed.unclaimed is not None:
            self._keep(key, landed.unclaimed[0])
        return landed.complete

    def _keep(self, key: str, outcome: object) -> None:
        if isinstance(outcome, Processed):
            self.items.keep(key, outcome)


def _checked(request: OpenRequest, outcomes: Mapping[str, object]) -> Mapping[str, Processed]:
    """Return the outcomes if all are good; raise what the first bad image of this request is refused with."""
    for index, key in enumerate(request.keys):
        outcome = outcomes.get(key)
        if not isinstance(outcome, _Refused):
            continue
        if outcome.data == request.files()[key]:
            raise _named(outcome.error, field_of(index))
        # Who gives one id to two files is not to fail for the other one's damage.
        raise RequestAborted(f"another file with the id of {field_of(index)} cannot be processed; try again")
    return {key: outcome for key, outcome in outcomes.items() if isinstance(outcome, Processed)}


def _named(error: Exception, field: str) -> MmcachedError:
    """Return an error as it concerns one request: several may wait for one file, and count it differently."""
    if isinstance(error, InvalidRequest):
        return type(error)(field, error.details["value"], str(error.details["limit"]))
    if isinstance(error, MmcachedError):
        return error
    return InvariantError(f"{field} cannot be processed: {type(error).__name__}: {error}")
