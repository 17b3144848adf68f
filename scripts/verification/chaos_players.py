"""Plays the writer and the reader of a ring whose leases are granted by message.

The writer uses a ring as a service would, in a ring so small that each chunk lives for a blink. Every 8-byte word of a
payload is its stamp. The reader looks at every byte that it is granted, twice: at receipt and again before it lets go
of the view, each word must be the stamp that came with the lease. The lease goes back as in the product: the view's
finalizer puts it on a deque, the loop gives it back. When the writer is killed, the reader finishes on the old mapping,
then attaches to the new ring.
"""

from __future__ import annotations

import contextlib
import random
import time
import weakref
from collections import deque
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import zmq

from mmcached.shm import ReaderEntry, RingReader, RingWriter, sweep
from mmcached.wire.errors import CacheFull, LayoutMismatch, LeaseRefused, PeerGone, SegmentError, StaleHandle
from mmcached.wire.handle import Handle, RingAnnouncement
from scripts.verification.chaos_roles import (
    STAMP_BITS,
    Attached,
    Count,
    Hello,
    Lease,
    Phase,
    Ring,
    Role,
    Who,
    first_stamp,
    open_socket,
)

RING_BYTES = 2 << 20
NUM_SLOTS = 96
MAX_READERS = 8
QUOTA_BYTES = 512 << 10
MAX_WORDS = 8 << 10
BURST = 8


