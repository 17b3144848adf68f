"""Every mode's pair, at the library's face: its promises, and any order of what two ends and a model can do."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mmcached.engine import MultiModalReceiverCache
from mmcached.frontend import MultiModalProcessorOnlyCache, MultiModalProcessorSenderCache
from tests.compat.multimodal.library_pairs import PAIRS, Items, LibraryPair, Sent, expected
from tests.compat.multimodal.pair_contracts import PAIR_PROMISES, PairPromise, contents
from tests.house.drawing import examples


@pytest.fixture(params=list(PAIRS.values()), ids=list(PAIRS))
def pair(request: pytest.FixtureRequest) -> Iterator[LibraryPair]:
    pair: LibraryPair = request.param()
    yield pair
    pair.close()


@pytest.mark.parametrize("promise", PAIR_PROMISES, ids=lambda promise: promise.__name__)
def test_promises(promise: PairPromise, pair: LibraryPair) -> None:
    promise(pair)
    pair.check_integrity()
    assert pair.num_leases() == 0


def test_a_receiver_that_holds_as_much_as_it_may_is_served_all_the_same() -> None:
    pair = LibraryPair("shm", reader_quota_bytes=2 << 10)
    try:
        held = pair.serve(["0"])
        for _ in range(2):
            assert contents(pair.serve(["1"])) == [expected(["1"])]
        assert contents(held) == [expected(["0"])]
    finally:
        held = []
        pair.close()


def test_both_ends_of_the_mirror_hold_the_same() -> None:
    """Also as a cache that keeps the items itself; looking any number of times changes nothing."""
    pair, alone = LibraryPair("lru"), LibraryPair("processor_only")
    (receiver,) = pair.receivers
    rng = random.Random(7)
    for number in range(100):
        keys = [str(rng.randrange(16)) for _ in range(rng.randrange(3))]
        for each in (pair, alone):
            each.serve(keys, num_looks=number % 4)
        assert isinstance(receiver, MultiModalReceiverCache)
        assert isinstance(pair.sender, MultiModalProcessorSenderCache)
        assert isinstance(alone.sender, MultiModalProcessorOnlyCache)
        assert pair.sender.contents() == receiver.contents() == alone.sender.contents()
        assert pair.sender.stats().hits == alone.sender.stats().hits


class AnyOrder(RuleBasedStateMachine):
    """Requests, some in flight while others overtake them, aborts, touches, clears and restarts; in one mode."""

    make: Callable[[], LibraryPair]
    requests = st.lists(st.integers(0, 15).map(str), max_size=5)

    def __init__(self) -> None:
        super().__init__()
        self.pair = type(self).make()
        self.in_flight: list[tuple[list[str], Sent]] = []
        self.held: list[tuple[list[str], list[Items]]] = []

    @rule(keys=requests, num_looks=st.integers(0, 3), is_held=st.booleans())
    def serve(self, keys: list[str], num_looks: int, is_held: bool) -> None:
        self.take(keys, self.pair.serve(keys, num_looks), is_held)

    @rule(keys=requests)
    def hand_out(self, keys: list[str]) -> None:
        if len(self.in_flight) < 3:
            self.in_flight.append((keys, self.pair.hand_out(keys)))

    @precondition(lambda self: bool(self.in_flight))
    @rule(index=st.integers(0, 2), is_held=st.booleans())
    def arrive(self, index: int, is_held: bool) -> None:
        keys, sent = self.in_flight.pop(index % len(self.in_flight))
        self.take(keys, self.pair.serve(keys, sent=sent), is_held)

    @precondition(lambda self: bool(self.in_flight))
    @rule(index=st.integers(0, 2))
    def abort(self, index: int) -> None:
        keys, sent = self.in_flight.pop(index % len(self.in_flight))
        self.pair.abort(sent, keys)

    @precondition(lambda self: bool(self.held))
    @rule(index=st.integers(0, 2))
    def finish(self, index: int) -> None:
        self.held.pop(index % len(self.held))

    @rule(keys=requests, index=st.integers(0, 1))
    def touch(self, keys: list[str], index: int) -> None:
        """At one end only, and for nobody's request."""
        receiver = self.pair.receivers[index % len(self.pair.receivers)]
        for key in keys:
            if index and self.pair.sender is not None:
                self.pair.sender.touch_sender_cache_item(key)
            elif receiver is not None:
                receiver.touch_receiver_cache_item(key)
        if self.pair.sender is not None:
            self.pair.sender.release_sender_touches()

    @rule(key=st.integers(0, 15).map(str))
    def invalidate(self, key: str) -> None:
        if self.pair.sender is not None:
            self.pair.sender.invalidate(key)

    @rule()
    def clear_the_sender(self) -> None:
        if self.pair.sender is not None:
            self.pair.sender.clear_cache()

    @rule(index=st.integers(0, 1))
    def clear_a_receiver(self, index: int) -> None:
        receiver = self.pair.receivers[index % len(self.pair.receivers)]
        if receiver is not None:
            receiver.clear_cache()

    @rule(index=st.integers(0, 1))
    def restart_a_receiver(self, index: int) -> None:
        """It takes what the model holds with it."""
        self.held.clear()
        self.pair.forget(index % len(self.pair.receivers))

    def take(self, keys: list[str], served: list[Items], is_held: bool) -> None:
        assert contents(served) == [expected(keys)] * len(self.pair.receivers)
        if is_held and len(self.held) < 3:
            self.held.append((keys, served))

    @invariant()
    def what_is_held_is_unchanged_and_the_books_agree(self) -> None:
        for keys, served in self.held:
            assert contents(served) == [expected(keys)] * len(self.pair.receivers)
        self.pair.check_integrity()

    def teardown(self) -> None:
        for keys, sent in self.in_flight:
            self.pair.abort(sent, keys)
        self.in_flight.clear()
        self.held.clear()
        assert self.pair.num_leases() == 0
        keys = [str(number) for number in range(16)]
        assert contents(self.pair.serve(keys)) == [expected(keys)] * len(self.pair.receivers)
        assert self.pair.num_leases() == 0
        self.pair.close()


def any_order(name: str) -> type[AnyOrder]:
    return type("AnyOrderOfOne", (AnyOrder,), {"make": staticmethod(PAIRS[name])})


def settings_of(count: int) -> settings:
    return settings(max_examples=examples(count), stateful_step_count=30)


TestProcessorOnly = any_order("processor_only").TestCase
TestProcessorOnly.settings = settings_of(10)
TestLru = any_order("lru").TestCase
TestLru.settings = settings_of(50)
TestOneReceiver = any_order("shm, 1 receiver").TestCase
TestOneReceiver.settings = settings_of(20)
TestTwoReceivers = any_order("shm, 2 receivers").TestCase
TestTwoReceivers.settings = settings_of(20)
TestSmallItemsInline = any_order("shm, small items inline").TestCase
TestSmallItemsInline.settings = settings_of(15)
