"""Carries typed messages over ZeroMQ: a `RouterChannel` at the end with many peers, a `DealerChannel` at the other.

For clients, of which there may be any number and which may be faulty, a `Listener` takes the router's part and a
`Dialer` the dealer's.

Sending never blocks: a full queue is `ChannelFull`, an unknown peer `PeerGone`, and in both cases nothing was queued,
so the caller can undo its work for the message. `try_send` is for a message that may be lost with its peer. Not
thread-safe: one thread owns a channel.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, ParamSpec

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import ChannelFull, DeadlineExceeded, PeerGone
from mmcached.wire.sockets.frames import (
    MAX_FRAME_BYTES,
    SEND_HIGH_WATER_MARK,
    Frame,
    ReceivesT,
    decode_frames,
    encode_frames,
    make_decoder,
)
from mmcached.wire.sockets.unix_sockets import NamedListener

RECEIVE_HIGH_WATER_MARK = 4096
LISTEN_BACKLOG = 128
LINGER_MS = 2000
"""How long a closing socket goes on sending queued messages; bounds the duration of `close`."""

_logger = logging.getLogger(__name__)
P = ParamSpec("P")


def attempt(send: Callable[P, None], /, *message: P.args, **options: P.kwargs) -> bool:
    """Send a message; return False, and log the reason, if its peer is gone or does not read."""
    try:
        send(*message, **options)
    except (PeerGone, ChannelFull) as error:
        kind = next((type(part).__name__ for part in message if isinstance(part, msgspec.Struct)), "")
        _logger.info("not sent", extra={"kind": kind, "reason": str(error)})
        return False
    return True


def bind_named(socket: zmq.Socket[bytes], address: str) -> Callable[[], None]:
    """Bind a socket; return a function that removes its name after it was closed.

    ZeroMQ itself would remove the name of `ipc://…` on close even if it belongs to another service by then.

    Raises:
        OSError: (zmq.ZMQError too) The address cannot be bound.
    """
    if not address.startswith("ipc://"):
        socket.bind(address)
        return _nothing
    listener = NamedListener(Path(address.removeprefix("ipc://")), LISTEN_BACKLOG)
    socket.setsockopt(zmq.USE_FD, listener.socket.detach())  # ZeroMQ closes it
    socket.bind(address)
    return listener.remove_name


def _nothing() -> None:
    """Do nothing: the address has no name to remove."""


class _Channel(Generic[ReceivesT], Closeable):
    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], kind: int, receives: Any) -> None:
        self.socket = context.socket(kind)
        self.socket.setsockopt(zmq.SNDHWM, SEND_HIGH_WATER_MARK)
        self.socket.setsockopt(zmq.RCVHWM, RECEIVE_HIGH_WATER_MARK)
        self.socket.setsockopt(zmq.LINGER, LINGER_MS)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self._decoder: msgspec.msgpack.Decoder[ReceivesT] = make_decoder(receives)

    def wait(self, timeout_s: float) -> bool:
        """Return whether a message can be received now; wait up to `timeout_s`."""
        return bool(self.socket.poll(max(0, round(timeout_s * 1000)), zmq.POLLIN))

    def close(self) -> None:
        self.socket.close()


class DealerChannel(_Channel[ReceivesT]):
    """The end with one peer. Connecting succeeds even before the peer exists.

    Args:
        receives: The union of messages that this end accepts.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, receives: Any) -> None:
        super().__init__(context, zmq.DEALER, receives)
        self._monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.socket.connect(address)

    def take_disconnects(self) -> int:
        """Return how often the connection was lost since the last call; messages sent before may be lost.

        ZeroMQ reconnects by itself. Call it only when there is nothing left to receive: the peer's last messages are
        still to be read.
        """
        count = 0
        while self._monitor.poll(0, zmq.POLLIN):
            recv_monitor_message(self._monitor, zmq.NOBLOCK)
            count += 1
        return count

    def register(self, poller: zmq.Poller) -> None:
        """Wake up a poller for a message, and for a lost connection."""
        poller.register(self.socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)

    def close(self) -> None:
        if not self.socket.closed:
            self.socket.disable_monitor()
            self._monitor.close()
        super().close()

    def send(self, message: object, payload: Sequence[Frame] = ()) -> None:
        self.send_frames(encode_frames(message, payload))

    def send_frames(self, frames: Sequence[Frame]) -> None:
        """Queue the frames of one message without blocking; ChannelFull if the queue is full: nothing was queued."""
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            raise ChannelFull(f"{SEND_HIGH_WATER_MARK} messages wait for the peer; try again later") from None

    def try_send(self, message: object, payload: Sequence[Frame] = ()) -> bool:
        """Queue one message as `send` does; return False, and log the reason, if that is impossible."""
        return attempt(self.send, message, payload)

    def try_receive(self) -> tuple[ReceivesT, list[Frame]] | None:
        """Return the next message and its payload, or None if there is none now; never waits.

        Raises:
            RemoteProtocolError: The frames were taken off the queue and do not validate.
        """
        try:
            frames = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return decode_frames(frames, self._decoder)

    def receive(self, timeout_s: float) -> tuple[ReceivesT, list[Frame]]:
        """Return the next message and its payload.

        Raises:
            DeadlineExceeded: None came within `timeout_s`.
            RemoteProtocolError: The frames were taken off the queue and do not validate.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            # Polling is no guarantee: a peer that closes in between takes its last message with it.
            if self.wait(deadline - time.monotonic()) and (received := self.try_receive()) is not None:
                return received
            if time.monotonic() >= deadline:
                raise DeadlineExceeded("receive", timeout_s)


class RouterChannel(_Channel[ReceivesT]):
    """The end with many peers, told apart by the identity that ZeroMQ gives to each connection."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, receives: Any) -> None:
        super().__init__(context, zmq.ROUTER, receives)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._remove_name = bind_named(self.socket, address)

    def close(self) -> None:
        super().close()
        self._remove_name()

    def send(self, peer: bytes, message: object, payload: Sequence[Frame] = ()) -> None:
        """Queue one message for a peer without blocking.

        Raises:
            PeerGone: The peer is not connected; nothing was queued.
            ChannelFull: Its queue is at the high-water mark; nothing was queued.
        """
        try:
            self.socket.send_multipart([peer, *encode_frames(message, payload)], zmq.NOBLOCK)
        except zmq.Again:
            raise ChannelFull(f"{SEND_HIGH_WATER_MARK} messages wait for peer {peer.hex()}; it does not read") from None
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            raise PeerGone(f"peer {peer.hex()} is not connected") from None

    def try_send(self, peer: bytes, message: object, payload: Sequence[Frame] = ()) -> bool:
        return attempt(self.send, peer, message, payload)

    def receive_raw(self) -> tuple[bytes, list[bytes]] | None:
        """Return the next message as `(peer, frames)`, for `decode`, or None if there is none; never waits."""
        try:
            peer, *frames = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return peer, frames

    def decode(self, frames: Sequence[Frame]) -> tuple[ReceivesT, list[Frame]]:
        return decode_frames(frames, self._decoder)
