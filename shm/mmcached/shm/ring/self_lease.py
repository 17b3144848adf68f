"""Takes leases without asking: the reader's half of the protocol, on the words of its own entry.

    take        taken += 1  ── full fence ──  is it attached, and does the slot still hold what was found?
    take_beside the same, of what another reader holds: it hands its lease on
    end         returned += 1, a release store, after the last read; give_back: the same, of any lease of a slot

    seal        the writer's half: retired ── fence ── does anybody hold it? ── sealed ── fence ── does anybody?

Each side stores before it looks; so at least one sees the other, and what is read is never overwritten. Of many leases
at once all are counted, then comes one fence, then each chunk is looked at: for each alone that is the same order. What
somebody holds the writer does not even seal. So a reader whose lease holds may have others take one too, at any time.

A signal handler may raise between any two lines of a reader. So a lease is an object that exists before it is counted:
`is_counted` changes together with the words, and `end`, called again after an exception, does what is left to do.

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


class Lease(Protocol):
    """A lease of a reader on one chunk.

    Attributes:
        is_counted: the entry counts it as taken, and not yet as given back; False at first.
        num_returned: what the slot's count of returned leases becomes when this one ends; 0 until then.
    """

    handle: Handle
    is_counted: bool
    num_returned: int


def take(
    store: WordStore, entry: memoryview, look: Lookup, reader: tuple[int, int], leases: Sequence[Lease]
) -> list[bool]:
    """Count each lease, and return which of them hold; all must be ended, once.

    Args:
        entry: the words of the reader's entry.
        reader: its entry's number, and its incarnation.
    """
    _count(store, entry, leases)
    hold = [look.holds(lease.handle) for lease in leases]
    return hold if look.is_attached(*reader) else [False] * len(hold)


def take_beside(store: WordStore, entry: memoryview, look: Lookup, reader: tuple[int, int], lease: Lease) -> bool:
    """As `take`, of what somebody else has under lease; nobody need be able to find it any more."""
    _count(store, entry, [lease])
    return look.keeps(lease.handle) and look.is_attached(*reader)


def end(store: WordStore, entry: memoryview, lease: Lease) -> None:
    """Give back a lease that was taken; one that was never counted, or has ended, changes nothing.

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
    """Count a lease of a slot as given back."""
    # Against the writer, which overwrites the bytes as soon as it sees this count: a release store, so that all reads
    # of the bytes are done. Load and store need not be one step: no other process writes this word.
    word = FIRST_COUNT_WORD + 2 * slot
    store.store_release(entry, word, entry[word] + 1)


def _count(store: WordStore, entry: memoryview, leases: Sequence[Lease]) -> None:
    for lease in leases:
        handle = lease.handle
        # No call from here on: signal handlers run between calls, so all three lines are done, or none.
        entry[FIRST_COUNT_WORD + 2 * handle.slot + 1] += 1
        entry[TAKEN_BYTES_WORD] += handle.nbytes
        lease.is_counted = True
    store.full_fence()


def seal(store: WordStore, slots: SlotTable, retired: list[int], is_leased: Callable[[int], bool]) -> bool:
    """Let nobody begin to read what lies in retired slots; return False, and change nothing, if somebody reads it."""
    store.full_fence()  # against readers: one that has found what is retired by now has counted its lease before
    if any(map(is_leased, retired)):
        return False
    for slot in retired:
        slots.seal(slot)
    store.full_fence()  # against those that do not have to find it
    is_read = any(map(is_leased, retired))
    store.full_fence()  # no write may start before these counts were read
    if is_read:
        for slot in retired:
            slots.retire(slot)
    return not is_read
