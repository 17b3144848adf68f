"""The reader of a chaos run: it looks at every byte that it is granted, twice.

At receipt and again before it lets go of the view, each word must be what the handle says. The lease goes back as in
the product: the view's finalizer puts it on a deque, the loop gives it back. When the writer is killed, the reader
finishes on the old mapping, then attaches to the new ring.
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

from mmcached.shm import ReaderRow, RingReader
from mmcached.wire.errors import LayoutMismatch, SegmentError, StaleHandle
from mmcached.wire.handle import Handle, RingAnnouncement
from tests.shm.chaos_board import Count, Phase
from tests.shm.chaos_roles import Hello, Lease, Ring, Role, Who, open_socket, stamp_of

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
        self._attached: tuple[ReaderRow, RingReader] | None = None
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
                row = ReaderRow.attach(announcement)
            except (SegmentError, LayoutMismatch):  # its writer was killed, and the next one has swept
                return
            self._attached = row, reader
            self.role.count(Count.ATTACHED)
        row, _ = self._attached
        self._say(Hello(announcement.ring_id, row.row, row.nonce))

    def _leave(self) -> None:
        """Finish on the old mapping: what is held must be whole although the writer is dead and its names are gone."""
        if self._attached is not None:
            row, reader = self._attached
            self._release(before=float("inf"))
            row.close()
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
