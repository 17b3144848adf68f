"""The end with many peers that a test plays by hand: the frontend for an engine, or the engine for workers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Generic

from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import RemoteProtocolError
from mmcached.wire.process.turns import TurnShare
from mmcached.wire.sockets.bounds import BOUNDS_OF_ROLES
from mmcached.wire.sockets.frames import Frame, ReceivesT
from mmcached.wire.sockets.listener import Listener
from mmcached.wire.sockets.zmtp import pack

ALL = TurnShare(1000, 60.0)


class Router(Generic[ReceivesT], Closeable):
    """A listener whose messages are taken one by one."""

    def __init__(self, address: str, receives: Any) -> None:
        self.listener: Listener[ReceivesT] = Listener(address, receives, BOUNDS_OF_ROLES, refusal=None)
        self._heard: deque[tuple[bytes, ReceivesT, list[Frame]]] = deque()

    def wait(self, timeout_s: float) -> bool:
        """Return whether a message has come; wait up to `timeout_s`, and send what waits."""
        end = time.monotonic() + timeout_s
        while True:
            for peer, message, payload in self.listener.serve(ALL):
                assert not isinstance(message, RemoteProtocolError), message
                self._heard.append((peer, message, payload))
            if self._heard or time.monotonic() >= end:
                return bool(self._heard)
            self.listener.wait(end - time.monotonic())

    def try_receive(self) -> tuple[bytes, ReceivesT, list[Frame]] | None:
        return self._heard.popleft() if self.wait(0) else None

    def send(self, peer: bytes, message: object, payload: Sequence[Frame] = ()) -> None:
        self.listener.send(peer, message, payload)

    def send_frames(self, peer: bytes, *frames: bytes) -> None:
        """Send what may be no message."""
        self.listener._connections[peer].stream.sendall(b"".join(map(bytes, pack(frames))))

    def close(self) -> None:
        self.listener.close()
