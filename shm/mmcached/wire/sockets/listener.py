"""Serves any number of peers, which may be too many, too fast, too large, unresponsive or dead.

Peers are DEALERs: a `Dialer`, or a socket of any library that speaks ZMTP. Messages are those of `frames`.

    accepted ──greeting, READY──> open ──one message of each in a round──> handled
       └── too many: refused       ├── more than `pause_bytes` wait for it: not read until it has read
                                   ├── more than `max_queued_bytes`, or no progress for `stall_s`: disconnected
                                   ├── all hold more than `max_held_bytes`: the costliest is told, and disconnected
                                   └── its process ends: closed by the kernel

The costliest peer is the one with the most held bytes × seconds since the oldest of its bytes came. So a large message
that keeps coming is not ended for the sake of peers that have held memory for longer.

Connections never take the last `reserved_descriptors` numbers of the process. An excess connection is told so, in
answer to any message, and closed a moment later; at most `MAX_REFUSED` are open, and then nothing is accepted.

Only `close` waits. One thread owns a listener.
"""

from __future__ import annotations

import logging
import resource
import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic

from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import ChannelFull, PeerGone, RemoteProtocolError
from mmcached.wire.process.turns import TurnShare
from mmcached.wire.sockets.bounds import Bounds
from mmcached.wire.sockets.frames import Frame, ReceivesT, decode_frames, encode_frames, make_decoder
from mmcached.wire.sockets.peer_connection import PeerConnection
from mmcached.wire.sockets.sending import LINGER_S, send_now, send_once
from mmcached.wire.sockets.unix_sockets import NamedSocket
from mmcached.wire.sockets.zmtp import handshake, pack

BACKLOG = 256
MAX_REFUSED = 16
"""Excess connections that are open at a time."""
REFUSED_S = 1.0
"""Lifetime of an excess connection: its client must not reconnect at once."""
ACCEPT_PAUSE_S = 0.1
MAX_ACCEPTED = 4
"""Connections accepted in one round."""
HANDSHAKE = handshake(b"ROUTER")
_READABLE = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR

_logger = logging.getLogger(__name__)


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
        self._connections: dict[bytes, PeerConnection] = {}
        self._by_fd: dict[int, PeerConnection] = {}
        self._due: deque[PeerConnection] = deque()
        self._num_left_of_round = 0
        self._last_peer = 0
        self._num_refused_now = 0
        self._held_bytes = 0
        self._accept_again_at: float | None = None
        self.num_refused = 0
        self.num_disconnected = 0
        self._named = NamedSocket(Path(address.removeprefix("ipc://")), BACKLOG)
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

    @property
    def is_closed(self) -> bool:
        return self._epoll.closed

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
            if not connection.is_open or not connection.is_read:
                continue
            try:
                frames = connection.receive(self._clock)
            except RemoteProtocolError as error:
                if error.details["field"] == "zmtp":
                    self._disconnect(connection)
                else:
                    self._make_due(connection)
                yield connection.peer, error, []
                continue
            if connection.has_ended:
                self._close(connection)
                continue
            self._count_held(connection)
            if connection.has_more:
                self._make_due(connection)
            if frames is None:
                continue
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
        return self.has_more or bool(self._epoll.poll(max(0.0, timeout_s), 1))

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
                if events & select.EPOLLHUP and not connection.is_read:
                    self._close(connection)  # it is not read now, and will not read any more
                else:
                    self._make_due(connection)

    def _make_due(self, connection: PeerConnection) -> None:
        if not connection.is_due and connection.is_open and connection.is_read:
            connection.is_due = True
            self._due.append(connection)

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
        try:
            is_waiting = connection.send(pack(encode_frames(message, payload)), self._bounds, self._clock)
        except ChannelFull:
            self._disconnect(connection)
            raise
        if is_waiting:
            self._watch(connection)
            self._count_held(connection)

    def try_send(self, peer: bytes, message: object, payload: Sequence[Frame] = ()) -> bool:
        """Send or queue one message; return False, and log the reason, if its peer is gone or does not read."""
        try:
            self.send(peer, message, payload)
        except (PeerGone, ChannelFull) as error:
            _logger.info("not sent", extra={"kind": type(message).__name__, "reason": str(error)})
            return False
        return True

    def _write(self, connection: PeerConnection) -> None:
        connection.send_waiting(self._clock)
        self._watch(connection)
        self._count_held(connection)

    def _watch(self, connection: PeerConnection) -> None:
        """Poll for the events that matter now."""
        events = connection.wanted_events(self._pause_bytes)
        if events != connection.events and connection.is_open:
            was_read = connection.is_read
            connection.events = events
            self._epoll.modify(connection.stream.fileno(), events)
            if not was_read:
                self._make_due(connection)  # earlier bytes may hold messages

    def _count_held(self, connection: PeerConnection) -> None:
        """Count a connection's held bytes; beyond `max_held_bytes` disconnect the costliest peers."""
        held_bytes = connection.held_bytes
        if held_bytes == connection.counted_bytes or not connection.is_open:
            return
        self._held_bytes += held_bytes - connection.counted_bytes
        connection.counted_bytes = held_bytes
        while self._held_bytes > self._bounds.max_held_bytes:
            now = self._clock()
            costliest = max(self._connections.values(), key=lambda one: (one.cost(now), one.counted_bytes))
            if self._overload is not None and not costliest.queue:  # else an answer is half sent
                send_now(costliest.stream, pack(encode_frames(self._overload)))
            self._disconnect(costliest)

    # ---- connections

    def is_connected(self, peer: bytes) -> bool:
        """Return whether a peer is connected; False once it has closed its end, even if it has unread bytes."""
        connection = self._connections.get(peer)
        return connection is not None and not connection.has_hung_up()

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
            if connection.is_stalled(now - self._bounds.stall_s):
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
        connection = PeerConnection.accepted(self._last_peer.to_bytes(5, "big"), accepted, self._bounds, now)
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

    def _disconnect(self, connection: PeerConnection) -> None:
        self.num_disconnected += 1
        self._close(connection)

    def _close(self, connection: PeerConnection) -> None:
        if not connection.is_open:
            return
        connection.is_open = False
        self._held_bytes -= connection.counted_bytes
        self._num_refused_now -= connection.refused_since is not None
        self._epoll.unregister(connection.stream.fileno())
        del self._by_fd[connection.stream.fileno()]
        del self._connections[connection.peer]
        connection.stream.close()
        connection.queue.clear()

    def close(self) -> None:
        """Stop listening, send queued bytes for up to `LINGER_S`, and close. A second call does nothing."""
        if self._epoll.closed:
            return
        self._named.remove_name()
        self._epoll.unregister(self._socket.fileno())
        self._socket.close()
        end = time.monotonic() + LINGER_S
        while any(connection.queue for connection in self._connections.values()) and time.monotonic() < end:
            for fd, events in self._epoll.poll(max(0.0, end - time.monotonic())):
                if events & select.EPOLLHUP:  # the peer takes nothing any more, and EPOLLOUT is set too
                    self._close(self._by_fd[fd])
                elif events & select.EPOLLOUT:
                    self._write(self._by_fd[fd])
                else:
                    connection = self._by_fd[fd]
                    connection.events = select.EPOLLOUT if connection.queue else 0
                    self._epoll.modify(fd, connection.events)
        for connection in list(self._connections.values()):
            self._close(connection)
        self._epoll.close()
