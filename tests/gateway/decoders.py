"""Real decoder processes that a test can hold, each between its look at a file and the decoding of it."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mmcached.gateway.processing.decoder_pool import DecoderPool
from mmcached.gateway.processing.pixel_budget import PixelBudget
from mmcached.gateway.processing.pool import Mailbox, NotWantedError, WorkPool
from mmcached.pictures.settings import PictureSettings
from mmcached.wire.config import ServiceConfig
from tests.gateway.pictures import plain

DEADLINE_S = 30.0
HELD, HELD_PIXELS = plain(50, 41), 50 * 41
SETTINGS = PictureSettings.from_config(ServiceConfig())


class HeldRoom(PixelBudget):
    """Has no room for some pictures, which are known by their number of pixels.

    Attributes:
        came: set when one of them waits for room.
    """

    def __init__(self) -> None:
        super().__init__(1 << 30)
        self.came: dict[int, threading.Event] = {}
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
            self.came[pixels].set()
            while not gate.wait(0.01):
                if not is_wanted():
                    raise NotWantedError
        yield

    def has_come(self, pixels: int) -> None:
        assert self.came[pixels].wait(DEADLINE_S), "no decoder has opened it"


class Pool:
    """The threads and decoders of a frontend, their mailbox, and what the loop would do."""

    def __init__(self, num_decoders: int, **settings: Any) -> None:
        self.settings: PictureSettings = msgspec.structs.replace(SETTINGS, **settings)
        self.room = HeldRoom()
        self.mailbox = Mailbox()
        self.work = WorkPool("decoder", num_decoders, self.mailbox)
        self._decoders = DecoderPool(num_decoders, self.settings, self.room)
        self._outcomes: dict[str, object] = {}
        self.order: list[str] = []

    def submit(self, token: str, data: bytes, client: str = "client") -> None:
        self.work.submit(token, partial(self._decoders.decode, data), client)

    def submit_held(self) -> None:
        """Submit a picture as `held`, and return when a decoder has opened it."""
        self.room.hold(HELD_PIXELS)
        self.submit("held", HELD, "one")
        self.room.has_come(HELD_PIXELS)

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

    def close(self) -> None:
        self.room.release()
        self.work.close()
        self._decoders.close()
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


LIAR = """#!{python} -S
import os, sys
channel = int(sys.argv[3])
for packet in {packets}:
    os.write(channel, packet)
    os.read(channel, 1 << 14)
"""


def write_liar(said: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have decoders be a process that says these messages, whatever it is told."""
    liar = tmp_path / "liar"
    liar.write_text(LIAR.format(python=sys.executable, packets=[msgspec.msgpack.encode(packet) for packet in said]))
    liar.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(liar))


def pids() -> list[int]:
    """Return the living decoders of this process."""
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _is_decoder(entry)]


def _is_decoder(process: Path) -> bool:
    with contextlib.suppress(OSError):  # it has ended meanwhile
        state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
        is_mine = int(parent) == os.getpid() and state != "Z"
        return is_mine and b"mmcached.pictures.decoder" in (process / "cmdline").read_bytes()
    return False