class ChaosWriter:
    """Puts, evicts, grants to every reader that says Hello, until it is killed or the phase is over."""

    def __init__(self, role: Role, ring: RingWriter, socket: zmq.Socket[bytes]) -> None:
        self.role = role
        self.ring = ring
        self.random = random.Random(role.seed)
        self._socket = socket
        self._reader_to_identity: dict[int, bytes] = {}
        self.last_stamp = first_stamp(role.life)
        self._recent: deque[tuple[Handle, int]] = deque(maxlen=NUM_SLOTS // 2)
        self._decoder = msgspec.msgpack.Decoder(Who | Hello)

    def run(self) -> None:
        looked_at = 0.0
        while (phase := self.role.board.phase) != Phase.END:
            if self._socket.poll(1):
                self._listen()
            if phase == Phase.RUN:
                for _ in range(BURST):
                    self.step()
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
        self.role.count(Count.DEATHS, len(self.ring.poll_deaths()))
        self.ring.check_integrity()

    def attached(self, reader_id: int, incarnation: int) -> None:
        """Do what follows when a reader was attached; nothing here."""

    def _listen(self) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                identity, frame = self._socket.recv_multipart(zmq.NOBLOCK)
                match self._decoder.decode(frame):
                    case Who():
                        self._send(identity, Ring(self.ring.announcement))
                    case Hello(ring_id, reader_id, incarnation):
                        is_this = ring_id == self.ring.announcement.ring_id
                        if is_this and self.ring.attach(reader_id, incarnation):
                            self._reader_to_identity[reader_id] = identity
                            self.attached(reader_id, incarnation)

    def step(self) -> None:
        put = self.random.choice(self._recent) if self._recent and self.random.random() < 0.5 else None
        if put is None or not self.ring.is_current(put[0]):
            put = self._put()
        readers = self.ring.grantable_readers()
        if put is not None and readers:
            for reader_id in self.random.sample(readers, self.random.randint(1, len(readers))):
                self._grant(reader_id, *put)

    def _put(self) -> tuple[Handle, int] | None:
        nbytes = 8 * self.random.randint(1, MAX_WORDS)
        try:
            claim = self.ring.claim(nbytes)
        except CacheFull:
            self.role.count(Count.REFUSED)
            return None
        self.last_stamp += 1 << STAMP_BITS
        claim.buffer.view(np.uint64)[:] = self.last_stamp
        put = self.ring.commit(claim), self.last_stamp
        self._recent.append(put)
        self.role.count(Count.PUTS)
        return put

    def _grant(self, reader_id: int, handle: Handle, stamp: int) -> None:
        try:
            lease = self.ring.grant(reader_id, handle)
        except (PeerGone, LeaseRefused):
            return
        if self.send(reader_id, Lease(handle, lease, stamp)):
            self.role.count(Count.GRANTS)
        else:
            self.ring.undo_grant(reader_id, handle, lease)
            self.role.count(Count.UNSENT)

    def send(self, reader_id: int, message: Lease | Attached) -> bool:
        """Send to an attached reader, without waiting; return whether it was queued."""
        return self._send(self._reader_to_identity[reader_id], message)

    def _send(self, identity: bytes, message: Ring | Lease | Attached) -> bool:
        try:
            self._socket.send_multipart([identity, msgspec.msgpack.encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError:  # its queue is full, or it is not connected any more
            return False
        return True


def run_writer(role: Role, cls: type[ChaosWriter] = ChaosWriter) -> None:
    """Sweep, make a ring and serve it."""
    sweep()
    with (
        RingWriter.create(
            data_bytes=RING_BYTES,
            num_slots=NUM_SLOTS,
            max_readers=MAX_READERS,
            max_object_bytes=RING_BYTES,
            reader_quota_bytes=QUOTA_BYTES,
        ) as ring,
        zmq.Context() as context,
        open_socket(context, zmq.ROUTER) as socket,
    ):
        role.log_ring(ring.announcement)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.bind(role.address)
        cls(role, ring, socket).run()


HOLD_S = 0.02
SILENCE_S = 0.1


@dataclass(slots=True)
class Held:
    """A payload in the reader's hands, a view or its own copy, until `release_at`."""

    stamp: int
    words: npt.NDArray[np.uint64]
    release_at: float


class ChaosReader:
    """Attaches to whatever ring there is, holds what it is granted for a random time, checks, gives back."""

    def __init__(self, role: Role, socket: zmq.Socket[bytes]) -> None:
        self.role = role
        self._random = random.Random(role.seed)
        self._socket = socket
        self._attached: tuple[ReaderEntry, RingReader] | None = None
        self._held: list[Held] = []
        self._done: deque[Handle] = deque()
        self._heard_at = -SILENCE_S
        self._decoder = msgspec.msgpack.Decoder(Ring | Lease)

    def run(self) -> None:
        while (phase := self.role.board.phase) != Phase.END:
            now = time.monotonic()
            if now - self._heard_at > SILENCE_S:
                self._heard_at = now
                self._say(Who())
            if self._socket.poll(1):
                self._listen()
            self._release(before=time.monotonic() if phase == Phase.RUN else float("inf"))
        self._leave()

    def receive(self, reader: RingReader, handle: Handle, stamp: int) -> None:
        """Look at a payload that has just been leased, and keep it for a while."""
        try:
            holder = reader.view(handle)
        except StaleHandle:  # under a lease: its bytes were given to another
            self.role.count(Count.STALE)
            self.give_back(handle)
            return
        weakref.finalize(holder, self._done.append, handle).atexit = False
        words = holder.view(np.uint64)
        self._check(stamp, words)
        if self._random.random() < 0.2:
            words = words.copy()  # the view dies here, and the lease goes back although the copy is held
            self.role.count(Count.COPIED)
        hold_s = self._random.choice([0, 0, 1, 1, 3]) * self._random.random() * HOLD_S
        self._held.append(Held(stamp, words, time.monotonic() + hold_s))

    def give_back(self, handle: Handle) -> None:
        if self._attached is not None:
            self._attached[0].give_back(handle)

    def _listen(self) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                message = self._decoder.decode(self._socket.recv(zmq.NOBLOCK))
                self._heard_at = time.monotonic()
                match message:
                    case Ring(announcement):
                        self._attach(announcement)
                    case Lease(handle, lease, stamp):
                        if self._attached and self._attached[0].receive(handle, lease):
                            self.receive(self._attached[1], handle, stamp)
                        else:
                            self.role.count(Count.FOREIGN)
                        self._flush()

    def _attach(self, announcement: RingAnnouncement) -> None:
        if self._attached is None or self._attached[0].announcement.ring_id != announcement.ring_id:
            self._leave()
            try:
                reader = RingReader.open(announcement)
                entry = ReaderEntry.attach(announcement)
            except (SegmentError, LayoutMismatch):  # its writer was killed, and the next one has swept
                return
            self._attached = entry, reader
            self.role.count(Count.ATTACHED)
        entry, _ = self._attached
        self._say(Hello(announcement.ring_id, entry.reader_id, entry.incarnation))

    def _leave(self) -> None:
        """Finish on the old mapping: what is held must be whole although the writer is dead and its names are gone."""
        if self._attached is not None:
            entry, reader = self._attached
            self._release(before=float("inf"))
            entry.close()
            reader.close()
            self._attached = None

    def _release(self, before: float) -> None:
        kept = []
        while self._held:
            held = self._held.pop()
            if held.release_at > before:
                kept.append(held)
            elif self._check(held.stamp, held.words):
                self.role.count(Count.VERIFIED)
            del held  # with it the view, unless it is kept
        self._held = kept
        self._flush()

    def _check(self, stamp: int, words: npt.NDArray[np.uint64]) -> bool:
        is_whole = bool((words == stamp).all())
        if not is_whole:
            self.role.count(Count.CORRUPT)
        return is_whole

    def _flush(self) -> None:
        while self._done:
            self.give_back(self._done.popleft())

    def _say(self, message: Who | Hello) -> None:
        with contextlib.suppress(zmq.Again):
            self._socket.send(msgspec.msgpack.encode(message), zmq.NOBLOCK)


def run_reader(role: Role, cls: type[ChaosReader] = ChaosReader) -> None:
    """Read whatever there is to read."""
    with zmq.Context() as context, open_socket(context, zmq.DEALER) as socket:
        socket.setsockopt(zmq.IDENTITY, b"reader %d" % role.life)
        socket.setsockopt(zmq.RECONNECT_IVL, 10)
        socket.connect(role.address)
        cls(role, socket).run()
