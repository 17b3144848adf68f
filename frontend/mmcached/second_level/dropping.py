"""Drops records on all hosts, as the frontend orders it, one after the other.

ordered ──> no fetch and no save of before goes on ──> dropped on the server, and announced ──> "", or the error
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Sequence

from mmcached.second_level.backend import BackendError
from mmcached.second_level.counts import Counts
from mmcached.second_level.fetching import Fetching
from mmcached.second_level.first_level import FirstLevel
from mmcached.second_level.saving import Saving
from mmcached.second_level.shared_records import SharedRecords
from mmcached.wire.closeable import Closeable
from mmcached.wire.messages.second_level import Drop

log = logging.getLogger("mmcached.second_level")

DROP_S = 5.0


class Dropping(Closeable):
    """The drops of one process."""

    def __init__(
        self, first: FirstLevel, records: SharedRecords, fetching: Fetching, saving: Saving, counts: Counts
    ) -> None:
        self._first = first
        self._records = records
        self._fetching = fetching
        self._saving = saving
        self._counts = counts
        self._life = 0
        self._queue: queue.SimpleQueue[tuple[Drop, int] | None] = queue.SimpleQueue()

    def begin_life(self) -> None:
        """Drop no more for a former frontend, and report nothing of it."""
        self._life += 1

    def order(self, drops: Sequence[Drop]) -> None:
        """Add orders; saves that are ordered after them are of later records."""
        for each in drops:
            self._records.drops.begin(each.name)
            self._queue.put((each, self._life))

    def run(self) -> None:
        """Drop until `close`; the body of a thread."""
        while (ordered := self._queue.get()) is not None:
            drop, life = ordered
            if life != self._life:
                continue
            error = self._drop(drop.name)
            self._counts.add(**{"drops_failed" if error else "drops_done": 1})
            if life == self._life:
                self._first.drop_ended(drop.number, error)

    def close(self) -> None:
        self.begin_life()
        self._queue.put(None)

    def _drop(self, name: str) -> str:
        """Drop a record; return why that failed, or ""."""
        try:
            self._fetching.forget([name])
            self._saving.forget(name)
            self._records.drop(name, deadline=time.monotonic() + DROP_S)
        except BackendError as error:
            return str(error)[:200]
        except Exception as error:
            self._counts.add(faults=1)
            log.exception("a drop has failed unexpectedly")
            return type(error).__name__
        return ""
