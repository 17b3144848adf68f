"""Makes the frontend's two rings, each as soon as there is room for it.

After a frontend's death its ring still lies in /dev/shm, for as long as readers map it; beside it there may be no room
for the next. So a ring that cannot be made is no reason to end: everything travels inline, and it is tried again.

Knows nothing of what lies in a ring.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import structlog

from mmcached.shm import ReaderStopped, ReaderVoided, RingWriter
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import SegmentError, StaleHandle
from mmcached.wire.handle import Handle
from mmcached.wire.stats import RingStats

log = structlog.get_logger("mmcached.frontend")

RETRY_S = 3.0


class NoRing:
    """Stands where there is no ring (yet): nothing lies in it, and no reader can attach."""

    announcement = None

    def read(self, handle: Handle) -> npt.NDArray[np.uint8]:
        raise StaleHandle("there is no ring")

    def touch(self, handle: Handle) -> None:
        pass

    def poll_deaths(self) -> list[ReaderStopped | ReaderVoided]:
        return []

    def stats(self) -> RingStats:
        return RingStats()


class LateRing:
    """Makes one ring.

    Args:
        name: of the ring, for the log.
        make: raises SegmentError if there is no room; None: no ring is wanted.
    """

    def __init__(self, name: str, make: Callable[[], RingWriter] | None) -> None:
        self._name = name
        self._make = make
        self._retry_at = -float("inf")
        self._num_failures = 0

    def take(self, now: float) -> RingWriter | None:
        """Return the ring, once, which is the caller's from then on; None if there is no room, or it is not time to
        look.
        """
        if self._make is None or now < self._retry_at:
            return None
        self._retry_at = now + RETRY_S
        try:
            ring = self._make()
        except SegmentError as error:
            if not self._num_failures:
                log.error("no room: goes on without and tries again", ring=self._name, reason=str(error))
            self._num_failures += 1
            return None
        if self._num_failures:
            log.info("there is room now", ring=self._name, attempts=self._num_failures + 1)
        self._make = None
        return ring


def late_item_ring(config: ServiceConfig) -> LateRing:
    """Return what makes the ring of processed items."""

    def make() -> RingWriter:
        return RingWriter.create(
            data_bytes=config.ring_data_bytes,
            num_slots=config.ring_num_slots,
            max_readers=config.ring_max_readers,
            max_object_bytes=config.max_object_bytes,
            reader_quota_bytes=config.ring_reader_quota_bytes,
            has_checksums=config.ring_has_checksums,
        )

    return LateRing("ring", make if config.ring_data_bytes and config.is_multimodal_model else None)


def late_store_ring(config: ServiceConfig) -> LateRing:
    """Return what makes the ring of the clients' records."""

    def make() -> RingWriter:
        return RingWriter.create(
            data_bytes=config.store_data_bytes,
            num_slots=config.store_num_slots,
            max_readers=config.store_max_clients,
            max_object_bytes=config.store_max_object_bytes,
            reader_quota_bytes=config.store_client_quota_bytes,
            # Half of the store stays free of leases, however many clients hold views, unless the quota asks for more.
            shared_quota_bytes=max(config.store_data_bytes // 2, 2 * config.store_client_quota_bytes),
            has_checksums=config.ring_has_checksums,
            has_index=True,
        )

    return LateRing("store", make if config.store_data_bytes else None)


def warn_of_small_shm(config: ServiceConfig, shm_bytes: int) -> bool:
    """Say so if /dev/shm has no room for both rings beside those of a dead frontend; return whether it has not."""
    needed = 2 * (config.ring_data_bytes + config.store_data_bytes)
    if shm_bytes >= needed:
        return False
    log.warning(
        "/dev/shm is too small for a restart: a next frontend would begin without ring or store, inline",
        shm_mib=shm_bytes >> 20,
        wanted_mib=needed >> 20,
    )
    return True
