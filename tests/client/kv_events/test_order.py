"""Batches in their order: whatever is lost, late or started again, a reader has the right ones or is told to forget."""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque

import pytest

from mmcached.client.kv_events import order as kv_event_order
from mmcached.client.kv_events.order import BatchOrder
from mmcached.wire.messages.kv_events import KVEventBatch


def batch(number: int) -> KVEventBatch:
    return KVEventBatch(float(number), [])


def told(order: BatchOrder) -> list[tuple[int, bool]]:
    """Take all that is told: numbers, and whether to forget first."""
    taken = list(iter(order.take, None))
    assert all(received.batch.ts == received.number for received in taken if received)
    return [(received.number, received.must_forget) for received in taken if received]


def live(order: BatchOrder, *numbers: int) -> None:
    for number in numbers:
        order.live(number, batch(number))


def replay(order: BatchOrder, *numbers: int) -> None:
    """Answer a question with these batches."""
    for number in numbers:
        order.replayed(number, batch(number))
    order.replay_ended()


def started(first: int = 10, *, can_ask: bool = True) -> BatchOrder:
    """Return an order that has been told everything up to `first`."""
    order = BatchOrder(can_ask=can_ask)
    if can_ask:
        assert order.ask_from == 0
        order.asked()
        replay(order, first)
    else:
        live(order, first)
    assert told(order) == [(first, True)], "the first means to forget what some other reader knew"
    return order


def test_what_comes_in_order_is_told_at_once() -> None:
    order = started()
    for number in (11, 12):
        live(order, number)
        assert told(order) == [(number, False)]
    assert order.ask_from is None


def test_what_was_published_before_comes_first() -> None:
    order = BatchOrder(can_ask=True)
    live(order, 7)
    order.asked()
    live(order, 8)
    assert told(order) == [], "perhaps something comes that was before"
    replay(order, 5, 6, 7)
    assert told(order) == [(5, True), (6, False), (7, False), (8, False)]


def test_a_gap_is_filled() -> None:
    order = started()
    live(order, 13)
    assert (order.ask_from, told(order)) == (11, [])
    order.asked()
    assert (order.ask_from, order.is_asking) == (None, True)
    live(order, 14)
    replay(order, 11, 12, 13)
    assert told(order) == [(11, False), (12, False), (13, False), (14, False)]
    assert order.num_lost_track == 0


@pytest.mark.parametrize("kept", [[], [12], [12, 13, 14]], ids=str)
def test_what_is_kept_no_longer_is_forgotten(kept: list[int]) -> None:
    order = started()
    live(order, 13)
    order.asked()
    replay(order, *kept)
    live(order, 15)
    order.asked()
    replay(order, 14)
    assert told(order) == [(number, number == (kept or [13])[0]) for number in range((kept or [13])[0], 16)]
    assert order.num_lost_track == 1


def test_without_anybody_to_ask_a_gap_is_forgotten_at_once() -> None:
    order = started(can_ask=False)
    assert order.ask_from is None
    live(order, 12, 13)
    order.check()
    assert told(order) == [(12, True), (13, False)]
    assert order.ask_from is None


def test_another_life_of_the_publisher_is_a_gap_that_nobody_fills() -> None:
    order = started()
    live(order, 1003)
    order.asked()
    replay(order, 1000, 1001, 1002, 1003)
    assert told(order) == [(1000, True), (1001, False), (1002, False), (1003, False)]


def test_another_life_that_counts_from_lower_numbers_is_noticed_too() -> None:
    order = started()
    live(order, 11, 3)
    assert order.ask_from == 0
    order.asked()
    replay(order, 1, 2, 3)
    assert told(order) == [(11, False), (1, True), (2, False), (3, False)]


def test_a_reader_that_was_there_first_misses_nothing() -> None:
    """It has asked before anything was published; then the first batch is lost."""
    order = BatchOrder(can_ask=True)
    order.asked()
    order.replay_ended()
    live(order, 6)
    assert (told(order), order.ask_from) == ([], 0)
    order.asked()
    replay(order, 5, 6)
    assert told(order) == [(5, True), (6, False)]


def test_a_gap_behind_what_was_asked_for_is_asked_for_too() -> None:
    """The answer was made before the batch that is missing; it says nothing about that one."""
    order = BatchOrder(can_ask=True)
    order.asked()
    live(order, 8)
    replay(order, 5, 6)
    assert (told(order), order.ask_from) == ([(5, True), (6, False)], 7)
    order.asked()
    replay(order, 7)
    assert told(order) == [(7, False), (8, False)]


def test_silence_is_checked_once_at_a_time() -> None:
    order = started()
    order.check()
    assert order.ask_from == 11
    order.asked()
    order.check()
    assert order.ask_from is None
    replay(order, 11)
    assert told(order) == [(11, False)]


def test_the_end_of_an_answer_that_nobody_waits_for_means_nothing() -> None:
    order = started()
    order.replay_ended()
    order.replayed(14, batch(14))
    assert told(order) == []
    live(order, 11)
    assert told(order) == [(11, False)]


