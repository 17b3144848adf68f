"""Connects to a `Listener`, and reconnects after a loss: a DEALER without a thread of its own.

    disconnected ──any call, every `RETRY_S`──> connected ──the peer ends, or breaks ZMTP──> disconnected
        └── messages wait                          └── messages are sent at once; what the kernel does not take waits

Messages are those of `frames`. Waiting messages are lost with the connection, as are sent and unread ones. A loss is
counted after everything that the peer sent before was read.

Only `flush` and `receive` wait. One thread at a time may call a dialer, and any may poll its descriptor.
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
from mmcached.wire.errors import ChannelFull, DeadlineExceeded, RemoteProtocolError
from mmcached.wire.sockets.frames import (
    MAX_FRAME_BYTES,
    SEND_HIGH_WATER_MARK,
    Frame,
    ReceivesT,
    decode_frames,
    encode_frames,
    make_decoder,
)
from mmcached.wire.sockets.sending import kept, send_now, send_queued
from mmcached.wire.sockets.zmtp import MessageReader, handshake, pack

RETRY_S = 0.1
"""Time between two attempts to connect."""
READ_BYTES = 1 << 16
MAX_FRAMES = 1 << 20
HANDSHAKE = handshake(b"DEALER")


class Dialer(Generic[ReceivesT], Closeable):
    """One end of a connection, whose other end need not exist yet.

    Args:
        address: `ipc://PATH`.

    Attributes:
        num_losses: Number of lost connections.
    """

    def __init__(self, address: str, receives: Any, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = address.removeprefix("ipc://")
        self._decoder = make_decoder(receives)
        self._clock = clock
        self._dial_at = -math.inf
        self._socket: socket.socket | None = None
        self._reader = MessageReader(b"ROUTER", max_frames=MAX_FRAMES, max_bytes=MAX_FRAME_BYTES)
        self._is_used_up = True  # the bytes read so far hold no further message
        self._queue: deque[memoryview] = deque()
        self._events = 0
        self.num_losses = 0
        self._epoll = select.epoll()

    def fileno(self) -> int:
        """Readable when `try_receive`, after it has returned None, may find something; see also `retry_s`."""
        return self._epoll.fileno()

    @property
    def is_connected(self) -> bool:
        """Whether no loss was noticed since the last connect."""
        return self._socket is not None

    def retry_s(self) -> float:
        """Return in how many seconds `try_receive` should be called in any case; infinite while connected."""
        return math.inf if self.is_connected else max(0.0, self._dial_at - self._clock())

    def send(self, message: object, payload: Sequence[Frame] = ()) -> None:
        """Send or queue one message; as `send_frames`."""
        self.send_frames(encode_frames(message, payload))

    def send_frames(self, frames: Sequence[Frame]) -> None:
        """Send or queue the frames of one message; mutable frames are copied if they are queued.

        Raises:
            ChannelFull: The queue is at its high-water mark; nothing was queued.
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
        """Return the next message and its payload, or None if there is none now; sends waiting messages.

        Raises:
            RemoteProtocolError: The message was read and does not validate.
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

    def receive(self, timeout_s: float) -> tuple[ReceivesT, list[Frame]]:
        """Return the next message and its payload; connects meanwhile if need be.

        Raises:
            DeadlineExceeded: None came within `timeout_s`.
            RemoteProtocolError: The message was read and does not validate.
        """
        end = self._clock() + timeout_s
        poll = select.poll()
        poll.register(self._epoll.fileno(), select.POLLIN)
        while (received := self.try_receive()) is None:
            left_s = end - self._clock()
            if left_s <= 0:
                raise DeadlineExceeded("receive", timeout_s)
            poll.poll(math.ceil(min(left_s, self.retry_s()) * 1000))
        return received

    @property
    def has_read(self) -> bool:
        """Whether the bytes read so far may hold a message."""
        return not self._is_used_up

    def has_news(self) -> bool:
        """Whether `try_receive` may find something, or has to connect; asks the kernel, and reads nothing."""
        return self._socket is None or not self._is_used_up or bool(self._epoll.poll(0, 1))

    def flush(self, timeout_s: float) -> None:
        """Send waiting messages for up to `timeout_s`; returns at once without a connection."""
        end = self._clock() + timeout_s
        poll = select.poll()
        if self._socket is not None:
            poll.register(self._socket, select.POLLOUT)
        while self._socket is not None and self._queue and (left_s := end - self._clock()) > 0:
            if not poll.poll(math.ceil(left_s * 1000)) or not self._send_queued(self._socket):
                return

    def break_off(self) -> None:
        """End the connection, which counts as a loss, and connect anew at the next call.

        May be called after an exception in the middle of any other method.
        """
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # a forked child may hold it open
        self._is_used_up = True
        self._dial_at = -math.inf
        self._lose()

    def abandon(self) -> None:
        """Close the descriptors in a forked child, leaving the parent's connection alone."""
        self._epoll.close()  # first: parent and child share it, so nothing may be unregistered from it
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        """Drop waiting messages, and close; bytes taken by the kernel still arrive. A second call does nothing."""
        self._dial_at = math.inf
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._epoll.close()

    # ---- how

    def _connection(self) -> socket.socket | None:
        if self._socket is None and self._clock() >= self._dial_at:
            self._dial_at = self._clock() + RETRY_S
            with contextlib.suppress(OSError):  # no listener, a full backlog, or no free descriptor
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
        """Poll for writability too while something waits."""
        if self._socket is not None:
            events = select.EPOLLIN | (select.EPOLLOUT if self._queue else 0)
            if events != self._events:
                self._epoll.modify(self._socket, events)
                self._events = events

    def _read(self, source: socket.socket) -> bool:
        """Read up to one piece; return whether there was any. The peer's end counts as a loss."""
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
        if self._socket is not None:
            # a child may hold the socket too, so that closing it here would not unregister it
            with contextlib.suppress(OSError, ValueError):  # done already, in an interrupted call
                self._epoll.unregister(self._socket)
            self._socket.close()
            self._socket = None
        self._queue.clear()
        self.num_losses += 1
