"""What clips may take of memory: as many are decoded at a time as there is room for, and nobody waits for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmcached.gateway.engines.engine_connections import EngineConnections
from mmcached.gateway.processing.clip_decoders import ClipDecoderPool
from mmcached.gateway.processing.media import Medium
from mmcached.gateway.processing.pool import Mailbox, WorkDone
from mmcached.gateway.requests import item_keys
from mmcached.gateway.requests.clip_queue import ClipQueue, ClipTask
from mmcached.gateway.requests.clip_room import ClipRoom
from mmcached.gateway.requests.inline_room import InlineRoom
from mmcached.gateway.requests.item_work import ItemWork
from mmcached.gateway.requests.waits import Verb, Wait, Waits
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import RequestAborted
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages import frontend_from_engines as from_engine
from mmcached.wire.messages.parts import StoredItem
from tests.clips import fake_decoders
from tests.clips.fake_decoders import START, FakeClipDecoders, clip, video
from tests.clock import Clock
from tests.doubles.engine import WireEngine
from tests.frontend.fake_peers import DEADLINE_S, Bench
from tests.frontend.integrity import check_frontend
from tests.gateway.held_work import HeldWork
from tests.gateway.requests.test_item_making import MODES

NUM_THREADS = 8
"""More than decode at a time: two for whom there is room, and four clips of the oldest request."""
TICK_S = 1e-6


def entered(room: ClipRoom[str], in_work: str, urgent: str = "") -> str:
    """Return what is let in, by names of one letter; the job of each is its own name."""
    return "".join(job for _, job, _ in room.let_in(in_work, lambda: urgent))


def test_what_is_decoded_counts_as_the_most_it_may_become() -> None:
    room: ClipRoom[str] = ClipRoom(100, 40)
    for key, client in ("xa", "ya", "za", "wb"):
        room.wait(key, key, client)
    assert (entered(room, "xyzw"), room.num_bytes) == ("xw", 80), "clients take turns"
    room.made("x", 50)
    assert (entered(room, "xyzw"), room.num_bytes) == ("", 90)
    room.made("w", 5)
    assert (entered(room, "xyzw"), room.num_bytes) == ("y", 95)
    room.made("y", 20)
    assert (entered(room, "yzw"), room.num_bytes) == ("z", 65), "nobody waits for x any more"
    assert ("x" in room, "z" in room, len(room)) == (False, True, 0)


def test_the_oldest_request_goes_on_without_room() -> None:
    room: ClipRoom[str] = ClipRoom(10, 40)
    for key in "xyz":
        room.wait(key, key, "a")
    assert not entered(room, "xyz")
    assert entered(room, "xyz", "yx") == "yx"
    assert room.withdraw("z")
    assert not room.withdraw("x"), "it is inside"
    assert not entered(room, "xy", "z")


class Line:
    """Requests that ask for room beside the ring; each gives back what it has when it is closed."""

    def __init__(self, max_bytes: int) -> None:
        self.waits: Waits[int] = Waits()
        self.room = InlineRoom(max_bytes, self.waits)
        self.verbs: dict[int, Verb[None]] = {}
        self.wait: dict[int, Wait] = {}

    def _request(self, number: int, num_bytes: int) -> Verb[None]:
        while not self.room.has_room(number, num_bytes):
            yield from self.room.wait(number)
        self.room.take(num_bytes)
        try:
            yield Wait()
        finally:
            self.room.give_back(num_bytes)

    def ask(self, number: int, num_bytes: int) -> bool:
        """Return whether a request has to wait."""
        self.verbs[number] = self._request(number, num_bytes)
        self._run(number)
        return bool(self.wait[number].keys)

    def _run(self, number: int) -> None:
        self.wait[number] = next(self.verbs[number])
        self.waits.add(self.wait[number], number)

    def go_on(self) -> list[int]:
        """Run those who are ready; return who goes past."""
        ready = []
        while (number := self.waits.take_ready()) is not None:
            self._run(number)
            ready += [number] * (not self.wait[number].keys)
        return ready

    def leave(self, number: int) -> None:
        self.waits.remove(self.wait[number])
        self.verbs.pop(number).close()


def test_one_request_more_than_fits_waits_until_another_has_ended() -> None:
    line = Line(100)
    assert not line.ask(1, 500), "alone"
    assert not line.ask(2, 0)
    assert [line.ask(number, 1) for number in (3, 4)] == [True, True]
    assert line.go_on() == []
    line.leave(4)
    assert line.go_on() == []
    line.leave(1)
    assert line.go_on() == [3]
    line.leave(3)
    assert (line.room.num_bytes, line.go_on()) == (0, [])


def test_who_waits_longest_for_room_beside_the_ring_is_not_overtaken() -> None:
    """Else a large request would wait for as long as small ones come."""
    line = Line(100)
    for number in (1, 2):
        assert not line.ask(number, 50)
    assert line.ask(3, 80)
    assert line.ask(4, 10)
    line.leave(1)
    assert line.ask(5, 10), "3 is to be asked again"
    assert line.go_on() == [], "3 has no room yet, and is before 4 and 5"
    assert not line.ask(6, 0), "it takes no room"
    line.leave(3)
    assert line.go_on() == [4, 5], "nobody is before them any more"


def test_what_the_oldest_request_waits_behind_goes_on_without_room() -> None:
    begun: list[str] = []
    work: Any = SimpleNamespace(decode=lambda *_: None)
    workers: Any = SimpleNamespace(submit=lambda key, *_: begun.append(key))
    mailbox: Any = None
    queue = ClipQueue(work, ClipRoom(10, 40), workers, mailbox)
    film = Medium("video", b"film", "videos[0]", file_key="film")
    for index, key in enumerate(("of another", "its own")):
        queue.begin(key, ClipTask(film, (index,), "", key))
    queue.let_in({"of another", "its own"}, lambda: ["its own", "an image"])
    assert begun == ["of another"]


class Decoding:
    """Decoders that stand still, and say how many of them do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clips = FakeClipDecoders(monkeypatch)
        self.num_begun = self.num_now = self.most = 0
        self._changing = threading.Lock()
        decode = ClipDecoderPool.decode

        def counted(*said: Any) -> Generator[Any]:
            with self._changing:
                self.num_begun += 1
                self.num_now += 1
                self.most = max(self.most, self.num_now)
            yield from decode(*said)
            with self._changing:
                self.num_now -= 1

        monkeypatch.setattr(ClipDecoderPool, "decode", counted)


