"""Plays the frontend of a store and its clients, which find records and take leases by themselves.

The frontend puts, drops and flushes records of few keys all the time, in a ring so small that each lives for a blink.
Every 8-byte word of a record is its stamp: when it was made, and for which key. Other processes lay records of other
keys into nurseries (`chaos_layers`), which the frontend publishes there. A client looks keys up in several
threads, checks every word at the look and again before it lets go, and holds some for a while, as views or copies. When
the frontend is killed, the next adopts its ring, and clients go on as if nothing had happened.
"""

from __future__ import annotations

import random
import select
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import zmq

from mmcached.cache.store_keys import store_key
from mmcached.client.store.hits import Hit, Reading
from mmcached.client.store.session import StoreSession
from mmcached.frontend.connections.rings import LateRing, RingPlan
from mmcached.frontend.store.nursery_service import NurseryService
from mmcached.frontend.store.record_books import RecordBooks
from mmcached.frontend.store.record_store import RecordStore
from mmcached.frontend.store.ring_records import RingRecords
from mmcached.shm import ObjectStoreReader, RingReader, RingWriter, sweep
from mmcached.shm.ring.chunks import RingClaim
from mmcached.shm.ring.key_index import index_words, key_digest
from mmcached.shm.segment.layout import Layout
from mmcached.shm.segment.nursery_files import nurseries_of
from mmcached.shm.store import codec
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import MmcachedError, RequestAborted, StaleHandle
from mmcached.wire.handle import Handle, RingAnnouncement
from mmcached.wire.limits import LimitsConfig
from scripts.verification.chaos_roles import (
    KEYS,
    LEDGER_WORDS,
    NUM_KEYS,
    SILENCE_S,
    STAMP_BITS,
    TENANT,
    Attached,
    Count,
    Hello,
    Laid,
    Lay,
    Open,
    Opened,
    Phase,
    Ring,
    Role,
    Who,
    new_stamp,
    open_socket,
)
from tests.frontend.integrity import check_nursery_service, check_records

RING_BYTES = 1 << 20
CONFIG = ServiceConfig(store_gb=1 / 64, limits=LimitsConfig(max_nurseries=4))
"""Of the nurseries alone: their budget is 4 MiB."""
NUM_PLACED = 48
BURST = 8
MAX_WORDS = 2 << 10
PLAN = RingPlan(
    layout=Layout(RING_BYTES, num_slots=LEDGER_WORDS, max_readers=8, index_words=index_words(LEDGER_WORDS)),
    settings={},
    max_object_bytes=RING_BYTES,
    shared_quota_bytes=RING_BYTES // 2,
    num_nursery_slots=NUM_PLACED,
)
NUM_THREADS = 2
HOLDS_S = (0,) * 120 + (0.02,) * 40 + (0.06,) * 40 + (1,)
"""What a record is held at most; the longest outlives a restart of the frontend."""


class _Living:
    """Stands for the channel: the connection of a layer ends with its process."""

    def __contains__(self, identity: bytes) -> bool:
        return Path(f"/proc/{int(identity.split()[1])}").exists()


class _Records(RingRecords):
    """Records that keep the ledger when one of them is copied into the ring."""

    def __init__(self, books: RecordBooks, ledger: memoryview) -> None:
        super().__init__(books)
        self._ledger = ledger

    def end_copy(self, handle: Handle, claim: RingClaim, *, is_proven: bool) -> bool:
        is_moved = super().end_copy(handle, claim, is_proven=is_proven)
        if is_moved:
            self._ledger[claim.slot], self._ledger[handle.slot] = self._ledger[handle.slot], 0
        return is_moved


