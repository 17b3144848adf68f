"""Real decoder processes that a test can hold, each between its look at a file and the decoding of it."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from mmcached.frontend.processing.decoder_pool import DecoderPool
from mmcached.frontend.processing.pixel_budget import PixelBudget
from mmcached.frontend.processing.pool import Mailbox, NotWantedError
from mmcached.pictures.settings import PictureSettings
from mmcached.wire.config import ServiceConfig

DEADLINE_S = 30.0
SETTINGS = PictureSettings.from_config(ServiceConfig())


class HeldRoom(PixelBudget):
    """Has no room for some pictures, which are known by their number of pixels.

    Attributes:
        came: set when one of them waits for room.
        thread: name of the pool's thread that waits for it.
    """

    def __init__(self) -> None:
        super().__init__(1 << 30)
        self.came: dict[int, threading.Event] = {}
        self.thread: dict[int, str] = {}
        self._gates: dict[int, threading.Event] = {}

    def hold(self, pixels: int) -> None:
        """Hold the next picture of that size; one that is held goes on."""
        if pixels in self._gates:
            self._gates[pixels].set()
        self.came[pixels] = threading.Event()
        self._gates[pixels] = threading.Event()

    def release(self) -> None:
        for gate in self._gates.values():
            gate.set()

    @contextmanager
    def room_for(self, pixels: int, is_wanted: Callable[[], bool]) -> Iterator[None]:
        gate = self._gates.get(pixels)
        if gate is not None:
            self.thread[pixels] = threading.current_thread().name
            self.came[pixels].set()
            while not gate.wait(0.01):
                if not is_wanted():
                    raise NotWantedError
        yield

    def has_come(self, pixels: int) -> None:
        assert self.came[pixels].wait(DEADLINE_S), "no decoder has opened it"


class Pool:
    """A pool, its mailbox, and what the loop would do."""

    def __init__(self, num_decoders: int, **settings: Any) -> None:
        self.settings: PictureSettings = msgspec.structs.replace(SETTINGS, **settings)
        self.room = HeldRoom()
        self.mailbox = Mailbox()
        self.pool = DecoderPool(
            num_decoders, self.settings, max_pixels=1, finish=lambda pixels: pixels, mailbox=self.mailbox
        )
        self.pool._budget = self.room
        self._outcomes: dict[str, object] = {}
        self.order: list[str] = []

    def outcome(self, token: str) -> object:
        """Return what became of a picture, and forget it."""
        while token not in self._outcomes:
            readable, _, _ = select.select([self.mailbox], [], [], DEADLINE_S)
            assert readable, f"nothing becomes of {token}"
            for done in self.mailbox.take_all():
                assert isinstance(done.token, str)
                self._outcomes[done.token] = done.outcome
                self.order.append(done.token)
        return self._outcomes.pop(token)

    def pids(self) -> list[int]:
        """Of the decoders that live."""
        return [worker.decoder.pid for worker in self.pool._workers if worker.decoder.is_alive and worker.decoder.pid]

    def close(self) -> None:
        self.room.release()
        self.pool.close()
        self.mailbox.close()


@contextmanager
def decoders(num_decoders: int = 1, **settings: Any) -> Iterator[Pool]:
    """Start a pool.

    Args:
        settings: that differ from a service's.
    """
    pool = Pool(num_decoders, **settings)
    try:
        yield pool
    finally:
        pool.close()
