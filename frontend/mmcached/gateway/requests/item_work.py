"""Processes files, each once at a time, in threads that call decoders; requests join the work and wait.

    join ──> an image is decoded, a clip cut, or some of its slices made again ──> land: requests have the result
      └── work that is under way, or has landed for a request that still waits, is joined as it is

A request that ends early leaves: work that has not begun is withdrawn unless another request waits for it, and work
that has begun ends soon: its item is cached, or its decoder is killed. Clients take turns, and a client that has half
of the room that the others leave has to wait.

Belongs to the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import NamedTuple, Protocol

from mmcached.gateway.processing.clip_decoders import ClipDecoderPool
from mmcached.gateway.processing.decoder_pool import DecoderPool
from mmcached.gateway.processing.decoder_process import DecodedTensors, Pixels
from mmcached.gateway.processing.fair_queue import fair_share
from mmcached.gateway.processing.item_processor import Processing
from mmcached.gateway.processing.media import Medium
from mmcached.gateway.processing.pixel_budget import PixelBudget
from mmcached.gateway.processing.pool import IsWanted, Mailbox, NotWantedError, WorkDone, WorkPool
from mmcached.gateway.processing.processor import GatewayItem
from mmcached.gateway.processing.single_flight import FlightWaiter, SingleFlight
from mmcached.gateway.requests.clip_queue import ClipQueue, ClipTask, run
from mmcached.gateway.requests.clip_records import ClipRecords
from mmcached.gateway.requests.clip_room import ClipRoom
from mmcached.gateway.requests.clip_work import ClipWork, Cut, Decoded
from mmcached.gateway.requests.item_counts import ItemCounts
from mmcached.gateway.requests.open_requests import OpenRequest
from mmcached.gateway.requests.waits import Verb, Wait, Waits
from mmcached.pictures.settings import PictureSettings
from mmcached.wire.config import MIB, ServiceConfig
from mmcached.wire.errors import InvalidRequest, InvariantError, MmcachedError, ServiceUnavailable
from mmcached.wire.sockets.frames import Frame

_NEVER = -1
"""A generation before all."""


class Decoders(Protocol):
    """Decoders of image files, called by several threads."""

    def decode(self, data: Frame, is_wanted: IsWanted) -> Pixels | DecodedTensors: ...
    def close(self) -> None: ...


MakeDecoders = Callable[[int, PictureSettings, PixelBudget], Decoders]
"""Makes what decodes: processes, or whatever a benchmark puts in their place."""


class Work(NamedTuple):
    """The work on one file.

    Attributes:
        medium: The file.
        wanted: Indices of the slices that are made again; empty for an image, and for a clip that is cut.
    """

    medium: Medium
    wanted: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """The key of the file, and after a colon the slices."""
        return f"{self.medium.key}:{','.join(map(str, self.wanted))}" if self.wanted else self.medium.key


@dataclass(slots=True, eq=False)
class Joined(FlightWaiter[object]):
    """The work that one request has joined.

    Attributes:
        order: Rank of the request by the time of its first work; lower is earlier.
        works: By key.
        has_used: Whether the cache was given all its items.
    """

    tenant: str
    client: str
    order: int = 0
    works: dict[str, Work] = field(default_factory=dict)
    has_used: bool = False

    def landed(self) -> Verb[None]:
        """Wait until all joined work has landed."""
        while in_work := self.in_work():
            yield Wait({*in_work})


class ItemWork:
    """The work of one frontend, the requests that wait for it, and the threads and processes that do it.

    Args:
        config: Its `processor_workers` decode, and at most `mm_processor_max_waiting` items wait for them.
        records: Records of clips in the store.
        mailbox: Takes the results of the threads, with the keys of the work as tokens.

    Attributes:
        counts: Items by modality.
        num_refusals: Number of requests for which there was no room.
    """

    def __init__(
        self,
        config: ServiceConfig,
        processing: Processing,
        records: ClipRecords,
        mailbox: Mailbox,
        waits: Waits[OpenRequest],
        *,
        decoders: MakeDecoders = DecoderPool,
    ) -> None:
        self.counts = ItemCounts()
        self.num_refusals = 0
        self._processing = processing
        self._waits = waits
        self._max_waiting = config.mm_processor_max_waiting
        self._flights: SingleFlight[object] = SingleFlight()
        self._order = count()
        self._num_workers = config.processor_workers
        self._workers = WorkPool("decoder", self._num_workers, mailbox)
        limits = config.limits
        budget = PixelBudget(limits.max_decoding_pixels)
        self._decoders = decoders(self._num_workers, PictureSettings.from_config(config), budget)
        max_bytes, room_bytes = limits.max_clip_slices_mb * MIB, limits.max_clip_items_mb * MIB
        self._cutting = ClipWork(
            processing, records, ClipDecoderPool(self._num_workers, config, budget), max_bytes=max_bytes
        )
        self._clips = ClipQueue(self._cutting, ClipRoom(room_bytes, max_bytes), self._workers, mailbox)

    @property
    def num_waiting(self) -> int:
        """Number of works that no thread has begun."""
        return max(0, self._flights.num_in_work - self._num_workers)

    def __contains__(self, key: object) -> bool:
        """Return whether work is under way or has landed, so that joining it begins nothing."""
        return key in self._flights

    def join(self, joined: Joined, works: Sequence[Work]) -> None:
        """Let a request wait for work, and begin the work that is new.

        Raises:
            ServiceUnavailable: Too many items would wait; no work was begun or joined.
        """
        num_new = len({work.key for work in works if work.key not in self._flights})
        if num_new:
            self._check_room(num_new, joined.client)
        for work in works:
            self._note(joined, work)
            if self._flights.join(joined, work.key):
                self._begin(joined, work)
            else:
                self._clips.join(work.key, joined.client)
        if num_new:
            self.let_in()

    def share(self, joined: Joined, keys: AbstractSet[str]) -> None:
        """Let a request use items of clips that were made for another request, which still waits."""
        for key, outcome in self._flights.landed():
            if isinstance(outcome, Cut) and not keys.isdisjoint(outcome.items):
                self._note(joined, self._joined(key)[0].works[key])
                self._flights.join(joined, key)

    def land(self, key: str, done: WorkDone) -> dict[str, GatewayItem]:
        """Take the result of a thread, and wake the requests that wait for it; return items that no request uses."""
        # Work that was given up has to be begun again for requests that have joined it since.
        generation = _NEVER if isinstance(done.outcome, NotWantedError) else done.generation
        outcome = done.outcome
        if isinstance(outcome, GatewayItem):
            self.counts.processed("image", 1)
        if key in self._clips:
            if isinstance(outcome, Decoded):
                self.counts.processed(self._clips.modality_of(key), len(outcome.items))
            is_wanted = generation == self._flights.generation and bool(self._flights.waiters(key))
            outcome = self._clips.take(key, outcome, is_wanted=is_wanted)
            if outcome is None:
                return {}
        landed = self._flights.land(key, generation, outcome)
        if landed.start_again:
            self._begin_again(key)
        self._waits.wake(landed.flight)
        return {} if landed.unclaimed is None else items_in({key: landed.unclaimed[0]})

    def leave(self, joined: Joined) -> dict[str, GatewayItem]:
        """Let a request wait no longer; return items that were made for it alone, and that it has not used."""
        left = self._flights.leave(joined, has_used=joined.has_used)
        for key in left.in_work:
            if self._clips.withdraw(key) or self._workers.withdraw(key):
                self._flights.withdraw(key)
        self.let_in()
        return items_in(dict(left.unused))

    def let_in(self) -> None:
        """Begin to decode clips for which there is room; to be called when work has begun or landed."""
        self._clips.let_in(self._flights, self._urgent)

    def flush(self) -> None:
        """Discard the results of all work begun until now; work that requests wait for is begun again."""
        again = self._flights.flush()
        # Planned works that are not being decoded would be decoded after the flush, with a plan from before it.
        again += self._clips.withdraw_planned()
        self._workers.generation = self._flights.generation
        for key in again:
            self._begin_again(key)

    def close(self) -> None:
        """Drop all work, begun or not."""
        self._workers.close()
        self._decoders.close()
        self._clips.close()

    # ---- how

    def _check_room(self, num_new: int, client: str) -> None:
        num_waiting = self.num_waiting
        # Where nothing waits, a request may be larger than the limit: else it could never be served.
        if not num_waiting:
            return
        num_own = self._workers.num_waiting_of(client) + self._clips.num_waiting_of(client)
        of_client = min(num_waiting, num_own)
        if of_client + num_new > fair_share(self._max_waiting, num_waiting - of_client):
            self.num_refusals += 1
            reason = f"{num_waiting} items wait to be processed, {of_client} of them this client's"
            raise ServiceUnavailable(
                f"{reason} (mm_processor_max_waiting: {self._max_waiting}); try again later",
                field="mm_processor_max_waiting",
                value=num_waiting,
                limit=self._max_waiting,
            )

    def _note(self, joined: Joined, work: Work) -> None:
        if not joined.works:
            joined.order = next(self._order)
        joined.works[work.key] = work

    def _joined(self, key: str) -> list[Joined]:
        """Return the requests' parts that have joined a work."""
        return [waiter for waiter in self._flights.waiters(key) if isinstance(waiter, Joined)]

    def _begin(self, joined: Joined, work: Work) -> None:
        if work.medium.options is None:
            self._workers.submit(work.key, partial(self._process, work.medium.data), joined.client)
        else:
            self._clips.begin(work.key, ClipTask(work.medium, work.wanted, joined.tenant, joined.client))

    def _begin_again(self, key: str) -> None:
        """Begin a work again with the file of the first request that waits for it; each one has the file."""
        first, *others = self._joined(key)
        self._begin(first, first.works[key])
        for other in others:
            self._clips.join(key, other.client)

    def _process(self, data: Frame, is_wanted: IsWanted) -> object:
        """Return the item of an image file, or the reason for its absence. Runs in a thread."""
        return run(data, lambda is_wanted: self._processing.item(self._decoders.decode(data, is_wanted)), is_wanted)

    def _urgent(self) -> Sequence[str]:
        """Return the works of the request that has waited longest for clips."""
        waiting = [joined for key in filter(self._clips.waits_or_counts, self._flights) for joined in self._joined(key)]
        return list(min(waiting, key=lambda joined: joined.order).works) if waiting else []


def items_in(outcomes: Mapping[str, object]) -> dict[str, GatewayItem]:
    """Return the items in the outcomes of works, by their keys."""
    items: dict[str, GatewayItem] = {}
    for key, outcome in outcomes.items():
        if isinstance(outcome, GatewayItem):
            items[key] = outcome
        elif isinstance(outcome, Cut | Decoded):
            items |= outcome.items
    return items


def named(error: Exception, field: str) -> MmcachedError:
    """Return an error with the field of one request: requests that share a file may list it under other indices."""
    if isinstance(error, InvalidRequest):
        return type(error)(field, error.details["value"], str(error.details["limit"]))
    if isinstance(error, MmcachedError):
        return error
    return InvariantError(f"{field} cannot be processed: {type(error).__name__}: {error}")
