"""One accepted connection of a `Listener`: its peer's incomplete message, and the bytes that wait for its peer.

Held bytes are those that wait for the peer, and those received of an incomplete message. A frame's announced size is
compared with the limit of a message, and nothing is allocated for it until bytes come.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from mmcached.wire.errors import ChannelFull
from mmcached.wire.sockets.bounds import Bounds
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.sockets.sending import kept, nbytes, send_now, send_queued
from mmcached.wire.sockets.zmtp import MessageReader

READ_BYTES = 1 << 16


@dataclass(slots=True, eq=False)
class PeerConnection:
    """One peer.

    Attributes:
        queue, queued_bytes: Pieces that it has not taken yet.
        counted_bytes: `held_bytes` when its listener last counted them.
        message_at: Arrival of the first bytes of the incomplete message.
        marked_at, marked_bytes: Bytes that have been waiting since `marked_at`; the oldest are sent first.
        has_more: Whether `receive`, called again, may find something that the kernel does not signal.
        has_ended: Whether the peer has closed the connection, found by `receive`.
        is_due: Whether it is in the listener's current round: it may have something to read.
        events: Events that the listener polls for.
        refused_since: Start of an excess connection; None for others.
    """

    peer: bytes
    stream: socket.socket
    reader: MessageReader
    read_at: float
    sent_at: float
    message_at: float
    marked_at: float
    marked_bytes: int = 0
    queue: deque[memoryview] = field(default_factory=deque)
    queued_bytes: int = 0
    counted_bytes: int = 0
    has_more: bool = False
    has_ended: bool = False
    is_due: bool = False
    is_open: bool = True
    events: int = select.EPOLLIN
    refused_since: float | None = None

    @classmethod
    def accepted(cls, peer: bytes, stream: socket.socket, bounds: Bounds, now: float) -> PeerConnection:
        reader = MessageReader(b"DEALER", max_frames=bounds.max_frames, max_bytes=bounds.max_message_bytes)
        return cls(peer, stream, reader, now, now, now, now)

    @property
    def held_bytes(self) -> int:
        return self.queued_bytes + self.reader.num_held_bytes

    @property
    def is_read(self) -> bool:
        """Whether its messages are received; not while too many bytes wait for it."""
        return bool(self.events & select.EPOLLIN)

    def cost(self, now: float) -> float:
        """Return the bytes that are held for this peer, times the seconds since the oldest of them came."""
        of_message = self.reader.num_held_bytes * (now - self.message_at)
        return of_message + self.queued_bytes * (now - self.marked_at)

    def is_stalled(self, since: float) -> bool:
        """Return whether it has read nothing since a time though bytes wait, or sent no more of a message."""
        is_deaf = bool(self.queue) and self.sent_at < since
        return is_deaf or (self.reader.is_mid_message and self.is_read and self.read_at < since)

    def receive(self, clock: Callable[[], float]) -> list[Frame] | None:
        """Return the next complete message, receiving up to one piece for it; None if there is none.

        Raises:
            RemoteProtocolError: As `MessageReader.next_message`.
        """
        reader = self.reader
        self.has_more = False
        message = reader.next_message()
        if message is not None:
            self.message_at = self.read_at  # the rest came with the last piece
            self.has_more = reader.has_unread
            return message
        if reader.has_more:
            self.has_more = True
            return None
        was_mid_message = reader.is_mid_message
        try:
            room = reader.room()
            if room is not None:
                num_bytes = self.stream.recv_into(room)
                reader.filled(num_bytes)
                is_all = num_bytes < len(room)
            else:
                data = self.stream.recv(READ_BYTES)
                num_bytes = len(data)
                reader.feed(data)
                is_all = num_bytes < READ_BYTES
        except BlockingIOError:
            return None
        except OSError:
            num_bytes, is_all = 0, True
        if not num_bytes:
            self.has_ended = True
            return None
        self.read_at = clock()
        message = reader.next_message()
        if message is not None or not was_mid_message:
            self.message_at = self.read_at
        # With a message, the kernel signals when there is more.
        self.has_more = reader.has_unread if message is not None else reader.has_more or not is_all
        return message

    def send(self, pieces: list[Frame], bounds: Bounds, clock: Callable[[], float]) -> bool:
        """Send or queue the bytes of one message; return whether some were queued. Mutable frames are copied then.

        Raises:
            ChannelFull: Too much waits for the peer; nothing was queued.
        """
        if not self.queue:
            pieces = send_now(self.stream, pieces)
            if not pieces:
                return False
            self.sent_at = self.marked_at = clock()
        num_bytes = sum(map(nbytes, pieces))
        # One message may be larger than the limit, if the queue is empty: a large record.
        if self.queue and self.queued_bytes + num_bytes > bounds.max_queued_bytes:
            reason = f"{self.queued_bytes >> 20} MiB wait for peer {self.peer.hex()}, and it does not read"
            raise ChannelFull(f"{reason} (limits.max_queued_mb_per_client); it is disconnected")
        self.queue.extend(kept(piece) for piece in pieces)
        self.queued_bytes += num_bytes
        return True

    def send_waiting(self, clock: Callable[[], float]) -> None:
        """Send as many of the queued bytes as the kernel takes at once."""
        num_sent = send_queued(self.stream, self.queue)
        self.queued_bytes -= num_sent
        self.marked_bytes -= num_sent
        if num_sent:
            self.sent_at = clock()
            if self.marked_bytes <= 0:
                self.marked_at, self.marked_bytes = self.sent_at, self.queued_bytes

    def wanted_events(self, pause_bytes: int) -> int:
        """Return the events that matter now: a peer that does not read is not read either."""
        events = select.EPOLLIN if self.queued_bytes <= pause_bytes else 0
        return events | (select.EPOLLOUT if self.queue else 0)

    def has_hung_up(self) -> bool:
        """Return whether the peer has closed its end, even if it has unread bytes."""
        poll = select.poll()
        poll.register(self.stream.fileno(), 0)  # a hang-up is always reported
        return bool(poll.poll(0))
