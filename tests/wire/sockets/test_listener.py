"""The clients' end with real sockets: honest DEALERs beside peers that flood, stall, lie or are too many."""

from __future__ import annotations

import dataclasses
import errno
import mmap
import os
import resource
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from mmcached.wire.errors import ChannelFull, PeerGone, RemoteProtocolError, ServiceUnavailable, error_to_wire
from mmcached.wire.messages.client import Failed, Flushed, ToClient
from mmcached.wire.messages.frontend import FromClient, GetStats
from mmcached.wire.process.turns import TurnShare
from mmcached.wire.sockets import zmtp
from mmcached.wire.sockets.bounds import Bounds
from mmcached.wire.sockets.frames import Frame, encode_frames
from mmcached.wire.sockets.listener import MAX_REFUSED, Listener
from mmcached.wire.sockets.peer_connection import READ_BYTES
from mmcached.wire.sockets.zmtp import pack
from tests.clock import Clock
from tests.doubles.dealer import Dealer
from tests.wire.raw_peer import RawPeer, frame, head

DEADLINE_S = 20.0
MIB = 1 << 20
REFUSAL = Failed(None, error_to_wire(ServiceUnavailable("too many")))
OVERLOAD = Failed(None, error_to_wire(ServiceUnavailable("all hold too much")))
BOUNDS = Bounds(
    max_connections=1024,
    reserved_descriptors=64,
    max_frames=4096,
    max_message_bytes=256 * MIB,
    max_body_bytes=MIB,
    max_queued_bytes=64 * MIB,
    max_held_bytes=2048 * MIB,
    stall_s=30.0,
)
ALL = TurnShare(10_000, 60.0)


class Wiring:
    """A listener whose loop runs only inside `pump`, and clients of it; all closed at the end."""

    def __init__(self, run_dir: Path, stack: ExitStack) -> None:
        self.stack = stack
        self.address = f"ipc://{run_dir}/test.sock"
        self.clock = Clock()
        self.heard: list[tuple[bytes, Any, list[Frame]]] = []
        self.on_message: Callable[[bytes, Any], None] = lambda peer, message: None

    def listen(self, **bounds: Any) -> Listener[FromClient]:
        chosen = dataclasses.replace(BOUNDS, **bounds)
        self.listener: Listener[FromClient] = Listener(
            self.address, FromClient, chosen, refusal=REFUSAL, overload=OVERLOAD, clock=self.clock
        )
        return self.stack.enter_context(self.listener)

    def dealer(self) -> Dealer[ToClient]:
        return self.stack.enter_context(Dealer[ToClient](self.address, ToClient))

    def raw(self, **options: Any) -> RawPeer:
        return self.stack.enter_context(RawPeer(self.address, **options))

    def turn(self) -> None:
        self.listener.wait(0.001)
        for peer, message, payload in self.listener.serve(ALL):
            self.heard.append((peer, message, payload))
            self.on_message(peer, message)
        self.listener.check(self.clock())

    def pump(self, wanted: Callable[[], bool]) -> None:
        give_up = time.monotonic() + DEADLINE_S
        while not wanted():
            self.turn()
            assert time.monotonic() < give_up, "never so"

    def passes(self, seconds: float) -> bool:
        """Let time pass; for conditions, so it is never so."""
        self.clock.now += seconds
        return False

    def answer(self, dealer: Dealer[ToClient]) -> ToClient:
        self.pump(lambda: dealer.wait(0))
        return dealer.receive(0)[0]

    def hear(self) -> tuple[bytes, Any, list[Frame]]:
        self.pump(lambda: bool(self.heard))
        return self.heard.pop(0)


@pytest.fixture
def wiring(run_dir: Path) -> Iterator[Wiring]:
    with ExitStack() as stack:
        yield Wiring(run_dir, stack)


def test_messages_and_answers_of_any_size_go_through_whole(wiring: Wiring) -> None:
    listener = wiring.listen()
    dealer = wiring.dealer()
    sizes = [0, 1, 255, 256, 20_000, 3 * MIB + 5, 17, 9 * MIB + 1]
    payload = [os.urandom(size) for size in sizes]
    dealer.send(GetStats(7), payload)
    peer, message, came = wiring.hear()
    assert (message, [bytes(part) for part in came]) == (GetStats(7), payload)
    listener.send(peer, Flushed(8), [memoryview(bytearray(part)) for part in payload])
    wiring.pump(lambda: dealer.wait(0))
    answer, back = dealer.receive(0)
    assert (answer, back) == (Flushed(8), payload)


