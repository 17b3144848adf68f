"""SingleFlight: any interleaving of joins, landings, leaves, withdrawals and flushes; and its rules one by one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mmcached.gateway.processing.single_flight import FlightWaiter, Landed, SingleFlight
from mmcached.wire.errors import InvariantError
from tests.frontend.integrity import check_flights


def waiters(number: int) -> list[FlightWaiter[str]]:
    return [FlightWaiter() for _ in range(number)]


def test_the_first_to_join_begins_and_all_have_it_when_it_lands() -> None:
    book: SingleFlight[str] = SingleFlight()
    one, two, three = waiters(3)
    assert [book.join(waiter, "a") for waiter in (one, two, one)] == [True, False, False]
    assert book.join(two, "b")
    assert book.waiters("a") == [one, two]
    assert book.land("a", 0, "A").flight is one.flights["a"]
    assert (one.is_complete, two.is_complete) == (True, False), "2 still waits for b"
    assert not book.join(three, "a"), "what has landed is there for who comes later"
    assert three.is_complete
    assert book.land("b", 0, "B").flight is not None
    assert two.outcomes() == {"a": "A", "b": "B"}


def test_what_nobody_has_used_is_left_by_the_last() -> None:
    book: SingleFlight[str] = SingleFlight()
    one, two = waiters(2)
    book.join(one, "a")
    book.join(two, "a")
    book.land("a", 0, "A")
    assert book.leave(one, has_used=False).unused == []
    assert book.leave(two, has_used=False).unused == [("a", "A")]
    assert "a" not in book


def test_what_one_has_used_is_not_left() -> None:
    book: SingleFlight[str] = SingleFlight()
    one, two = waiters(2)
    book.join(one, "a")
    book.join(two, "a")
    book.land("a", 0, "A")
    book.leave(one, has_used=True)
    assert book.leave(two, has_used=False).unused == []


def test_work_that_all_have_left_can_be_joined_withdrawn_or_lands_unclaimed() -> None:
    book: SingleFlight[str] = SingleFlight()
    one, two = waiters(2)
    for key in ("joined", "withdrawn", "landing"):
        book.join(one, key)
    assert book.leave(one, has_used=False).in_work == ["joined", "withdrawn", "landing"]
    assert book.leave(one, has_used=False).in_work == []
    assert not book.join(two, "joined")
    book.withdraw("withdrawn")
    assert book.join(two, "withdrawn")
    assert book.land("landing", 0, "L") == Landed(unclaimed=("L",))


def test_flush_lets_nothing_of_before_out() -> None:
    book: SingleFlight[str] = SingleFlight()
    one, two = waiters(2)
    for key in ("landed", "in work", "left"):
        book.join(two if key == "left" else one, key)
    book.land("landed", 0, "old")
    book.leave(two, has_used=False)
    assert book.flush() == ["landed"], "what is in work shows its age when it lands"
    assert not one.is_complete
    assert one.outcomes() == {}
    assert book.land("in work", 0, "old") == Landed(start_again=True)
    assert book.land("left", 0, "old") == Landed()
    book.land("in work", 1, "new")
    assert not one.is_complete
    book.land("landed", 1, "new")
    assert one.is_complete
    assert one.outcomes() == {"landed": "new", "in work": "new"}


def test_misuse_is_told() -> None:
    book: SingleFlight[str] = SingleFlight()
    with pytest.raises(InvariantError):
        book.land("a", 0, "A")
    book.join(FlightWaiter(), "a")
    with pytest.raises(InvariantError):
        book.withdraw("a")


@dataclass(frozen=True)
class Work:
    """One piece of work, and its outcome."""

    serial: int
    generation: int


KEYS = st.sampled_from("abc")
REQUESTS = st.integers(1, 4)


class Interleavings(RuleBasedStateMachine):
    """The book against a model that remembers every piece of work that was ever begun."""

    def __init__(self) -> None:
        super().__init__()
        self.book: SingleFlight[Work] = SingleFlight()
        self.running: dict[str, Work] = {}
        self.wants: dict[int, set[str]] = {}
        self.waiters: defaultdict[int, FlightWaiter[Work]] = defaultdict(FlightWaiter)
        self.landed: set[Work] = set()
        self.settled: set[Work] = set()
        self.serials = count()

    def begin(self, key: str) -> None:
        assert key not in self.running, "processed twice at a time"
        self.running[key] = Work(next(self.serials), self.book.generation)

    def settle(self, work: Work) -> None:
        assert work not in self.settled, "kept twice"
        assert work.generation == self.book.generation, "kept after a flush"
        self.settled.add(work)

    @rule(request=REQUESTS, key=KEYS)
    def join(self, request: int, key: str) -> None:
        if self.book.join(self.waiters[request], key):
            self.begin(key)
        self.wants.setdefault(request, set()).add(key)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def land(self, data: Any) -> None:
        key = data.draw(st.sampled_from(sorted(self.running)))
        work = self.running.pop(key)
        landed = self.book.land(key, work.generation, work)
        if landed.start_again:
            assert work.generation != self.book.generation
            self.begin(key)
        if landed.flight is not None:
            assert landed.flight.outcome == (work,)
        if landed.unclaimed is not None:
            self.settle(*landed.unclaimed)
        elif work.generation == self.book.generation:
            self.landed.add(work)

    @rule(request=REQUESTS, has_used=st.booleans(), is_withdrawn=st.booleans())
    def leave(self, request: int, has_used: bool, is_withdrawn: bool) -> None:
        waiter = self.waiters[request]
        is_used = has_used and waiter.is_complete
        if is_used:
            self.landed -= set(waiter.outcomes().values())
        left = self.book.leave(waiter, has_used=is_used)
        self.wants.pop(request, None)
        for _, work in left.unused:
            self.settle(work)
            self.landed.discard(work)
        for key in left.in_work:
            assert key in self.running
            if is_withdrawn:
                self.book.withdraw(key)
                del self.running[key]

    @rule()
    def flush(self) -> None:
        self.landed.clear()
        for key in self.book.flush():
            self.begin(key)

    @invariant()
    def outcomes_are_of_this_generation_and_nobody_is_forgotten(self) -> None:
        check_flights(self.book)
        for request, keys in self.wants.items():
            waiter = self.waiters[request]
            outcomes = waiter.outcomes()
            assert set(outcomes) <= keys
            assert all(work.generation == self.book.generation for work in outcomes.values())
            assert waiter.is_complete == (set(outcomes) == keys)
            assert keys - set(outcomes) <= set(self.running), "waits for what nobody does"

    @invariant()
    def what_was_paid_for_is_held_used_or_kept(self) -> None:
        held = {work for request in self.wants for work in self.waiters[request].outcomes().values()}
        assert self.landed <= held

    def teardown(self) -> None:
        while self.running:
            for key, work in list(self.running.items()):
                del self.running[key]
                if self.book.land(key, work.generation, work).start_again:
                    self.begin(key)
        assert all(self.waiters[request].is_complete for request in self.wants)
        for request in list(self.wants):
            self.book.leave(self.waiters[request], has_used=True)
        assert not any(key in self.book for key in "abc")


TestInterleavings = Interleavings.TestCase
