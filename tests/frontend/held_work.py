"""Decoders that a test can hold: to look at what happens while they work, without a sleep and without processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from mmcached.frontend.processing import decoder_pool
from mmcached.frontend.processing.decoder_process import Decoder, Pixels
from mmcached.frontend.processing.pool import NotWantedError
from tests.frontend.in_process import pixels_of

DEADLINE_S = 30.0
_LOOK_S = 0.01


class HeldWork:
    """Stands in the place of decoder processes.

    Attributes:
        begun: the files whose decoding has begun, in order.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[bytes] = []
        self._gates: dict[bytes, threading.Event] = {}

        def process(
            decoder: Decoder,
            data: bytes,
            *,
            is_wanted: Callable[[], bool],
            before_pixels: Callable[[int], AbstractContextManager[None]],
        ) -> Pixels:
            self.begun.append(data)
            give_up = time.monotonic() + DEADLINE_S
            gate = self._gates.get(data)
            while gate is not None and not gate.wait(_LOOK_S):
                if not is_wanted():
                    raise NotWantedError
                assert time.monotonic() < give_up, "held too long"
            return pixels_of(data, decoder._settings)

        # Whether the test or a clock is faster must not decide.
        monkeypatch.setattr(decoder_pool, "GRACE_S", DEADLINE_S)
        monkeypatch.setattr(Decoder, "start", lambda decoder, is_wanted: None)
        monkeypatch.setattr(Decoder, "is_alive", True)
        monkeypatch.setattr(Decoder, "process", process)

    def hold(self, *files: bytes) -> None:
        for data in files:
            self._gates[data] = threading.Event()

    def release(self) -> None:
        """Let go of all files, also of those that come later."""
        for gate in self._gates.values():
            gate.set()
