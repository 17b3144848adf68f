"""One frontend between an honest client and one that floods, lies, asks too much or has lost its lock."""

from __future__ import annotations

import contextlib
import os
import threading

import pytest
from msgspec.structs import replace

from mmcached.frontend.connections.listening import message_limits
from mmcached.shm import encode
from mmcached.wire.config import ServiceConfig
from mmcached.wire.handle import RingAnnouncement
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages import frontend_from_engines as from_engine
from mmcached.wire.messages.parts import ClipOptions
from mmcached.wire.sockets.frames import encode_frames
from mmcached.wire.sockets.zmtp import pack
from tests.clock import Clock
from tests.doubles.dealer import Dealer
from tests.doubles.engine import WireEngine
from tests.frontend.fake_peers import Bench
from tests.frontend.integrity import check_frontend
from tests.wire.examples import EXAMPLES
from tests.wire.raw_peer import RawPeer, frame

CONFIG = ServiceConfig(
    mm_processor_cache_gb=1 / 1024,
    mm_shm_cache_max_object_size_mb=1,
    store_gb=1 / 1024,
    max_num_requests=8,
    limits=LimitsConfig(max_requests_per_client=4, flush_interval_s=5.0, max_held_mb=4),
)
STRANGER = "f" * 32
TICK_S = 0.001


