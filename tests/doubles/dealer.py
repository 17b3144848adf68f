"""A DEALER of libzmq, in the place of a client, an engine or a worker: the peer that any ZMTP library may be."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Generic

import zmq

from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import DeadlineExceeded
from mmcached.wire.sockets.frames import Frame, ReceivesT, decode_frames, encode_frames, make_decoder


class Dealer(Generic[ReceivesT], Closeable):
    """One connection, whose bytes a thread of libzmq sends and receives; it is closed when `close` returns."""

    def __init__(self, address: str, receives: Any) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 2000)
        self._monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.socket.connect(address)
        self._decoder = make_decoder(receives)

    def send(self, message: object, payload: Sequence[Frame] = ()) -> None:
        self.socket.send_multipart(encode_frames(message, payload), zmq.NOBLOCK)

    def wait(self, timeout_s: float) -> bool:
        """Return whether a message can be received now; wait up to `timeout_s`."""
        return bool(self.socket.poll(max(0, round(timeout_s * 1000)), zmq.POLLIN))

    def try_receive(self) -> tuple[ReceivesT, list[Frame]] | None:
        try:
            frames = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return decode_frames(frames, self._decoder)

    def receive(self, timeout_s: float) -> tuple[ReceivesT, list[Frame]]:
        deadline = time.monotonic() + timeout_s
        while True:
            # Polling is no guarantee: a peer that closes in between takes its last message with it.
            if self.wait(deadline - time.monotonic()) and (received := self.try_receive()) is not None:
                return received
            if time.monotonic() >= deadline:
                raise DeadlineExceeded("receive", timeout_s)

    def was_disconnected(self) -> bool:
        """Return whether the connection was lost at some time; libzmq reconnects by itself."""
        return bool(self._monitor.poll(0))

    def close(self) -> None:
        if not self.socket.closed:
            self.socket.disable_monitor()
            self._monitor.close()
        self.socket.close()
        self._context.term()
