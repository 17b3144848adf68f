"""Copies and keys of the product's stateful classes, through their private fields: a state space needs thousands.

A key holds what decides how an object will behave. Left out are statistics and caches that only save time; the
explorer has both ends checked (`check_integrity`) before it takes two objects for one. `FIELDS` says which fields each
copy knows: a new field must be added here, or a test fails.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

from mmcached.engine.server.leases import HeldLeases, _Held
from mmcached.engine.server.worker_group import WorkerGroup, WorkerLink
from mmcached.shm.ring.allocator import RingAllocator
from mmcached.shm.ring.chain import Chunk
from mmcached.shm.ring.chunks import ChunkTable
from mmcached.shm.ring.leases import Counts, LeaseTable, _Reader, live_counts
from mmcached.shm.ring.reader_entry import ReaderEntry
from mmcached.shm.ring.reader_watch import ReaderWatch
from mmcached.shm.ring.received import ReceivedLeases
from mmcached.shm.segment.mapped import Control
from mmcached.wire.handle import Handle

FIELDS: dict[type, set[str]] = {
    RingAllocator: {
        *("capacity", "num_slots", "_hand", "_paid", "_age", "_used_bytes"),
        *("_edge", "_last", "_cooler", "_cooled", "_slot_to_chunk", "_freed_slots", "_next_slot"),
        *("_life_bytes", "_long_wait_bytes", "_first_idle_at", "_shielded_until"),
    },
    ChunkTable: {"_allocator", "_is_leased", "_leased_slots", "_generation", "_claimed", "_slot_to_handle", "_pins"},
    LeaseTable: {
        "num_lost",
        *(
            "_counts",
            "_granted",
            "_quota_bytes",
            "_readers",
            "_num_barriers",
            "_next_look",
            "_next_slot",
            "_is_idle",
            "_asked",
            "_live",
        ),
    },
    ReaderWatch: {
        "_control",
        "_leases",
        "_board",
        "_allocate",
        "_unreported",
    },  # made anew: all that it keeps is told at the next look
    ReceivedLeases: {"incarnation", "last_seq", "_slot_to_count"},
    ReaderEntry: {"announcement", "reader_id", "incarnation", "_received", "_control", "_inherited", "_words"},
    HeldLeases: {"_give_back", "_held", "_of_request"},
    WorkerGroup: {"_channel", "_world_size", "_incarnation", "_config_digest", "_links"},
}
SLOTS: dict[type, tuple[str, ...]] = {
    _Reader: (
        *("incarnation", "base", "seen", "seq", "num_lost", "barrier"),
        *("slot_to_nbytes", "leased_bytes", "is_stopped", "frozen_slots", "is_fenced"),
    ),
    _Held: ("handle", "request_id", "reads", "has_ended"),
    WorkerLink: (
        *("peer", "rank", "worker_epoch", "device", "is_attached"),
        *("embedding_bytes", "fingerprint", "encoder", "former_epoch"),
    ),
}


Kept = TypeVar("Kept")


def copy_table(table: LeaseTable, control: Control, granted: Counts) -> LeaseTable:
    """Copy the lease table for another instance of the shared words."""
    made = _blank(table)
    made._counts, made._granted = control.counts(), granted
    made._quota_bytes, made._num_barriers = table._quota_bytes, table._num_barriers
    made._next_look, made._next_slot = table._next_look, table._next_slot
    made._is_idle, made._asked = table._is_idle, None  # it holds the words of the other instance
    made.num_lost = table.num_lost
    made._live = {reader_id: live_counts(made._counts, granted, reader_id) for reader_id in table._readers}
    made._readers = {reader_id: _copy_reader(books) for reader_id, books in table._readers.items()}
    return made


def _copy_reader(books: _Reader) -> _Reader:
    made = copy.copy(books)  # `base` is never changed
    made.seen = books.seen.copy()
    made.slot_to_nbytes = dict(books.slot_to_nbytes)
    return made


def table_key(table: LeaseTable) -> object:
    books = sorted((reader_id, *_reader_key(books)) for reader_id, books in table._readers.items())
    return (table._num_barriers, table._granted.tobytes(), *books)


def _reader_key(books: _Reader) -> tuple[object, ...]:
    return (
        *(
            books.incarnation,
            books.seq,
            books.num_lost,
            books.barrier,
            books.is_stopped,
            books.frozen_slots,
            books.leased_bytes,
        ),
        *(
            books.base.tobytes(),
            books.seen.tobytes(),
            tuple(sorted(books.slot_to_nbytes.items())),
        ),
    )


def copy_chunks(chunks: ChunkTable, is_leased: Callable[[int], bool]) -> ChunkTable:
    """Copy the books on chunks; whether a slot is leased is asked of somebody else from now on."""
    made = _blank(chunks)
    made._allocator = _copy_allocator(chunks._allocator)
    made._is_leased, made._leased_slots = is_leased, chunks._leased_slots
    made._generation, made._claimed = chunks._generation, dict(chunks._claimed)
    made._slot_to_handle, made._pins = dict(chunks._slot_to_handle), chunks._pins.copy()
    return made


def _copy_allocator(allocator: RingAllocator) -> RingAllocator:
    made = copy.copy(allocator)
    made._edge = Chunk.edge(allocator.capacity)
    copies = {-1: made._edge}
    for chunk in allocator._edge.others():
        copies[chunk.extent.slot] = copied = _copy_chunk(chunk)
        copied.link(made._edge.prev)
    made._last, made._cooled = copies[allocator._last.extent.slot], copies[allocator._cooled.extent.slot]
    made._slot_to_chunk = OrderedDict((slot, copies[slot]) for slot in allocator._slot_to_chunk)
    made._freed_slots = allocator._freed_slots.copy()
    return made


def _copy_chunk(chunk: Chunk) -> Chunk:
    made = Chunk(chunk.extent)
    made.set_heat(chunk.heat)
    made.used_at, made.was_hit = chunk.used_at, chunk.was_hit
    return made


def chunks_key(chunks: ChunkTable) -> object:
    pins = sorted((slot, count) for slot, count in chunks._pins.items() if count)
    handles = sorted(chunks._slot_to_handle.items())
    return (
        *(chunks._generation, tuple(sorted(chunks._claimed.items())), tuple(handles), tuple(pins)),
        _allocator_key(chunks._allocator),
    )


def _allocator_key(allocator: RingAllocator) -> object:
    chunks = tuple((chunk.extent, chunk.heat, chunk.was_hit) for chunk in allocator._edge.others())
    # The free slot ids in their order: the last one is the next to be given out, then those that were never taken.
    free = (tuple(allocator._freed_slots), allocator._next_slot)
    uses = tuple((slot, chunk.used_at) for slot, chunk in allocator._slot_to_chunk.items())
    progress = (allocator._hand, allocator._paid, allocator._age, allocator._shielded_until)
    return (*progress, chunks, uses, free)


def copy_reader_entry(entry: ReaderEntry) -> ReaderEntry:
    """Copy an engine's entry; it is given a control object whenever it needs one."""
    made = _blank(entry)
    made.announcement, made.reader_id, made.incarnation, made._words = (
        entry.announcement,
        entry.reader_id,
        entry.incarnation,
        entry._words,
    )
    made._control = made._inherited = None
    made._received = type(entry._received)(entry.incarnation)
    made._received.last_seq = entry._received.last_seq
    made._received._slot_to_count = entry._received._slot_to_count.copy()
    return made


