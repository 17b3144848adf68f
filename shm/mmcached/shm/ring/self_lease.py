"""Leases without a message: the reader's and the writer's half of the protocol, on shared words.

    take        taken += 1  ── full fence ──  is the reader attached, and does the slot still hold the found record?
    take_beside the same, for a record that another reader holds, which so hands its lease on
    end         returned += 1, a release store, after the last read; give_back: the same, for any lease of a slot

    seal        the writer's half: retired ── fence ── is it leased? ── sealed ── fence ── is it leased?

Each side stores before it loads; so at least one sees the other's store, and bytes that are read are never overwritten.
Several leases taken at once are all counted, then comes one fence, then each chunk is checked: for each lease that is
the same order. The writer does not even seal a leased slot. So while a reader's lease holds, other readers can take a
lease on the same record at any time.

A signal handler may raise between any two lines of a reader. So a lease is an object that exists before it is counted:
`is_counted` changes together with the words, and `end`, called again after an exception, does the remaining steps.

Sans I/O: the words are passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from mmcached.shm.ring.lookup import Lookup
from mmcached.shm.ring.slot_table import SlotTable
from mmcached.shm.segment.layout import FIRST_COUNT_WORD, RETURNED_BYTES_WORD, TAKEN_BYTES_WORD
from mmcached.shm.segment.words import WordStore
from mmcached.wire.handle import Handle


class SelfLease(Protocol):
    """Lease of a reader on one chunk.

    Attributes:
        is_counted: The entry counts it as taken, and not yet as given back; False at first.
        num_returned: The value of the slot's count of returned leases after this lease ends; 0 until `end` computes it.
    """

    handle: Handle
    is_counted: bool
    num_returned: int


def take(
    store: WordStore, entry: memoryview, look: Lookup, reader: tuple[int, int], leases: Sequence[SelfLease]
) -> list[bool]:
    """Count each lease, and return which of them hold; each must be ended once.

    Args:
        entry: The words of the reader's entry.
        reader: The entry's number and its incarnation.
    """
    _count(store, entry, leases)
    hold = [look.holds(lease.handle) for lease in leases]
    return hold if look.is_attached(*reader) else [False] * len(hold)


def take_beside(store: WordStore, entry: memoryview, look: Lookup, reader: tuple[int, int], lease: SelfLease) -> bool:
    """Take a lease of a record that another reader holds; unlike `take`, it also holds for a retired record."""
    _count(store, entry, [lease])
    return look.keeps(lease.handle) and look.is_attached(*reader)


def end(store: WordStore, entry: memoryview, lease: SelfLease) -> None:
    """Give back a lease that was taken; a lease that was never counted, or has ended, changes nothing.

    After an exception in the middle it is called again, before another lease of the slot ends.
    """
    if not lease.is_counted:
        return
    handle = lease.handle
    word = FIRST_COUNT_WORD + 2 * handle.slot
    if not lease.num_returned:
        lease.num_returned = entry[word] + 1
    store.store_release(entry, word, lease.num_returned)
    # No call from here on: signal handlers run between calls, so both lines are done, or neither.
    entry[RETURNED_BYTES_WORD] += handle.nbytes
    lease.is_counted = False


def give_back(store: WordStore, entry: memoryview, slot: int) -> None:
    # Against the writer, which overwrites the bytes as soon as it sees this count: a release store, so that all reads
    # of the bytes are done. Load and store need not be one atomic step: no other process writes this word.
    word = FIRST_COUNT_WORD + 2 * slot
    store.store_release(entry, word, entry[word] + 1)


def _count(store: WordStore, entry: memoryview, leases: Sequence[SelfLease]) -> None:
    for lease in leases:
        handle = lease.handle
        # No call from here on: signal handlers run between calls, so all three lines are done, or none.
        entry[FIRST_COUNT_WORD + 2 * handle.slot + 1] += 1
        entry[TAKEN_BYTES_WORD] += handle.nbytes
        lease.is_counted = True
    store.full_fence()


def seal(store: WordStore, slots: SlotTable, retired: list[int], is_leased: Callable[[int], bool]) -> bool:
    """Keep readers from taking leases of retired slots; return False if one is leased, with all slots still retired."""
    store.full_fence()  # against readers: a lease is counted by now if its reader still saw the slot valid
    if any(map(is_leased, retired)):
        return False
    for slot in retired:
        slots.seal(slot)
    store.full_fence()  # against `take_beside`, which also takes leases of retired slots
    is_read = any(map(is_leased, retired))
    store.full_fence()  # no write may start before these counts are read
    if is_read:
        for slot in retired:
            slots.retire(slot)
    return not is_read
