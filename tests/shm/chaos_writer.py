"""The writer of a chaos run: it uses a ring as a service would, in a ring so small that each chunk lives for a blink.

Every 8-byte word of a payload says generation and slot, so that a reader can tell its bytes from any others.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import deque

import msgspec
import numpy as np
import zmq

from mmcached.shm import RingWriter, sweep
from mmcached.wire.errors import CacheFull, LeaseRefused, PeerGone
from mmcached.wire.handle import Handle
from tests.shm.chaos_board import Count, Phase
from tests.shm.chaos_roles import Hello, Lease, Ring, Role, Who, open_socket, stamp_of

RING_BYTES = 2 << 20
NUM_SLOTS = 96
MAX_ROWS = 8
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
        self._row_to_identity: dict[int, bytes] = {}
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
                self.look_at_rows()
            if phase == Phase.REST:
                self.ring.check_integrity()
                self.role.board.set(self.role.life, Count.LEASES, self.ring.stats().leases)
                self.role.count(Count.RESTS)

    def look_at_rows(self) -> None:
        self.role.count(Count.DEATHS, len(self.ring.poll_deaths()))
        self.ring.check_integrity()

    def _listen(self) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                identity, frame = self._socket.recv_multipart(zmq.NOBLOCK)
                match self._decoder.decode(frame):
                    case Who():
                        self._send(identity, Ring(self.ring.announcement))
                    case Hello(ring_id, row, nonce):
                        is_this = ring_id == self.ring.announcement.ring_id
                        if is_this and self.ring.attach(row, nonce):
                            self._row_to_identity[row] = identity

    def _step(self) -> None:
        handle = self._random.choice(self._recent) if self._recent and self._random.random() < 0.5 else None
        if handle is None or not self.ring.is_current(handle):
            handle = self._put()
        rows = self.ring.attached_rows()
        if handle is not None and rows:
            for row in self._random.sample(rows, self._random.randint(1, len(rows))):
                self._grant(row, handle)

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

    def _grant(self, row: int, handle: Handle) -> None:
        try:
            lease = self.ring.grant(row, handle)
        except (PeerGone, LeaseRefused):
            return
        if self._send(self._row_to_identity[row], Lease(handle, lease)):
            self.role.count(Count.GRANTS)
        else:
            self.ring.undo_grant(row, handle, lease)
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
            max_rows=MAX_ROWS,
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
