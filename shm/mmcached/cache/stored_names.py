"""Lists the tenants and keys of the records in a ring, out of shared memory alone.

    slot table ── valid slots, the newest first ──note behind each record──> tenant, key

Nothing is sent, leased or locked: each record is as it was at one moment.
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
    """Return the slots that have a record which has not expired, of the words of all slots."""
    has_expired = (rows[:, EXPIRY] != 0) & (rows[:, EXPIRY] <= np.uint64(boot_ns()))
    valid = np.flatnonzero((rows[:, GENERATION] & np.uint64(1)).astype(bool) & ~has_expired)
    slots: list[int] = valid[np.argsort(rows[valid, GENERATION])][::-1].tolist()
    return slots


def stored_names(
    ring: RingOnlooker, slots: list[int], rows: Row, num: int = FIRST_LOOK
) -> Iterator[tuple[int, int, About]]:
    """Yield place from 1 on, slot, and names of each record that stays while it is read.

    Of two records of one key, of which one replaces the other just then, the newer is yielded.

    Args:
        rows: the words of all slots, as `ring` has returned them.
        num: records that are looked at first; then twice as many, and so on.
    """
    start, seen = 0, set[tuple[str, str]]()
    while start < len(slots):
        some = slots[start : start + num]
        for place, (slot, note) in enumerate(zip(some, ring.notes(some, rows), strict=True), start + 1):
            parsed = None if note is None else parse_note(note)
            about = None if parsed is None else parse_about(parsed[1])
            # Behind a record in a nursery a client has written the note: it is believed if the key is the slot's.
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
