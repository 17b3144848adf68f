from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mmcached.shm.allocator import Extent, Plan, RingAllocator
from mmcached.wire.errors import InvariantError


def never(slot: int) -> bool:
    return False


def place(allocator: RingAllocator, size: int, pinned: set[int] | None = None) -> Plan:
    plan = allocator.plan(size, (pinned or set()).__contains__)
    assert plan is not None
    allocator.apply(plan)
    allocator.check_integrity()
    return plan


def test_the_hand_goes_round_and_evicts_only_what_is_in_its_way() -> None:
    allocator = RingAllocator(100, 10)
    first = [place(allocator, 30).extent for _ in range(3)]
    assert [extent.offset for extent in first] == [0, 30, 60]
    plan = place(allocator, 40)  # 10 bytes are left at the end: no chunk crosses it
    assert plan.extent.offset == 0
    assert plan.victims == (first[0], first[1])
    assert place(allocator, 20).victims == ()  # the rest of the second victim
    assert place(allocator, 10).victims == (first[2],)


def test_islands_are_stepped_over() -> None:
    allocator = RingAllocator(100, 10)
    chunks = [place(allocator, 20).extent for _ in range(5)]
    pinned = {chunks[0].slot, chunks[2].slot}
    plan = place(allocator, 40, pinned)
    assert plan.extent.offset == 60
    assert plan.victims == (chunks[3], chunks[4])
    assert allocator.plan(41, pinned.__contains__) is None


def test_slot_ids_run_out_too() -> None:
    allocator = RingAllocator(1000, 3)
    first, second, third = (place(allocator, 10).extent for _ in range(3))
    plan = place(allocator, 10, {first.slot})
    assert plan.victims == (second,)
    assert plan.extent == Extent(second.slot, 30, 10)
    assert allocator.plan(10, lambda slot: True) is None
    assert third.slot in allocator.slots()


def test_freeing_the_last_one_moves_the_hand_back() -> None:
    allocator = RingAllocator(100, 10)
    place(allocator, 30)
    last = place(allocator, 30).extent
    allocator.free(last.slot)
    assert place(allocator, 70).extent.offset == 30


def test_planning_changes_nothing() -> None:
    allocator = RingAllocator(100, 10)
    place(allocator, 60)
    assert allocator.plan(60, never) == allocator.plan(60, never)
    assert allocator.used_bytes == 60


def test_integrity_finds_an_overlap() -> None:
    allocator = RingAllocator(100, 10)
    chunk = place(allocator, 30).extent
    allocator._offset_to_extent[0] = Extent(chunk.slot, 0, 101)
    with pytest.raises(InvariantError):
        allocator.check_integrity()


class AllocatorModel(RuleBasedStateMachine):
    """Against brute force over every start position: same place, same victims, same refusals."""

    capacity = 24
    num_slots = 5

    def __init__(self) -> None:
        super().__init__()
        self.allocator = RingAllocator(self.capacity, self.num_slots)
        self.chunks: dict[int, Extent] = {}
        self.pinned: set[int] = set()
        self.hand = 0

    def overlapping(self, start: int, size: int) -> list[Extent]:
        found = [chunk for chunk in self.chunks.values() if chunk.offset < start + size and start < chunk.end]
        return sorted(found, key=lambda chunk: chunk.offset)

    def expected(self, size: int) -> tuple[int, list[Extent]] | None:
        for start in [*range(self.hand, self.capacity), *range(self.hand)]:
            victims = self.overlapping(start, size)
            if start + size > self.capacity or any(victim.slot in self.pinned for victim in victims):
                continue
            if victims or len(self.chunks) < self.num_slots:
                return start, victims
            order = sorted(self.chunks.values(), key=lambda chunk: (chunk.offset < start, chunk.offset))
            free_for_slot = [chunk for chunk in order if chunk.slot not in self.pinned]
            return (start, free_for_slot[:1]) if free_for_slot else None
        return None

    @rule(size=st.integers(1, 30))
    def place(self, size: int) -> None:
        expected = self.expected(size)
        plan = self.allocator.plan(size, self.pinned.__contains__)
        if expected is None:
            assert plan is None
            return
        assert plan is not None
        assert (plan.extent.offset, list(plan.victims)) == expected
        self.allocator.apply(plan)
        for victim in plan.victims:
            del self.chunks[victim.slot]
        assert plan.extent.slot not in self.chunks
        self.chunks[plan.extent.slot] = plan.extent
        self.hand = plan.extent.end

    @precondition(lambda self: self.chunks)
    @rule(data=st.data())
    def toggle_pin(self, data: st.DataObject) -> None:
        self.pinned ^= {data.draw(st.sampled_from(sorted(self.chunks)))}

    @precondition(lambda self: self.chunks)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.chunks)))
        self.allocator.free(slot)
        extent = self.chunks.pop(slot)
        self.pinned.discard(slot)
        if self.hand == extent.end:
            self.hand = extent.offset

    @invariant()
    def books_agree(self) -> None:
        self.allocator.check_integrity()
        assert {slot: self.allocator.extent(slot) for slot in self.allocator.slots()} == self.chunks
        assert self.allocator.used_bytes == sum(chunk.size for chunk in self.chunks.values())


TestAllocatorModel = AllocatorModel.TestCase
TestAllocatorModel.settings = settings(max_examples=60, stateful_step_count=40)
