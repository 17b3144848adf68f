from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mmcached.shm import ReaderEntry, ReaderVoided, RingClaim, RingReader, RingWriter
from mmcached.shm.segment.layout import chunk_bytes
from mmcached.wire.errors import (
    CacheFull,
    ChecksumMismatch,
    InvalidRequest,
    ItemTooLarge,
    LocalProtocolError,
    StaleHandle,
)
from mmcached.wire.handle import Handle
from tests.house.drawing import examples
from tests.shm.integrity import check_ring
from tests.shm.rings import Taking, attached, make_ring, put, reading, take


def test_what_is_committed_is_read_in_place() -> None:
    with make_ring(tenant="t") as ring, reading(ring) as reader:
        claim = ring.claim(100)
        assert claim.offset % 64 == 0
        assert claim.buffer.shape == (100,)
        claim.buffer[:] = np.arange(100)
        handle = ring.commit(claim)
        assert (handle.offset, handle.nbytes, handle.tenant) == (claim.offset, 100, "t")
        view = reader.view(handle)
        assert view.tolist() == list(range(100))
        del view, claim


def test_an_open_claim_is_nobodys_chunk() -> None:
    with make_ring() as ring, reading(ring) as reader:
        claim = ring.claim(100)
        names = ring.announcement
        handle = Handle(names.ring_id, names.epoch, claim.slot, claim.generation, claim.offset, claim.nbytes)
        assert not ring.records.is_current(handle)
        assert ring.stats().pinned_bytes == chunk_bytes(100)
        with pytest.raises(StaleHandle):
            reader.view(handle)
        ring.abort(claim)
        assert ring.stats().used_bytes == 0
        for end in (ring.abort, ring.commit):
            with pytest.raises(LocalProtocolError):
                end(claim)
        del claim


def test_too_large_is_refused_before_anything_is_touched() -> None:
    with make_ring(1 << 12, max_object_bytes=1000) as ring:
        handle = put(ring, 1000)
        before = ring.stats()
        with pytest.raises(ItemTooLarge) as caught:
            ring.claim(1001)
        assert caught.value.details["limit"] == 1000
        with pytest.raises(InvalidRequest):
            ring.claim(0)
        assert ring.stats() == before
        assert ring.records.is_current(handle)
    with make_ring(1 << 12) as ring:
        put(ring, 1 << 12)
        with pytest.raises(ItemTooLarge):
            ring.claim((1 << 12) + 1)
        with pytest.raises(ItemTooLarge):
            ring.claim(1 << 12, note=b"1")


def test_eviction_is_in_hand_order_and_only_as_needed() -> None:
    evicted: list[Handle] = []
    with make_ring(10 * chunk_bytes(64), on_evict=evicted.append) as ring:
        handles = [put(ring, 64) for _ in range(10)]
        assert evicted == []
        put(ring, 64)
        assert evicted == handles[:1]
        put(ring, chunk_bytes(64) + 64)  # as large as two
        assert evicted == handles[:3]
        assert [ring.records.is_current(handle) for handle in handles] == [False] * 3 + [True] * 7
        assert ring.stats().evictions == 3


def test_a_discarded_chunk_is_an_island_while_leased() -> None:
    with make_ring(4 * chunk_bytes(64)) as ring, attached(ring) as entry, reading(ring) as reader:
        free, leased = put(ring, 64), put(ring, 64, 9)
        assert take(ring, entry, leased)
        ring.records.pin(leased)
        ring.records.discard(leased)
        ring.records.discard(leased)
        ring.records.discard(free)
        assert ring.stats().chunks == 0
        assert ring.stats().used_bytes == chunk_bytes(64)
        assert not take(ring, entry, leased), "nobody finds it any more"
        entry.give_back(leased)
        with pytest.raises(StaleHandle):
            reader.view(free)
        for _ in range(20):
            put(ring, 64)
        assert reader.view(leased).tolist() == [9] * 64
        with pytest.raises(CacheFull):
            ring.claim(4 * 64)
        entry.give_back(leased)
        evictions = ring.stats().evictions
        put(ring, 4 * 64)
        assert ring.stats().evictions == evictions + 3  # the forgotten one was evicted by nobody


