"""Decoders of clips without processes: a clip is a few letters, one for each second, and each second is a slice."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sequence

import numpy as np
import pytest

from mmcached.clips.messages import check_num_slices
from mmcached.gateway.processing.clip_decoders import ClipDecoderPool
from mmcached.gateway.processing.pool import IsWanted, NotWantedError
from mmcached.gateway.processing.slice_processor import DecodedSlice, SlicePlace
from mmcached.wire.errors import CorruptClip
from mmcached.wire.messages.parts import ClipOptions

START = b"clip:"
BAD = b"!"
"""A second of a clip that is damaged."""
SIDE = 32
DEADLINE_S = 30.0
_LOOK_S = 0.01


def clip(seconds: str) -> bytes:
    """Return the file of a clip in which equal letters are equal seconds."""
    return START + seconds.encode()


def video(start_s: float = 0.0, end_s: float | None = None) -> ClipOptions:
    return ClipOptions("video", start_s, end_s, 2.0)


class FakeClipDecoders:
    """Stands in the place of decoder processes.

    Attributes:
        planned: the files that were opened.
        decoded: the seconds that were decoded, in order.
        is_held: a decoder stands still before a second.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.planned: list[bytes] = []
        self.decoded: list[str] = []
        self.is_held = False
        self._held = ""
        self._gate = threading.Event()
        self._gate.set()
        monkeypatch.setattr(ClipDecoderPool, "plan", lambda _, *said: self._plan(*said))
        monkeypatch.setattr(ClipDecoderPool, "decode", lambda _, *said: self._decode(*said))

    def hold(self) -> None:
        """Let decoders stand still before each second."""
        self._held = ""
        self._gate.clear()

    def hold_at(self, second: str) -> None:
        """Let decoders stand still before this second."""
        self._held = second
        self._gate.clear()

    def release(self) -> None:
        self._gate.set()

    def _plan(self, data: bytes, options: ClipOptions, is_wanted: IsWanted) -> list[SlicePlace]:
        self.planned.append(data)
        if not data.startswith(START):
            raise CorruptClip("video", f"{len(data)} bytes", "is no clip")
        first = int(options.start_s)
        end = min(len(data) - len(START), int(options.end_s or 1e6))
        check_num_slices("video", end - first)
        return [SlicePlace((second, SIDE, SIDE), float(second), second + 1.0) for second in range(first, end)]

    def _decode(
        self, data: bytes, options: ClipOptions, wanted: Sequence[int], is_wanted: IsWanted
    ) -> Generator[DecodedSlice]:
        give_up = time.monotonic() + DEADLINE_S
        for index in wanted:
            second = int(options.start_s) + index
            letter = data[len(START) + second]
            while self._held in ("", chr(letter)) and not self._gate.wait(_LOOK_S):
                self.is_held = True
                if not is_wanted():
                    raise NotWantedError
                assert time.monotonic() < give_up, "held too long"
            if letter == BAD[0]:
                raise CorruptClip("video", f"second {second}", "is damaged")
            self.decoded.append(chr(letter))
            frames = np.full((2, SIDE, SIDE, 3), letter, np.uint8)
            yield DecodedSlice(index, float(second), second + 1.0, {"frames": frames})
