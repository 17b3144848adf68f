"""A frontend's and its engines' part in the ring, in one process and without sockets: what `tests.pairs.test_shm_pair`
puts into any order.

    Frontend                    queue (one FIFO per engine; may lose)            Engine, with one worker
    grant ... send   --------->  Add(request, items, leases)  ----------------->  receive, hold, read in place
    ask              --------->  Barrier                       ---------------->  answer what has arrived
    resend, reconcile  <-------  Missed | Answer               <----------------

Real are the item cache, the store, the ring, the entries, the worker's reader, and the engine's book of leases.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from mmcached.engine.server.leases import HeldLeases
from mmcached.frontend.caches.ring import RingItemCache

from mmcached.cache import MultiModalKwargsItem
from mmcached.frontend.caches.item_cache import OutgoingItem
from mmcached.frontend.processing.processor import Processed
from mmcached.shm import ObjectStoreReader, ObjectStoreWriter, ReaderEntry, RingReader, RingWriter
from mmcached.shm.store.codec import decode_record_frames, encode, split
from mmcached.wire.config import GIB, ServiceConfig
from mmcached.wire.errors import LeaseRefused
from mmcached.wire.handle import Handle, LeaseId, RingAnnouncement
from mmcached.wire.messages.parts import Barrier
from mmcached.wire.sockets.frames import Frame
from mmcached.worker.payloads import PayloadReader
from tests.pairs.library_pairs import CAPACITY, item_for

WORKER_EPOCH = 1


@dataclass(slots=True)
class Request:
    """One that a user waits for."""

    number: int
    engine: int
    keys: list[str]
    num_resends: int = 0


@dataclass(frozen=True, slots=True)
class Add:
    """A request on its way to an engine.

    Attributes:
        life: the epoch and the incarnation that its leases are of.
        items: for each key what lies in the ring, with its lease; or frames.
    """

    request: Request
    life: tuple[int, int]
    items: list[tuple[Handle, LeaseId] | list[Frame]]

    @property
    def leases(self) -> list[tuple[Handle, LeaseId]]:
        return [item for item in self.items if isinstance(item, tuple)]


@dataclass(frozen=True, slots=True)
class Missed:
    request: Request
    mm_hashes: list[str]


@dataclass(frozen=True, slots=True)
class Answer:
    barrier: Barrier
    received: dict[int, int]


@dataclass(slots=True)
class Running:
    """What a request reads in the engine's worker. Its user may have gone."""

    request: Request
    items: list[MultiModalKwargsItem]
    has_ended: bool = False


@dataclass(slots=True)
class Link:
    """The two queues between the frontend and one engine; they outlive both."""

    to_engine: deque[Add | Barrier] = field(default_factory=deque)
    to_frontend: deque[Missed | Answer] = field(default_factory=deque)


class Engine:
    """One incarnation in one ring: the engine's entry and books, and its worker's mapping."""

    def __init__(self, announcement: RingAnnouncement) -> None:
        self.entry = ReaderEntry.attach(announcement)
        self._reader = RingReader.open(announcement)
        self._reader.join_entry(self.entry.reader_id, self.entry.incarnation, rank=0)
        self._payloads = PayloadReader(ObjectStoreReader(self._reader))
        self.leases = HeldLeases(self.entry.give_back)
        self.running: list[Running] = []
        self._released: deque[tuple[int, int]] = deque()
        self._step = 0

    @property
    def life(self) -> tuple[int, int]:
        return self.entry.announcement.epoch, self.entry.incarnation

    def receive(self, handle: Handle, lease: LeaseId) -> bool:
        """Return whether a descriptor may be used."""
        return self.entry.receive(handle, lease)

    def add(self, message: Add) -> list[str]:
        """Take a request in and begin to read; return what it misses, and then read nothing."""
        missed = []
        for item, key in zip(message.items, message.request.keys, strict=True):
            if isinstance(item, tuple):
                if self.receive(*item):
                    self.leases.hold(message.request.number, *item)
                else:
                    missed.append(key)
        if missed:
            self.leases.end_request(message.request.number)
            return list(dict.fromkeys(missed))
        self._step += 1
        items = [self._read(item, key) for item, key in zip(message.items, message.request.keys, strict=True)]
        self.running.append(Running(message.request, items))
        return []

    def end(self, running: Running) -> None:
        """The request is over; a worker may still read for it."""
        running.has_ended = True
        self.leases.end_request(running.request.number)

    def flush(self) -> None:
        """Report what is read no more."""
        while self._released:
            step, seq = self._released.popleft()
            self.leases.read_done(WORKER_EPOCH, step, seq)

    def answer(self, barrier: Barrier) -> dict[int, int] | None:
        return self.entry.answer_barrier(barrier.incarnation, barrier.last_seq, barrier.slots)

    def close(self) -> None:
        """The process ends; views of it that a test keeps stand for a worker that has not noticed yet."""
        self._reader.close()
        self.entry.close()

    def _read(self, item: tuple[Handle, LeaseId] | list[Frame], key: str) -> MultiModalKwargsItem:
        if isinstance(item, list):
            return MultiModalKwargsItem.from_record(decode_record_frames(item, tensors="torch"))
        handle, lease = item
        step = self._step
        self.leases.reading([lease.seq], [WORKER_EPOCH], step)
        record = self._payloads.read(
            handle, (), mm_hash=key, on_release=lambda: self._released.append((step, lease.seq))
        )
        return MultiModalKwargsItem.from_record(record)


class Frontend:
    """One incarnation: a ring, and the item cache over it."""

    store_type: type[ObjectStoreWriter] = ObjectStoreWriter

    def __init__(self, num_engines: int) -> None:
        self.ring = RingWriter.create(
            data_bytes=CAPACITY, num_slots=12, max_readers=num_engines + 1, max_object_bytes=CAPACITY
        )
        self.store = self.store_type(self.ring)
        config = ServiceConfig(mm_processor_cache_gb=CAPACITY / GIB, mm_shm_inline_max_kb=0)
        self.cache = RingItemCache(config, self.store)

    def resolve(self, keys: Sequence[str]) -> list[OutgoingItem]:
        """Process what is missing, and return how each item may travel; pinned until `cache.release`."""
        given = {key: Processed(encode(item_for(key).to_record()), int(key) + 1) for key in self.cache.missing(keys)}
        resolved = self.cache.resolve(keys, given)
        assert [item.num_embeds for item in resolved] == [int(key) + 1 for key in keys]
        return resolved

    def message(self, request: Request, engine: Engine, items: Sequence[OutgoingItem]) -> Add:
        """Grant what lies in the ring; what the engine takes no lease of just now is copied out."""
        travelling: list[tuple[Handle, LeaseId] | list[Frame]] = []
        for item in items:
            if isinstance(item.payload, Handle):
                try:
                    travelling.append((item.payload, self.ring.grant(engine.entry.reader_id, item.payload)))
                except LeaseRefused:
                    travelling.append([bytes(frame) for frame in split(self.ring.read(item.payload))])
            else:
                assert item.payload is not None
                travelling.append(item.payload)
        return Add(request, engine.life, travelling)

    def undo(self, message: Add, engine: Engine) -> None:
        """The message was not queued: the last grant first, or a number would be left out."""
        for handle, lease in reversed(message.leases):
            self.ring.undo_grant(engine.entry.reader_id, handle, lease)

    def check_integrity(self) -> None:
        self.cache.check_integrity()

    def close(self) -> None:
        self.store.close()
