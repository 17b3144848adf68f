"""Serves any number of peers, which may be too many, too fast, too large, unresponsive or dead.

Peers are DEALERs, libzmq's (`DealerChannel`) or a `Dialer`; ZMTP is implemented here (`zmtp`), because libzmq's ROUTER
ends the process when descriptors run out, collects a message that never ends, and offers no way to see a peer's queue
or to disconnect a peer. Messages are those of `channels`.

    accepted ──greeting, READY──> open ──one message of each in a round──> handled
       └── too many: refused       ├── more than `pause_bytes` wait for it: not read until it has read
                                   ├── more than `max_queued_bytes`, or no progress for `stall_s`: disconnected
                                   ├── all hold more than `max_held_bytes`: the costliest is told, and disconnected
                                   └── its process ends: closed by the kernel

Held bytes are those that wait for a peer, and those received of an incomplete message. A frame's announced size is
compared with the limit of a message, and nothing is allocated for it until bytes come. The costliest peer is the one
with the most bytes × seconds since the oldest of its bytes came. So a large message that keeps coming is not ended for
the sake of peers that have held memory for longer.

Connections never take the last `reserved_descriptors` numbers of the process. An excess connection is told so, in
answer to any message, and closed a moment later; at most `MAX_REFUSED` are open, and then nothing is accepted.

Only `close` waits. One thread owns a listener.
"""

from __future__ import annotations

import resource
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic

from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import ChannelFull, PeerGone, RemoteProtocolError
from mmcached.wire.process.turns import TurnShare
from mmcached.wire.sockets.channels import LINGER_MS, attempt
from mmcached.wire.sockets.frames import Frame, ReceivesT, decode_frames, encode_frames, make_decoder
from mmcached.wire.sockets.sending import kept, nbytes, send_now, send_once, send_queued
from mmcached.wire.sockets.unix_sockets import NamedListener
from mmcached.wire.sockets.zmtp import MessageReader, handshake, pack