def test_too_many_returns_are_fenced_and_found() -> None:
    with make_ring(2 * chunk_bytes(64)) as ring, attached(ring) as entry:
        held, other = put(ring, 64), put(ring, 64)
        assert take(ring, entry, held)
        assert ring.readers.poll_deaths() == []
        entry.give_back(other)
        (event,) = ring.readers.poll_deaths()
        assert event.reader_id == entry.reader_id
        assert "slot 1" in repr(event)
        assert ring.readers.poll_deaths() == []
        assert not take(ring, entry, held)
        entry.give_back(held)  # no longer believed
        put(ring, 64)  # in the room of what it was never granted
        with pytest.raises(CacheFull):
            ring.claim(2 * 64)
        entry.close()
        assert ring.readers.poll_deaths() == [ReaderVoided(entry.reader_id, entry.incarnation)]
        put(ring, 64)


def test_a_closed_ring_says_so() -> None:
    ring = make_ring()
    put(ring, 64)
    ring.close()
    ring.close()
    calls: list[Callable[[], object]] = [lambda: ring.claim(1), ring.stats, lambda: ring.wait_populated(0)]
    for call in calls:
        with pytest.raises(LocalProtocolError):
            call()


def test_an_open_claim_outlives_close() -> None:
    ring = make_ring()
    claim = ring.claim(64)
    ring.close()
    claim.buffer[:] = 1  # still mapped; unmapped with the last reference, or the leak gate would see the descriptor
    del claim


def test_the_writer_reads_copies_of_what_is_current() -> None:
    with make_ring() as ring:
        handle = put(ring, 100, 7)
        copy, middle = ring.records.read(handle), np.empty(10, np.uint8)
        ring.records.read_into(handle, 90, middle)
        assert copy.tolist() == [7] * 100
        assert middle.tolist() == [7] * 10
        assert ring.records.read(handle, 3).tolist() == [7] * 3
        copy[0] = 1
        assert ring.records.read(handle)[0] == 7
        ring.records.discard(handle)
        with pytest.raises(StaleHandle):
            ring.records.read(handle)


def test_a_checksum_tells_bytes_that_somebody_else_has_written() -> None:
    with make_ring(has_checksums=True) as ring, reading(ring) as reader:
        claim = ring.claim(1000)
        claim.buffer[:] = 1
        handle = ring.commit(claim)
        assert reader.view(handle)[999] == 1
        claim.buffer[999] = 2
        with pytest.raises(ChecksumMismatch) as caught:
            reader.view(handle)
        assert caught.value.details["slot"] == handle.slot
        del claim
    with make_ring() as ring, reading(ring) as reader:
        claim = ring.claim(1000)
        handle = ring.commit(claim)
        claim.buffer[999] = 2
        assert reader.view(handle)[999] == 2, "without checksums nobody looks"
        del claim


def test_a_quota_is_a_number_of_bytes() -> None:
    for quota in (0, -1):
        with pytest.raises(InvalidRequest):
            make_ring(reader_quota_bytes=quota)


