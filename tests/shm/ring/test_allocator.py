from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mmcached.shm.ring.allocator import FULL_RATE, HOLE, MAIN, MAX_HITS, PROBATION, EvictionPlan, Extent, RingAllocator
from mmcached.shm.ring.chain import Chunk
from mmcached.shm.ring.places import MANY_PLACES, Pins, choose
from mmcached.wire.errors import InvariantError
from tests.house.drawing import examples
from tests.shm.integrity import check_allocator


def never(slot: int) -> bool:
    return False


def place(
    allocator: RingAllocator, size: int, pinned: set[int] | None = None, *, is_proven: bool = False
) -> EvictionPlan:
    plan = allocator.plan(size, (pinned or set()).__contains__)
    assert plan is not None
    allocator.apply(plan)
    if is_proven:
        allocator.prove(plan.extent.slot)
    check_allocator(allocator)
    return plan


def full_ring(num_chunks: int, size: int = 10, *, is_proven: bool = False) -> tuple[RingAllocator, list[Extent]]:
    allocator = RingAllocator(num_chunks * size, 2 * num_chunks)
    return allocator, [place(allocator, size, is_proven=is_proven).extent for _ in range(num_chunks)]


@pytest.mark.parametrize("is_proven", [True, False])
def test_nothing_is_evicted_until_the_ring_is_full(is_proven: bool) -> None:
    allocator, _ = full_ring(100, is_proven=is_proven)
    assert allocator.used_bytes == allocator.capacity


def test_freeing_the_last_one_moves_the_hand_back() -> None:
    allocator = RingAllocator(100, 10)
    place(allocator, 30)
    last = place(allocator, 30).extent
    allocator.free(last.slot)
    assert place(allocator, 10).extent.offset == 30


def test_the_room_of_a_chunk_that_was_freed_is_used_before_any_is_evicted() -> None:
    allocator, chunks = full_ring(20)
    for index in (13, 4, 17):
        allocator.free(chunks[index].slot)
        plan = place(allocator, 10)
        assert (plan.extent.offset, plan.victims, plan.hand) == (chunks[index].offset, (), HOLE)
    assert place(allocator, 10).victims == (chunks[0],)


def test_a_chunk_on_probation_is_evicted_before_any_that_is_proven() -> None:
    allocator, chunks = full_ring(20, is_proven=True)
    for _ in range(2):  # a tenth of the ring
        place(allocator, 10)
    kept = set(chunks[3:])
    newest = list[Extent]()
    for _ in range(100):
        plan = place(allocator, 10)
        assert not kept & set(plan.victims)
        newest.append(plan.extent)
    present = set(map(allocator.extent, allocator.slots()))
    assert present == kept | set(newest[-3:])


@pytest.mark.parametrize("num_hits", [1, 2, MAX_HITS, 2 * MAX_HITS])
def test_the_hand_spares_a_chunk_once_for_each_hit_up_to_three(num_hits: int) -> None:
    allocator, chunks = full_ring(8, is_proven=True)
    for _ in range(num_hits):
        allocator.hit(chunks[3].slot)
    num_places = 0
    while chunks[3] not in place(allocator, 10, is_proven=True).victims:
        num_places += 1
    assert num_places == 3 + 7 * min(num_hits, MAX_HITS)


def test_a_hit_takes_a_chunk_off_probation_where_it_lies() -> None:
    allocator, chunks = full_ring(20)
    allocator.hit(chunks[5].slot)
    evicted = [victim for _ in range(60) for victim in place(allocator, 10).victims]
    assert chunks[5] not in evicted
    assert allocator.extent(chunks[5].slot) == chunks[5]


def test_one_use_traffic_leaves_what_is_used() -> None:
    allocator, chunks = full_ring(20, is_proven=True)
    used = set(chunks[::2])
    evicted = set[Extent]()
    for _ in range(10):
        for chunk in used:
            allocator.hit(chunk.slot)
        for _ in range(6 * len(chunks)):
            evicted.update(place(allocator, 10).victims)
    assert not evicted & used


def test_of_places_for_a_large_chunk_the_one_with_the_fewest_hits() -> None:
    allocator, chunks = full_ring(40, is_proven=True)
    for chunk in chunks:
        allocator.hit(chunk.slot)
    for chunk in chunks[:20] + chunks[22:]:
        allocator.hit(chunk.slot)
    assert place(allocator, 20).victims == tuple(chunks[20:22])
    spared = [allocator._slot_to_chunk[chunk.slot].hits for chunk in (chunks[0], chunks[19], chunks[22])]
    assert spared == [1, 1, 2]  # the hand has passed the first two


