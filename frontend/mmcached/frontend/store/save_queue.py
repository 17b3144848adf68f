"""Keeps what has been put and the second level shall have too, until it takes it; what is too much, or too old, goes.

    put ──> waiting ──taken──> the second level's      or: dropped, the oldest first, and counted; forgotten by a flush

It has names and places only: the records lie where they lie, and may have gone when their turn comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mmcached.wire.config import MIB
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages.parts import Save


class _Waiting(NamedTuple):
    save: Save
    since: float


class SaveQueue:
    """The records that wait, by name.

    Args:
        clock: monotonic seconds.
        on_lost: called with the name of each record that will not be saved.
    Attributes:
        num_dropped: only rises; what a flush has forgotten is not dropped.
    """

    def __init__(
        self,
        limits: LimitsConfig,
        clock: Callable[[], float],
        *,
        on_lost: Callable[[str], object] = lambda name: None,
    ) -> None:
        self._max_waiting = limits.max_l2_waiting
        self._max_bytes = limits.max_l2_waiting_mb * MIB
        self._max_record_bytes = limits.max_l2_record_mb * MIB
        self._max_age_s = limits.l2_save_age_s
        self._clock = clock
        self._on_lost = on_lost
        self._waiting: dict[str, _Waiting] = {}
        self._num_bytes = 0
        self.num_dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, name: str, save: Save) -> None:
        """Let a record wait, and drop what waits before it as far as it is too much."""
        if save.place.nbytes > self._max_record_bytes:
            self.num_dropped += 1
            self._on_lost(name)
            return
        self._remove(name)
        self._waiting[name] = _Waiting(save, self._clock())
        self._num_bytes += save.place.nbytes
        while len(self._waiting) > self._max_waiting or self._num_bytes > self._max_bytes:
            self._drop_first()

    def take(self, limit: int) -> dict[str, Save]:
        """Return and forget those that wait longest, by name, as many as `limit`; drop what is too old."""
        oldest = self._clock() - self._max_age_s
        while self._waiting and next(iter(self._waiting.values())).since < oldest:
            self._drop_first()
        saves: dict[str, Save] = {}
        while self._waiting and len(saves) < limit:
            name, waiting = next(iter(self._waiting.items()))
            saves[name] = waiting.save
            self._remove(name)
        return saves

    def forget(self, name: str) -> None:
        """Let a record wait no more; an unknown one changes nothing."""
        if name in self._waiting:
            self._remove(name)
            self._on_lost(name)

    def clear(self) -> None:
        for name in list(self._waiting):
            self.forget(name)

    def _drop_first(self) -> None:
        self.forget(next(iter(self._waiting)))
        self.num_dropped += 1

    def _remove(self, name: str) -> None:
        if (waiting := self._waiting.pop(name, None)) is not None:
            self._num_bytes -= waiting.save.place.nbytes
