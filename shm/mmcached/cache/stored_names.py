"""Lists the tenants and keys of the records in a ring, from shared memory alone.

    slot table ── valid slots, the newest first ──note behind each record──> tenant, key

Sends no message and takes no lease or lock: each record is consistent by itself, but not with the others.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mmcached.cache.store_keys import About, parse_about, store_key
from mmcached.shm.ring.key_index import key_digest
from mmcached.shm.ring.onlooker import RingOnlooker, Row
from mmcached.shm.ring.slot_table import (
    EXPIRY,
    FIRST_KEY,
    GENERATION,
    NOTE_BYTES,
    NURSERY_SHIFT,
    SECOND_KEY,
    boot_ns,
)
from mmcached.shm.store.record_note import parse_note

FIRST_LOOK = 256


def newest_first(rows: Row) -> list[int]:
    """Return the slots with an unexpired record, the newest first, from the words of all slots."""
    has_expired = (rows[:, EXPIRY] != 0) & (rows[:, EXPIRY] <= np.uint64(boot_ns()))
    valid = np.flatnonzero((rows[:, GENERATION] & np.uint64(1)).astype(bool) & ~has_expired)
    slots: list[int] = valid[np.argsort(rows[valid, GENERATION])][::-1].tolist()
    return slots


def stored_names(
    ring: RingOnlooker, slots: list[int], rows: Row, num: int = FIRST_LOOK
) -> Iterator[tuple[int, int, About]]:
    """Yield rank (from 1 on), slot, and names of each record that stays valid while it is read.

    Of two records of one key, during a replacement, the newer is yielded.

    Args:
        rows: The words of all slots, as `ring` has returned them.
        num: Number of records in the first batch; each further batch is twice as large.
    """
    start, seen = 0, set[tuple[str, str]]()
    while start < len(slots):
        some = slots[start : start + num]
        for place, (slot, note) in enumerate(zip(some, ring.notes(some, rows), strict=True), start + 1):
            parsed = None if note is None else parse_note(note)
            about = None if parsed is None else parse_about(parsed[1])
            # A note in a nursery was written by a client: it is accepted only if its key is the slot's.
            if about is not None and parsed is not None and rows[slot, NOTE_BYTES] >> np.uint64(NURSERY_SHIFT):
                name = store_key(about.tenant, about.key)
                is_true = name == parsed[0] and key_digest(name) == tuple(
                    rows[slot, FIRST_KEY : SECOND_KEY + 1].tolist()
                )
                about = about if is_true else None
            if about is not None and about[:2] not in seen:
                seen.add(about[:2])
                yield place, slot, about
        start, num = start + num, 2 * num
