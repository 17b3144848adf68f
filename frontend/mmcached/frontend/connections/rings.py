"""Adopts the frontend's ring from its predecessor, or makes a new one once there is memory for it.

    note in the run directory ──the ring fits──> adopted        and a note of it, for the next frontend
             └── no note, or it does not fit ──> removed, and a new ring

A former ring that is not adopted stays in /dev/shm for as long as readers map it; meanwhile there may be too little
memory for the next. So the frontend goes on without a ring: all records travel inline, and it tries again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import structlog

from mmcached.shm import HostCalls, RingWriter, adopt_ring, sweep
from mmcached.shm.ring.service_layout import num_nursery_slots, service_layout
from mmcached.shm.segment.layout import Layout
from mmcached.shm.segment.ring_notes import RingNote, has_note, read_note, remove_note, write_note
from mmcached.shm.segment.segment import WriterSegment
from mmcached.wire.closeable import Closeable
from mmcached.wire.config import GIB, ServiceConfig
from mmcached.wire.errors import LayoutMismatch, SegmentError, StaleHandle
from mmcached.wire.handle import Handle, RingAnnouncement
from mmcached.wire.stats import RingStats
from mmcached.wire.version import PROTOCOL_VERSION

log = structlog.get_logger("mmcached.frontend")

RETRY_S = 3.0
_FENCED = "readers have counted leases that cannot be: what was in the ring can be found, and stays until they end"


class _NoRecords:
    def read(self, handle: Handle, nbytes: int | None = None) -> npt.NDArray[np.uint8]:
        raise StaleHandle("there is no ring")

    def touch(self, handle: Handle) -> None:
        pass

    def expires_at(self, handle: Handle) -> int:
        return 0


class NoRing:
    """Stands in until there is a ring: it is empty, and has no readers."""

    announcement = None
    records = _NoRecords()

    def stats(self) -> RingStats:
        return RingStats()


@dataclass(frozen=True, slots=True, kw_only=True)
class RingPlan:
    """The configured ring; sizes in bytes.

    Attributes:
        settings: Setting that each size of the layout comes from.
        nursery_bytes: Memory that nurseries will take in addition.
    """

    layout: Layout
    settings: Mapping[str, str]
    max_object_bytes: int
    reader_quota_bytes: int | None = None
    shared_quota_bytes: int | None = None
    has_checksums: bool = False
    num_nursery_slots: int = 0
    nursery_bytes: int = 0

    def make(self, home: str) -> RingWriter:
        """Make the ring; raise SegmentError without enough memory."""
        segment = WriterSegment.create(
            self.layout, epoch=time.time_ns(), host=HostCalls(), home=home, later_bytes=self.nursery_bytes
        )
        return RingWriter(
            segment,
            max_object_bytes=self.max_object_bytes,
            reader_quota_bytes=self.reader_quota_bytes,
            shared_quota_bytes=self.shared_quota_bytes,
            has_checksums=self.has_checksums,
            num_nursery_slots=self.num_nursery_slots,
        )

    def changed_setting(self, former: RingAnnouncement) -> str:
        """Return a text that names the first setting that differs from a former ring's; "" if none does."""
        for field, setting in self.settings.items():
            was, wanted = getattr(former, field), getattr(self.layout, field)
            if was != wanted:
                unit, digits = (GIB, ".4g") if field == "data_bytes" else (1, ".0f")
                values = f"was {was / unit:{digits}} and is {wanted / unit:{digits}}"
                return f"{setting} {values}: leave it as it was to keep what is cached"
        return ""

    def adopt(self, announcement: RingAnnouncement) -> RingWriter:
        """Adopt a former frontend's ring; raise SegmentError or LayoutMismatch if that fails."""
        return adopt_ring(
            announcement,
            self.layout,
            max_object_bytes=self.max_object_bytes,
            reader_quota_bytes=self.reader_quota_bytes,
            shared_quota_bytes=self.shared_quota_bytes,
            has_checksums=self.has_checksums,
            num_nursery_slots=self.num_nursery_slots,
        )