def test_what_is_queued_of_a_mutable_frame_stays_as_it_was(wiring: Wiring) -> None:
    listener = wiring.listen()
    dealer = wiring.dealer()
    dealer.send(GetStats(1))
    peer, *_ = wiring.hear()
    data = bytearray(b"a" * (4 * MIB))
    listener.send(peer, Flushed(1), [data])
    data[:] = b"b" * len(data)
    wiring.pump(lambda: dealer.wait(0))
    assert dealer.receive(0)[1] == [b"a" * (4 * MIB)]


def test_each_peer_has_one_message_in_a_round(wiring: Wiring) -> None:
    """A client that has sent a thousand messages is no earlier served than one that has sent one."""
    listener = wiring.listen()
    flooders = [wiring.raw() for _ in range(3)]
    honest = wiring.raw()
    one = b"".join(bytes(piece) for piece in pack(encode_frames(GetStats(1))))
    wiring.pump(lambda: len(listener) == 4)
    for flooder in flooders:
        flooder.send(one * 1000)
    served: list[bytes] = []
    while len(served) < 300:
        served += [peer for peer, *_ in listener.serve(TurnShare(50, 60.0))]
    shares = [served.count(peer) for peer in set(served)]
    assert len(shares) == 3
    assert max(shares) - min(shares) <= 2
    honest.send(one)
    served = [peer for peer, *_ in listener.serve(TurnShare(9, 60.0))]
    assert len(set(served)) == 4, "it has a turn although the others have hundreds of messages each"


def test_a_connection_of_which_all_was_read_is_not_read_again_before_more_comes(wiring: Wiring) -> None:
    listener = wiring.listen()
    peer = wiring.raw()
    one = b"".join(bytes(piece) for piece in pack(encode_frames(GetStats(1))))
    wiring.pump(lambda: len(listener) == 1 and not listener.has_more)
    peer.send(one * 3)
    has_more: list[bool] = []
    give_up = time.monotonic() + DEADLINE_S
    while len(has_more) < 3:
        has_more += [listener.has_more for _ in listener.serve(TurnShare(1, 60.0))]
        assert time.monotonic() < give_up
    assert has_more == [True, True, False]


def test_messages_that_fill_what_is_read_at_once_hide_none_behind_them(wiring: Wiring) -> None:
    wiring.listen()
    peer = wiring.raw()
    size = READ_BYTES // 8
    num_head_bytes = len(pack(encode_frames(GetStats(1), [bytes(300)]))[0]) - 300
    (body,) = pack(encode_frames(GetStats(1), [bytes(size - num_head_bytes)]))
    assert len(body) == size
    peer.send(bytes(body) * 16)
    for _ in range(16):
        assert wiring.hear()[1] == GetStats(1)


def test_a_share_ends_a_turn_and_the_rest_comes_in_the_next(wiring: Wiring) -> None:
    listener = wiring.listen()
    dealer = wiring.dealer()
    for number in range(100):
        dealer.send(GetStats(number))
    seen: list[int] = []
    give_up = time.monotonic() + DEADLINE_S
    while len(seen) < 100:
        listener.wait(0.001)
        turn = [
            message.request_id for _, message, _ in listener.serve(TurnShare(7, 60.0)) if isinstance(message, GetStats)
        ]
        assert len(turn) <= 7
        seen += turn
        assert time.monotonic() < give_up
    assert seen == list(range(100))


def test_one_frame_that_announces_8_gib_is_refused_at_once_and_the_client_may_go_on(wiring: Wiring) -> None:
    wiring.listen(max_message_bytes=MIB)
    raw = wiring.raw()
    raw.send(head(8 << 30))
    _, error, _ = wiring.hear()
    assert isinstance(error, RemoteProtocolError)
    assert error.details["field"] == "frames"
    assert "limits.max_message_mb" in str(error)


