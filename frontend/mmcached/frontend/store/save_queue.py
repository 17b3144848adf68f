"""Queue of records to save in the second level; too many or too old ones are dropped.

    put ──> waiting ──taken──> the second level's      or: too many or too old: dropped, and counted; removed by a flush

Beyond a limit it drops the oldest of the tenant that has the most (see `waiting_saves`).
Holds names and places only: records stay in the ring, and may have been evicted when their turn comes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

from mmcached.cache.waiting_saves import WaitingSaves
from mmcached.wire.config import MIB
from mmcached.wire.limits import MAX_SAVE_AGE_S, MAX_WAITING_SAVES, LimitsConfig
from mmcached.wire.messages.second_level import Save

SAVES_WAIT_S = 0.01
"""Seconds for which the first save waits for others: no caller waits for it, and consecutive puts go first."""


class _Waiting(NamedTuple):
    save: Save
    since: float


class SaveQueue:
    """The waiting records, by name.

    Args:
        clock: Monotonic time in seconds.
        on_lost: Called with the name of each record that will not be saved.

    Attributes:
        num_dropped: Number of dropped records, without those that a flush removed; never decreases.
    """

    def __init__(
        self,
        limits: LimitsConfig,
        clock: Callable[[], float],
        *,
        on_lost: Callable[[str], object] = lambda name: None,
    ) -> None:
        self._max_bytes = limits.max_l2_waiting_mb * MIB
        self._max_record_bytes = limits.max_l2_record_mb * MIB
        self._clock = clock
        self._on_lost = on_lost
        self._waiting: dict[str, _Waiting] = {}
        self._books = WaitingSaves()
        self._next_order = inf
        self.num_dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def next_order(self) -> float:
        """When the first records are to be taken; infinite without any."""
        return self._next_order if self._waiting else inf

    def add(self, name: str, save: Save) -> None:
        """Add a record, and drop those beyond the limits."""
        if save.place.nbytes > self._max_record_bytes:
            self.num_dropped += 1
            self._on_lost(name)
            return
        self._remove(name)
        if not self._waiting:
            self._next_order = self._clock() + SAVES_WAIT_S
        self._waiting[name] = _Waiting(save, self._clock())
        self._books.add(save.tenant, save.place.nbytes)
        bounds = {"max_records": MAX_WAITING_SAVES, "max_bytes": self._max_bytes}
        while (tenant := self._books.tenant_to_drop(**bounds)) is not None:
            self._drop(next(name for name, each in self._waiting.items() if each.save.tenant == tenant))

    def take(self, limit: int) -> dict[str, Save]:
        """Return and remove up to `limit` records, the oldest first, by name; drop records that are too old."""
        oldest = self._clock() - MAX_SAVE_AGE_S
        while self._waiting and next(iter(self._waiting.values())).since < oldest:
            self._drop(next(iter(self._waiting)))
        saves: dict[str, Save] = {}
        while self._waiting and len(saves) < limit:
            name, waiting = next(iter(self._waiting.items()))
            saves[name] = waiting.save
            self._remove(name)
        return saves

    def forget(self, name: str) -> None:
        """Remove a record without saving it; an unknown one changes nothing."""
        if name in self._waiting:
            self._remove(name)
            self._on_lost(name)

    def clear(self) -> None:
        for name in list(self._waiting):
            self.forget(name)

    def _drop(self, name: str) -> None:
        self.forget(name)
        self.num_dropped += 1

    def _remove(self, name: str) -> None:
        if (waiting := self._waiting.pop(name, None)) is not None:
            self._books.remove(waiting.save.tenant, waiting.save.place.nbytes)
