from __future__ import annotations

from collections import Counter
from math import isqrt
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mmcached.shm.ring.allocator import (
    COOLER_SPEED,
    HIT_HEAT,
    IDLE_AT_ONCE,
    IDLE_RINGS,
    MAX_HEAT,
    NEW_HEAT,
    NEWCOMERS_SHARE,
    RETURN_AGE,
    RETURN_HEAT,
    Extent,
    Plan,
    RingAllocator,
)
from mmcached.shm.ring.chain import worth_of
from mmcached.shm.ring.places import MANY_PLACES
from mmcached.wire.errors import InvariantError
from tests.house.drawing import examples


def never(slot: int) -> bool:
    return False


def place(allocator: RingAllocator, size: int, pinned: set[int] | None = None) -> Plan:
    plan = allocator.plan(size, (pinned or set()).__contains__)
    assert plan is not None
    allocator.apply(plan)
    allocator.check_integrity()
    return plan


def place_used(allocator: RingAllocator, size: int, pinned: set[int] | None = None) -> Plan:
    """Place what somebody asks for again: the ring ages by all of its size."""
    plan = place(allocator, size, pinned)
    allocator.hit(plan.extent.slot)
    return plan


def full_ring(num_chunks: int, size: int = 10) -> tuple[RingAllocator, list[Extent]]:
    allocator = RingAllocator(num_chunks * size, 2 * num_chunks)
    return allocator, [place(allocator, size).extent for _ in range(num_chunks)]


def test_without_hits_the_oldest_go_first() -> None:
    allocator, chunks = full_ring(10)
    assert [place(allocator, 10).victims for _ in range(10)] == [(chunk,) for chunk in chunks]


def test_the_drawing() -> None:
    allocator = RingAllocator(59, 20)
    sizes = {"A": 6, "gap": 3, "pinned": 15, "C": 6, "D": 6, "gap 2": 4, "E": 4, "F": 4, "gap 3": 11}
    slots = {name: place(allocator, size).extent.slot for name, size in sizes.items()}
    allocator.free(slots["pinned"])
    slots["pinned"] = place(allocator, 15).extent.slot  # now the hand is behind it
    for name in ("gap", "gap 2", "gap 3"):
        allocator.free(slots[name])
    free = allocator.plan(6, never)
    assert free is not None
    assert (free.extent.offset, free.victims) == (48, ())
    place(allocator, 7)  # the rest, 4 bytes, has no room for it
    for free_to_go, offset in (("CDEF", 24), ("DEF", 30), ("EF", 36)):
        plan = allocator.plan(6, set(allocator.slots()).difference(slots[name] for name in free_to_go).__contains__)
        assert plan is not None
        assert (plan.extent.offset, len(plan.victims)) == (offset, 1)


def test_only_what_is_in_the_way_is_evicted() -> None:
    allocator = RingAllocator(100, 10)
    first = [place(allocator, 30).extent for _ in range(3)]
    assert [extent.offset for extent in first] == [0, 30, 60]
    allocator.hit(2)
    plan = place(allocator, 40)  # 10 bytes are left at the end: no chunk crosses it
    assert plan.extent.offset == 0
    assert plan.victims == (first[0], first[1])
    assert place(allocator, 20).victims == ()  # the rest of the second victim
    at_the_end = place(allocator, 10)
    assert at_the_end.extent.offset == 90  # nothing goes while bytes are free
    assert place(allocator, 10, {0, 1, 3, at_the_end.extent.slot}).victims == (first[2],)


def test_freeing_the_last_one_moves_the_hand_back() -> None:
    allocator = RingAllocator(100, 10)
    place(allocator, 30)
    last = place(allocator, 30).extent
    allocator.free(last.slot)
    assert place(allocator, 10).extent.offset == 30


def test_the_hit_outlive_the_others() -> None:
    allocator, chunks = full_ring(20)
    hot = set(chunks[::4])
    for chunk in hot:
        allocator.hit(chunk.slot)
    evicted = [victim for _ in range(15) for victim in place(allocator, 10).victims]
    assert evicted == [chunk for chunk in chunks if chunk not in hot]


