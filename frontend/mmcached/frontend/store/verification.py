"""Has hosts recompute a share of their hits, and ends the sharing of names whose hits differ.

    Verify   ──> the share, and a salt for this second ──board of the ring──> all readers: see `cache.verification`
    Verified ──> counted; a difference: logged, the records of its name are dropped, and refused until the next flush

Nothing is recomputed any more `VERIFY_S` after the last `Verify`, whatever has become of its sender.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from math import inf
from pathlib import Path

import structlog

from mmcached.cache.store_keys import store_key
from mmcached.cache.stored_names import newest_first, stored_names
from mmcached.cache.verification import name_of, sample_word
from mmcached.frontend.connections.rings import NoRing
from mmcached.frontend.store.record_store import RecordStore
from mmcached.shm.ring.onlooker import RingOnlooker
from mmcached.wire.messages.verification import VERIFY_S, Verification, Verified, Verify

log = structlog.get_logger("mmcached.frontend")
MAX_REFUSED = 256
"""Number of names whose records are refused; beyond it the oldest is shared again."""


class StoreVerification:
    """The verification of one store's hits.

    Args:
        forget_save: Called with the name of each dropped record, which must not be saved any more.
        clock: Monotonic time in seconds.

    Attributes:
        run_dir: Run directory of the service, with the rows of names; None if there is none.
        num_verified: Number of hits that were recomputed.
        num_different: Number of those that differed.
    """

    def __init__(
        self,
        records: RecordStore,
        run_dir: Path | None,
        *,
        forget_save: Callable[[str], object],
        clock: Callable[[], float],
    ) -> None:
        self.num_verified = self.num_different = 0
        self._records = records
        self.run_dir = run_dir
        self._forget_save = forget_save
        self._clock = clock
        self._until = -inf

    def begin(self, message: Verify) -> Verification:
        """Have this share of hits recomputed from now on; return the answer."""
        now = self._clock()
        self._until = now + VERIFY_S
        self._show(sample_word(message.share, salt=int(now)))
        refused = [name for _, name in self._records.refused]
        return Verification(message.request_id, self.num_verified, self.num_different, refused)

    def check(self, now: float) -> None:
        """End a verification that is not renewed, or that a former frontend has begun."""
        if now >= self._until:
            self._show(0)

    def take(self, message: Verified) -> None:
        """Count a recomputed hit."""
        self.num_verified += 1
        if not message.difference:
            return
        self.num_different += 1
        name = name_of(message.key)
        log.warning(
            "a hit differs from its recomputation: records of its name are not shared until the next flush",
            key=message.key,
            tenant=message.tenant,
            difference=message.difference,
            num_dropped=self._refuse(message.tenant, name),
            name_of_both=self._rows(message.key),
        )

    def _refuse(self, tenant: str, name: str) -> int:
        """Drop the records of a tenant's name, and refuse others; return the number of dropped ones."""
        records, refused = self._records, self._records.refused
        refused[tenant, name] = None
        if len(refused) > MAX_REFUSED:
            del refused[next(iter(refused))]
        if records.ring.announcement is None:
            return 0
        with RingOnlooker(records.ring.announcement) as ring:
            rows = ring.rows()
            found = [about for _, _, about in stored_names(ring, newest_first(rows), rows)]
        keys = [about.key for about in found if about.tenant == tenant and name_of(about.key) == name]
        for key in keys:
            self._forget_save(store_key(tenant, key))
        return sum(records.drop(tenant, key) for key in keys)

    def _rows(self, key: str) -> str:
        """Return the rows of the name, which the found and the recomputed record have in common."""
        from mmcached.cache.name_files import name_in, read_name  # needs packages that a store alone does not

        name = name_in(key)
        rows = None if name is None or self.run_dir is None else read_name(self.run_dir, name)
        return "" if rows is None else json.dumps(rows, sort_keys=True)

    def _show(self, sample: int) -> None:
        self._records.sample = sample
        if not isinstance(self._records.ring, NoRing):
            self._records.ring.board.set_verified(sample)
