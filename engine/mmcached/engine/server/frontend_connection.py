"""The frontend connection finds the engine's frontend, takes an entry of its ring, and notices another one.

unknown  -- EngineHello, repeated -->  frontend
         <-- Ring --                   take an entry, ReaderHello
         <-- ReaderAttached --         leases may come
known    -- connection lost -->        unknown again; requests go on until it is clear who answers
         <-- Ring, other incarnation   the former frontend is dead, and with it its ring, leases and requests
         <-- Detached                  as if it were dead: hello as another incarnation, another entry
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence

import msgspec
import structlog
import zmq

from mmcached.shm import ReaderEntry
from mmcached.shm.crash_points import crash_point
from mmcached.wire.errors import ChannelFull
from mmcached.wire.handle import Handle, LeaseId
from mmcached.wire.messages import engine as received
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages.parts import Barrier
from mmcached.wire.sockets.channels import DealerChannel
from mmcached.wire.sockets.frames import Frame

log = structlog.get_logger("mmcached.engine")

HELLO_INTERVAL_S = 0.5


class FrontendConnection:
    """The connection to the frontend.

    Attributes:
        entry: this engine's entry of the frontend's ring; None without a ring.
        is_accepted: true if the frontend knows the entry, or has no ring.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], address: str, hello: to_frontend.EngineHello, now: float
    ) -> None:
        self.channel: DealerChannel[received.FromFrontend] = DealerChannel(context, address, received.FromFrontend)
        self.entry: ReaderEntry | None = None
        self.is_accepted = False
        self._former_entries: list[ReaderEntry] = []
        self._hello = hello
        self._next_hello = now
        self._is_known = False
        self._is_detached = False
        self._frontend_incarnation: int | None = None

    @property
    def is_ring_known(self) -> bool:
        """A frontend has announced its ring, or that it has none: workers may attach under `entry`."""
        return self._frontend_incarnation is not None

    @property
    def next_hello(self) -> float:
        """When `keep` has something to say: never, while the frontend knows this engine."""
        return math.inf if self._is_known and self.is_accepted else self._next_hello

    def keep(self, now: float) -> None:
        """Notice a lost connection; say hello while nobody has answered. Call it in every turn.

        A dead frontend's last messages may still come after that.
        """
        if self.channel.take_disconnects():
            log.info("connection to the frontend lost")
            self._is_known = False
        if now >= self.next_hello:
            self._next_hello = now + HELLO_INTERVAL_S
            if self._is_known:
                self._offer_entry()  # the first offer may not have been queued
            else:
                self.send(self._hello)

    def on_ring(self, message: received.Ring) -> bool:
        """Take an entry of the announced ring if the frontend or its ring is new; return whether the frontend is.

        One that has detached this engine counts as new.

        Raises:
            SegmentError: the ring cannot be attached; nothing has changed, and hello is said again.
        """
        is_new = self._is_detached or message.frontend_incarnation != self._frontend_incarnation
        has_ring_now = self.entry is None and message.announcement is not None
        if is_new or has_ring_now:
            entry = None if message.announcement is None else ReaderEntry.attach(message.announcement)
            if self.entry is not None:
                self._former_entries.append(self.entry)
            self.entry = entry
            self.is_accepted = entry is None
            self._frontend_incarnation = message.frontend_incarnation
            self._is_detached = False
        self._is_known = True
        self._offer_entry()
        return is_new

    def on_detached(self, message: received.Detached) -> None:
        """Say hello as another incarnation to a frontend that has dropped this one."""
        log.warning("dropped by the frontend: attaching anew", reason=message.reason)
        self._hello = msgspec.structs.replace(self._hello, incarnation=secrets.randbits(63))
        self._is_known = self.is_accepted = False
        self._is_detached = True

    def _offer_entry(self) -> None:
        if self.entry is not None:
            self.send(
                to_frontend.ReaderHello(self.entry.announcement.epoch, self.entry.reader_id, self.entry.incarnation)
            )

    def close_former_entries(self) -> None:
        """Close the entries of former rings, after all workers have left: to them a free one means a dead engine."""
        while self._former_entries:
            self._former_entries.pop().close()

    def on_reader_attached(self, message: received.ReaderAttached) -> None:
        entry = self.entry
        if entry is not None and (message.reader_id, message.incarnation) == (entry.reader_id, entry.incarnation):
            self.is_accepted = True

    def receive(self, handle: Handle, lease: LeaseId | None) -> bool:
        """Count a descriptor that has come, once; report a gap before it.

        Returns:
            True if it is new and of this incarnation; any other must not be given back.
        """
        if self.entry is None or lease is None:
            return False
        if self.entry.has_gap_before(handle, lease):
            log.warning("descriptors were lost on the way", seq=lease.seq)
            self.send(to_frontend.LeaseGap(self.entry.incarnation))
        return self.entry.receive(handle, lease)

    def on_barrier(self, message: Barrier) -> None:
        """Answer with the leases that have arrived, if the question is to this incarnation."""
        counts = None
        if self.entry is not None:
            counts = self.entry.answer_barrier(message.incarnation, message.last_seq, message.slots)
        if counts is not None:
            crash_point("reconcile.before_answer")
            self.send(to_frontend.Reconcile(message.incarnation, message.barrier_id, counts))

    def give_back(self, handle: Handle) -> None:
        if self.entry is not None:
            self.entry.give_back(handle)

    def send(self, message: to_frontend.FromEngine, payload: Sequence[Frame] = ()) -> None:
        """Queue a message, or log that it is lost: no more than if the frontend had died."""
        try:
            self.channel.send(message, payload)
        except ChannelFull as error:
            log.error("message for the frontend lost", message=type(message).__name__, reason=str(error))

    def close(self) -> None:
        if not self._is_known:
            self.channel.socket.setsockopt(zmq.LINGER, 0)  # nobody is there to take what is queued
        self.channel.close()
        self.close_former_entries()
        if self.entry is not None:
            self.entry.close()
