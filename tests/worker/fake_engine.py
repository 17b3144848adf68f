"""The engine's end of a worker's socket, driven by a test, message by message."""

from __future__ import annotations

import time
from typing import TypeVar

from mmcached.wire.closeable import Closeable
from mmcached.wire.messages.engine import FromWorker, WorkerAttached, WorkerHello
from mmcached.wire.messages.worker import Attach
from mmcached.wire.sockets.frames import Frame
from tests.doubles.router import Router

DEADLINE_S = 60.0
MessageT = TypeVar("MessageT")


class FakeEngine(Closeable):
    """Binds the workers' address; remembers the peer of the last hello."""

    def __init__(self, address: str, incarnation: int) -> None:
        self.incarnation = incarnation
        self.peer = b""
        self.hello: WorkerHello | None = None
        self._router: Router[FromWorker] = Router(address, FromWorker)

    @property
    def epoch(self) -> int:
        """The worker epoch of the last hello."""
        if self.hello is None:
            raise AssertionError("no hello came yet")
        return self.hello.worker_epoch

    def send(self, message: object, payload: list[Frame] | None = None) -> None:
        self._router.send(self.peer, message, payload or [])

    def send_frames(self, *frames: bytes) -> None:
        """Send what is no message."""
        self._router.send_frames(self.peer, *frames)

    def receive(self, kind: type[MessageT]) -> tuple[MessageT, list[Frame]]:
        """Return the next message of a kind; hellos that come before it are remembered, anything else is a failure."""
        deadline = time.monotonic() + DEADLINE_S
        while self._router.wait(deadline - time.monotonic()):
            received = self._router.try_receive()
            assert received is not None
            peer, message, payload = received
            if isinstance(message, WorkerHello):
                self.peer, self.hello = peer, message
            if isinstance(message, kind):
                return message, payload
            assert isinstance(message, WorkerHello), message
        raise AssertionError(f"no {kind.__name__} within {DEADLINE_S} s")

    def attach(self) -> WorkerAttached:
        """Wait for a hello if none came yet, and attach the worker."""
        if self.hello is None:
            self.receive(WorkerHello)
        self.send(Attach(self.incarnation))
        return self.receive(WorkerAttached)[0]

    def close(self) -> None:
        self._router.close()
