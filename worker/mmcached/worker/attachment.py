"""An attachment binds a worker to one engine, whose plans it takes, and to the ring through which it reads.

Knows nothing of sockets. The worker holds two locks of the control object as long as this is open: the entry's byte
shared, so that leases live while it may read, and its own exclusively, which certifies that the former worker of its
rank is dead.
"""

from __future__ import annotations

from mmcached.shm import ObjectStoreReader, RingReader
from mmcached.wire.messages.worker import Attach
from mmcached.worker.payloads import PayloadReader


class Attachment:
    """One accepted `Attach`.

    Args:
        rank: which of the worker bytes of the entry is this worker's.
    Raises:
        MmcachedError: the ring or the entry is not what was announced, or another worker of this rank lives; nothing is
            held.
    """

    def __init__(self, attach: Attach, rank: int) -> None:
        self.attach = attach
        self._reader: RingReader | None = None
        store = None
        if attach.announcement is not None:
            self._reader = RingReader.open(attach.announcement, populate=True)
            try:
                self._reader.join_entry(attach.reader_id, attach.reader_incarnation, rank)
            except BaseException:
                self._reader.close()
                raise
            store = ObjectStoreReader(self._reader)
        self.payloads = PayloadReader(store)

    @property
    def ring_epoch(self) -> int:
        """0 without a ring."""
        return 0 if self.attach.announcement is None else self.attach.announcement.epoch

    def is_engine_alive(self) -> bool:
        """Return whether the engine's own byte is held; without a ring there is none to ask, and it counts as alive."""
        return self._reader is None or self._reader.is_engine_alive()

    def drop_dead_ring(self) -> bool:
        """Let go of the ring if its writer is dead, for its pages may be wanted for the next one; those of living views
        go with the last of them. Return whether it was dropped now.
        """
        if self._reader is None or self._reader.is_writer_alive():
            return False
        self._reader.close()
        self._reader = None
        self.payloads = PayloadReader(None)
        return True

    def close(self) -> None:
        """Let go of the locks and the mapping."""
        if self._reader is not None:
            self._reader.close()