BACKLOG = 256
READ_BYTES = 1 << 16
MAX_REFUSED = 16
"""Excess connections that are open at a time."""
REFUSED_S = 1.0
"""Lifetime of an excess connection: its client must not reconnect at once."""
ACCEPT_PAUSE_S = 0.1
MAX_ACCEPTED = 4
"""Connections accepted in one round."""
HANDSHAKE = handshake(b"ROUTER")
_READABLE = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits of one listener.

    Attributes:
        reserved_descriptors: The last descriptor numbers of the process, which connections leave free.
        max_frames, max_message_bytes: Limits of one message; see `limits`.
        max_body_bytes: Limit of a message without its payload, checked before it is decoded.
        max_queued_bytes: Limit of bytes that wait for one peer.
        max_held_bytes: Limit of bytes that wait for all peers together, or are committed for incomplete messages.
        stall_s: How long a peer may read nothing while bytes wait for it, or send no more of a message.
    """

    max_connections: int
    reserved_descriptors: int
    max_frames: int
    max_message_bytes: int
    max_body_bytes: int
    max_queued_bytes: int
    max_held_bytes: int
    stall_s: float


@dataclass(slots=True, eq=False)
class _Connection:
    """One peer.

    Attributes:
        queue, queued_bytes: Pieces that it has not taken yet.
        held_bytes: `queued_bytes` and the bytes held of an incomplete message, when last counted.
        message_at: Arrival of the first bytes of the incomplete message.
        marked_at, marked_bytes: Bytes that have been waiting since `marked_at`; the oldest are sent first.
        is_due: Whether it is in the current round: it may have something to read.
        refused_since: Start of an excess connection; None for others.
    """

    peer: bytes
    socket: socket.socket
    reader: MessageReader
    read_at: float
    sent_at: float
    message_at: float
    marked_at: float
    marked_bytes: int = 0
    queue: deque[memoryview] = field(default_factory=deque)
    queued_bytes: int = 0
    held_bytes: int = 0
    is_due: bool = False
    is_open: bool = True
    events: int = select.EPOLLIN
    refused_since: float | None = None

    def cost(self, now: float) -> float:
        """Return the bytes that are held for this peer, times the seconds since the oldest of them came."""
        of_message = self.reader.num_held_bytes * (now - self.message_at)
        return of_message + self.queued_bytes * (now - self.marked_at)


class Listener(Generic[ReceivesT], Closeable):
    """Listens on a unix socket, replacing a dead process's socket of that name.

    Args:
        address: `ipc://PATH`.
        refusal: Message to a peer that is refused because too many are connected.
        overload: Message to a peer that is disconnected because all hold too much; None for no message.

    Attributes:
        num_refused: Peers that were refused.
        num_disconnected: Peers disconnected because they did not read, did not end a message, or held most.
    """

    def __init__(
        self,
        address: str,
        receives: Any,
        bounds: Bounds,
        *,
        refusal: object,
        overload: object | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._decoder = make_decoder(receives)
        self._bounds = bounds
        self._refusal = refusal
        self._overload = overload
        self._clock = clock
        self._pause_bytes = bounds.max_queued_bytes // 4
        self._connections: dict[bytes, _Connection] = {}
        self._by_fd: dict[int, _Connection] = {}
        self._due: deque[_Connection] = deque()
        self._num_left_of_round = 0
        self._last_peer = 0
        self._num_refused_now = 0
        self._held_bytes = 0
        self._accept_again_at: float | None = None
        self.num_refused = 0
        self.num_disconnected = 0
        self._named = NamedListener(Path(address.removeprefix("ipc://")), BACKLOG)
        self._socket = self._named.socket
        self._epoll = select.epoll()
        self._epoll.register(self._socket.fileno(), select.EPOLLIN)

    def __len__(self) -> int:
        """Return the number of connected peers."""
        return len(self._connections) - self._num_refused_now

    def __contains__(self, peer: bytes) -> bool:
        """Return whether a connection has not been closed here; see also `is_connected`."""
        return peer in self._connections

    def fileno(self) -> int:
        """Readable whenever `serve` has something to do; see also `has_more`."""
        return self._epoll.fileno()

    @property
    def has_more(self) -> bool:
        """Whether `serve` left work that `fileno` does not signal."""
        return bool(self._due)

    # ---- receiving

    def serve(self, share: TurnShare) -> Iterator[tuple[bytes, ReceivesT | RemoteProtocolError, list[Frame]]]:
        """Yield `(peer, message, payload)`, with an error in place of an invalid message: one of each peer in a round.

        Connections that become ready while a round is served take part in the next one.
        """
        for _ in share:
            if not self._num_left_of_round:
                self._look()
                self._num_left_of_round = len(self._due)
            if not self._due:
                return
            self._num_left_of_round -= 1
            connection = self._due.popleft()
            connection.is_due = False
            if not connection.is_open or not connection.events & select.EPOLLIN:
                continue
            try:
                frames = self._next(connection)
            except RemoteProtocolError as error:
                if error.details["field"] == "zmtp":
                    self._disconnect(connection)
                else:
                    self._make_due(connection)
                yield connection.peer, error, []
                continue
            if frames is None:
                continue
            if connection.reader.has_unread:  # else the kernel signals when there is more
                self._make_due(connection)
            if connection.refused_since is not None:
                self.try_send(connection.peer, self._refusal)
                continue
            try:
                if len(frames) > 1 and len(frames[1]) > self._bounds.max_body_bytes:
                    reason = f"{len(frames[1])} bytes beside the payload, at most {self._bounds.max_body_bytes}"
                    raise RemoteProtocolError(reason, "body")
                message, payload = decode_frames(frames, self._decoder)
            except RemoteProtocolError as error:
                yield connection.peer, error, []
            else:
                yield connection.peer, message, payload

    def wait(self, timeout_s: float) -> bool:
        poll = select.poll()
        poll.register(self._epoll.fileno(), select.POLLIN)
        return self.has_more or bool(poll.poll(max(0, round(timeout_s * 1000))))

    def _look(self) -> None:
        for fd, events in self._epoll.poll(0):
            connection = self._by_fd.get(fd)
            if connection is None:
                for _ in range(MAX_ACCEPTED):
                    self._accept()
                continue
            if events & select.EPOLLOUT:
                self._write(connection)
            if events & _READABLE and connection.is_open:
                if events & select.EPOLLHUP and not connection.events & select.EPOLLIN:
                    self._close(connection)  # it is not read now, and will not read any more
                else:
                    self._make_due(connection)

    def _make_due(self, connection: _Connection) -> None:
        if not connection.is_due and connection.is_open and connection.events & select.EPOLLIN:
            connection.is_due = True
            self._due.append(connection)

    def _next(self, connection: _Connection) -> list[Frame] | None:
        """Return the next complete message of a connection, receiving up to one piece for it; None if there is none."""
        reader = connection.reader
        message = reader.next_message()
        if message is not None:
            connection.message_at = connection.read_at  # the rest came with the last piece
            return message
        if reader.has_more:
            self._make_due(connection)
            return None
        was_mid_message = reader.is_mid_message
        try:
            room = reader.room()
            if room is not None:
                num_bytes = connection.socket.recv_into(room)
                reader.filled(num_bytes)
                is_all = num_bytes < len(room)
            else:
                data = connection.socket.recv(READ_BYTES)
                num_bytes = len(data)
                reader.feed(data)
                is_all = num_bytes < READ_BYTES
        except BlockingIOError:
            return None
        except OSError:
            num_bytes, is_all = 0, True
        if not num_bytes:
            self._close(connection)
            return None
        connection.read_at = self._clock()
        message = reader.next_message()
        if message is not None or not was_mid_message:
            connection.message_at = connection.read_at
        if message is None and (reader.has_more or not is_all):
            self._make_due(connection)
        self._count_held(connection)
        return message

    # ---- sending

    def send(self, peer: bytes, message: object, payload: Sequence[Frame] = ()) -> None:
        """Send or queue one message; mutable frames are copied if they are queued.

        Raises:
            PeerGone: The peer is not connected; nothing was queued.
            ChannelFull: Too much waits for it, and it was disconnected.
        """
        connection = self._connections.get(peer)
        if connection is None:
            raise PeerGone(f"peer {peer.hex()} is not connected")
        pieces = pack(encode_frames(message, payload))
        if not connection.queue:
            pieces = send_now(connection.socket, pieces)
            if not pieces:
                return
            connection.sent_at = connection.marked_at = self._clock()
        num_bytes = sum(map(nbytes, pieces))
        # One message may be larger than the limit, if the queue is empty: a large record.
        if connection.queue and connection.queued_bytes + num_bytes > self._bounds.max_queued_bytes:
            reason = f"{connection.queued_bytes >> 20} MiB wait for peer {peer.hex()}, and it does not read"
            self._disconnect(connection)
            raise ChannelFull(f"{reason} (limits.max_queued_mb_per_client); it is disconnected")
        connection.queue.extend(kept(piece) for piece in pieces)
        connection.queued_bytes += num_bytes
        self._watch(connection)
        self._count_held(connection)

    def try_send(self, peer: bytes, message: object, payload: Sequence[Frame] = ()) -> bool:
        return attempt(self.send, peer, message, payload)

    def _write(self, connection: _Connection) -> None:
        num_sent = send_queued(connection.socket, connection.queue)
        connection.queued_bytes -= num_sent
        connection.marked_bytes -= num_sent
        if num_sent:
            connection.sent_at = self._clock()
            if connection.marked_bytes <= 0:
                connection.marked_at, connection.marked_bytes = connection.sent_at, connection.queued_bytes
        self._watch(connection)
        self._count_held(connection)

    def _watch(self, connection: _Connection) -> None:
        """Poll for the events that matter now: a client that does not read is not read either."""
        events = select.EPOLLIN if connection.queued_bytes <= self._pause_bytes else 0
        if connection.queue:
            events |= select.EPOLLOUT
        if events != connection.events and connection.is_open:
            was_paused = not connection.events & select.EPOLLIN
            connection.events = events
            self._epoll.modify(connection.socket.fileno(), events)
            if was_paused:
                self._make_due(connection)  # earlier bytes may hold messages

    def _count_held(self, connection: _Connection) -> None:
        """Count a connection's held bytes; beyond `max_held_bytes` disconnect the costliest peers."""
        held_bytes = connection.queued_bytes + connection.reader.num_held_bytes
        if held_bytes == connection.held_bytes or not connection.is_open:
            return
        self._held_bytes += held_bytes - connection.held_bytes
        connection.held_bytes = held_bytes
        while self._held_bytes > self._bounds.max_held_bytes:
            now = self._clock()
            costliest = max(self._connections.values(), key=lambda one: (one.cost(now), one.held_bytes))
            if self._overload is not None and not costliest.queue:  # else an answer is half sent
                send_now(costliest.socket, pack(encode_frames(self._overload)))
            self._disconnect(costliest)

    # ---- connections

    def is_connected(self, peer: bytes) -> bool:
        """Return whether a peer is connected; False once it has closed its end, even if it has unread bytes."""
        connection = self._connections.get(peer)
        if connection is None:
            return False
        poll = select.poll()
        poll.register(connection.socket.fileno(), 0)  # a hang-up is always reported
        return not poll.poll(0)

    def disconnect(self, peer: bytes) -> None:
        """Close a connection; bytes that the kernel has taken still arrive. An unknown peer changes nothing.

        The client notices, and reconnects.
        """
        connection = self._connections.get(peer)
        if connection is not None:
            self._close(connection)

    def check(self, now: float) -> None:
        """Close connections without progress for too long; resume accepting after a pause."""
        for connection in list(self._connections.values()):
            since = now - self._bounds.stall_s
            is_deaf = bool(connection.queue) and connection.sent_at < since
            is_paused = not connection.events & select.EPOLLIN
            is_endless = connection.reader.is_mid_message and not is_paused and connection.read_at < since
            if is_deaf or is_endless:
                self._disconnect(connection)
            elif connection.refused_since is not None and now >= connection.refused_since + REFUSED_S:
                self._close(connection)
        if self._accept_again_at is not None and now >= self._accept_again_at:
            self._accept_again_at = None
            self._epoll.modify(self._socket.fileno(), select.EPOLLIN)

    def _accept(self) -> None:
        if self._accept_again_at is not None:
            return
        try:
            accepted, _ = self._socket.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor or memory: other code has taken the reserve
            self._pause_accepting()
            return
        highest = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - self._bounds.reserved_descriptors
        is_refused = len(self) >= self._bounds.max_connections or accepted.fileno() >= highest - MAX_REFUSED
        if accepted.fileno() >= highest or (is_refused and self._num_refused_now >= MAX_REFUSED):
            self.num_refused += 1
            accepted.close()
            self._pause_accepting()
            return
        accepted.setblocking(False)
        self._last_peer += 1
        now = self._clock()
        reader = MessageReader(b"DEALER", max_frames=self._bounds.max_frames, max_bytes=self._bounds.max_message_bytes)
        connection = _Connection(self._last_peer.to_bytes(5, "big"), accepted, reader, now, now, now, now)
        if is_refused:
            self.num_refused += 1
            self._num_refused_now += 1
            connection.refused_since = now
        self._connections[connection.peer] = connection
        self._by_fd[accepted.fileno()] = connection
        self._epoll.register(accepted.fileno(), select.EPOLLIN)
        if send_once(accepted, [HANDSHAKE]) < len(HANDSHAKE):
            self._close(connection)

    def _pause_accepting(self) -> None:
        self._accept_again_at = self._clock() + ACCEPT_PAUSE_S
        self._epoll.modify(self._socket.fileno(), 0)

    def _disconnect(self, connection: _Connection) -> None:
        self.num_disconnected += 1
        self._close(connection)

    def _close(self, connection: _Connection) -> None:
        if not connection.is_open:
            return
        connection.is_open = False
        self._held_bytes -= connection.held_bytes
        self._num_refused_now -= connection.refused_since is not None
        self._epoll.unregister(connection.socket.fileno())
        del self._by_fd[connection.socket.fileno()]
        del self._connections[connection.peer]
        connection.socket.close()
        connection.queue.clear()

    def close(self) -> None:
        """Stop listening, send queued bytes for up to `LINGER_MS`, and close. A second call does nothing."""
        if self._epoll.closed:
            return
        self._named.remove_name()
        self._epoll.unregister(self._socket.fileno())
        self._socket.close()
        end = time.monotonic() + LINGER_MS / 1000
        while any(connection.queue for connection in self._connections.values()) and time.monotonic() < end:
            for fd, events in self._epoll.poll(max(0.0, end - time.monotonic())):
                if events & select.EPOLLHUP:  # the peer takes nothing any more, and EPOLLOUT is set too
                    self._close(self._by_fd[fd])
                elif events & select.EPOLLOUT:
                    self._write(self._by_fd[fd])
                else:
                    self._stop_reading(fd)
        for connection in list(self._connections.values()):
            self._close(connection)
        self._epoll.close()

    def _stop_reading(self, fd: int) -> None:
        connection = self._by_fd[fd]
        connection.events = select.EPOLLOUT if connection.queue else 0
        self._epoll.modify(fd, connection.events)
