"""Takes leases without asking: the reader's half of the protocol, on the words of its own entry.

    take        taken += 1  ── full fence ──  is it attached, and does the slot still hold what was found?
    give_back   returned += 1, a release store, after the last read

The writer's half: it retires a slot, fences, and asks `LeaseTable.is_pinned`. Each side stores before it looks; so at
least one sees the other, and what is read is never overwritten. Sans I/O: the words are passed in.
"""

from __future__ import annotations

from mmcached.shm.ring.lookup import Lookup
from mmcached.shm.segment.layout import FIRST_COUNT_WORD
from mmcached.shm.segment.words import WordStore
from mmcached.wire.handle import Handle


def take(store: WordStore, entry: memoryview, look: Lookup, reader: tuple[int, int], handle: Handle) -> bool:
    """Count a lease, and return whether it holds; either way it must be given back, once.

    Args:
        entry: the words of the reader's entry.
        reader: its entry's number, and its incarnation.
    """
    entry[FIRST_COUNT_WORD + 2 * handle.slot + 1] += 1
    store.full_fence()
    return look.holds(handle) and look.is_attached(*reader)


def give_back(store: WordStore, entry: memoryview, slot: int) -> None:
    """Count a lease of a slot as given back."""
    # Against the writer, which overwrites the bytes as soon as it sees this count: a release store, so that all reads
    # of the bytes are done. Load and store need not be one step: no other process writes this word.
    word = FIRST_COUNT_WORD + 2 * slot
    store.store_release(entry, word, entry[word] + 1)