def test_the_hottest_goes_at_last_if_nobody_hits_it_any_more() -> None:
    allocator, chunks = full_ring(8, 8)
    for _ in range(100):
        allocator.hit(chunks[3].slot)
    turns_to_zero = NEWCOMERS_SHARE * COOLER_SPEED * MAX_HEAT.bit_length()
    evicted = [victim for _ in range(8 * (turns_to_zero + 1)) for victim in place(allocator, 8).evicted]
    assert chunks[3] in evicted


def test_what_is_hit_again_and_again_stays() -> None:
    allocator, chunks = full_ring(8)
    for _ in range(500):
        allocator.hit(chunks[3].slot)
        assert chunks[3] not in place(allocator, 10).victims


@pytest.mark.parametrize("are_used", [True, False])
@pytest.mark.parametrize("hits_of_each", [0, 1, 3])
@pytest.mark.parametrize("large_first", [True, False])
def test_what_nobody_asks_for_is_gone_when_the_ring_has_aged_twice(
    large_first: bool, hits_of_each: int, are_used: bool
) -> None:
    # 15 of 128 in 2,000 and many of 8: without an end to idleness, all newcomers would share the one hole of 80.
    size, num_bytes = 2000, IDLE_RINGS * 2000
    allocator = RingAllocator(size, 1000)
    sizes = (128, 8) if large_first else (8, 128)
    former = set[Extent]()
    for _ in range(1920 // sizes[0]):
        former.add(chunk := place(allocator, sizes[0]).extent)
        for _ in range(hits_of_each):
            allocator.hit(chunk.slot)
    for _ in range((num_bytes if are_used else NEWCOMERS_SHARE * num_bytes) // sizes[1] + 1):
        (place_used if are_used else place)(allocator, sizes[1])
    present = {allocator.extent(slot) for slot in allocator.slots()}
    assert not former & present
    for _ in range(250):
        place(allocator, 8)
    assert allocator.used_bytes > 0.9 * size


def test_what_is_asked_for_once_leaves_what_is_used() -> None:
    allocator, chunks = full_ring(20)
    used = set(chunks[::2])
    evicted = set[Extent]()
    for _ in range(10):
        for chunk in used:
            allocator.hit(chunk.slot)
        evicted.update(*(place(allocator, 10).evicted for _ in range(6 * len(chunks))))
    assert not evicted & used


def test_what_comes_back_is_warm_and_what_nobody_uses_cools() -> None:
    allocator, chunks = full_ring(20)
    allocator.hit(chunks[0].slot)
    back = place(allocator, 10).extent
    allocator.come_back(back.slot)
    assert heats(allocator)[back.slot] == RETURN_HEAT
    assert all(back not in place(allocator, 10).evicted for _ in range(25))  # the others have gone
    for _ in range(2 * COOLER_SPEED * 20 // RETURN_AGE):  # far fewer than newcomers that nobody knows
        allocator.come_back(place(allocator, 10).extent.slot)
    assert chunks[0] not in map(allocator.extent, allocator.slots())


def test_hits_on_what_was_idle_for_long_shield_the_idle() -> None:
    allocator, chunks = full_ring(8, 8)
    for chunk in chunks:
        for _ in range(3):
            allocator.hit(chunk.slot)
    pinned = {chunk.slot for chunk in chunks[:7]}  # the newcomers share a hole
    for _ in range(7):
        place_used(allocator, 8, pinned)
    allocator.hit(chunks[0].slot)  # after 7/8 of the ring
    for _ in range(IDLE_RINGS * 8):
        assert not place_used(allocator, 8, pinned).idle
    assert set(chunks[:7]) <= set(place(allocator, 8).evicted)


def test_what_is_pinned_is_in_use() -> None:
    allocator, chunks = full_ring(8)
    pinned = {chunks[0].slot}
    for _ in range(IDLE_RINGS * 8 + 1):
        assert chunks[0] not in place_used(allocator, 10, pinned).evicted
    for _ in range(IDLE_RINGS * 8 - 1):
        place_used(allocator, 10, pinned)
    assert allocator.has(chunks[0].slot)


def test_many_idle_chunks_do_not_go_at_once() -> None:
    allocator = RingAllocator(8 * IDLE_AT_ONCE, 8 * IDLE_AT_ONCE)
    chunks = [Extent(slot, slot, 1) for slot in range(8 * IDLE_AT_ONCE)]
    for chunk in chunks:
        allocator.place(chunk, MAX_HEAT)
    allocator.resume_at(0)
    pinned = {chunk.slot for chunk in chunks[IDLE_AT_ONCE:]}  # the newcomers share a hole
    for _ in range(8 * IDLE_RINGS):
        place_used(allocator, IDLE_AT_ONCE, pinned)
    pinned = {chunk.slot for chunk in chunks[-IDLE_AT_ONCE // 2 :]}
    plans = [place(allocator, IDLE_AT_ONCE, pinned) for _ in range(8)]
    assert max(len(plan.idle) + len(plan.used) for plan in plans) == IDLE_AT_ONCE
    present = {allocator.extent(slot) for slot in allocator.slots()}
    assert {chunk.slot for chunk in present.intersection(chunks)} == pinned


def test_what_is_cold_stays_while_there_is_a_hole() -> None:
    allocator = RingAllocator(30, 5)
    for slot in range(3):
        allocator.place(Extent(slot, 10 * slot, 10), heat=0)
    allocator.resume_at(30)
    allocator.free(1)
    assert place(allocator, 10).victims == ()


def test_of_two_as_cold_the_smaller_is_worth_less() -> None:
    allocator = RingAllocator(200, 10)
    hot, large, small = (place(allocator, size).extent for size in (100, 64, 36))
    allocator.hit(hot.slot)
    assert place(allocator, 30).victims == (small,)
    assert place(allocator, 60).victims == (large,)


def test_a_place_as_cheap_as_the_last_one_is_taken_without_comparing_many() -> None:
    allocator, chunks = full_ring(2 * MANY_PLACES)
    cold = {chunks[11], chunks[MANY_PLACES]}
    for chunk in chunks:
        if chunk not in cold:
            allocator.hit(chunk.slot)
    # Nothing was paid in an empty ring, so here many are compared; the first of two equals is taken.
    assert place(allocator, 10).victims == (chunks[11],)
    pinned = {chunk.slot for chunk in chunks if chunk is not chunks[20]}
    assert place(allocator, 10, pinned).victims == (chunks[20],)
    # Such a price was paid: the next hot one is good enough, though one of the many places would cost less.
    assert place(allocator, 10).victims == (chunks[21],)


def test_heat_and_many_pins_are_no_reason_to_refuse() -> None:
    allocator, chunks = full_ring(3 * MANY_PLACES)
    for chunk in chunks:
        allocator.hit(chunk.slot)
    only = chunks[2 * MANY_PLACES + 3]
    pinned = {chunk.slot for chunk in chunks if chunk is not only}
    assert place(allocator, 10, pinned).victims == (only,)


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


def test_a_cheap_place_needs_few_questions() -> None:
    allocator, chunks = full_ring(1000)
    asked = list[int]()

    def is_pinned(slot: int) -> bool:
        asked.append(slot)
        return False

    assert allocator.plan(10, is_pinned) is not None
    assert asked == [chunks[0].slot]


@pytest.mark.parametrize(
    "extent",
    [Extent(2, 90, 20), Extent(2, 20, 20), Extent(2, 30, 30), Extent(1, 60, 10), Extent(7, 60, 10), Extent(2, 60, 0)],
    ids=["past the end", "over a neighbour", "over all of it", "slot of another", "not the next slot", "empty"],
)
def test_integrity_finds_a_plan_that_was_not_made_here(extent: Extent) -> None:
    allocator = RingAllocator(100, 10)
    place(allocator, 30)
    place(allocator, 30)
    allocator.apply(Plan(extent, ()))
    with pytest.raises(InvariantError):
        allocator.check_integrity()


def test_a_ring_goes_on_with_what_lies_in_it_already() -> None:
    former, chunks = full_ring(8)
    former.free(chunks[3].slot)
    former.hit(chunks[6].slot)
    last = place(former, 5).extent  # half of what is free; the hand is behind it
    successor = RingAllocator(former.capacity, former.num_slots)
    for slot in former.slots():
        successor.place(former.extent(slot), heats(former)[slot])
    successor.resume_at(last.end)
    successor.check_integrity()
    assert successor.slots() == former.slots()
    assert (successor.used_bytes, heats(successor)) == (former.used_bytes, heats(former))
    plan = place(successor, 5)
    assert (plan.extent.offset, plan.victims) == (last.end, ())
    for _ in range(6):
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
    successor.check_integrity()
    assert successor.slots() == allocator.slots()
    free = [place(successor, 10) for _ in range(12 - len(kept))]
    assert not any(plan.victims for plan in free)
    assert successor.used_bytes == successor.capacity


@pytest.mark.parametrize(
    ("extent", "heat"),
    [
        (Extent(2, 90, 20), 0),
        (Extent(2, -10, 10), 0),
        (Extent(2, 20, 20), 0),
        (Extent(2, 40, 10), 0),
        (Extent(2, 30, 70), 0),
        (Extent(2, 0, 0), 0),
        (Extent(1, 0, 10), 0),
        (Extent(10, 0, 10), 0),
        (Extent(-1, 0, 10), 0),
        (Extent(2, 0, 10), MAX_HEAT + 1),
        (Extent(2, 0, 10), -1),
    ],
)
def test_what_cannot_lie_in_a_ring_is_refused(extent: Extent, heat: int) -> None:
    allocator = RingAllocator(100, 10)
    allocator.place(Extent(1, 30, 30))
    with pytest.raises(InvariantError):
        allocator.place(extent, heat)
    for inside in (31, 59, 101):
        with pytest.raises(InvariantError):
            allocator.resume_at(inside)
    for behind in (60, 100, 0, 30):
        allocator.resume_at(behind)
        allocator.check_integrity()
    assert allocator.slots() == [1]


def heats(allocator: RingAllocator) -> dict[int, int]:
    return {slot: chunk.heat for slot, chunk in allocator._slot_to_chunk.items()}


class AllocatorModel(RuleBasedStateMachine):
    """Against plain dicts and brute force over every byte at which a place could begin."""

    capacity = 24
    num_slots = 5

    def __init__(self) -> None:
        super().__init__()
        self.allocator = RingAllocator(self.capacity, self.num_slots)
        self.twin = RingAllocator(self.capacity, self.num_slots)
        self.chunks: dict[int, Extent] = {}
        self.heats: dict[int, int] = {}
        self.pinned: set[int] = set()
        self.age = 0
        self.was_hit: set[int] = set()
        self.bargain_per_root = 0.0
        self.uses: dict[int, int] = {}
        self.shielded_until = 0

    def overlapping(self, start: int, size: int) -> list[Extent]:
        found = [chunk for chunk in self.chunks.values() if chunk.offset < start + size and start < chunk.end]
        return sorted(found, key=lambda chunk: chunk.offset)

    def worth(self, chunks: list[Extent]) -> int:
        return sum(worth_of(self.heats[chunk.slot], isqrt(chunk.size)) for chunk in chunks)

    def least_worth(self, size: int) -> int | None:
        """Return what the cheapest place costs, or None if there is none."""
        windows = [self.overlapping(start, size) for start in range(self.capacity - size + 1)]
        costs = [self.worth(chunks) for chunks in windows if not self.pinned & {chunk.slot for chunk in chunks}]
        return min(costs, default=None)

    @rule(size=st.integers(1, 30), comes_back=st.booleans())
    def place(self, size: int, comes_back: bool) -> None:
        least = self.least_worth(size)
        plan = self.allocator.plan(size, self.pinned.__contains__)
        assert plan == self.twin.plan(size, self.pinned.__contains__)
        if plan is None:
            has_slot = len(self.chunks) < self.num_slots or self.chunks.keys() - self.pinned
            assert least is None or not has_slot
            return
        assert least is not None
        self.check_place(plan, least)
        self.allocator.apply(plan)
        self.twin.apply(plan)
        self.bargain_per_root = self.worth(list(plan.victims)) / isqrt(size)
        self.check_idle(plan)
        for victim in plan.evicted:
            del self.chunks[victim.slot], self.heats[victim.slot], self.uses[victim.slot]
        self.uses |= dict.fromkeys(plan.used, self.age)
        assert plan.extent.slot not in self.chunks
        self.chunks[plan.extent.slot] = plan.extent
        self.heats[plan.extent.slot] = NEW_HEAT
        self.was_hit.discard(plan.extent.slot)
        self.grow_older(size // NEWCOMERS_SHARE)
        if comes_back:
            self.allocator.come_back(plan.extent.slot)
            self.twin.come_back(plan.extent.slot)
            self.was_hit.add(plan.extent.slot)
            self.grow_older(RETURN_AGE * size - size // NEWCOMERS_SHARE)
            self.heats[plan.extent.slot] = RETURN_HEAT
        self.uses[plan.extent.slot] = self.age

    def check_idle(self, plan: Plan) -> None:
        now = self.age + plan.extent.size // NEWCOMERS_SHARE
        oldest = now - IDLE_RINGS * self.capacity
        overdue = {slot for slot, used_at in self.uses.items() if used_at <= oldest and now >= self.shielded_until}
        assert set(plan.used) == overdue & self.pinned
        assert {chunk.slot for chunk in plan.idle} == overdue - self.pinned - {chunk.slot for chunk in plan.victims}

    def check_place(self, plan: Plan, least: int) -> None:
        extent, victims = plan.extent, list(plan.victims)
        assert 0 <= extent.offset <= extent.end <= self.capacity
        assert not self.pinned & {victim.slot for victim in victims}
        in_the_way = self.overlapping(extent.offset, extent.size)
        assert self.worth(in_the_way) <= max(least, self.bargain_per_root * isqrt(extent.size))
        if not in_the_way and len(self.chunks) == self.num_slots:
            unpinned = [chunk for chunk in self.chunks.values() if chunk.slot not in self.pinned]
            assert [self.worth(victims)] == [min(self.worth([chunk]) for chunk in unpinned)]
            assert len(victims) == 1
        else:
            assert victims == in_the_way

    def grow_older(self, num_bytes: int) -> None:
        before = self.age // COOLER_SPEED
        self.age += num_bytes
        for byte in range(before, self.age // COOLER_SPEED):
            for chunk in self.chunks.values():
                if chunk.offset == byte % self.capacity:
                    self.heats[chunk.slot] //= 2

    @precondition(lambda self: self.chunks)
    @rule(data=st.data(), times=st.integers(1, 4))
    def hit(self, data: st.DataObject, times: int) -> None:
        slot = data.draw(st.sampled_from(sorted(self.chunks)))
        for _ in range(times):
            self.allocator.hit(slot)
            self.twin.hit(slot)
            if self.age - self.uses[slot] > 3 * self.capacity // 4:
                self.shielded_until = self.age + IDLE_RINGS * self.capacity
            if slot not in self.was_hit:
                self.was_hit.add(slot)
                size = self.chunks[slot].size
                self.grow_older(size - size // NEWCOMERS_SHARE)
            self.heats[slot] = min(self.heats[slot] + HIT_HEAT, MAX_HEAT)
            self.uses[slot] = self.age

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
        del self.chunks[slot], self.heats[slot], self.uses[slot]
        self.pinned.discard(slot)

    @invariant()
    def books_agree(self) -> None:
        self.allocator.check_integrity()
        assert {slot: self.allocator.extent(slot) for slot in self.allocator.slots()} == self.chunks
        assert heats(self.allocator) == self.heats
        assert self.allocator.used_bytes == sum(chunk.size for chunk in self.chunks.values())


TestAllocatorModel = AllocatorModel.TestCase
TestAllocatorModel.settings = settings(max_examples=examples(80), stateful_step_count=40)