@pytest.fixture
def decoding(monkeypatch: pytest.MonkeyPatch, work: HeldWork) -> Iterator[Decoding]:
    decoding = Decoding(monkeypatch)
    yield decoding
    decoding.clips.release()


@pytest.fixture
def bench(run_dir: Path, clock: Clock, decoding: Decoding, mode: str) -> Iterator[Bench]:
    limits = LimitsConfig(max_clip_slices_mb=1, max_clip_items_mb=2, max_inline_items_mb=1)
    settings: dict[str, Any] = {"mm_processor_workers": NUM_THREADS, "limits": limits, **MODES[mode]}
    with Bench(run_dir, ServiceConfig(store_gb=1 / 1024, **settings), clock) as bench:
        yield bench
        decoding.clips.release()
        check_frontend(bench.frontend)


def ask(bench: Bench, number: int, *files: bytes) -> None:
    clips = [video() for _ in files]
    bench.client.send(to_frontend.Encode(bench.client_id, number, 60.0, clips=clips), list(files))


def ask_for_four(bench: Bench, decoding: Decoding) -> None:
    """Ask for a clip in each of four requests; two are being decoded then, and two wait for room."""
    decoding.clips.hold()
    for number, letter in enumerate("abcd", 1):
        ask(bench, number, clip(letter))
    bench.pump(lambda: len(decoding.clips.planned) == 4 and decoding.num_begun == 2)


def answer(bench: Bench, engine: WireEngine) -> to_engine.AddRequest:
    add = bench.from_frontend(engine, to_engine.AddRequest)
    engine.channel.send(from_engine.RequestEncoded(add.request_id, [{} for _ in add.features]))
    bench.answer(to_client.Encoded)
    return add


def test_so_many_clips_are_decoded_at_a_time_as_there_is_room_for(
    bench: Bench, engine: WireEngine, decoding: Decoding
) -> None:
    decoding.clips.hold()
    for number, letter in enumerate("abcdefgh", 1):
        ask(bench, number, clip(letter))
    bench.pump(lambda: len(decoding.clips.planned) == 8 and decoding.num_begun >= 2)
    bench.stats()
    decoding.clips.release()
    assert {len(answer(bench, engine).features) for _ in range(8)} == {1}
    assert decoding.most == 2