class LateRing(Closeable):
    """A ring, made or adopted later, and its note in the run directory; `close` it after the ring.

    Args:
        name: Name of the ring, for the note and the log.
        plan: None if no ring is configured.
        home: Run directory; None: no ring is adopted, and this one will not be.
        outlives_service: Whether the ring is left for the next service.
    """

    def __init__(self, name: str, plan: RingPlan | None, home: Path | None, *, outlives_service: bool) -> None:
        self._name = name
        self._plan = plan
        self._home = home
        self._outlives_service = outlives_service
        self._may_adopt = home is not None
        self._retry_at = -float("inf")
        self._num_failures = 0

    def take(self, now: float) -> RingWriter | None:
        """Return the ring once, owned by the caller from then on; else None.

        None means: not enough memory, not yet time for the next attempt, or the ring was already taken.
        """
        if self._may_adopt and self._home is not None:
            self._may_adopt = False
            if (former := self._adopt(self._home)) is not None:
                return self._taken(former)
        if self._plan is None or now < self._retry_at:
            return None
        self._retry_at = now + RETRY_S
        try:
            ring = self._plan.make("" if self._home is None else str(self._home.absolute()))
        except SegmentError as error:
            if not self._num_failures:
                log.error("no room: goes on without and tries again", ring=self._name, reason=str(error))
            self._num_failures += 1
            return None
        if self._num_failures:
            log.info("there is room now", ring=self._name, attempts=self._num_failures + 1)
        return self._taken(ring)

    def close(self) -> None:
        """Remove the note, unless the ring is left for the next service."""
        if self._home is not None and not self._outlives_service:
            remove_note(self._home, self._name)

    def _adopt(self, home: Path) -> RingWriter | None:
        """Return the ring of the note; remove it if it cannot be adopted."""
        if not has_note(home, self._name):
            return None
        began = time.perf_counter()
        note = read_note(home, self._name)
        if note is None or note.version != PROTOCOL_VERSION:
            former = "another" if note is None else note.version
            reason = f"it is of protocol version {former}, this frontend of {PROTOCOL_VERSION}"
        elif self._plan is None:
            reason = "none is wanted"
        elif not (reason := self._plan.changed_setting(note.ring)):
            try:
                ring = self._plan.adopt(note.ring)
            except (SegmentError, LayoutMismatch) as error:
                reason = str(error)
            else:
                took_s = round(time.perf_counter() - began, 3)
                log.info("adopted", ring=self._name, chunks=ring.stats().chunks, took_s=took_s)
                if pids := ring.readers.fenced_pids():
                    log.warning(_FENCED, ring=self._name, pids=pids)
                return ring
        log.warning("the former ring is not adopted: it is removed", ring=self._name, reason=reason)
        remove_note(home, self._name)
        sweep()
        return None

    def _taken(self, ring: RingWriter) -> RingWriter:
        ring.outlives_writer = self._outlives_service
        self._plan = None
        if self._home is not None:
            try:
                write_note(self._home, self._name, RingNote(ring.announcement, self._outlives_service))
            except OSError as error:
                log.error("no note of the ring: it will not be adopted", ring=self._name, reason=str(error))
        return ring


def late_store_ring(config: ServiceConfig, home: Path | None) -> LateRing:
    """Return the ring of the clients' records and of processed items."""
    plan = None
    if (layout := service_layout(config)) is not None:
        sizes = [name for name, num_bytes in _shares(config) if num_bytes]
        quota_bytes = config.store_client_quota_bytes
        plan = RingPlan(
            layout=layout,
            settings={
                "data_bytes": " + ".join(sizes),
                "num_slots": "store_num_slots + ring_num_slots",
                "max_readers": "store_max_clients, with engines and workers,",
            },
            max_object_bytes=max(config.store_max_object_bytes, config.max_object_bytes),
            reader_quota_bytes=quota_bytes,
            # Half of the store stays free of leases, however many clients hold views, unless the quota asks for more.
            # An engine, whose items are kept for it, counts as one more client.
            shared_quota_bytes=max(config.store_data_bytes // 2, 2 * quota_bytes) + config.num_engines * quota_bytes,
            has_checksums=config.ring_has_checksums,
            num_nursery_slots=num_nursery_slots(config),
            nursery_bytes=config.store_nursery_bytes,
        )
    return LateRing("store", plan, home, outlives_service=config.keep_cache)


def _shares(config: ServiceConfig) -> list[tuple[str, int]]:
    of_store = "store_gb × (1 − store_nursery_share)" if config.store_nursery_bytes else "store_gb"
    return [(of_store, config.store_main_bytes), ("mm_processor_cache_gb", config.ring_data_bytes)]


def warn_of_small_shm(config: ServiceConfig, shm_bytes: int) -> bool:
    """Warn if /dev/shm cannot hold a second ring beside a dead frontend's; return whether it warned."""
    needed = 2 * (config.ring_data_bytes + config.store_data_bytes)
    if shm_bytes >= needed:
        return False
    log.warning(
        "/dev/shm has no room for a second ring: a next frontend that does not adopt the first begins without, inline",
        shm_mib=shm_bytes >> 20,
        wanted_mib=needed >> 20,
    )
    return True
