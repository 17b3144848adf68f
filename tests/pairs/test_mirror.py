"""Both ends of the mirrored cache, in one process: P0's sender, a wire that can lose, P1's receiver.

The state machine plays the two servers: requests that are sent, refused or aborted, misses that are answered and sent
again, flushes, restarts of either side, messages that get lost or cannot be read. Each message remembers what the
mirror looked like when it was sent, and what it has to bring; so every delivery is judged, with others still in flight.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from mmcached.cache import (
    BaseMultiModalProcessorCache,
    Entry,
    MultiModalFeatureSpec,
    MultiModalKwargsItem,
    PlaceholderRange,
    RequestLRU,
    ResolvedPromptUpdate,
    SenderInput,
    ShmItem,
)
from mmcached.engine.server.receiver_cache import Frames, MultiModalReceiverCache, ReceivedItem
from mmcached.frontend.caches.lru_sender_cache import MirroredItem, MultiModalProcessorSenderCache
from mmcached.frontend.caches.processor_only_cache import MultiModalProcessorOnlyCache
from mmcached.wire.config import GIB, ServiceConfig
from mmcached.wire.errors import CacheMiss, RemoteProtocolError
from tests.house.drawing import examples

CAPACITY = 1000
KEYS = "abcdef"
NO_UPDATES: tuple[ResolvedPromptUpdate, ...] = ()


def config(capacity: int = CAPACITY) -> ServiceConfig:
    return ServiceConfig(mm_processor_cache_type="lru", mm_processor_cache_gb=capacity / GIB)


@dataclass(slots=True)
class Message:
    """A request on the wire.

    Attributes:
        items: what travels; None where the mirror promised.
        expected: the frames that the engine must get for each item: the newest ever sent under its key.
        mirror: the mirror right after it moved for this message.
        life: how often the mirror had been started anew.
        may_miss: a message before it, of the same life, is lost.
    """

    mirror_seq: int
    items: list[ReceivedItem]
    expected: list[Frames]
    mirror: list[tuple[str, int]]
    life: int
    may_miss: bool


@dataclass(frozen=True, slots=True)
class Flush:
    life: int


class Service(RuleBasedStateMachine):
    """What frontend and engine do with the two caches."""

    make_sender: Callable[[], MultiModalProcessorSenderCache] = staticmethod(
        lambda: MultiModalProcessorSenderCache(config())
    )
    make_receiver: Callable[[], MultiModalReceiverCache] = staticmethod(lambda: MultiModalReceiverCache(config()))

    def __init__(self) -> None:
        super().__init__()
        self.sender = self.make_sender()
        self.receiver = self.make_receiver()
        self.wire: deque[Message | Flush] = deque()
        self.answers: deque[tuple[Message, list[str]]] = deque()
        self.newest: dict[str, Frames] = {}
        self.num_payloads = 0
        self.num_missed = 0
        self.life = self.life_of_receiver = 0
        self.has_drifted = False  # a message of this life is lost, and the sender does not know it yet
        self.was_anything_lost = False

    # ---- P0

    requests = st.lists(st.tuples(st.sampled_from(KEYS), st.integers(1, 12)), max_size=5)

    @rule(request=requests, with_data=st.booleans())
    def send(self, request: list[tuple[str, int]], with_data: bool = False) -> None:
        """Sizes are in tenths of the capacity, so two of them are larger than it.

        Data may always go, even where none is needed; then they replace what is there.
        """
        items, mirrored = self.prepare(request, with_data)
        expected: list[Frames] = []
        for item in items:
            if item.frames is not None:
                self.newest[item.mm_hash] = tuple(item.frames)
            expected.append(self.newest[item.mm_hash])
        mirror_seq = self.sender.next_mirror_seq
        self.sender.apply(mirrored)
        self.wire.append(
            Message(mirror_seq, items, expected, self.sender.contents(), life=self.life, may_miss=self.has_drifted)
        )

    @rule(request=requests)
    def is_refused(self, request: list[tuple[str, int]]) -> None:
        """The engine's queue is full, or the prompt with its placeholders too long."""
        _, mirrored = self.prepare(request)
        self.after_refusal(mirrored)

    def after_refusal(self, mirrored: Sequence[MirroredItem]) -> None:
        """Leases are given back; the mirror stays."""

    def prepare(
        self, request: list[tuple[str, int]], with_data: bool = False
    ) -> tuple[list[ReceivedItem], list[MirroredItem]]:
        """Return what would travel, and what the mirror would learn."""
        keys = [key for key, _ in request]
        items: list[ReceivedItem] = []
        sizes: dict[str, int] = {}
        for (key, tenths), is_known in zip(request, self.sender.plan(keys), strict=True):
            if is_known and not with_data:
                nbytes = sizes.get(key) or self.sender.metadata(key).nbytes
                items.append(ReceivedItem(key, nbytes, None))
            else:
                self.num_payloads += 1
                frames = (f"{key}{self.num_payloads}".encode(), b"pixels")
                sizes[key] = tenths * CAPACITY // 10
                items.append(ReceivedItem(key, sizes[key], frames))
        return items, [MirroredItem(item.mm_hash, item.nbytes, NO_UPDATES) for item in items]

    @precondition(lambda self: bool(self.answers))
    @rule(was_aborted=st.booleans())
    def read_miss(self, was_aborted: bool) -> None:
        """The frontend hears of a miss, and sends the request again unless nobody waits for it any more."""
        message, mm_hashes = self.answers.popleft()
        self.num_missed += len(mm_hashes)
        self.note_misses(mm_hashes)
        self.start_life()
        if not was_aborted:
            self.send([(item.mm_hash, item.nbytes * 10 // CAPACITY) for item in message.items])

    def note_misses(self, mm_hashes: list[str]) -> None:
        assert self.sender.note_misses(mm_hashes) == len(mm_hashes)

    @rule(is_lost=st.booleans())
    def flush(self, is_lost: bool) -> None:
        self.sender.clear_cache()
        self.start_life()
        if not is_lost:
            self.wire.append(Flush(self.life))

    def start_life(self) -> None:
        self.life += 1
        self.has_drifted = False

    # ---- P1

    @precondition(lambda self: bool(self.wire))
    @rule()
    def deliver(self) -> None:
        message = self.wire.popleft()
        self.life_of_receiver = message.life
        if isinstance(message, Flush):
            self.receiver.clear_cache()
            return
        missed: list[str] = []
        try:
            came = self.receiver.ingest(message.mirror_seq, message.items)
        except CacheMiss as miss:
            missed = miss.mm_hashes
            self.answers.append((message, missed))
        else:
            assert came == message.expected
        assert message.may_miss or not missed, f"missed {missed} although every message came"
        assert {item.mm_hash for item in message.items if item.frames is None} >= set(missed)
        if not message.may_miss:
            assert self.receiver.contents() == message.mirror

    @rule(request=requests)
    def serve(self, request: list[tuple[str, int]]) -> None:
        """Send a request, and deliver whatever is on the wire."""
        self.send(request)
        while self.wire:
            self.deliver()

    # ---- what goes wrong

    @precondition(lambda self: bool(self.wire))
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """Also a flush, which changes nothing: the number that the sender leaves out says the same."""
        index = data.draw(st.integers(0, len(self.wire) - 1))
        lost = self.wire[index]
        del self.wire[index]
        self.lost(lost)

    @precondition(lambda self: bool(self.wire) and isinstance(self.wire[0], Message))
    @rule()
    def cannot_be_read(self) -> None:
        """A frame that contradicts its message changes nothing, so it is lost like any other."""
        message = self.wire.popleft()
        assert isinstance(message, Message)
        before = self.receiver.contents()
        broken = [ReceivedItem("x", 0, [b"too long"]), *message.items]
        with pytest.raises(RemoteProtocolError):
            self.receiver.ingest(message.mirror_seq, broken)
        assert self.receiver.contents() == before
        self.lost(message)

    def lost(self, lost: Message | Flush) -> None:
        if isinstance(lost, Message):
            self.was_anything_lost = True
            for later in self.wire:
                if isinstance(later, Message) and later.life == lost.life:
                    later.may_miss = later.may_miss or later.mirror_seq > lost.mirror_seq
            self.has_drifted = self.has_drifted or lost.life == self.life

    @rule(role=st.sampled_from(["frontend", "engine"]))
    def restart(self, role: str) -> None:
        self.wire.clear()
        self.answers.clear()
        if role == "engine":
            self.receiver = self.make_receiver()
            self.sender.clear_cache()
        else:
            self.num_missed = 0
            self.sender = self.make_sender()
            self.receiver.clear_cache()
        self.start_life()
        self.life_of_receiver = self.life

    # ---- what holds

    @invariant()
    def the_books_agree(self) -> None:
        self.sender.check_integrity()
        self.receiver.check_integrity()
        assert sum(nbytes for _, nbytes in self.receiver.contents()) == self.receiver.stats().nbytes <= CAPACITY

    @invariant()
    def at_rest_both_ends_hold_the_same(self) -> None:
        if self.wire or self.answers or self.has_drifted:
            return
        if self.life_of_receiver == self.life:
            assert self.sender.contents() == self.receiver.contents()
        else:  # the sender started anew, and has told nobody yet
            assert self.sender.contents() == []

    @invariant()
    def without_loss_nothing_is_out_of_step(self) -> None:
        assert self.sender.num_desyncs == self.num_missed
        assert self.was_anything_lost or self.sender.num_desyncs == 0


TestService = Service.TestCase
TestService.settings = settings(max_examples=examples(150), stateful_step_count=40)


# ---- the machine sees each of these faults


def with_lru(lru: RequestLRU[Any]) -> MultiModalReceiverCache:
    receiver = MultiModalReceiverCache(config())
    receiver._lru = lru
    return receiver


class MovesBeforeItSends(Service):
    def after_refusal(self, mirrored: Sequence[MirroredItem]) -> None:
        self.sender.apply(mirrored)


class WithoutFirstPass(RequestLRU[Any]):
    """Resolves a None after the request's own items have evicted."""

    def move(self, keys: Sequence[str], given: Sequence[Entry[Any] | None]) -> list[Entry[Any] | None]:
        return [super(WithoutFirstPass, self).move([key], [new])[0] for key, new in zip(keys, given, strict=True)]


class TouchesOnly(WithoutFirstPass):
    """As the two-pass rule is told: makes the request's keys young, but does not remember them."""

    def move(self, keys: Sequence[str], given: Sequence[Entry[Any] | None]) -> list[Entry[Any] | None]:
        for key in keys:
            self.touch(key)
        return super().move(keys, given)


class WithoutYouth(RequestLRU[Any]):
    """A hit does not become young."""

    def move(self, keys: Sequence[str], given: Sequence[Entry[Any] | None]) -> list[Entry[Any] | None]:
        found = [self.find(key) if new is None else new for key, new in zip(keys, given, strict=True)]
        new_keys = [key for key, new in zip(keys, given, strict=True) if new is not None]
        super().move(new_keys, [new for new in given if new is not None])
        return found


class KeepsTheOld(RequestLRU[Any]):
    """A payload that came loses against a cached one."""

    def move(self, keys: Sequence[str], given: Sequence[Entry[Any] | None]) -> list[Entry[Any] | None]:
        return super().move(keys, [self.find(key) or fresh for key, fresh in zip(keys, given, strict=True)])


class CountsNoGaps(MultiModalReceiverCache):
    def ingest(self, mirror_seq: int, items: Sequence[ReceivedItem]) -> list[Frames]:
        self._last_mirror_seq = None
        return super().ingest(mirror_seq, items)


class InvalidatesOnly(Service):
    """Forgets the missed key, and trusts the rest of the mirror."""

    def note_misses(self, mm_hashes: list[str]) -> None:
        self.sender._num_desyncs += len(mm_hashes)
        for mm_hash in mm_hashes:
            self.sender.invalidate(mm_hash)


class LooksAtSizesOnly(MultiModalProcessorSenderCache):
    """Keeps what is larger than the capacity, by counting it as large as the capacity."""

    def apply(self, items: Sequence[MirroredItem]) -> None:
        super().apply([MirroredItem(item.mm_hash, min(item.nbytes, CAPACITY), NO_UPDATES) for item in items])


def receiving(make: Callable[[], MultiModalReceiverCache]) -> type[Service]:
    return type("Broken", (Service,), {"make_receiver": staticmethod(make)})


FAULTS: dict[str, type[Service]] = {
    "the mirror moves before the send": MovesBeforeItSends,
    "one end leaves the first pass out": receiving(lambda: with_lru(WithoutFirstPass(CAPACITY))),
    "one end touches without remembering": receiving(lambda: with_lru(TouchesOnly(CAPACITY))),
    "one end leaves hits where they are": receiving(lambda: with_lru(WithoutYouth(CAPACITY))),
    "an old payload wins": receiving(lambda: with_lru(KeepsTheOld(CAPACITY))),
    "one end is larger": receiving(lambda: MultiModalReceiverCache(config(CAPACITY + 100))),
    "one end keeps oversized items": type(
        "Broken", (Service,), {"make_sender": staticmethod(lambda: LooksAtSizesOnly(config()))}
    ),
    "gaps are not seen": receiving(lambda: CountsNoGaps(config())),
    "a miss heals one key only": InvalidatesOnly,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_the_machine_sees(fault: type[Service]) -> None:
    few = settings(
        max_examples=5000,  # stops at the first that fails
        stateful_step_count=100,  # some take long histories: shorter ones are begun ten times as often
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(fault, settings=few)


# ---- examples, at the two faces


def hand_out(
    sender: BaseMultiModalProcessorCache, keys: Sequence[str], items: dict[str, MultiModalKwargsItem], num_looks: int
) -> list[MultiModalKwargsItem | ShmItem | None]:
    """Return what P0 sends for a request, at the library's face."""
    for _ in range(num_looks):
        sender.is_cached(keys)
    given: list[SenderInput] = [
        None if is_cached else (items[key], NO_UPDATES)
        for key, is_cached in zip(keys, sender.is_cached(keys), strict=True)
    ]
    for key in keys:
        sender.touch_sender_cache_item(key)
    return [item for item, _ in sender.get_and_update(given, keys)]


def an_item(nbytes: int, value: int = 0) -> MultiModalKwargsItem:
    return MultiModalKwargsItem.from_record({"data": np.full(nbytes, value, dtype=np.uint8)})


@pytest.mark.parametrize("num_looks", [0, 1, 2, 3])
def test_every_mode_gives_the_model_the_same_items(num_looks: int) -> None:
    """Room for 8 of 16 items, 100 requests of up to 2; looking any number of times changes nothing."""
    room = config(8 * 64)
    sender, receiver = MultiModalProcessorSenderCache(room), MultiModalReceiverCache(room)
    alone = MultiModalProcessorOnlyCache(room)
    items = {str(n): an_item(64, n) for n in range(16)}
    rng = random.Random(num_looks)
    for _ in range(100):
        keys = [str(rng.randrange(16)) for _ in range(rng.randrange(3))]
        wanted = [items[key] for key in keys]
        assert hand_out(alone, keys, items, num_looks) == wanted
        features = [
            MultiModalFeatureSpec(item, "image", key, PlaceholderRange(0, 1))
            for item, key in zip(hand_out(sender, keys, items, num_looks), keys, strict=True)
        ]
        assert [feature.data for feature in receiver.get_and_update_features(features)] == wanted
        assert sender.contents() == receiver.contents() == alone.contents()
    assert 0 < alone.stats().hits == sender.stats().hits < alone.stats().queries


def test_an_item_that_only_p0_believes_in_is_missed_and_sent_again() -> None:
    sender, receiver = MultiModalProcessorSenderCache(config()), MultiModalReceiverCache(config())
    item = an_item(64)
    sender.get_and_update_item((item, []), "X")  # lost on the way
    assert sender.get_and_update_item(None, "X")[0] is None
    with pytest.raises(CacheMiss) as caught:
        receiver.get_and_update_item(None, "X")
    assert caught.value.mm_hashes == ["X"]
    sender.invalidate("X")
    assert not sender.is_cached_item("X")
    again, _ = sender.get_and_update_item((item, []), "X")
    assert again is item
    assert receiver.get_and_update_item(again, "X") is item
    assert sender.get_and_update_item(None, "X")[0] is None
    assert receiver.get_and_update_item(None, "X") is item
    assert sender.contents() == receiver.contents()


def test_a_request_that_crowds_out_its_own_hit_is_served() -> None:
    """A is there; B and C together leave it no room, though the same request needs it after them."""
    sender, receiver = MultiModalProcessorSenderCache(config()), MultiModalReceiverCache(config())

    def send(*items: ReceivedItem) -> list[Frames]:
        seq = sender.next_mirror_seq
        sender.apply([MirroredItem(item.mm_hash, item.nbytes, NO_UPDATES) for item in items])
        return receiver.ingest(seq, items)

    send(ReceivedItem("A", 600, [b"a"]))
    assert sender.plan(["B", "C", "A"]) == [False, False, True]
    came = send(ReceivedItem("B", 500, [b"b"]), ReceivedItem("C", 500, [b"c"]), ReceivedItem("A", 600, None))
    assert came == [(b"b",), (b"c",), (b"a",)]
    assert sender.contents() == receiver.contents() == [("A", 600)]


def test_an_oversized_item_that_comes_twice_travels_once() -> None:
    sender, receiver = MultiModalProcessorSenderCache(config()), MultiModalReceiverCache(config())
    assert sender.plan(["big", "big"]) == [False, True]
    items = [ReceivedItem("big", 2 * CAPACITY, [b"pixels"]), ReceivedItem("big", 2 * CAPACITY, None)]
    assert receiver.ingest(sender.next_mirror_seq, items) == [(b"pixels",)] * 2
    sender.apply([MirroredItem("big", 2 * CAPACITY, NO_UPDATES)] * 2)
    assert sender.contents() == receiver.contents() == []
    assert sender.plan(["big"]) == [False]


def test_a_lost_message_costs_one_miss() -> None:
    sender, receiver = MultiModalProcessorSenderCache(config()), MultiModalReceiverCache(config())

    def send(key: str) -> tuple[int, list[ReceivedItem]]:
        seq = sender.next_mirror_seq
        (is_there,) = sender.plan([key])
        sender.apply([MirroredItem(key, 100, NO_UPDATES)])
        return seq, [ReceivedItem(key, 100, None if is_there else [key.encode()])]

    receiver.ingest(*send("a"))
    send("b")
    assert receiver.ingest(*send("c")) == [(b"c",)]
    assert receiver.stats().num_gaps == 1
    with pytest.raises(CacheMiss) as caught:
        receiver.ingest(*send("a"))
    in_flight = send("b")  # left before the answer came
    assert sender.note_misses(caught.value.mm_hashes) == 1
    with pytest.raises(CacheMiss):
        receiver.ingest(*in_flight)
    for key in ("a", "b", "c", "a", "b", "c"):
        assert receiver.ingest(*send(key)) == [(key.encode(),)]
    assert sender.contents() == receiver.contents() == [("a", 100), ("b", 100), ("c", 100)]
    assert sender.num_desyncs == 1