@pytest.mark.usefixtures("large")
def test_who_waits_for_room_begins_in_the_turn_in_which_a_request_is_sent(
    bench: Bench, engine: WireEngine, decoding: Decoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not in the next one, for which there may be no reason."""
    sent, send = [], EngineConnections.send

    def noted(*said: Any) -> Any:
        sent.append(said)
        return send(*said)

    monkeypatch.setattr(EngineConnections, "send", noted)
    decoding.clips.hold()
    for number, first in enumerate((40, 80, 120), 1):
        ask(bench, number, seconds(first))
    bench.pump(lambda: decoding.num_begun == 2 and len(decoding.clips.planned) == 3)
    decoding.clips.release()
    bench.pump(lambda: bool(sent))
    give_up = time.monotonic() + DEADLINE_S
    while decoding.num_begun < 3:
        assert time.monotonic() < give_up, "the third does not begin"


@pytest.mark.parametrize("mode", ["off"], indirect=True)
def test_slices_are_made_again_from_the_turn_on_in_which_their_request_goes_on(
    bench: Bench, engine: WireEngine, decoding: Decoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large file is hashed in a thread, so its request goes on at the end of a turn."""
    ask(bench, 1, clip("ab"))
    answer(bench, engine)
    join, joined = ItemWork.join, list[Any]()

    def noted(*said: Any, **more: Any) -> Any:
        joined.extend(each for each in said[2] if each.wanted)
        return join(*said, **more)

    monkeypatch.setattr(item_keys, "HASH_HERE_BYTES", 0)
    monkeypatch.setattr(ItemWork, "join", noted)
    ask(bench, 2, clip("ab"))
    bench.pump(lambda: bool(joined))
    give_up = time.monotonic() + DEADLINE_S
    while decoding.num_begun < 2:
        assert time.monotonic() < give_up, "they wait for another turn"


def test_a_clip_that_waits_for_room_is_forgotten_with_its_request(
    bench: Bench, engine: WireEngine, decoding: Decoding
) -> None:
    ask_for_four(bench, decoding)
    for number in (4, 3, 2, 1):
        bench.client.send(to_frontend.Cancel(bench.client_id, number))
    assert bench.stats().requests_open == 0
    decoding.clips.release()
    bench.pump(lambda: not decoding.num_now)
    ask(bench, 5, clip("xy"))
    assert len(answer(bench, engine).features) == 2
    assert decoding.num_begun == 3


def test_clips_that_wait_for_room_begin_anew_after_a_flush(
    bench: Bench, engine: WireEngine, decoding: Decoding
) -> None:
    ask_for_four(bench, decoding)
    bench.gateway.requests.forget_items()
    decoding.clips.release()
    for _ in range(4):
        answer(bench, engine)
    assert sorted(decoding.clips.planned) == sorted([clip(letter) for letter in "abcd"] * 2)


@pytest.mark.parametrize("is_one_file", [False, True])
def test_clips_of_one_client_that_wait_leave_others_their_share(
    run_dir: Path, clock: Clock, decoding: Decoding, is_one_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they wait for room, or behind a clip of the same file."""
    limits = LimitsConfig(max_clip_slices_mb=1, max_clip_items_mb=1)
    config = ServiceConfig(mm_processor_workers=2, mm_processor_max_waiting=8, limits=limits)
    planned, take = [0], ClipQueue.take

    def counted(*said: Any, **more: Any) -> object:
        planned[0] += 1
        return take(*said, **more)

    monkeypatch.setattr(ClipQueue, "take", counted)
    decoding.clips.hold()
    with Bench(run_dir, config, clock) as bench:
        bench.connect_engine()
        other = bench.connect_client(is_reader=False)
        for number in range(1, 7):
            file, window = (clip("abcdef"), video(0, number)) if is_one_file else (clip("abcdef"[:number]), video())
            bench.client.send(to_frontend.Encode(bench.client_id, number, 60.0, clips=[window]), [file])
            bench.pump(lambda number=number: planned == [number])  # type: ignore[misc]
        ask(bench, 7, clip("g"))
        assert bench.answer(to_client.Failed).request_id == 7, "it has half of what may wait"
        other.channel.send(to_frontend.Encode(other.client_id, 1, 60.0, clips=[video()]), [clip("xyz")])
        bench.pump(lambda: clip("xyz") in decoding.clips.planned)
        decoding.clips.release()


def seconds(first: int) -> bytes:
    """Return the file of a clip of 30 seconds, none like another's: 3/4 of what may be beside the ring."""
    return START + bytes(range(first, first + 30))


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_decoders, "SIDE", 64)  # 24 KiB a second


@pytest.mark.usefixtures("large")
def test_requests_of_several_clips_never_wait_for_each_other(
    bench: Bench, engine: WireEngine, decoding: Decoding
) -> None:
    """Each has more clips than there is room for, and all are planned, and let in, by turns."""
    decoding.clips.hold()
    for number in range(3):
        ask(bench, number + 1, *(seconds(40 + number + 40 * index) for index in range(4)))
    bench.pump(lambda: len(decoding.clips.planned) == 12)
    decoding.clips.release()
    assert {len(answer(bench, engine).features) for _ in range(3)} == {120}


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("mode", ["off", "processor_only", "lru"], indirect=True)
def test_an_engine_is_not_sent_more_beside_the_ring_than_may_be(
    bench: Bench, engine: WireEngine, decoding: Decoding, mode: str
) -> None:
    for number, files in enumerate(([40], [80], [120, 160]), 1):
        ask(bench, number, *map(seconds, files))
    bench.pump(lambda: decoding.num_begun >= 3 and not decoding.num_now)
    sent = []
    for _ in range(3):
        add = bench.from_frontend(engine, to_engine.AddRequest)
        bench.stats()
        assert not engine.backlog
        sent.append(len(add.features))
        engine.channel.send(from_engine.RequestEncoded(add.request_id, [{} for _ in add.features]))
        bench.answer(to_client.Encoded)
    assert sorted(sent) == [30, 30, 60], "one of them is larger than all room"


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("mode", ["lru"], indirect=True)
def test_a_request_whose_items_and_room_come_in_one_turn_is_sent_once(
    bench: Bench, engine: WireEngine, decoding: Decoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, has_room = [False], InlineRoom.has_room
    landed, put = threading.Event(), Mailbox.put

    def noted(room: InlineRoom, number: int, num_bytes: int) -> bool:
        waits.append(not has_room(room, number, num_bytes))
        return not waits[-1]

    def put_and_noted(mailbox: Mailbox, done: WorkDone) -> None:
        put(mailbox, done)
        landed.set()

    monkeypatch.setattr(InlineRoom, "has_room", noted)
    monkeypatch.setattr(Mailbox, "put", put_and_noted)
    ask(bench, 1, seconds(40))
    add = bench.from_frontend(engine, to_engine.AddRequest)
    ask(bench, 2, seconds(80))
    bench.pump(lambda: waits[-1])
    decoding.clips.hold()
    bench.gateway.requests.forget_items()
    bench.pump(lambda: decoding.num_begun == 3)
    landed.clear()
    decoding.clips.release()
    assert landed.wait(DEADLINE_S)
    bench.gateway.requests.fail(add.request_id, RequestAborted("the test has ended it"))
    bench.answer(to_client.Failed)
    assert bench.from_frontend(engine, to_engine.AbortRequest).request_id == add.request_id
    again = bench.from_frontend(engine, to_engine.AddRequest)
    bench.stats()
    engine.receive()
    assert (again.request_id, engine.backlog) == (2, [])
    engine.channel.send(from_engine.RequestEncoded(again.request_id, [{} for _ in again.features]))
    bench.answer(to_client.Encoded)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("mode", MODES, indirect=True)
def test_a_clip_that_does_not_fit_into_the_cache_of_items_is_encoded_all_the_same(
    bench: Bench, engine: WireEngine, decoding: Decoding, mode: str
) -> None:
    files = [seconds(first) for first in (40, 80, 120)]  # 2.2 MiB, and the ring has one
    for number in (1, 2):
        ask(bench, number, *files)
        add = answer(bench, engine)
        assert len({feature.mm_hash for feature in add.features}) == 90
        in_ring = sum(isinstance(feature.payload, StoredItem) for feature in add.features)
        assert (0 < in_ring < 90) if mode == "shm" else not in_ring
    num_again = len(decoding.clips.decoded) - 90
    assert num_again == {"off": 90, "processor_only": 0, "lru": 0}.get(mode, 90 - in_ring)