class Flood:
    """A thread that says the same words without end, whatever is answered, until it is closed."""

    def __init__(self, address: str, words: bytes) -> None:
        self._peer = RawPeer(address)
        self._words = words * max(1, 20_000 // len(words))
        self._threads = [threading.Thread(target=work) for work in (self._send, self._read)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._peer.send(self._words)

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while self._peer.socket.recv(1 << 20):
                pass

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._peer.socket.shutdown(2)
        for thread in self._threads:
            thread.join()
        self._peer.close()


def words(message: object, payload: list[bytes] | None = None) -> bytes:
    return b"".join(bytes(piece) for piece in pack(encode_frames(message, payload or [])))


KEYS = [f"key {number}" for number in range(100)]
CLIPS = [ClipOptions("video", fps=2.0), ClipOptions("audio")]
NO_RING = RingAnnouncement(os.geteuid(), STRANGER, 1, 1 << 20, 64, 1)
EXAMPLE_OF_KIND = {type(message).__name__: message for union, message in reversed(EXAMPLES) if union == "FromClient"}
FLOODS: dict[str, bytes] = {
    **{
        kind: words(replace(message, client_id=STRANGER) if hasattr(message, "client_id") else message)
        for kind, message in EXAMPLE_OF_KIND.items()
    },
    "Encode": words(to_frontend.Encode(STRANGER, 1, 60.0), [b"no picture"]),
    "clips": words(to_frontend.Encode(STRANGER, 1, 60.0, clips=CLIPS), [b"no film", b"no song"]),
    "epoch": words(to_frontend.Flush(1, True)),
    "RegisterReader": words(to_frontend.RegisterReader(STRANGER, 1, 2, 3, 4)),
    "GetRecords": words(to_frontend.GetRecords(STRANGER, 1, KEYS)),
    "HaveRecords": words(to_frontend.HaveRecords(1, KEYS)),
    "PutRecord": words(to_frontend.PutRecord(STRANGER, 1, "key", 0), [bytes(part) for part in encode({}).frames()]),
    "ClaimRecords": words(to_frontend.ClaimRecords(STRANGER, 1, KEYS)),
    "no message": words(["Nonsense"]),
    "one frame": b"\0\1x",
    "empty frames": b"\1\0" * 100,
}
"""An example of each message of a client, some larger or with a payload, and bytes that are no message."""


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_leaves_another_client_answered_and_deadlines_and_engines_looked_at(
    bench: Bench, engine: WireEngine, clock: Clock, kind: str
) -> None:
    flood = Flood(bench.directory.client_address, FLOODS[kind])
    try:
        bench.client.send(to_frontend.HaveRecords(1, []))
        assert bench.answer(to_client.Present).request_id == 1
        bench.client.send(to_frontend.Generate(bench.client_id, 2, "hello", 7, None, 5.0))
        engine.channel.send(from_engine.RequestGenerated(honest_request(bench, engine), [5], "length", 0))
        assert bench.answer(to_client.Generated).request_id == 2
        bench.client.send(to_frontend.Generate(bench.client_id, 3, "hello", 4, None, 5.0))
        bench.pump(lambda: len(bench.gateway.requests) == 1)
        clock.now += 6
        assert bench.answer(to_client.Failed).error.code == "deadline_exceeded"
    finally:
        flood.close()


def honest_request(bench: Bench, engine: WireEngine) -> int:
    """Return the number of the request that wants 7 tokens; the engine leaves all else that it is told alone."""
    found: list[int] = []

    def has_come() -> bool:
        engine.receive()
        told = [message for message, _ in engine.backlog if isinstance(message, to_engine.AddRequest)]
        found.extend(add.request_id for add in told if add.max_tokens == 7)
        engine.backlog.clear()
        return bool(found)

    bench.pump(has_come)
    return found[0]


# ---- one round for all who ask


def test_one_client_asks_no_more_than_it_may_at_a_time(bench: Bench) -> None:
    bench.connect_engine()
    for number in range(6):
        bench.client.send(to_frontend.Probe(number, 60.0))
    failed = [bench.answer(to_client.Failed) for _ in range(2)]
    assert [answer.request_id for answer in failed] == [4, 5]
    assert {answer.error.details["field"] for answer in failed} == {"limits.max_requests_per_client"}


def test_flushes_that_come_soon_after_one_are_answered_by_the_next(
    bench: Bench, engine: WireEngine, clock: Clock
) -> None:
    bench.client.send(to_frontend.Flush(1))
    token = bench.from_frontend(engine, to_engine.FlushEngine).token
    engine.channel.send(from_engine.EngineFlushed(token))
    assert bench.answer(to_client.Flushed).request_id == 1
    for number in (2, 3, 4):
        bench.client.send(to_frontend.Flush(number))
    assert len(bench.stats().engines) == 1, "nobody is asked to flush yet"
    assert engine.backlog == []
    clock.now += 5
    token = bench.from_frontend(engine, to_engine.FlushEngine).token
    engine.channel.send(from_engine.EngineFlushed(token))
    assert [bench.answer(to_client.Flushed).request_id for _ in range(3)] == [2, 3, 4]
    assert engine.backlog == []


def test_one_client_has_no_more_requests_open_than_it_may(bench: Bench) -> None:
    for number in range(5):
        bench.generate(number, [])
    failed = bench.answer(to_client.Failed)
    assert (failed.request_id, failed.error.code) == (4, "service_unavailable")
    assert failed.error.details == {"field": "limits.max_requests_per_client", "value": 4, "limit": 4}
    other = bench.connect_client(is_reader=False)
    other.channel.send(to_frontend.Generate(other.client_id, 1, "hello", 4, None, 60.0))
    bench.pump(lambda: len(bench.gateway.requests) == 5)


# ---- memory


def test_a_client_for_whose_message_there_is_no_room_is_told_the_limit(bench: Bench) -> None:
    with RawPeer(bench.directory.client_address) as holder:
        holder.send(frame(bytes(1 << 16), more=True))
        put = to_frontend.PutRecord(bench.client_id, 1, "large", 0)
        bench.client.send(put, [bytes(8 << 20)])
        failed = bench.answer(to_client.Failed)
        assert (failed.request_id, failed.error.code) == (None, "service_unavailable")
        assert failed.error.details == {"field": "limits.max_held_mb", "limit": 4}
        assert not holder.is_closed(), "it holds less"
    bench.pump(lambda: bench.frontend.stats().clients_disconnected == 1)


# ---- in whose name


def test_nobody_speaks_in_the_name_of_a_client_that_is_connected(bench: Bench, engine: WireEngine) -> None:
    bench.generate(1, [])
    bench.from_frontend(engine, to_engine.AddRequest)
    victim = bench.client_id

    with Dealer[to_client.ToClient](bench.directory.client_address, to_client.ToClient) as attacker:
        for message in (
            to_frontend.Cancel(victim, 1),
            to_frontend.ClientBye(victim),
            to_frontend.TokensTaken(victim, 1, 5),
            to_frontend.DropClaim(victim, 1),
        ):
            attacker.send(message)
        attacker.send(to_frontend.Generate(victim, 2, "hello", 4, None, 60.0))
        bench.pump(lambda: attacker.wait(0))
        refused = attacker.receive(0)[0]
        assert isinstance(refused, to_client.Failed)
        assert (refused.request_id, refused.error.details["field"]) == (2, "client_id")
        attacker.send(to_frontend.ClientHello(victim))
        bench.pump(lambda: attacker.wait(0))
        unwelcome = attacker.receive(0)[0]
        assert isinstance(unwelcome, to_client.Failed)
        assert unwelcome.request_id is None
    stats = bench.stats()
    assert (stats.requests_open, stats.protocol_errors) == (1, 6)


def test_a_client_is_told_how_large_a_message_may_be(bench: Bench) -> None:
    bench.client.send(to_frontend.ClientHello(bench.client_id))
    assert bench.answer(to_client.Welcome).limits == message_limits(bench.config)


def test_a_connection_speaks_for_one_client(bench: Bench) -> None:
    bench.client.send(to_frontend.ClientHello(bench.client_id))
    bench.answer(to_client.Welcome)
    bench.client.send(to_frontend.Encode(STRANGER, 7, 60.0), [b"x"])
    failed = bench.answer(to_client.Failed)
    assert (failed.request_id, failed.error.details["field"]) == (7, "client_id")
    check_frontend(bench.frontend)


def test_a_client_whose_connection_is_closed_takes_its_seat_over_another(bench: Bench) -> None:
    client = bench.connect_client(is_reader=False)
    client.connect_anew()
    check_frontend(bench.frontend)


# ---- locks


def test_a_client_whose_lock_was_removed_is_told_and_has_to_connect_anew(bench: Bench, engine: WireEngine) -> None:
    bench.generate(1, [])
    add = bench.from_frontend(engine, to_engine.AddRequest)
    bench.presence.path.unlink()
    failed = bench.answer(to_client.Failed)
    assert (failed.request_id, failed.error.code) == (1, "request_aborted")
    assert failed.error.retryable
    assert bench.from_frontend(engine, to_engine.AbortRequest).request_id == add.request_id
    bench.pump(bench.client.was_disconnected)


def test_what_is_no_lock_among_the_locks_hides_no_death(bench: Bench) -> None:
    (bench.directory.clients / "0.lock").mkdir()
    (bench.directory.clients / "z.lock").symlink_to("z.lock")
    engine = bench.connect_engine()
    bench.generate(1, [])
    add = bench.from_frontend(engine, to_engine.AddRequest)
    bench.client_dies()
    assert bench.from_frontend(engine, to_engine.AbortRequest).request_id == add.request_id
    assert bench.stats().faults == 0


# ---- our own faults


def test_a_fault_of_ours_is_answered_and_ends_nothing_else(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("torch says no")

    monkeypatch.setattr(bench.frontend.store, "handle", broken)
    monkeypatch.setattr(bench.frontend.store, "check", broken)
    bench.client.send(to_frontend.HaveRecords(3, []))
    failed = bench.answer(to_client.Failed)
    assert (failed.request_id, failed.error.code) == (3, "invariant_error")
    assert "torch says no" not in str(failed)
    bench.pump(lambda: bench.frontend.stats().faults > 3)
    assert bench.stats().faults > 3


def test_a_fault_over_what_an_engine_says_ends_that_request(
    bench: Bench, engine: WireEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        bench.generate(number, [])
    adds = [bench.from_frontend(engine, to_engine.AddRequest) for _ in range(2)]

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(bench.gateway.requests.streams, "rest", broken)
        engine.channel.send(from_engine.RequestGenerated(adds[0].request_id, [5], "length", 0))
        failed = bench.answer(to_client.Failed)
    assert (failed.request_id, failed.error.code) == (1, "invariant_error")
    engine.channel.send(from_engine.RequestGenerated(adds[1].request_id, [5], "length", 0))
    assert bench.answer(to_client.Generated).request_id == 2
