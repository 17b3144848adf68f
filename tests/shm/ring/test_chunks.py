from __future__ import annotations

import pytest

from mmcached.shm.ring.chunks import ChunkTable
from mmcached.shm.segment.layout import chunk_bytes
from mmcached.wire.errors import LocalProtocolError, StaleHandle
from mmcached.wire.handle import Handle

RING_ID = "0" * 32


class Chunks:
    """A table with room for four small chunks, and the slots that are leased."""

    def __init__(self) -> None:
        self.leased: set[int] = set()
        self.table = ChunkTable(
            4 * chunk_bytes(64), 8, is_leased=lambda slot: slot in self.leased, leased_slots=lambda: self.leased
        )

    def put(self, nbytes: int = 64) -> Handle:
        plan = self.table.plan(nbytes)
        assert plan is not None
        generation, _ = self.table.claim(plan)
        handle = Handle(RING_ID, 1, plan.extent.slot, generation, plan.extent.offset + 64, nbytes)
        self.table.publish(handle)
        self.table.check_integrity()
        return handle


@pytest.fixture
def chunks() -> Chunks:
    return Chunks()


def test_what_is_claimed_pinned_or_leased_is_never_evicted(chunks: Chunks) -> None:
    pinned, leased, plain = chunks.put(), chunks.put(), chunks.put()
    chunks.table.pin(pinned)
    chunks.leased.add(leased.slot)
    plan = chunks.table.plan(64)
    assert plan is not None
    claimed, _ = chunks.table.claim(plan)
    for _ in range(5):
        chunks.put()
    assert chunks.table.is_current(pinned)
    assert chunks.table.is_current(leased)
    assert not chunks.table.is_current(plain)
    chunks.table.check_claimed(plan.extent.slot, claimed)
    assert chunks.table.pinned_bytes() == 3 * chunk_bytes(64)
    assert chunks.table.plan(3 * 64) is None


def test_a_leased_chunk_that_is_forgotten_is_an_island(chunks: Chunks) -> None:
    handle = chunks.put()
    chunks.leased.add(handle.slot)
    assert not chunks.table.forget(handle)
    with pytest.raises(StaleHandle):
        chunks.table.check_current(handle)
    assert len(chunks.table) == 0
    assert chunks.table.used_bytes == chunk_bytes(64)
    chunks.leased.clear()
    for _ in range(4):
        chunks.put()  # the fourth takes its place
    assert len(chunks.table) == 4


def test_a_generation_is_never_used_twice(chunks: Chunks) -> None:
    seen = {(handle.slot, handle.generation) for handle in (chunks.put() for _ in range(20))}
    assert len(seen) == 20
    for handle in chunks.table:
        assert chunks.table.forget(handle)
    assert chunks.put().generation == 21


def test_a_claim_ends_once(chunks: Chunks) -> None:
    plan = chunks.table.plan(64)
    assert plan is not None
    generation, evicted = chunks.table.claim(plan)
    assert evicted == []
    chunks.table.abort(plan.extent.slot)
    with pytest.raises(LocalProtocolError):
        chunks.table.check_claimed(plan.extent.slot, generation)
    assert chunks.table.used_bytes == 0
    chunks.table.check_integrity()


def test_pins_count(chunks: Chunks) -> None:
    handle = chunks.put()
    chunks.table.pin(handle)
    chunks.table.pin(handle)
    chunks.table.unpin(handle)
    assert chunks.table.pinned_bytes() == chunk_bytes(64)
    chunks.table.unpin(handle)
    assert chunks.table.pinned_bytes() == 0
    with pytest.raises(LocalProtocolError):
        chunks.table.unpin(handle)