class StoreWriter:
    """Puts, drops and flushes until it is killed or the phase is over; a reader that says Hello is told when it may
    take leases.
    """

    def __init__(self, role: Role, ring: RingWriter, records: RecordStore, socket: zmq.Socket[bytes]) -> None:
        self.role = role
        self.ring = ring
        self.random = random.Random(role.seed)
        self._socket = socket
        self._decoder = msgspec.msgpack.Decoder(Who | Hello | Open | Lay)
        self._records = records
        self._nurseries = NurseryService(CONFIG, records, _Living())  # type: ignore[arg-type]
        self._nurseries.adopt()

    def run(self) -> None:
        looked_at = 0.0
        while (phase := self.role.board.phase) != Phase.END:
            if self._socket.poll(1):
                self._listen()
            if phase == Phase.RUN:
                for _ in range(BURST):
                    self.step()
                self._nurseries.work()
            if (now := time.monotonic()) - looked_at > 0.01 or phase == Phase.REST:
                looked_at = now
                self.look_at_readers()
            if phase == Phase.REST:
                self.rest()

    def rest(self) -> None:
        """Say what is still under lease."""
        stats = self.ring.stats()
        self.role.board.set(self.role.life, Count.LEASES, stats.leases)
        self.role.board.set(self.role.life, Count.PINNED_BYTES, stats.pinned_bytes)
        self.role.count(Count.RESTS)

    def look_at_readers(self) -> None:
        self._records.poll_hits()
        self.role.count(Count.DEATHS, len(self.ring.readers.poll_deaths()))
        self._nurseries.check()
        check_records(self._records)
        check_nursery_service(self._nurseries)
        books = self._nurseries.books
        assert nurseries_of(self.ring.announcement) == sorted(one.nursery for one in books)
        self.role.board.set(self.role.life, Count.DRAINED, sum(one.peer is None for one in books))
        self.role.board.set(self.role.life, Count.PROMOTED, self._nurseries.copies.num_done)

    def _listen(self) -> None:
        with suppress(zmq.Again):
            while True:
                identity, frame = self._socket.recv_multipart(zmq.NOBLOCK)
                match self._decoder.decode(frame):
                    case Who():
                        self._send(identity, Ring(self.ring.announcement))
                    case Hello(ring_id, reader_id, incarnation):
                        is_this = ring_id == self.ring.announcement.ring_id
                        if is_this and self.ring.readers.attach(reader_id, incarnation):
                            self._send(identity, Attached(incarnation))
                    case Open(nbytes, nursery):
                        try:
                            grants = self._nurseries.open(identity, nbytes, nursery)
                        except MmcachedError:
                            grants = None
                        self._send(identity, Opened(self._records.epoch, grants))
                    case Lay() as message:
                        self._send(identity, self._publish(identity, message))

    def _publish(self, identity: bytes, message: Lay) -> Laid:
        """Publish a record where a layer has laid it, as `StoreService` does."""
        try:
            record = self._nurseries.take(identity, message.place)
        except StaleHandle:
            return Laid(message.number, self._records.epoch, None, is_stale=True)
        key, overwrites = KEYS[message.key], self.random.random() < 0.3
        former = self._records.find(TENANT, key)
        if former is not None and overwrites:
            self.role.board.ledger[former.slot] = 0
        try:
            refusal = self._records.put(TENANT, key, record, epoch=message.epoch, overwrites=overwrites)
        finally:
            self._nurseries.settle(identity, record)
        place = self._records.find(TENANT, key)
        if place is not None and refusal is None and (former is None or overwrites):
            self.role.board.ledger[place.slot] = message.stamp
            self.role.count(Count.LAID)
        return Laid(message.number, self._records.epoch, self._nurseries.grants(identity))

    def _send(self, identity: bytes, message: Ring | Attached | Opened | Laid) -> None:
        """Send without waiting; what cannot be queued is lost, and asked for again."""
        with suppress(zmq.ZMQError):
            self._socket.send_multipart([identity, msgspec.msgpack.encode(message)], zmq.NOBLOCK)

    def count_kept(self) -> None:
        """Count what the life before has committed and not evicted, and how much of it a client finds now."""
        ledger = self.role.board.ledger
        with RingReader.open(self.ring.announcement) as reader:
            store = ObjectStoreReader(reader)
            found = {}
            for key in KEYS:
                handle = reader.look.find(key_digest(store_key(TENANT, key)))
                if handle is not None:
                    found[handle.slot] = int(store.get(handle, tensors="numpy")["words"][-1])
        kept = {slot: stamp for slot, stamp in enumerate(ledger) if stamp}
        self.role.count(Count.KEPT, len(kept))
        self.role.count(Count.FOUND, len(kept.items() & found.items()))
        for slot in range(LEDGER_WORDS):
            ledger[slot] = found.get(slot, 0)

    def step(self) -> None:
        number = self.random.randrange(NUM_KEYS)
        if self.random.random() < 0.0005:
            self._flush()
        elif not self._records.has(TENANT, KEYS[number]):
            self._put_record(number)
        elif self.random.random() < 0.2:
            self._drop(number)

    def _put_record(self, number: int) -> None:
        stamp = new_stamp(number)
        words = np.full(self.random.randint(1, MAX_WORDS), stamp, np.uint64)
        encoded = codec.encode({"words": words})
        if self._records.put(TENANT, KEYS[number], encoded, epoch=self._records.epoch) is None:
            self.role.board.ledger[self._place(number).slot] = stamp
            self.role.count(Count.PUTS)
        else:
            self.role.count(Count.REFUSED)

    def _drop(self, number: int) -> None:
        self.role.board.ledger[self._place(number).slot] = 0
        self._records.drop(TENANT, KEYS[number])
        self.role.count(Count.DROPS)

    def _flush(self) -> None:
        for slot in range(LEDGER_WORDS):
            self.role.board.ledger[slot] = 0
        begun = new_stamp((1 << STAMP_BITS) - 1)
        self._records.begin_epoch()
        self.role.board.flushed = begun
        self.role.count(Count.FLUSHES)

    def _place(self, number: int) -> Handle:
        handle = self._records.find(TENANT, KEYS[number])
        assert handle is not None
        return handle


