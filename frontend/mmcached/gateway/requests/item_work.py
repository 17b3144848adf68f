"""Has files processed, each once at a time, by threads that ask decoders; requests join the work and wait.

    join ──> an image is decoded, a clip cut, or some of its slices made again ──> land: those who wait have it
      └── work that is under way, or has landed for a request that still waits, is joined as it is

Whoever ends early leaves: work that is not begun is withdrawn unless another request waits for it, and work that has
begun ends soon: for the cache, or because its decoder is killed. No client takes all: clients take turns, and one that
has half of what the others leave has to wait.

Knows nothing of caches, keys and answers. Belongs to the loop's thread.
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
from mmcached.gateway.processing.decoder_process import Pixels, Tensors
from mmcached.gateway.processing.fair_queue import fair_share
from mmcached.gateway.processing.item_processor import Processing
from mmcached.gateway.processing.media import Medium
from mmcached.gateway.processing.pixel_budget import PixelBudget
from mmcached.gateway.processing.pool import Done, IsWanted, Mailbox, NotWantedError, WorkPool
from mmcached.gateway.processing.processor import Processed
from mmcached.gateway.processing.single_flight import SingleFlight, Waiter
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
    """What decodes image files for the threads that ask it."""

    def decode(self, data: Frame, is_wanted: IsWanted) -> Pixels | Tensors: ...
    def close(self) -> None: ...


MakeDecoders = Callable[[int, PictureSettings, PixelBudget], Decoders]
"""Makes what decodes: processes, or whatever a benchmark puts in their place."""


class Work(NamedTuple):
    """What is done with a file.

    Attributes:
        wanted: indices of the slices that are made again; none where an image is processed, or a clip is cut.
    """

    medium: Medium
    wanted: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """The file's, and behind a colon the slices."""
        return f"{self.medium.key}:{','.join(map(str, self.wanted))}" if self.wanted else self.medium.key


@dataclass(slots=True, eq=False)
class Joined(Waiter[object]):
    """What one request has joined.

    Attributes:
        order: the lower, the earlier it has joined something.
        works: by key.
        has_used: the cache was given all its items.
    """

    tenant: str
    client: str
    order: int = 0
    works: dict[str, Work] = field(default_factory=dict)
    has_used: bool = False

    def landed(self) -> Verb[None]:
        """Wait until all of it has landed."""
        while in_work := self.in_work():
            yield Wait({*in_work})


class ItemWork:
    """The work, who waits for it, and the threads and processes that do it.

    Args:
        config: its `processor_workers` decode, and at most `mm_processor_max_waiting` items wait for them.
        records: what the store knows of clips.
        mailbox: takes what the threads make, under the keys of the work.
    Attributes:
        counts: of items by modality; `num_refusals` counts requests for which there was no room.
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
        """Works that no thread does yet."""
        return max(0, self._flights.num_in_work - self._num_workers)

    def __contains__(self, key: object) -> bool:
        """Return whether work is under way, or has landed: to join it starts nothing."""
        return key in self._flights

    def join(self, joined: Joined, works: Sequence[Work]) -> None:
        """Let a request wait for work, and begin what is new.

        Raises:
            ServiceUnavailable: more would wait than may; nothing of it is begun or joined.
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
        """Let a request have those items of clips that were made for another one, which still waits for something."""
        for key, outcome in self._flights.landed():
            if isinstance(outcome, Cut) and not keys.isdisjoint(outcome.items):
                self._note(joined, self._joined(key)[0].works[key])
                self._flights.join(joined, key)

    def land(self, key: str, done: Done) -> dict[str, Processed]:
        """Take what a thread has made, and wake who waits for it; return items that nobody wants."""
        # What was given up has to be begun again for whoever has come since.
        generation = _NEVER if isinstance(done.outcome, NotWantedError) else done.generation
        outcome = done.outcome
        if isinstance(outcome, Processed):
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

    def leave(self, joined: Joined) -> dict[str, Processed]:
        """Let a request wait no more; return the items that were made for it alone, and that it has not used."""
        left = self._flights.leave(joined, has_used=joined.has_used)
        for key in left.in_work:
            if self._clips.withdraw(key) or self._workers.withdraw(key):
                self._flights.withdraw(key)
        self.let_in()
        return items_in(dict(left.unused))

    def let_in(self) -> None:
        """Begin to decode clips that there is room for; to be called when work has begun or landed."""
        self._clips.let_in(self._flights, self._urgent)

    def flush(self) -> None:
        """Let nothing that was begun until now land as it is; what is waited for is begun again."""
        again = self._flights.flush()
        # What was planned, and is not being decoded yet, would be decoded in time, but for a plan of before.
        again += self._clips.withdraw_planned()
        self._workers.generation = self._flights.generation
        for key in again:
            self._begin_again(key)

    def close(self) -> None:
        """Drop what is not begun, and what is."""
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
        """Return who has joined a work."""
        return [waiter for waiter in self._flights.waiters(key) if isinstance(waiter, Joined)]

    def _begin(self, joined: Joined, work: Work) -> None:
        if work.medium.options is None:
            self._workers.submit(work.key, partial(self._process, work.medium.data), joined.client)
        else:
            self._clips.begin(work.key, ClipTask(work.medium, work.wanted, joined.tenant, joined.client))

    def _begin_again(self, key: str) -> None:
        """Begin with the file of a request that waits; each that has joined has one."""
        first, *others = self._joined(key)
        self._begin(first, first.works[key])
        for other in others:
            self._clips.join(key, other.client)

    def _process(self, data: Frame, is_wanted: IsWanted) -> object:
        """Return the item of an image file, or why there is none. Runs in a thread."""
        return run(data, lambda is_wanted: self._processing.item(self._decoders.decode(data, is_wanted)), is_wanted)

    def _urgent(self) -> Sequence[str]:
        """Return the works of the request that has waited longest for what is made of clips."""
        waiting = [joined for key in filter(self._clips.waits_or_counts, self._flights) for joined in self._joined(key)]
        return list(min(waiting, key=lambda joined: joined.order).works) if waiting else []


def items_in(outcomes: Mapping[str, object]) -> dict[str, Processed]:
    """Return the items among outcomes, and in them, by their keys."""
    items: dict[str, Processed] = {}
    for key, outcome in outcomes.items():
        if isinstance(outcome, Processed):
            items[key] = outcome
        elif isinstance(outcome, Cut | Decoded):
            items |= outcome.items
    return items


def named(error: Exception, field: str) -> MmcachedError:
    """Return an error as it concerns one request: several may wait for one file, and count it differently."""
    if isinstance(error, InvalidRequest):
        return type(error)(field, error.details["value"], str(error.details["limit"]))
    if isinstance(error, MmcachedError):
        return error
    return InvariantError(f"{field} cannot be processed: {type(error).__name__}: {error}")