def test_hits_and_many_pins_are_no_reason_to_refuse() -> None:
    allocator, chunks = full_ring(3 * MANY_PLACES)
    for chunk in chunks:
        allocator.hit(chunk.slot)
    only = chunks[2 * MANY_PLACES + 3]
    pinned = {chunk.slot for chunk in chunks if chunk is not only}
    assert place(allocator, 10, pinned).victims == (only,)


def test_returns_are_admitted_at_a_rate_that_follows_what_becomes_of_them() -> None:
    allocator, _ = full_ring(50, is_proven=True)
    assert all(allocator.admits_return() for _ in range(FULL_RATE))
    for _ in range(50 * FULL_RATE):
        place(allocator, 10, is_proven=True)
    assert sum(allocator.admits_return() for _ in range(10 * FULL_RATE)) == 10
    for _ in range(FULL_RATE):
        allocator.hit(place(allocator, 10, is_proven=True).extent.slot)
    assert sum(allocator.admits_return() for _ in range(10 * FULL_RATE)) > 20


@pytest.mark.parametrize("num_slots", [200, 100])  # bytes run out; bytes and slot ids run out
def test_a_pin_is_asked_for_once_per_plan(num_slots: int) -> None:
    allocator = RingAllocator(1000, num_slots)
    for _ in range(100):
        place(allocator, 10)
    asked = Counter[int]()

    def is_pinned(slot: int) -> bool:
        asked[slot] += 1
        return slot != 70

    assert allocator.plan(25, is_pinned) is None
    assert set(asked.values()) == {1}
    asked.clear()
    plan = allocator.plan(10, is_pinned)
    assert plan is not None
    assert [victim.slot for victim in plan.victims] == [70]
    assert set(asked.values()) == {1}


def test_a_place_without_hits_needs_few_questions() -> None:
    allocator, chunks = full_ring(1000)
    asked = list[int]()

    def is_pinned(slot: int) -> bool:
        asked.append(slot)
        return False

    assert allocator.plan(10, is_pinned) is not None
    assert asked == [chunks[0].slot]


@pytest.mark.parametrize("hand", [MAIN, PROBATION])
def test_a_plan_looks_at_as_many_chunks_in_a_ring_of_any_size(hand: int) -> None:
    """All chunks have hits, so no place is free of them; the plan takes the best of a bounded number."""
    for num_chunks in (4 * MANY_PLACES, 16 * MANY_PLACES):
        allocator = RingAllocator(num_chunks * 10, 2 * num_chunks)
        for slot in range(num_chunks):
            allocator.place(Extent(slot, 10 * slot, 10))
        allocator.resume_at(0)
        for slot in range(num_chunks):
            allocator.hit(slot)
            if hand == MAIN:
                allocator.prove(slot)
                allocator.hit(slot)
        row = list[Chunk]()
        places = allocator._places(hand, 10, row, has_slot=True)
        assert choose(places, Pins(row, lambda chunk: False)) is not None
        assert len(row) == MANY_PLACES + 1


def test_a_ring_goes_on_with_what_lies_in_it_already() -> None:
    former, chunks = full_ring(8)
    former.free(chunks[3].slot)
    last = place(former, 5).extent  # half of what is free; a hand is behind it
    successor = RingAllocator(former.capacity, former.num_slots)
    for slot in former.slots():
        successor.place(former.extent(slot))
    successor.resume_at(last.end)
    assert successor.slots() == former.slots()
    assert successor.used_bytes == former.used_bytes
    plan = place(successor, 5)
    assert (plan.extent.offset, plan.victims) == (last.end, ())
    successor.hit(chunks[6].slot)
    for _ in range(16):
        assert chunks[6] not in place(successor, 10).victims


@given(st.randoms(use_true_random=False))
def test_what_lies_in_a_ring_may_be_entered_in_any_order(rng: Random) -> None:
    allocator, chunks = full_ring(12)
    kept = [chunk for chunk in chunks if rng.random() < 0.7]
    for chunk in set(chunks) - set(kept):
        allocator.free(chunk.slot)
    successor = RingAllocator(allocator.capacity, allocator.num_slots)
    for chunk in rng.sample(kept, len(kept)):
        successor.place(chunk)
    successor.resume_at(0)
    assert successor.slots() == allocator.slots()
    assert successor.used_bytes == allocator.used_bytes


