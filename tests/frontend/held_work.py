"""Image processing that a test can hold: to look at what happens while it runs, without a sleep."""

from __future__ import annotations

import threading

import pytest

from mmcached.frontend.processing import Processed, Processing

DEADLINE_S = 30.0


class HeldWork:
    """Stands between the pool's threads and the processor.

    Attributes:
        begun: the files whose processing has begun, in order.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[bytes] = []
        self._gates: dict[bytes, threading.Event] = {}
        really_process = Processing.process

        def process(processing: Processing, data: bytes) -> Processed:
            self.begun.append(data)
            gate = self._gates.get(data)
            if gate is not None and not gate.wait(DEADLINE_S):
                raise TimeoutError("held too long")
            return really_process(processing, data)

        monkeypatch.setattr(Processing, "process", process)

    def hold(self, *files: bytes) -> None:
        for data in files:
            self._gates[data] = threading.Event()

    def release(self) -> None:
        """Let go of all files, also of those that come later."""
        for gate in self._gates.values():
            gate.set()
