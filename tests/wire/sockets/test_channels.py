"""Channels over real ipc sockets: limits that lose nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from mmcached.wire.errors import ChannelFull, DeadlineExceeded, PeerGone, RemoteProtocolError
from mmcached.wire.messages.client import ToClient, Welcome
from mmcached.wire.messages.frontend import FromClient, GetStats
from mmcached.wire.sockets import channels
from mmcached.wire.sockets.channels import DealerChannel, RouterChannel
from mmcached.wire.sockets.frames import decode_frames, make_decoder

DEADLINE_S = 20.0


class Wiring:
    """A context, an address, and the channels that a test makes of them; all closed at the end."""

    def __init__(self, run_dir: Path, stack: ExitStack) -> None:
        self._stack = stack
        self.context = stack.enter_context(zmq.Context())
        self.address = f"ipc://{run_dir}/test.sock"

    def router(self) -> RouterChannel[FromClient]:
        return self._stack.enter_context(RouterChannel(self.context, self.address, FromClient))

    def dealer(self) -> DealerChannel[ToClient]:
        return self._stack.enter_context(DealerChannel(self.context, self.address, ToClient))


@pytest.fixture
def wiring(run_dir: Path) -> Iterator[Wiring]:
    with ExitStack() as stack:
        yield Wiring(run_dir, stack)


def next_raw(router: RouterChannel[FromClient]) -> tuple[bytes, list[bytes]]:
    assert router.wait(DEADLINE_S)
    received = router.receive_raw()
    assert received is not None
    return received


def test_readiness_that_was_a_false_alarm_is_waited_out(wiring: Wiring, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that closes between poll and receive leaves nothing behind what poll had promised."""
    router, dealer = wiring.router(), wiring.dealer()
    dealer.send(GetStats(1))
    peer, _ = next_raw(router)
    with monkeypatch.context() as patched:
        patched.setattr(dealer, "wait", lambda timeout_s: True)
        assert dealer.try_receive() is None
        with pytest.raises(DeadlineExceeded):
            dealer.receive(0.01)
    router.send(peer, Welcome("s", 1, 2, 3, 4))
    alarms = iter([True, True])
    original = dealer.wait
    monkeypatch.setattr(dealer, "wait", lambda timeout_s: next(alarms, False) or original(timeout_s))
    assert dealer.receive(DEADLINE_S)[0] == Welcome("s", 1, 2, 3, 4)


def test_both_directions_with_payload(wiring: Wiring) -> None:
    router, dealer = wiring.router(), wiring.dealer()
    dealer.send(GetStats(7), [b"first", memoryview(b"second")])
    peer, frames = next_raw(router)
    message, payload = router.decode(frames)
    assert message == GetStats(7)
    assert [bytes(frame) for frame in payload] == [b"first", b"second"]

    answer = Welcome("id", 258, 257, 64, 100)
    router.send(peer, answer, [b""])
    assert dealer.receive(DEADLINE_S) == (answer, [b""])


def test_peers_are_told_apart(wiring: Wiring) -> None:
    router, one, other = wiring.router(), wiring.dealer(), wiring.dealer()
    one.send(GetStats(1))
    other.send(GetStats(2))
    for _ in range(2):
        peer, frames = next_raw(router)
        message, _ = router.decode(frames)
        router.send(peer, message)
    for number, dealer in ((1, one), (2, other)):
        assert dealer.wait(DEADLINE_S)
        assert decode_frames(dealer.socket.recv_multipart(), make_decoder(FromClient))[0] == GetStats(number)


def test_nothing_there(wiring: Wiring) -> None:
    router, dealer = wiring.router(), wiring.dealer()
    assert not router.wait(0)
    assert router.receive_raw() is None
    with pytest.raises(DeadlineExceeded) as caught:
        dealer.receive(0.01)
    assert caught.value.details["timeout_s"] == 0.01


def test_unknown_peer(wiring: Wiring) -> None:
    router = wiring.router()
    with pytest.raises(PeerGone, match="beef"):
        router.send(b"\xbe\xef", GetStats(1))