def test_a_message_that_never_ends_costs_no_memory(wiring: Wiring) -> None:
    listener = wiring.listen(max_message_bytes=MIB)
    raw = wiring.raw()
    piece = frame(bytes(60_000), more=True)
    before = _rss_bytes()
    sent = rest = 0
    while sent < 300 * MIB:
        num_bytes = raw.send_some(piece[rest:])
        sent += num_bytes
        rest = (rest + num_bytes) % len(piece)
        wiring.turn()
    assert [error.details["field"] for _, error, _ in wiring.heard] == ["frames"]
    assert _rss_bytes() - before < 30 * MIB
    wiring.clock.now += BOUNDS.stall_s + 1
    wiring.pump(raw.is_closed)
    assert (listener.num_disconnected, len(listener)) == (1, 0)


def test_peers_that_announce_the_largest_frame_cost_no_memory(wiring: Wiring) -> None:
    listener = wiring.listen()
    before = _rss_bytes()
    liars = [wiring.raw() for _ in range(8)]
    for liar in liars:
        liar.send(head(256 * MIB) + b"x")
    dealer = wiring.dealer()
    for number in range(20):
        dealer.send(GetStats(number))
        assert wiring.hear()[1] == GetStats(number)
        for liar in liars:
            liar.send(b"x")
    wiring.pump(lambda: not listener.has_more)
    assert _rss_bytes() - before < 16 * MIB
    assert len(listener) == 9


