"""SingleFlight: any interleaving of joins, landings, leaves, withdrawals and flushes; and its rules one by one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mmcached.frontend.processing.single_flight import Landed, SingleFlight
from mmcached.wire.errors import InvariantError


def test_the_first_to_join_begins_and_all_are_told_when_it_lands() -> None:
    book: SingleFlight[str] = SingleFlight()
    assert [book.join(request, "a") for request in (1, 2, 1)] == [True, False, False]
    assert book.join(2, "b")
    assert book.land("a", 0, "A").complete == [1], "2 still waits for b"
    assert not book.join(3, "a"), "what has landed is there for who comes later"
    assert book.is_complete(3)
    assert book.land("b", 0, "B").complete == [2]
    assert book.outcomes(2) == {"a": "A", "b": "B"}


def test_what_nobody_has_used_is_left_by_the_last() -> None:
    book: SingleFlight[str] = SingleFlight()
    book.join(1, "a")
    book.join(2, "a")
    book.land("a", 0, "A")
    assert book.leave(1, has_used=False).unused == []
    assert book.leave(2, has_used=False).unused == [("a", "A")]
    assert "a" not in book


def test_what_one_has_used_is_not_left() -> None:
    book: SingleFlight[str] = SingleFlight()
    book.join(1, "a")
    book.join(2, "a")
    book.land("a", 0, "A")
    book.leave(1, has_used=True)
    assert book.leave(2, has_used=False).unused == []


def test_work_that_all_have_left_can_be_joined_withdrawn_or_lands_unclaimed() -> None:
    book: SingleFlight[str] = SingleFlight()
    for key in ("joined", "withdrawn", "landing"):
        book.join(1, key)
    assert book.leave(1, has_used=False).in_work == ["joined", "withdrawn", "landing"]
    assert book.leave(1, has_used=False).in_work == []
    assert not book.join(2, "joined")
    book.withdraw("withdrawn")
    assert book.join(2, "withdrawn")
    assert book.land("landing", 0, "L") == Landed([], unclaimed=("L",))


def test_flush_lets_nothing_of_before_out() -> None:
    book: SingleFlight[str] = SingleFlight()
    for key in ("landed", "in work", "left"):
        book.join(1 + (key == "left"), key)
    book.land("landed", 0, "old")
    book.leave(2, has_used=False)
    assert book.flush() == ["landed"], "what is in work shows its age when it lands"
    assert not book.is_complete(1)
    assert book.outcomes(1) == {}
    assert book.land("in work", 0, "old") == Landed([], start_again=True)
    assert book.land("left", 0, "old") == Landed([])
    book.land("in work", 1, "new")
    assert book.land("landed", 1, "new").complete == [1]
    assert book.outcomes(1) == {"landed": "new", "in work": "new"}


def test_misuse_is_told() -> None:
    book: SingleFlight[str] = SingleFlight()
    with pytest.raises(InvariantError):
        book.land("a", 0, "A")
    book.join(1, "a")
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
        self.told: set[int] = set()
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
        is_news = key not in self.wants.get(request, set())
        if self.book.join(request, key):
            self.begin(key)
        self.wants.setdefault(request, set()).add(key)
        if is_news and not self.book.is_complete(request):
            self.told.discard(request)
        elif self.book.is_complete(request):
            self.told.add(request)  # it sees so itself

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def land(self, data: Any) -> None:
        key = data.draw(st.sampled_from(sorted(self.running)))
        work = self.running.pop(key)
        landed = self.book.land(key, work.generation, work)
        if landed.start_again:
            assert work.generation != self.book.generation
            self.begin(key)
        for request in landed.complete:
            assert request not in self.told, "told twice"
            self.told.add(request)
        if landed.unclaimed is not None:
            self.settle(*landed.unclaimed)
        elif work.generation == self.book.generation:
            self.landed.add(work)

    @rule(request=REQUESTS, has_used=st.booleans(), is_withdrawn=st.booleans())
    def leave(self, request: int, has_used: bool, is_withdrawn: bool) -> None:
        is_used = has_used and self.book.is_complete(request)
        if is_used:
            self.landed -= set(self.book.outcomes(request).values())
        left = self.book.leave(request, has_used=is_used)
        self.wants.pop(request, None)
        self.told.discard(request)
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
        self.told = {request for request in self.told if self.book.is_complete(request)}

    @invariant()
    def outcomes_are_of_this_generation_and_nobody_is_forgotten(self) -> None:
        self.book.check_integrity()
        for request, keys in self.wants.items():
            outcomes = self.book.outcomes(request)
            assert set(outcomes) <= keys
            assert all(work.generation == self.book.generation for work in outcomes.values())
            assert self.book.is_complete(request) == (set(outcomes) == keys) == (request in self.told)
            assert keys - set(outcomes) <= set(self.running), "waits for what nobody does"

    @invariant()
    def what_was_paid_for_is_held_used_or_kept(self) -> None:
        held = {work for request in self.wants for work in self.book.outcomes(request).values()}
        assert self.landed <= held

    def teardown(self) -> None:
        while self.running:
            for key, work in list(self.running.items()):
                del self.running[key]
                if self.book.land(key, work.generation, work).start_again:
                    self.begin(key)
        assert all(self.book.is_complete(request) for request in self.wants)
        for request in list(self.wants):
            self.book.leave(request, has_used=True)
        assert not any(key in self.book for key in "abc")


TestInterleavings = Interleavings.TestCase
