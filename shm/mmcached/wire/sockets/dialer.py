"""Connects to a `Listener`, and again whenever the connection was lost: a DEALER without a thread of its own.

    nobody there ──any call, every `RETRY_S`──> connected ──the peer ends, or says what is no ZMTP──> nobody there
        └── what is sent waits                      └── what is sent goes at once; what the kernel does not take waits

Messages are those of `channels`. What waits is lost with its connection, as is what has been sent and not read. A loss
is counted when all was read that the peer has said before.

Nothing here waits, but for `flush`. One thread at a time may call a dialer, and any may poll its descriptor.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic

from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import ChannelFull, RemoteProtocolError
from mmcached.wire.sockets.frames import (
    MAX_FRAME_BYTES,
    SEND_HIGH_WATER_MARK,
    Frame,
    ReceivesT,
    decode_frames,
    make_decoder,
)
from mmcached.wire.sockets.sending import kept, send_now, send_queued
from mmcached.wire.sockets.zmtp import MessageReader, handshake, pack

RETRY_S = 0.1
"""How long after it has connected, or tried to, it does not try again."""
READ_BYTES = 1 << 16
MAX_FRAMES = 1 << 20
HANDSHAKE = handshake(b"DEALER")


class Dialer(Generic[ReceivesT], Closeable):
    """One end of a connection. The other one need not be there yet.

    Args:
        address: `ipc://PATH`.
        receives: the union of messages that this end takes.
        clock: monotonic seconds.
    Attributes:
        num_losses: how often the connection was lost.
    """

    def __init__(self, address: str, receives: Any, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = address.removeprefix("ipc://")
        self._decoder = make_decoder(receives)
        self._clock = clock
        self._dial_at = -math.inf
        self._socket: socket.socket | None = None
        self._reader = MessageReader(b"ROUTER", max_frames=MAX_FRAMES, max_bytes=MAX_FRAME_BYTES)
        self._is_used_up = True  # what was read holds no further message
        self._queue: deque[memoryview] = deque()
        self._events = 0
        self.num_losses = 0
        self._epoll = select.epoll()

    def fileno(self) -> int:
        """Readable when `try_receive`, having found nothing, has something to do; see also `retry_s`."""
        return self._epoll.fileno()

    @property
    def is_connected(self) -> bool:
        """Whether no loss has been noticed since it has connected."""
        return self._socket is not None

    def retry_s(self) -> float:
        """Return when `try_receive` should be called in any case, in seconds; infinite while connected."""
        return math.inf if self.is_connected else max(0.0, self._dial_at - self._clock())

    def send_frames(self, frames: Sequence[Frame]) -> None:
        """Send or queue the frames of one message; what is queued of mutable frames is copied.

        Raises:
            ChannelFull: the queue is at its high-water mark; nothing was queued.
        """
        if len(self._queue) >= SEND_HIGH_WATER_MARK:
            raise ChannelFull(f"{SEND_HIGH_WATER_MARK} messages wait for the peer; try again later")
        to = self._connection()
        pieces = pack(frames)
        if to is not None and not self._queue:
            pieces = send_now(to, pieces)
        if pieces:
            self._queue.extend(map(kept, pieces))
            self._watch()

    def try_receive(self) -> tuple[ReceivesT, list[Frame]] | None:
        """Return the next message and its payload, or None if there is none now; sends what waits.

        Raises:
            RemoteProtocolError: the message was read and does not validate.
        """
        source = self._connection()
        if source is not None and self._queue:
            self._send_queued(source)
        while self._socket is not None:
            if self._is_used_up:
                if not self._read(self._socket):
                    return None
                self._is_used_up = False
            try:
                frames = self._reader.next_message()
            except RemoteProtocolError as error:
                if error.details["field"] != "zmtp":
                    raise
                self._lose()
                return None
            if frames is not None:
                self._is_used_up = not self._reader.has_unread
                return decode_frames(frames, self._decoder)
            self._is_used_up = not self._reader.has_more
        return None

    @property
    def has_read(self) -> bool:
        """Whether what was read may hold a message."""
        return not self._is_used_up

    def has_news(self) -> bool:
        """Whether `try_receive` may find something, or has to connect; asks the kernel, and reads nothing."""
        return self._socket is None or not self._is_used_up or bool(self._epoll.poll(0, 1))

    def flush(self, timeout_s: float) -> None:
        """Send what waits, for so long at most; to nobody if nobody is connected."""
        end = self._clock() + timeout_s
        poll = select.poll()
        if self._socket is not None:
            poll.register(self._socket, select.POLLOUT)
        while self._socket is not None and self._queue and (left_s := end - self._clock()) > 0:
            if not poll.poll(math.ceil(left_s * 1000)) or not self._send_queued(self._socket):
                return

    def abandon(self) -> None:
        """In a forked child: close the descriptors, and leave the parent's connection alone."""
        self._epoll.close()  # first: it is one object with the parent's, and nothing may be taken out of it
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        """Drop what waits, and close; what the kernel has taken still arrives. A second call does nothing."""
        self._dial_at = math.inf
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._epoll.close()

    # ---- how

    def _connection(self) -> socket.socket | None:
        """Return the connection; if there is none, try to make it if it is time."""
        if self._socket is None and self._clock() >= self._dial_at:
            self._dial_at = self._clock() + RETRY_S
            with contextlib.suppress(OSError):  # nobody listens, too many wait to be accepted, or no descriptor is left
                self._dial()
        return self._socket

    def _dial(self) -> None:
        dialed = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            dialed.connect(self._path)
            self._epoll.register(dialed, select.EPOLLIN)
        except BaseException:
            dialed.close()
            raise
        self._events = select.EPOLLIN
        self._reader = MessageReader(b"ROUTER", max_frames=MAX_FRAMES, max_bytes=MAX_FRAME_BYTES)
        self._is_used_up = True
        self._socket = dialed
        self._queue.appendleft(memoryview(HANDSHAKE))
        self._send_queued(dialed)

    def _send_queued(self, to: socket.socket) -> int:
        num_sent = num_sent_now = send_queued(to, self._queue)
        while num_sent_now and self._queue:
            num_sent_now = send_queued(to, self._queue)
            num_sent += num_sent_now
        self._watch()
        return num_sent

    def _watch(self) -> None:
        """Have the descriptor tell also when the kernel takes more, while something waits."""
        if self._socket is not None:
            events = select.EPOLLIN | (select.EPOLLOUT if self._queue else 0)
            if events != self._events:
                self._epoll.modify(self._socket, events)
                self._events = events

    def _read(self, source: socket.socket) -> bool:
        """Read what is there, up to some size; return whether there was something. The peer's end is a loss."""
        try:
            room = self._reader.room()
            if room is not None:
                num_bytes = source.recv_into(room)
                self._reader.filled(num_bytes)
            else:
                data = source.recv(READ_BYTES)
                num_bytes = len(data)
                self._reader.feed(data)
        except BlockingIOError:
            return False
        except OSError:
            num_bytes = 0
        if not num_bytes:
            self._lose()
        return num_bytes > 0

    def _lose(self) -> None:
        lost, self._socket = self._socket, None
        if lost is not None:
            self._epoll.unregister(lost)  # a child may hold it too, and closing it here would not take it out
            lost.close()
        self._queue.clear()
        self.num_losses += 1