def run_store(role: Role) -> None:
    """Go on with the ring of the life before, or make the first, and keep records in it."""
    sweep()
    ledger = role.board.ledger

    def forget(handle: Handle) -> None:
        ledger[handle.slot] = 0

    with (
        LateRing("store", PLAN, role.run_dir, outlives_service=False) as late_ring,
        RecordStore(first_epoch=time.time_ns()) as records,
        zmq.Context() as context,
        open_socket(context, zmq.ROUTER) as socket,
    ):
        ring = late_ring.take(time.monotonic())
        assert ring is not None
        ring.records.on_evict = forget
        records.in_ring = _Records(records.in_ring.books, ledger)
        records.adopt(ring)
        role.log_ring(ring.announcement)
        writer = StoreWriter(role, ring, records, socket)
        writer.count_kept()
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.bind(role.address)
        writer.run()


@dataclass(slots=True)
class Held:
    """The words of a record in a client's hands, a view or its own copy, until `release_at`."""

    stamp: int
    words: npt.NDArray[np.uint64]
    release_at: float

    def is_whole(self) -> bool:
        return bool((self.words == self.stamp).all())


class Client:
    """Is a reader of whatever ring there is; its threads find records."""

    def __init__(self, role: Role, socket: zmq.Socket[bytes]) -> None:
        self._role = role
        self._socket = socket
        self._session = StoreSession(None)
        self._incarnation = 0
        self._heard_at = -SILENCE_S
        self._decoder = msgspec.msgpack.Decoder(Ring | Attached)
        self._count_lock = threading.Lock()

    def run(self) -> None:
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            threads = [pool.submit(self._find_all, random.Random(self._role.seed + n)) for n in range(NUM_THREADS)]
            while self._role.board.phase != Phase.END:
                if (now := time.monotonic()) - self._heard_at > SILENCE_S:
                    self._heard_at = now
                    self._say(Who())
                if self._socket.poll(10):
                    self._listen()
        for thread in threads:
            thread.result()
        self._session.close()

    # ---- the thread that talks to the frontend

    def _listen(self) -> None:
        match self._decoder.decode(self._socket.recv()):
            case Ring(announcement):
                self._meet(announcement)
            case Attached(incarnation):
                if incarnation == self._incarnation:
                    self._session.is_attached = True

    def _meet(self, announcement: RingAnnouncement) -> None:
        if self._session.ring != announcement or self._session.why_inline:
            old, self._session = self._session, StoreSession(announcement)
            old.close()
            self._count(Count.ATTACHED, int(not self._session.why_inline))
        if not self._session.is_attached:
            self._session.lost_contact()
            entry = self._session.take_announcement()
            if entry is not None:  # else its writer was killed, and the next one has swept
                self._incarnation = entry.incarnation
                self._say(Hello(announcement.ring_id, entry.reader_id, entry.incarnation))

    def _say(self, message: Who | Hello) -> None:
        with suppress(zmq.Again):
            self._socket.send(msgspec.msgpack.encode(message), zmq.NOBLOCK)

    # ---- the threads that find records

    def _find_all(self, rng: random.Random) -> None:
        held: list[Held] = []
        while (phase := self._role.board.phase) != Phase.END:
            if phase == Phase.REST:
                self._release(held, before=float("inf"))
            elif self._find(rng, held):
                self._release(held, before=time.monotonic())
                continue
            select.select([], [], [], 0.005)
        self._release(held, before=float("inf"))

    def _find(self, rng: random.Random, held: list[Held]) -> bool:
        """Look some keys up, and check what is found; return whether that can be seen at all."""
        numbers = rng.choices(range(len(KEYS)), k=rng.choice((1, 1, 1, 4)))
        reading = Reading("numpy", view=rng.random() < 0.9)
        flushed = self._role.board.flushed
        session = self._session
        try:
            hits = session.find([KEYS[number] for number in numbers], TENANT, reading)
        except RequestAborted:  # the session has just been closed
            return False
        except MmcachedError:  # the head of a record is another's
            self._count(Count.CORRUPT)
            return True
        if hits is None:
            return False
        for number, hit in zip(numbers, hits, strict=True):
            if hit is not None:
                held.append(self._look_at(hit, number, flushed, rng))
        self._count(Count.MISSES, hits.count(None))
        self._count(Count.COPIED, 0 if reading.view else len(hits) - hits.count(None))
        return True

    def _look_at(self, hit: Hit, number: int, flushed: int, rng: random.Random) -> Held:
        words = hit.record["words"]
        hold_s = rng.choice(HOLDS_S) * rng.random()
        found = Held(int(words[0]), words, time.monotonic() + hold_s)
        if not found.is_whole() or found.stamp % (1 << STAMP_BITS) != number:
            self._count(Count.CORRUPT)
        elif found.stamp <= flushed:
            self._count(Count.STALE)
        return found

    def _release(self, held: list[Held], before: float) -> None:
        """Check what has been held for long enough, and let go of it."""
        kept = [each for each in held if each.release_at > before]
        whole = [each.is_whole() for each in held if each.release_at <= before]
        held[:] = kept
        self._count(Count.VERIFIED, whole.count(True))
        self._count(Count.CORRUPT, whole.count(False))

    def _count(self, count: Count, number: int = 1) -> None:
        with self._count_lock:
            self._role.count(count, number)


def run_client(role: Role) -> None:
    """Find whatever there is to find."""
    with zmq.Context() as context, open_socket(context, zmq.DEALER) as socket:
        socket.setsockopt(zmq.IDENTITY, b"reader %d" % role.life)
        socket.setsockopt(zmq.RECONNECT_IVL, 10)
        socket.connect(role.address)
        Client(role, socket).run()