@pytest.mark.parametrize(
    "extent",
    [
        Extent(2, 90, 20),
        Extent(2, -10, 10),
        Extent(2, 20, 20),
        Extent(2, 40, 10),
        Extent(2, 30, 70),
        Extent(2, 0, 0),
        Extent(1, 0, 10),
        Extent(10, 0, 10),
        Extent(-1, 0, 10),
    ],
)
def test_an_extent_that_cannot_lie_in_a_ring_is_refused(extent: Extent) -> None:
    allocator = RingAllocator(100, 10)
    allocator.place(Extent(1, 30, 30))
    with pytest.raises(InvariantError):
        allocator.place(extent)
    for inside in (31, 59, 101):
        with pytest.raises(InvariantError):
            allocator.resume_at(inside)
    for behind in (60, 100, 0, 30):
        allocator.resume_at(behind)
    assert allocator.slots() == [1]


class AllocatorModel(RuleBasedStateMachine):
    """Against plain dicts and brute force over every byte at which a place could begin."""

    capacity = 24
    num_slots = 5

    def __init__(self) -> None:
        super().__init__()
        self.allocator = RingAllocator(self.capacity, self.num_slots)
        self.twin = RingAllocator(self.capacity, self.num_slots)
        self.chunks: dict[int, Extent] = {}
        self.pinned: set[int] = set()

    def overlapping(self, start: int, size: int) -> list[Extent]:
        found = [chunk for chunk in self.chunks.values() if chunk.offset < start + size and start < chunk.end]
        return sorted(found, key=lambda chunk: chunk.offset)

    def price(self, chunks: list[Extent], *, hand: int) -> int:
        found = [self.allocator._slot_to_chunk[chunk.slot] for chunk in chunks]
        price = sum(chunk.hits for chunk in found)
        if hand == PROBATION:
            price += sum(not chunk.is_on_probation or chunk.hits > 0 for chunk in found)
        return price

    def open_places(self, size: int) -> list[list[Extent]]:
        """Return the victims of each place that has no pinned chunk."""
        places = [self.overlapping(start, size) for start in range(self.capacity - size + 1)]
        return [chunks for chunks in places if not self.pinned & {chunk.slot for chunk in chunks}]

    @rule(size=st.integers(1, 30), is_proven=st.booleans())
    def place(self, size: int, is_proven: bool) -> None:
        plan = self.allocator.plan(size, self.pinned.__contains__)
        assert plan == self.twin.plan(size, self.pinned.__contains__)
        has_slot = len(self.chunks) < self.num_slots
        places = self.open_places(size)
        if plan is None:
            # Without a free slot a place and the one victim whose slot it gets must lie beside each other.
            assert not places or not has_slot
            return
        extent, victims = plan.extent, list(plan.victims)
        assert 0 <= extent.offset <= extent.end <= self.capacity
        assert not self.pinned & {victim.slot for victim in victims}
        in_the_way = self.overlapping(extent.offset, extent.size)
        if has_slot:
            least = min(self.price(chunks, hand=plan.hand) for chunks in places)
            assert self.price(in_the_way, hand=plan.hand) == least
            assert victims == in_the_way
        else:
            assert len(victims) == max(len(in_the_way), 1)
            assert set(in_the_way) <= set(victims)
        for allocator in (self.allocator, self.twin):
            allocator.apply(plan)
            if is_proven:
                allocator.prove(extent.slot)
        for victim in victims:
            del self.chunks[victim.slot]
        assert extent.slot not in self.chunks
        self.chunks[extent.slot] = extent

    @precondition(lambda self: self.chunks)
    @rule(data=st.data(), times=st.integers(1, 4))
    def hit(self, data: st.DataObject, times: int) -> None:
        slot = data.draw(st.sampled_from(sorted(self.chunks)))
        for _ in range(times):
            self.allocator.hit(slot)
            self.twin.hit(slot)

    @precondition(lambda self: self.chunks)
    @rule(data=st.data())
    def toggle_pin(self, data: st.DataObject) -> None:
        self.pinned ^= {data.draw(st.sampled_from(sorted(self.chunks)))}

    @precondition(lambda self: self.chunks)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.chunks)))
        self.allocator.free(slot)
        self.twin.free(slot)
        del self.chunks[slot]
        self.pinned.discard(slot)

    @invariant()
    def books_agree(self) -> None:
        check_allocator(self.allocator)
        assert {slot: self.allocator.extent(slot) for slot in self.allocator.slots()} == self.chunks
        assert self.allocator.used_bytes == sum(chunk.size for chunk in self.chunks.values())


TestAllocatorModel = AllocatorModel.TestCase
TestAllocatorModel.settings = settings(max_examples=examples(80), stateful_step_count=40)
