"""Grants leases to the engines that read one ring, and takes those back whose descriptors were lost on the way.

    attach ──> granting ──ask──> asked ──the answer to the last question──> granting       asked: it takes no lease
                  └── its entry's lock is free, or another process has its place ──> gone

A reader takes its entry and says so; the entry must hold the incarnation. It is asked which leases have arrived
when it reports a gap, when it has connected anew, and, where a connection may lose single messages, whenever leases are
out although nothing was granted for a while: the last descriptor before a silence leaves no gap. The question goes down
the queue of the descriptors, so its answer knows of all of them. One that is not answered is asked again, ever less
often: the reader may be stopped, and only its death takes anything from it.

Knows nothing of what lies in the ring. Invariants: a lease is counted before the message that carries it is sent, and
taken back if that message was provably not queued; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from mmcached.frontend.connections.entry_owners import EntryOwners
from mmcached.frontend.connections.rings import NoRing
from mmcached.shm import RingWriter
from mmcached.shm.crash_points import crash_point
from mmcached.wire.errors import LeaseRefused, RemoteProtocolError
from mmcached.wire.handle import Handle, LeaseId
from mmcached.wire.messages.frontend import Reconcile
from mmcached.wire.sockets.frames import Frame

log = structlog.get_logger("mmcached.frontend")

IDLE_S = 1.0
"""So long after its last lease, or question, a reader with leases out is asked."""
MAX_WAIT_S = 30.0
Granted = list[tuple[Handle, LeaseId]]
"""The leases that go with one message, in the order of their grants."""


class Channel(Protocol):
    """The readers' end of a socket with many peers; no method waits."""

    def __contains__(self, peer: bytes) -> bool:
        """Return whether a peer is connected."""

    def send(self, peer: bytes, message: object, payload: Sequence[Frame] = ()) -> None:
        """Queue a message; raise PeerGone or ChannelFull if nothing was queued."""

    def try_send(self, peer: bytes, message: object, payload: Sequence[Frame] = ()) -> bool:
        """Queue a message; return whether it was queued."""


@dataclass(slots=True, eq=False)
class Reader:
    """One incarnation of a reader.

    Attributes:
        peer: the connection over which its owner has last said that it has the entry.
        ask_at: the time of the next question, on the frontend's clock.
        is_moved: its connection is new, so what was under way may be lost.
    """

    owner: int
    peer: bytes
    ring: RingWriter
    reader_id: int
    incarnation: int
    ask_at: float
    wait_s: float = IDLE_S
    is_moved: bool = False


class Readers:
    """All readers of one ring, by the numbers of their engines: one each. `clock` tells monotonic seconds.

    Attributes:
        entries: who has which entry; has the ring.
    """

    def __init__(self, ring: RingWriter | NoRing, channel: Channel, clock: Callable[[], float]) -> None:
        self.entries = EntryOwners[int]()
        self.entries.ring = ring
        self._channel = channel
        self._clock = clock
        self._readers: dict[int, Reader] = {}

    def get(self, owner: int) -> Reader | None:
        return self._readers.get(owner)

    def attach(self, owner: int, peer: bytes, *, epoch: int, reader_id: int, incarnation: int) -> Reader | None:
        """As `EntryOwners.attach`; return None if it is not true."""
        ring = self.entries.ring
        is_attached = self.entries.attach(owner, epoch=epoch, reader_id=reader_id, incarnation=incarnation)
        if not is_attached or isinstance(ring, NoRing):
            if owner not in self.entries.owners():
                self._readers.pop(owner, None)
            return None
        reader = self._readers.get(owner)
        if reader is None or reader.incarnation != incarnation:
            reader = Reader(owner, peer, ring, reader_id, incarnation, ask_at=self._clock() + IDLE_S)
            self._readers[owner] = reader
        self.move(owner, peer)
        return reader

    def move(self, owner: int, peer: bytes) -> None:
        """Take note of the connection over which an owner speaks now."""
        reader = self._readers.get(owner)
        if reader is not None:
            reader.is_moved |= reader.peer != peer
            reader.peer = peer

    def leave(self, owner: int) -> None:
        """Grant nothing more to an owner; what it holds ends with its entry's lock."""
        self.entries.leave(owner)
        self._readers.pop(owner, None)

    def take_dead(self) -> list[tuple[int, str]]:
        """As `EntryOwners.take_dead`."""
        dead = self.entries.take_dead()
        for owner, _ in dead:
            self._readers.pop(owner, None)
        return dead

    # ---- leases

    def grant(self, reader: Reader, handle: Handle, granted: Granted) -> LeaseId | None:
        """Count a lease that goes with a message, and note it; return None if the reader takes none just now.

        Raises:
            PeerGone: it takes none any more.
        """
        try:
            lease = reader.ring.grant(reader.reader_id, handle)
        except LeaseRefused:
            return None
        granted.append((handle, lease))
        return lease

    def take_back(self, reader: Reader | None, granted: Granted) -> None:
        """Take back the leases of a message that was provably not queued."""
        if reader is not None:
            for handle, lease in reversed(granted):  # the last first, or their numbers would show a gap
                reader.ring.undo_grant(reader.reader_id, handle, lease)

    def send(
        self, reader: Reader | None, granted: Granted, peer: bytes, message: object, payload: Sequence[Frame]
    ) -> None:
        """Queue a message with the leases of a reader.

        Raises:
            PeerGone, ChannelFull: nothing was queued; the caller takes the leases back.
        """
        crash_point("grant.before_send")
        self._channel.send(peer, message, payload)
        crash_point("grant.after_send")
        if reader is not None and granted:
            reader.ask_at = self._clock() + IDLE_S  # the queue is not idle

    def ask(self, reader: Reader) -> None:
        """Ask which leases have arrived, if any is out."""
        reader.is_moved = False
        barrier = reader.ring.open_barrier(reader.reader_id)
        reader.ask_at = self._clock() + reader.wait_s
        if barrier is not None:
            reader.wait_s = min(2 * reader.wait_s, MAX_WAIT_S)
            self._channel.try_send(reader.peer, barrier)
            crash_point("barrier.after_send")

    def ask_idle(self) -> None:
        """Ask every reader whose queue has been idle for long enough."""
        now = self._clock()
        for reader in list(self._readers.values()):
            if now >= reader.ask_at:
                self.ask(reader)

    def answered(self, peer: bytes, message: Reconcile) -> None:
        """Take the answer to a question; one to a former question changes nothing.

        Raises:
            RemoteProtocolError: the connection has no entry of that incarnation, or the counts cannot be; nothing is
                granted until a better answer comes.
        """
        for reader in self._readers.values():
            if (reader.peer, reader.incarnation) == (peer, message.incarnation):
                break
        else:
            raise RemoteProtocolError("this connection has no entry of that incarnation", "incarnation")
        num_lost = reader.ring.reconcile(reader.reader_id, message.incarnation, message.barrier_id, message.received)
        if num_lost is not None:
            reader.wait_s = IDLE_S
        if num_lost:
            log.warning("leases taken back: their descriptors were lost", reader=reader.owner, leases=num_lost)
