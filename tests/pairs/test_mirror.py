"""Both ends of the mirrored cache, in one process: P0's mirror, a wire that can lose, P1's frames.

The state machine plays the two servers: requests that are sent, refused or aborted, misses that are answered and sent
again, flushes, restarts of either side, messages that get lost or cannot be read. Each message remembers what the
mirror looked like when it was sent, and what it has to bring; so every delivery is judged, with others still in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mmcached.cache.request_lru import RequestLRU
from mmcached.engine.server.frame_cache import FrameCache, Frames, ReceivedItem
from mmcached.frontend.caches.item_cache import OutgoingItem
from mmcached.frontend.caches.mirrored import MirroredItemCache
from mmcached.wire.errors import CacheMiss, RemoteProtocolError
from tests.house.drawing import examples

CAPACITY = 1000
KEYS = "abcdef"


def outgoing(item: ReceivedItem) -> OutgoingItem:
    """Return an item that travels as the frontend knows it."""
    frames = None if item.frames is None else list(item.frames)
    return OutgoingItem(item.mm_hash, item.nbytes, 1, frames)


def a_sender() -> MirroredItemCache:
    return MirroredItemCache(RequestLRU(CAPACITY))


def a_receiver(capacity: int = CAPACITY) -> FrameCache:
    return FrameCache(RequestLRU(capacity))


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

    make_sender: Callable[[], MirroredItemCache] = staticmethod(a_sender)
    make_receiver: Callable[[], FrameCache] = staticmethod(a_receiver)

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
        items = self.prepare(request, with_data)
        expected: list[Frames] = []
        for item in items:
            if item.frames is not None:
                self.newest[item.mm_hash] = tuple(item.frames)
            expected.append(self.newest[item.mm_hash])
        mirror_seq = self.sender.next_mirror_seq
        self.sender.sent(list(map(outgoing, items)))
        self.wire.append(
            Message(mirror_seq, items, expected, self.sender.contents(), life=self.life, may_miss=self.has_drifted)
        )

    @rule(request=requests)
    def is_refused(self, request: list[tuple[str, int]]) -> None:
        """The engine's queue is full, or the prompt with its placeholders too long."""
        self.after_refusal(self.prepare(request))

    def after_refusal(self, items: Sequence[ReceivedItem]) -> None:
        """Leases are given back; the mirror stays."""

    def prepare(self, request: list[tuple[str, int]], with_data: bool = False) -> list[ReceivedItem]:
        """Return what would travel."""
        keys = [key for key, _ in request]
        missing, sizes = set(self.sender.missing(keys)), dict(self.sender.contents())
        items: list[ReceivedItem] = []
        for key, tenths in request:
            if with_data or key in missing:
                missing.discard(key)
                self.num_payloads += 1
                frames = (f"{key}{self.num_payloads}".encode(), b"pixels")
                sizes[key] = tenths * CAPACITY // 10
                items.append(ReceivedItem(key, sizes[key], frames))
            else:
                items.append(ReceivedItem(key, sizes[key], None))
        return items

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
        self.sender.missed(mm_hashes)

    @rule(is_lost=st.booleans())
    def flush(self, is_lost: bool) -> None:
        self.sender.clear()
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
            self.receiver.clear()
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
            self.sender.clear()
        else:
            self.num_missed = 0
            self.sender = self.make_sender()
            self.receiver.clear()
        self.start_life()
        self.life_of_receiver = self.life

    # ---- what holds

    @invariant()
    def the_books_agree(self) -> None:
        self.sender.check_integrity()
        self.receiver.check_integrity()
        assert sum(nbytes for _, nbytes in self.receiver.contents()) <= CAPACITY

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


# ---- examples


def test_a_request_that_crowds_out_its_own_hit_is_served() -> None:
    """A is there; B and C together leave it no room, though the same request needs it after them."""
    sender, receiver = a_sender(), a_receiver()

    def send(*items: ReceivedItem) -> list[Frames]:
        seq = sender.next_mirror_seq
        sender.sent(list(map(outgoing, items)))
        return receiver.ingest(seq, items)

    send(ReceivedItem("A", 600, [b"a"]))
    assert sender.missing(["B", "C", "A"]) == ["B", "C"]
    came = send(ReceivedItem("B", 500, [b"b"]), ReceivedItem("C", 500, [b"c"]), ReceivedItem("A", 600, None))
    assert came == [(b"b",), (b"c",), (b"a",)]
    assert sender.contents() == receiver.contents() == [("A", 600)]


def test_an_oversized_item_that_comes_twice_travels_once() -> None:
    sender, receiver = a_sender(), a_receiver()
    assert sender.missing(["big", "big"]) == ["big"]
    items = [ReceivedItem("big", 2 * CAPACITY, [b"pixels"]), ReceivedItem("big", 2 * CAPACITY, None)]
    assert receiver.ingest(sender.next_mirror_seq, items) == [(b"pixels",)] * 2
    sender.sent(list(map(outgoing, items)))
    assert sender.contents() == receiver.contents() == []
    assert sender.missing(["big"]) == ["big"]


def test_a_lost_message_costs_one_miss() -> None:
    sender, receiver = a_sender(), a_receiver()

    def send(key: str) -> tuple[int, list[ReceivedItem]]:
        seq = sender.next_mirror_seq
        item = ReceivedItem(key, 100, [key.encode()] if sender.missing([key]) else None)
        sender.sent([outgoing(item)])
        return seq, [item]

    receiver.ingest(*send("a"))
    send("b")
    assert receiver.ingest(*send("c")) == [(b"c",)]
    assert receiver.contents() == [("c", 100)], "a gap clears"
    with pytest.raises(CacheMiss) as caught:
        receiver.ingest(*send("a"))
    in_flight = send("b")  # left before the answer came
    sender.missed(caught.value.mm_hashes)
    with pytest.raises(CacheMiss):
        receiver.ingest(*in_flight)
    for key in ("a", "b", "c", "a", "b", "c"):
        assert receiver.ingest(*send(key)) == [(key.encode(),)]
    assert sender.contents() == receiver.contents() == [("a", 100), ("b", 100), ("c", 100)]
    assert sender.num_desyncs == 1
