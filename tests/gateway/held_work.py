"""Decoders that a test can hold: to look at what happens while they work, without a sleep and without processes."""

from __future__ import annotations

import threading
import time

import pytest

from mmcached.gateway.processing import pool
from mmcached.gateway.processing.decoder_pool import DecoderPool
from mmcached.gateway.processing.decoder_process import Pixels
from mmcached.gateway.processing.pool import IsWanted, NotWantedError
from mmcached.pictures.settings import PictureSettings
from mmcached.wire.config import ServiceConfig
from tests.gateway.in_process import pixels_of

DEADLINE_S = 30.0
SETTINGS = PictureSettings.from_config(ServiceConfig())
_LOOK_S = 0.01


class HeldWork:
    """Stands in the place of decoder processes.

    Attributes:
        begun, ended: the files whose decoding has begun, and has ended, in order.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[bytes] = []
        self.ended: list[bytes] = []
        self._running: set[int] = set()
        self._gates: dict[bytes, threading.Event] = {}
        # Whether the test or a clock is faster must not decide.
        monkeypatch.setattr(pool, "GRACE_S", DEADLINE_S)
        monkeypatch.setattr(DecoderPool, "decode", lambda _, data, is_wanted: self._decode(bytes(data), is_wanted))

    def _decode(self, data: bytes, is_wanted: IsWanted) -> Pixels:
        self._running.add(threading.get_ident())
        self.begun.append(data)
        give_up = time.monotonic() + DEADLINE_S
        gate = self._gates.get(data)
        try:
            while gate is not None and not gate.wait(_LOOK_S):
                if not is_wanted():
                    raise NotWantedError
                assert time.monotonic() < give_up, "held too long"
            return pixels_of(data, SETTINGS)
        finally:
            self.ended.append(data)
            self._running.remove(threading.get_ident())

    @property
    def is_idle(self) -> bool:
        return not self._running

    def hold(self, *files: bytes) -> None:
        for data in files:
            self._gates[data] = threading.Event()

    def release(self) -> None:
        """Let go of all files, also of those that come later."""
        for gate in self._gates.values():
            gate.set()
