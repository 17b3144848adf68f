"""The writer and the reader of a chaos run, as they are and with a rule of the ring taken away.

The writer uses a ring as a service would, in a ring so small that each chunk lives for a blink. Every 8-byte word of a
payload says generation and slot. The reader looks at every byte that it is granted, twice: at receipt and again before
it lets go of the view, each word must be what the handle says. The lease goes back as in the product: the view's
finalizer puts it on a deque, the loop gives it back. When the writer is killed, the reader finishes on the old mapping,
then attaches to the new ring. A mutant's books may be untrue, and are not checked.
"""

from __future__ import annotations

import contextlib
import random
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from unittest import mock

import msgspec
import numpy as np
import numpy.typing as npt
import zmq

from mmcached.shm import ReaderEntry, RingReader, RingWriter, sweep
from mmcached.shm.ring.leases import LeaseTable
from mmcached.wire.errors import CacheFull, LayoutMismatch, LeaseRefused, PeerGone, SegmentError, StaleHandle
from mmcached.wire.handle import Handle, RingAnnouncement
from scripts.verification.chaos_roles import Count, Hello, Lease, Phase, Ring, Role, Who, open_socket, stamp_of
from scripts.verification.mutants import Mutant

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
        self._random = random.Random(role.seed)
        self._socket = socket
        self._reader_to_identity: dict[int, bytes] = {}
        self._recent: deque[Handle] = deque(maxlen=NUM_SLOTS // 2)
        self._decoder = msgspec.msgpack.Decoder(Who | Hello)

    def run(self) -> None:
        looked_at = 0.0
        while (phase := self.role.board.phase) != Phase.END:
            if self._socket.poll(1):
                self._listen()
            if phase == Phase.RUN:
                for _ in range(BURST):
                    self._step()
            if (now := time.monotonic()) - looked_at > 0.01 or phase == Phase.REST:
                looked_at = now
                self.look_at_readers()
            if phase == Phase.REST:
                self.ring.check_integrity()
                self.role.board.set(self.role.life, Count.LEASES, self.ring.stats().leases)
                self.role.count(Count.RESTS)

    def look_at_readers(self) -> None:
        self.role.count(Count.DEATHS, len(self.ring.poll_deaths()))
        self.ring.check_integrity()

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

    def _step(self) -> None:
        handle = self._random.choice(self._recent) if self._recent and self._random.random() < 0.5 else None
        if handle is None or not self.ring.is_current(handle):
            handle = self._put()
        readers = self.ring.grantable_readers()
        if handle is not None and readers:
            for reader_id in self._random.sample(readers, self._random.randint(1, len(readers))):
                self._grant(reader_id, handle)

    def _put(self) -> Handle | None:
        nbytes = 8 * self._random.randint(1, MAX_WORDS)
        try:
            claim = self.ring.claim(nbytes)
        except CacheFull:
            self.role.count(Count.REFUSED)
            return None
        claim.buffer.view(np.uint64)[:] = stamp_of(claim)
        handle = self.ring.commit(claim)
        self._recent.append(handle)
        self.role.count(Count.PUTS)
        return handle

    def _grant(self, reader_id: int, handle: Handle) -> None:
        try:
            lease = self.ring.grant(reader_id, handle)
        except (PeerGone, LeaseRefused):
            return
        if self._send(self._reader_to_identity[reader_id], Lease(handle, lease)):
            self.role.count(Count.GRANTS)
        else:
            self.ring.undo_grant(reader_id, handle, lease)
            self.role.count(Count.UNSENT)

    def _send(self, identity: bytes, message: Ring | Lease) -> bool:
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
        with (role.run_dir / "rings").open("a") as log:  # for the parent, which looks for what is left of it
            log.write(ring.announcement.ring_id + "\n")
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.bind(role.address)
        cls(role, ring, socket).run()


HOLD_S = 0.02
SILENCE_S = 0.1


@dataclass(slots=True)
class Held:
    """A payload in the reader's hands, a view or its own copy, until `release_at`."""

    handle: Handle
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

    def receive(self, reader: RingReader, handle: Handle) -> None:
        """Look at a payload that has just been leased, and keep it for a while."""
        try:
            holder = reader.view(handle)
        except StaleHandle:  # under a lease: its bytes were given to another
            self.role.count(Count.STALE)
            self.give_back(handle)
            return
        weakref.finalize(holder, self._done.append, handle).atexit = False
        words = holder.view(np.uint64)
        self._check(handle, words)
        if self._random.random() < 0.2:
            words = words.copy()  # the view dies here, and the lease goes back although the copy is held
            self.role.count(Count.COPIED)
        hold_s = self._random.choice([0, 0, 1, 1, 3]) * self._random.random() * HOLD_S
        self._held.append(Held(handle, words, time.monotonic() + hold_s))

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
                    case Lease(handle, lease):
                        if self._attached and self._attached[0].receive(handle, lease):
                            self.receive(self._attached[1], handle)
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
            elif self._check(held.handle, held.words):
                self.role.count(Count.VERIFIED)
            del held  # with it the view, unless it is kept
        self._held = kept
        self._flush()

    def _check(self, handle: Handle, words: npt.NDArray[np.uint64]) -> bool:
        is_whole = bool((words == stamp_of(handle)).all())
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


TIMEOUT_S = 0.15


class EarlyReader(ChaosReader):
    """Gives a lease back when it arrives, and goes on reading."""

    def receive(self, reader: RingReader, handle: Handle) -> None:
        super().give_back(handle)
        super().receive(reader, handle)

    def give_back(self, handle: Handle) -> None:
        """The usual time; it is back already."""


class RevokingWriter(ChaosWriter):
    """Takes the leases of an entry back that has returned nothing for a while: it must be dead."""

    def look_at_readers(self) -> None:
        super().look_at_readers()
        leases = self.ring._leases
        for reader_id, incarnation in leases.incarnations().items():
            returned, now = int(leases._counts[reader_id, :, 0].sum()), time.monotonic()
            last, since = self._reader_to_progress.get(reader_id, (-1, now))
            self._reader_to_progress[reader_id] = (returned, since if returned == last else now)
            if returned == last and now - since > TIMEOUT_S:
                leases.void(reader_id)
                leases.attach(reader_id, incarnation)

    _reader_to_progress: dict[int, tuple[int, float]] = {}  # noqa: RUF012 - one writer per process


@dataclass(frozen=True, slots=True)
class Players:
    """Who plays in a run.

    Attributes:
        patched: what is done to the product in each process, for as long as it plays.
    """

    writer: type[ChaosWriter] = ChaosWriter
    reader: type[ChaosReader] = ChaosReader
    patched: Callable[[], AbstractContextManager[object]] = nullcontext


MUTANTS = {
    mutant.name: mutant
    for mutant in (
        Mutant(
            "allocator-ignores-leases",
            Players(patched=partial(mock.patch.object, LeaseTable, "is_pinned", return_value=False)),
        ),
        Mutant("early-give-back", Players(reader=EarlyReader)),
        Mutant("revoke-on-timeout", Players(writer=RevokingWriter)),
    )
}