@pytest.mark.parametrize("is_live", [True, False])
def test_what_cannot_be_read_is_lost(is_live: bool) -> None:
    order = started()
    if is_live:
        order.live(11, None)
        live(order, 12)
    else:
        order.check()
        order.asked()
        order.replayed(11, None)
        replay(order, 12)
    assert told(order) == [(12, True)]


@pytest.mark.parametrize("is_asked_before", [False, True])
def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch, is_asked_before: bool) -> None:
    monkeypatch.setattr(kv_event_order, "MAX_HELD", 5)
    order = started()
    if is_asked_before:
        order.check()
        order.asked()
    live(order, *range(20, 25))
    if not is_asked_before:
        order.asked()
    assert told(order) == []
    live(order, 25)
    assert told(order) == [(number, number == 20) for number in range(20, 26)]
    assert not order.is_asking


class World:
    """A publisher with a small ring that is started again now and then, a lossy connection, and answers that fail."""

    def __init__(self, seed: int, *, is_lossy: bool) -> None:
        self.random = random.Random(seed)
        self.is_lossy = is_lossy
        self.order = BatchOrder(can_ask=True)
        self.lives = itertools.count(1)
        self.life: list[int] = []
        self.ring: deque[int] = deque(maxlen=8 if is_lossy else 10_000)
        self.next = 1000
        self.heard = 0  # the last that came live
        self.on_the_way: deque[int] = deque()
        self.answer: deque[int | None] | None = None
        self.applied: list[int] = []
        self.num_forgotten = 0
        self.seen: Counter[str] = Counter()

    def publish(self) -> None:
        for _ in range(self.random.choice((1, 1, 3, 12))):
            self.life.append(self.next)
            self.ring.append(self.next)
            if self.random.random() < 0.7:
                self.on_the_way.append(self.next)
            else:
                self.seen["lost"] += 1
            self.next += 1

    def deliver(self) -> None:
        for _ in range(self.random.randint(0, len(self.on_the_way))):
            self.hear()
        self.take()

    def hear(self) -> None:
        self.heard = self.on_the_way.popleft()
        self.order.live(self.heard, batch(self.heard))

    def ask(self) -> None:
        if self.random.random() < 0.3:
            self.order.check()
        if self.order.ask_from is not None:
            self.answer = deque([number for number in self.ring if number >= self.order.ask_from])
            self.answer.append(None)
            self.order.asked()

    def hear_answer(self, *, is_whole: bool = False) -> None:
        while self.answer and (is_whole or self.random.random() < 0.7):
            number = self.answer.popleft()
            if number is None:
                self.order.replay_ended()
            else:
                self.order.replayed(number, batch(number))
        self.take()

    def fail_answer(self) -> None:
        if self.is_lossy and self.order.is_asking and self.random.random() < 0.3:
            self.seen["failed"] += 1
            self.answer = None
            self.order.replay_ended()
            self.take()

    def restart(self) -> None:
        if self.is_lossy and self.random.random() < 0.2:
            self.seen["restarted"] += 1
            # A clock that was set back shows in what comes live; so the newest that is known must have come so.
            is_known_live = not self.answer and self.applied and self.applied[-1] <= self.heard
            is_clock_set_back = bool(is_known_live) and self.random.random() < 0.4
            self.seen["set back"] += is_clock_set_back
            self.life, self.next = [], self.heard - 900 if is_clock_set_back else self.next + 1_000_000
            self.ring.clear()
            if self.random.random() < 0.5:
                self.on_the_way.clear()

    def take(self) -> None:
        for number, must_forget in told(self.order):
            if must_forget:
                self.applied = []
                self.num_forgotten += 1
            else:
                assert number == self.applied[-1] + 1, "a batch is missing and nobody said so"
            self.applied.append(number)

    def run(self) -> None:
        actions = [self.publish, self.deliver, self.ask, self.hear_answer, self.fail_answer, self.restart]
        for _ in range(60):
            self.random.choice(actions)()
        self.come_to_rest()

    def come_to_rest(self) -> None:
        """One more batch comes live for certain; then all that is asked for is answered."""
        self.life.append(self.next)
        self.ring.append(self.next)
        self.on_the_way.append(self.next)
        while self.on_the_way:
            self.hear()
        for _ in range(4):
            self.hear_answer(is_whole=True)
            self.ask()
            self.order.check()
        self.hear_answer(is_whole=True)


@pytest.mark.parametrize("is_lossy", [False, True])
def test_at_rest_a_reader_knows_this_life_or_has_forgotten(is_lossy: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(400):
        world = World(seed, is_lossy=is_lossy)
        world.run()
        assert world.applied == world.life[-len(world.applied) :], "the newest of this life, without a gap"
        assert world.applied
        if not is_lossy:
            assert world.applied == world.life
            assert world.num_forgotten == 1, "nothing was lost for good, so nothing is forgotten after the beginning"
        seen += world.seen
        seen["forgot"] += world.num_forgotten > 1
    assert seen["lost"] > 100
    assert not is_lossy or min(seen["failed"], seen["restarted"], seen["set back"], seen["forgot"]) > 50
