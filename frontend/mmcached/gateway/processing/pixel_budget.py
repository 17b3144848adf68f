"""Limits the pixels that are decoded at a time: pictures wait for room in the order in which they were opened."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mmcached.gateway.processing.pool import NotWantedError

LOOK_S = 0.1
"""Seconds between checks whether a waiting picture is still wanted."""


class PixelBudget:
    """Room for a number of pixels; a picture larger than that is decoded alone. Any thread may call it."""

    def __init__(self, max_pixels: int) -> None:
        self._max_pixels = max_pixels
        self.num_pixels = 0
        self._line: deque[object] = deque()
        self._changed = threading.Condition()

    @property
    def num_waiting(self) -> int:
        return len(self._line)

    @contextmanager
    def room_for(self, pixels: int, is_wanted: Callable[[], bool]) -> Iterator[None]:
        """Wait for room, and occupy it until the end of the block.

        Args:
            is_wanted: Called repeatedly while waiting.
        Raises:
            NotWantedError: `is_wanted` returned False; no room is occupied.
        """
        self._take(pixels, is_wanted)
        try:
            yield
        finally:
            with self._changed:
                self.num_pixels -= pixels
                self._changed.notify_all()

    def _take(self, pixels: int, is_wanted: Callable[[], bool]) -> None:
        ticket = object()
        with self._changed:
            self._line.append(ticket)
            try:
                while not (self._line[0] is ticket and self._has_room(pixels)):
                    self._changed.wait(LOOK_S)
                    if not is_wanted():
                        raise NotWantedError
                self.num_pixels += pixels
            finally:
                self._line.remove(ticket)
                self._changed.notify_all()

    def _has_room(self, pixels: int) -> bool:
        return not self.num_pixels or self.num_pixels + pixels <= self._max_pixels