class RingModel(RuleBasedStateMachine):
    """A real ring with readers in this process, against lists of handles and leases.

    Every payload is filled with a value of its own, so a byte that is written under a lease shows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[Handle] = []
        self.ring: RingWriter = make_ring(12 * 128, num_slots=7, max_readers=2, on_evict=self.evicted.append)
        self.reader = RingReader.open(self.ring.announcement)
        self.entries: dict[int, ReaderEntry] = {}
        self.current: dict[Handle, int] = {}
        self.leased: dict[int, list[tuple[Handle, int]]] = {}
        self.pinned: list[Handle] = []
        self.claims: list[RingClaim] = []
        self.generations: set[int] = set()

    def teardown(self) -> None:
        """At rest nothing is outstanding, and only the writer's own pins and claims are left."""
        self.ring.readers.poll_deaths()
        for index, leases in self.leased.items():
            for handle, _ in leases:
                self.entries[index].give_back(handle)
        assert self.ring.stats().leases == 0
        if not self.pinned and not self.claims:
            assert self.ring.stats().pinned_bytes == 0
        self.reader.close()
        for entry in self.entries.values():
            entry.close()
        self.claims.clear()
        self.ring.close()

    def fits_for_sure(self) -> bool:
        return not self.pinned and not self.claims and not any(self.leased.values())

    @rule(nbytes=st.integers(1, 4 * 128), ending=st.sampled_from(["commit", "commit", "commit", "abort", "keep"]))
    def put(self, nbytes: int, ending: str) -> None:
        before = self.ring.stats()
        try:
            claim = self.ring.claim(nbytes)
        except CacheFull:
            assert not self.fits_for_sure()
            assert self.evicted == []
            after = self.ring.stats()
            assert (after.used_bytes, after.chunks) == (before.used_bytes, before.chunks)
            return
        for handle in self.evicted:
            assert handle not in self.pinned
            assert handle not in [leased for leases in self.leased.values() for leased, _ in leases]
            del self.current[handle]
        self.evicted.clear()
        assert claim.generation not in self.generations
        self.generations.add(claim.generation)
        if ending == "commit":
            self.commit(claim)
        elif ending == "abort":
            self.ring.abort(claim)
        else:
            self.claims.append(claim)

    def commit(self, claim: RingClaim) -> None:
        claim.buffer[:] = claim.generation % 251
        self.current[self.ring.commit(claim)] = claim.generation % 251

    @precondition(lambda self: self.claims)
    @rule()
    def commit_late(self) -> None:
        self.commit(self.claims.pop())

    @precondition(lambda self: len(self.entries) < 2)
    @rule()
    def attach(self) -> None:
        entry = ReaderEntry.attach(self.ring.announcement)
        assert entry.reader_id not in self.entries
        assert self.ring.readers.attach(entry.reader_id, entry.incarnation)
        assert self.ring.readers.attach(entry.reader_id, entry.incarnation)
        self.entries[entry.reader_id] = entry
        self.leased[entry.reader_id] = []

    @precondition(lambda self: self.entries and self.current)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        reader_id = data.draw(st.sampled_from(sorted(self.entries)))
        handle = data.draw(st.sampled_from(list(self.current)))
        assert self.entries[reader_id].take_leases([Taking(handle)], self.reader.look) == [True]
        self.leased[reader_id].append((handle, self.current[handle]))

    @precondition(lambda self: any(self.leased.values()))
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        reader_id = data.draw(st.sampled_from(sorted(reader_id for reader_id, leases in self.leased.items() if leases)))
        handle, _ = self.leased[reader_id].pop(data.draw(st.integers(0, len(self.leased[reader_id]) - 1)))
        self.entries[reader_id].give_back(handle)

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), is_seen=st.booleans())
    def end_reader(self, data: st.DataObject, is_seen: bool) -> None:
        """It dies with all its leases; the writer may look before or after the entry is taken again."""
        index = data.draw(st.sampled_from(sorted(self.entries)))
        entry = self.entries.pop(index)
        entry.close()
        del self.leased[index]
        if is_seen:
            assert ReaderVoided(index, entry.incarnation) in self.ring.readers.poll_deaths()

    @precondition(lambda self: self.current)
    @rule(data=st.data(), action=st.sampled_from(["pin", "pin", "discard"]))
    def keep_or_forget(self, data: st.DataObject, action: str) -> None:
        handle = data.draw(st.sampled_from(list(self.current)))
        if action == "pin":
            self.ring.records.pin(handle)
            self.pinned.append(handle)
        else:
            self.ring.records.discard(handle)
            del self.current[handle]
            self.pinned = [pinned for pinned in self.pinned if pinned != handle]

    @precondition(lambda self: self.pinned)
    @rule()
    def unpin(self) -> None:
        self.ring.records.unpin(self.pinned.pop())

    @rule()
    def clear(self) -> None:
        self.ring.records.clear()
        self.current.clear()
        self.pinned.clear()

    @invariant()
    def bytes_and_books_are_right(self) -> None:
        check_ring(self.ring)
        leases = [lease for leases in self.leased.values() for lease in leases]
        for handle, value in [*leases, *self.current.items()]:
            view = self.reader.view(handle)
            assert view.min() == view.max() == value
        assert all(map(self.ring.records.is_current, self.current))
        assert self.ring.stats().chunks == len(self.current)
        assert self.ring.stats().leases >= len(leases)  # more, while a death was not looked at yet


TestRingModel = RingModel.TestCase
TestRingModel.settings = settings(max_examples=examples(40), stateful_step_count=40)
