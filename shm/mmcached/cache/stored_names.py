"""Lists the tenants and keys of the records in a ring, out of shared memory alone.

    slot table ── valid slots, the newest first ──note behind each record──> tenant, key

Nothing is sent, leased or locked: each record is as it was at one moment.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mmcached.cache.store_keys import tenant_and_key
from mmcached.shm.ring.onlooker import RingOnlooker, Row
from mmcached.shm.ring.slot_table import GENERATION
from mmcached.shm.store.object_store import parse_note

FIRST_LOOK = 256


def newest_first(rows: Row) -> list[int]:
    """Return the slots that have a record, of the words of all slots."""
    valid = np.flatnonzero(rows[:, GENERATION] & np.uint64(1))
    slots: list[int] = valid[np.argsort(rows[valid, GENERATION])][::-1].tolist()
    return slots


def stored_names(
    ring: RingOnlooker, slots: list[int], rows: Row, num: int = FIRST_LOOK
) -> Iterator[tuple[int, int, tuple[str, str]]]:
    """Yield place from 1 on, slot, and tenant and key of each record that stays while it is read.

    Args:
        rows: the words of all slots, as `ring` has returned them.
        num: records that are looked at first; then twice as many, and so on.
    """
    start = 0
    while start < len(slots):
        some = slots[start : start + num]
        for place, (slot, note) in enumerate(zip(some, ring.notes(some, rows), strict=True), start + 1):
            parsed = None if note is None else parse_note(note)
            names = None if parsed is None else tenant_and_key(parsed[1])
            if names is not None:
                yield place, slot, names
        start, num = start + num, 2 * num