def reader_entry_key(entry: ReaderEntry) -> object:
    received = entry._received
    counts = tuple(sorted((slot, count) for slot, count in received._slot_to_count.items() if count))
    return (entry.announcement.epoch, entry.reader_id, entry.incarnation, received.last_seq, counts)


def copy_book(book: HeldLeases, give_back: Callable[[Handle], None]) -> HeldLeases:
    made = _blank(book)
    made._give_back = give_back
    made._of_request = {request: list(seqs) for request, seqs in book._of_request.items()}
    made._held = {seq: _copy_held(held) for seq, held in book._held.items()}
    return made


def _copy_held(held: _Held) -> _Held:
    return _Held(held.handle, held.request_id, set(held.reads), held.has_ended)


def book_key(book: HeldLeases) -> object:
    return tuple(sorted((seq, held.has_ended, held.handle, *sorted(held.reads)) for seq, held in book._held.items()))


def copy_group(group: WorkerGroup, channel: Any) -> WorkerGroup:
    made = _blank(group)
    made._channel = channel
    made._world_size, made._incarnation, made._config_digest = (
        group._world_size,
        group._incarnation,
        group._config_digest,
    )
    made._links = {rank: copy.copy(link) for rank, link in group._links.items()}
    return made


def group_key(group: WorkerGroup) -> object:
    return tuple(
        (rank, link.worker_epoch, link.is_attached, link.former_epoch) for rank, link in sorted(group._links.items())
    )


def _blank(like: Kept) -> Kept:
    """Return an object of the same class without a field."""
    made: Kept = object.__new__(type(like))
    return made