def test_peer_that_has_closed(wiring: Wiring) -> None:
    router = wiring.router()
    with DealerChannel[ToClient](wiring.context, wiring.address, ToClient) as dealer:
        dealer.send(GetStats(1))
        peer, _ = next_raw(router)
    deadline = time.monotonic() + DEADLINE_S

    def send_until_refused() -> None:
        while time.monotonic() < deadline:
            router.send(peer, GetStats(1))
            router.wait(0.01)

    with pytest.raises(PeerGone):
        send_until_refused()
    assert not router.try_send(peer, GetStats(1))


def test_a_poller_wakes_for_a_lost_connection(wiring: Wiring) -> None:
    with DealerChannel[ToClient](wiring.context, wiring.address, ToClient) as dealer:
        poller = zmq.Poller()
        dealer.register(poller)
        with RouterChannel[FromClient](wiring.context, wiring.address, FromClient) as router:
            dealer.send(GetStats(1))
            assert router.wait(DEADLINE_S)
            assert poller.poll(0) == []
        assert poller.poll(round(DEADLINE_S * 1000)) != []
        assert dealer.take_disconnects() == 1


def test_dealer_full_before_its_peer_exists_loses_nothing(wiring: Wiring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "SEND_HIGH_WATER_MARK", 5)
    dealer = wiring.dealer()
    for number in range(5):
        dealer.send(GetStats(number))
    with pytest.raises(ChannelFull):
        dealer.send(GetStats(99))
    assert not dealer.try_send(GetStats(99))
    router = wiring.router()
    assert [router.decode(next_raw(router)[1])[0] for _ in range(5)] == [GetStats(number) for number in range(5)]
    assert dealer.socket.poll(int(DEADLINE_S * 1000), zmq.POLLOUT), (
        "room again, once the peer has said that it took some"
    )
    assert dealer.try_send(GetStats(5))
    assert router.decode(next_raw(router)[1])[0] == GetStats(5)
    assert router.receive_raw() is None


def test_router_full_towards_one_peer_loses_nothing(wiring: Wiring, monkeypatch: pytest.MonkeyPatch) -> None:
    """One client does not read: `ChannelFull` for it alone; later it finds all that was accepted, in order."""
    monkeypatch.setattr(channels, "SEND_HIGH_WATER_MARK", 4)
    monkeypatch.setattr(channels, "RECEIVE_HIGH_WATER_MARK", 4)
    router, slow, quick = wiring.router(), wiring.dealer(), wiring.dealer()
    slow.send(GetStats(0))
    slow_peer, _ = next_raw(router)
    quick.send(GetStats(0))
    quick_peer, _ = next_raw(router)

    accepted = 0
    big = bytes(256 << 10)

    def send_until_refused() -> None:
        nonlocal accepted
        while accepted < 10_000:
            router.send(slow_peer, Welcome(str(accepted), 1, 1, 1, 1), [big])
            accepted += 1

    with pytest.raises(ChannelFull):
        send_until_refused()
    assert accepted >= 4

    router.send(quick_peer, Welcome("quick", 1, 1, 1, 1))
    assert quick.receive(DEADLINE_S)[0] == Welcome("quick", 1, 1, 1, 1)
    for number in range(accepted):
        message, payload = slow.receive(DEADLINE_S)
        assert isinstance(message, Welcome)
        assert message.service_id == str(number)
        assert len(payload[0]) == len(big)
    assert not slow.wait(0.05)


def test_a_bad_frame_is_taken_off_and_the_next_one_read(wiring: Wiring) -> None:
    router, dealer = wiring.router(), wiring.dealer()
    dealer.send(GetStats(1))
    peer, _ = next_raw(router)
    router.socket.send_multipart([peer, b"nonsense", b"\xc1"])
    router.send(peer, Welcome("good", 1, 1, 1, 1))
    with pytest.raises(RemoteProtocolError):
        dealer.receive(DEADLINE_S)
    assert dealer.receive(DEADLINE_S)[0] == Welcome("good", 1, 1, 1, 1)
