"""Checks that the ring's tables agree with each other: allocator, chunks, slots, leases, keys."""

from __future__ import annotations

from mmcached.shm.ring.allocator import MAX_HITS, RingAllocator
from mmcached.shm.ring.key_index import KeyIndexWriter
from mmcached.shm.ring.leases import LeaseTable
from mmcached.shm.ring.ring import RingWriter
from mmcached.shm.ring.slot_table import read_slot
from mmcached.shm.segment.layout import SLOT_BITS, chunk_bytes
from mmcached.shm.store.object_store import ObjectStoreWriter


def check_allocator(allocator: RingAllocator) -> None:
    before = allocator._edge
    used_bytes = probation_bytes = num_chunks = 0
    for chunk in allocator._edge.others():
        extent = chunk.extent
        assert extent.offset >= before.end
        assert extent.size > 0
        assert chunk.prev is before
        assert allocator._slot_to_chunk.get(extent.slot) is chunk
        assert 0 <= chunk.hits <= MAX_HITS + chunk.worth
        assert not (chunk.is_on_probation and chunk.is_untested)
        used_bytes += extent.size
        probation_bytes += extent.size * chunk.is_on_probation
        num_chunks += 1
        before = chunk
    assert before.end <= allocator.capacity
    assert (used_bytes, probation_bytes) == (allocator._used_bytes, allocator._probation_bytes)
    assert num_chunks == len(allocator._slot_to_chunk)
    for hand in set(allocator._hands) - {allocator._edge}:
        assert allocator._slot_to_chunk.get(hand.extent.slot) is hand
    assert sorted([*allocator._slot_to_chunk, *allocator._freed_slots]) == list(range(allocator._next_slot))
    assert allocator._next_slot <= allocator.num_slots


def check_index(index: KeyIndexWriter) -> None:
    """Check that every word can be found from its home."""
    taken = [place for place in range(len(index._words)) if index._words[place]]
    assert len(taken) == len(index)
    for place in taken:
        home = (index._words[place] >> SLOT_BITS) & index._mask
        run = ((home + step) & index._mask for step in range((place - home) & index._mask))
        assert all(index._words[before] for before in run), f"word {place} is cut off from its home {home}"


def check_leases(table: LeaseTable) -> None:
    """Check that no reader gave back more leases than it took."""
    all_slots = slice(0, table._counts.shape[1])
    for reader_id, books in table._readers.items():
        assert not books.is_fenced
        assert table.is_frozen(reader_id) or not table._judge(books.seen, reader_id, all_slots)[0]


def check_ring(ring: RingWriter) -> None:
    chunks, placed = ring._chunks, ring.placed
    check_allocator(chunks._allocator)
    assert chunks._slot_to_handle.keys() | chunks._claimed.keys() <= set(chunks._allocator.slots())
    assert not chunks._slot_to_handle.keys() & chunks._claimed.keys()
    assert {slot for slot, pins in chunks._pins.items() if pins} <= chunks._slot_to_handle.keys()
    for slot, handle in chunks._slot_to_handle.items():
        extent = chunks._allocator.extent(slot)
        assert handle.slot == slot
        assert extent.offset == handle.offset
        assert extent.size >= chunk_bytes(handle.nbytes)
    placed.check_integrity()
    check_leases(ring.readers.leases)
    for handle in (*chunks, *placed):
        found, is_valid = read_slot(ring._tables.slots, handle.slot)
        assert is_valid
        assert found[:3] == (handle.generation, handle.offset, handle.nbytes)
        assert found.nursery == handle.nursery


def check_objects(store: ObjectStoreWriter) -> None:
    """Check that keys, slots, the ring and its index of keys agree."""
    check_ring(store.ring)
    assert {handle.slot: key for key, handle in store._key_to_handle.items()} == store._slot_to_key
    assert len(store._slot_to_key) == store.ring.stats().chunks
    assert all(map(store.ring.records.is_current, store._key_to_handle.values()))
    assert store._touched <= store._key_to_handle.keys()
    if store.ring.index is not None:
        check_index(store.ring.index)
        assert len(store.ring.index) == len(store._key_to_handle)