def test_a_frame_for_which_there_is_no_memory_costs_its_peer_the_connection(
    wiring: Wiring, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(num_bytes: int) -> mmap.mmap:
        raise OSError(errno.ENOMEM, "no memory")

    listener = wiring.listen()
    raw, honest = wiring.raw(), wiring.dealer()
    honest.send(GetStats(1))
    assert wiring.hear()[1] == GetStats(1)
    monkeypatch.setattr(zmtp, "_mapped", refuse)
    data = head(64 * MIB) + bytes(2 * MIB)
    with suppress(OSError):
        while data:
            data = data[raw.send_some(data) :]
            wiring.turn()
    wiring.pump(raw.is_closed)
    assert len(listener) == 1
    honest.send(GetStats(2))
    assert wiring.hear()[1] == GetStats(2)


def test_a_client_that_does_not_read_is_not_read_either_and_then_disconnected(wiring: Wiring) -> None:
    listener = wiring.listen(max_queued_bytes=4 * MIB)
    wiring.on_message = lambda peer, message: listener.send(peer, Flushed(1), [bytes(2 * MIB)])
    raw, honest = wiring.raw(), wiring.dealer()
    question = b"".join(bytes(piece) for piece in pack(encode_frames(GetStats(1))))
    raw.send(question * 100)
    honest.send(GetStats(5))
    assert wiring.answer(honest) == Flushed(1)
    for _ in range(20):
        wiring.turn()
    assert len(wiring.heard) <= 4, "of its hundred questions few are taken"
    wiring.clock.now += BOUNDS.stall_s + 1
    wiring.pump(lambda: listener.num_disconnected == 1)
    honest.send(GetStats(6))
    assert wiring.answer(honest) == Flushed(1)


def test_answers_that_come_late_have_a_budget_too(wiring: Wiring) -> None:
    listener = wiring.listen(max_queued_bytes=4 * MIB)
    raw = wiring.raw()
    raw.send(b"".join(bytes(piece) for piece in pack(encode_frames(GetStats(1)))))
    peer, *_ = wiring.hear()
    for _ in range(2):
        listener.send(peer, Flushed(1), [bytes(2 * MIB)])
    with pytest.raises(ChannelFull, match="does not read"):
        listener.send(peer, Flushed(1), [bytes(2 * MIB)])
    assert listener.num_disconnected == 1
    with pytest.raises(PeerGone):
        listener.send(peer, Flushed(1))
    assert not listener.try_send(peer, Flushed(1))


def test_of_all_that_hold_too_much_together_who_holds_most_goes(wiring: Wiring) -> None:
    listener = wiring.listen(max_held_bytes=2 * MIB)
    dealer = wiring.dealer()
    dealer.send(GetStats(1))
    wiring.hear()
    greedy = [wiring.raw() for _ in range(4)]
    for peer, num_bytes in zip(greedy, (MIB // 5, MIB // 3, MIB // 2, MIB * 3 // 4), strict=True):
        send_all(wiring, peer, frame(bytes(num_bytes), more=True))
    assert not any(map(RawPeer.is_closed, greedy))
    send_all(wiring, greedy[0], frame(bytes(MIB // 3), more=True))
    assert listener.num_disconnected == 1
    assert greedy[3].is_closed()
    assert not any(map(RawPeer.is_closed, greedy[:3]))
    dealer.send(GetStats(2))
    assert wiring.hear()[1] == GetStats(2)


@pytest.mark.parametrize("holds", ["messages", "answers"])
def test_a_large_message_that_keeps_coming_outlives_those_that_have_held_memory_for_longer(
    wiring: Wiring, holds: str
) -> None:
    listener = wiring.listen(max_held_bytes=8 * MIB, max_queued_bytes=64 * MIB)
    holders = [wiring.raw() for _ in range(6)]
    for holder in holders:
        if holds == "messages":
            send_all(wiring, holder, frame(bytes(MIB), more=True))
        else:
            holder.send(b"".join(bytes(piece) for piece in pack(encode_frames(GetStats(1)))))
            listener.send(wiring.hear()[0], Flushed(1), [bytes(MIB + (1 << 19))])
    wiring.clock.now += 10
    honest = wiring.raw()
    message = b"".join(bytes(piece) for piece in pack(encode_frames(GetStats(7), [bytes(6 * MIB)])))
    for at in range(0, len(message), MIB):
        wiring.clock.now += 0.1
        if holds == "messages":
            for holder in holders:
                with suppress(OSError):
                    holder.send(b"\1\0")  # one empty frame of its message: some progress
        else:
            for holder in holders:
                with suppress(OSError):
                    holder.socket.recv(1)
        send_all(wiring, honest, message[at : at + MIB])
    assert wiring.hear()[1] == GetStats(7)
    assert 0 < listener.num_disconnected < 6, "no more of them than is needed"
    for holder in holders:
        holder.close()  # else the listener's own end waits for them


def test_who_is_disconnected_for_what_it_holds_is_told_why(wiring: Wiring) -> None:
    listener = wiring.listen(max_held_bytes=MIB)
    dealer = wiring.dealer()
    dealer.send(GetStats(1), [bytes(8 * MIB)])
    assert wiring.answer(dealer) == OVERLOAD
    assert listener.num_disconnected >= 1


def send_all(wiring: Wiring, peer: RawPeer, data: bytes) -> None:
    """Send, and let the listener take all of it."""
    while data:
        data = data[peer.send_some(data) :]
        wiring.turn()
    wiring.pump(lambda: not wiring.listener.has_more)


def test_one_answer_larger_than_the_budget_arrives(wiring: Wiring) -> None:
    listener = wiring.listen(max_queued_bytes=MIB)
    dealer = wiring.dealer()
    dealer.send(GetStats(1))
    peer, *_ = wiring.hear()
    listener.send(peer, Flushed(1), [bytes(8 * MIB)])
    wiring.pump(lambda: dealer.wait(0))
    assert len(dealer.receive(0)[1][0]) == 8 * MIB


def test_one_client_too_many_is_told_so_and_has_a_place_when_another_leaves(wiring: Wiring) -> None:
    listener = wiring.listen(max_connections=2)
    first, second = wiring.dealer(), wiring.dealer()
    wiring.pump(lambda: len(listener) == 2)
    third = wiring.dealer()
    third.send(GetStats(1))
    assert wiring.answer(third) == REFUSAL
    assert (len(listener), listener.num_refused) == (2, 1)
    assert not wiring.heard
    first.close()
    wiring.pump(lambda: len(listener) == 1)
    wiring.clock.now += 2  # the refused one is let go, and comes back by itself
    wiring.pump(lambda: len(listener) == 2)
    second.send(GetStats(2))
    assert wiring.hear()[1] == GetStats(2)


CROWD = """
import socket, sys
sockets = []
for _ in range(400):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    one.connect(sys.argv[1])
    sockets.append(one)
    print(len(sockets), flush=True)
sys.stdin.read()
"""


def sockets_of_this_process() -> list[int]:
    found = []
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # that of the listing itself is closed
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                found.append(fd)
    return found


def test_hundreds_of_connections_leave_the_reserve_of_descriptors_alone(wiring: Wiring) -> None:
    """Libzmq ends the process when it can accept no more; here those that are too many wait, or are closed."""
    listener = wiring.listen(reserved_descriptors=32)
    former = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = 200
    path = wiring.address.removeprefix("ipc://")
    with subprocess.Popen(
        [sys.executable, "-c", CROWD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as crowd:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (low, former[1]))
            wiring.pump(lambda: listener.num_refused > 2 * MAX_REFUSED or wiring.passes(0.01))
            taken = sockets_of_this_process()
            assert max(taken) < low - 32
            assert len(listener) <= low - 32
            with open("/dev/null") as spare:
                assert spare.fileno() < low
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, former)
            crowd.kill()
    wiring.pump(lambda: not len(listener) or wiring.passes(0.01))
    dealer = wiring.dealer()
    dealer.send(GetStats(3))
    wiring.pump(lambda: any(message == GetStats(3) for _, message, _ in wiring.heard))


def test_identities_that_clients_choose_mean_nothing(wiring: Wiring) -> None:
    """Libzmq's ROUTER ends the process when a peer has taken the identity that it gives out next."""
    wiring.listen()
    raws = [wiring.raw(identity=identity) for identity in (b"\0\0\0\0\1", b"\0\0\0\0\2", b"\0\0\0\0\2")]
    for raw in raws:
        raw.send(b"".join(bytes(piece) for piece in pack(encode_frames(GetStats(1)))))
    wiring.pump(lambda: len(wiring.heard) == 3)
    assert len({peer for peer, *_ in wiring.heard}) == 3


@pytest.mark.parametrize("words", [b"GET / HTTP/1.0\r\n" * 8, b"\xff" * 64, bytes(64)])
def test_who_speaks_something_else_is_closed(wiring: Wiring, words: bytes) -> None:
    listener = wiring.listen()
    raw = wiring.raw(shakes_hands=False)
    raw.send(words)
    wiring.pump(raw.is_closed)
    assert len(listener) == 0


def test_who_says_nothing_is_closed_and_who_has_said_who_it_is_may_be_silent(wiring: Wiring) -> None:
    listener = wiring.listen()
    silent, patient = wiring.raw(shakes_hands=False), wiring.raw()
    wiring.pump(lambda: len(listener) == 2)
    for _ in range(5):
        wiring.turn()
    wiring.clock.now += BOUNDS.stall_s + 1
    wiring.pump(silent.is_closed)
    for _ in range(5):
        wiring.turn()
    assert not patient.is_closed()


def test_a_body_beyond_its_limit_is_not_decoded(wiring: Wiring) -> None:
    wiring.listen(max_body_bytes=100)
    dealer = wiring.dealer()
    dealer.send(["Generate", "0" * 32, 1, [1] * 1000, 1, None, 1.0])
    _, error, _ = wiring.hear()
    assert isinstance(error, RemoteProtocolError)
    assert error.details["field"] == "body"


def test_a_peer_that_has_hung_up_is_not_connected_though_it_is_yet_to_be_read(wiring: Wiring) -> None:
    listener = wiring.listen()
    raw = wiring.raw()
    raw.send(b"".join(bytes(piece) for piece in pack(encode_frames(GetStats(1)))))
    peer, *_ = wiring.hear()
    assert listener.is_connected(peer)
    raw.close()
    assert not listener.is_connected(peer)
    assert peer in listener
    wiring.pump(lambda: peer not in listener)


def test_closing_sends_what_is_queued_and_leaves_a_successors_socket_alone(wiring: Wiring) -> None:
    listener = wiring.listen()
    dealer = wiring.dealer()
    dealer.send(GetStats(1))
    peer, *_ = wiring.hear()
    listener.send(peer, Flushed(1), [bytes(4 * MIB)])
    path = Path(wiring.address.removeprefix("ipc://"))
    path.unlink()
    path.write_text("a successor's")
    listener.close()
    listener.close()
    assert path.read_text() == "a successor's"
    assert dealer.receive(DEADLINE_S)[0] == Flushed(1)


def _rss_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError
