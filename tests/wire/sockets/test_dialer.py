"""The clients' end with real sockets: a listener that comes late, goes, does not read or is none."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from mmcached.wire.errors import ChannelFull, DeadlineExceeded, RemoteProtocolError, ServiceUnavailable, error_to_wire
from mmcached.wire.messages.client import Failed, Flushed, ToClient
from mmcached.wire.messages.frontend import FromClient, GetStats
from mmcached.wire.process.turns import TurnShare
from mmcached.wire.sockets import dialer
from mmcached.wire.sockets.bounds import Bounds
from mmcached.wire.sockets.dialer import RETRY_S, Dialer
from mmcached.wire.sockets.frames import Frame, encode_frames
from mmcached.wire.sockets.listener import Listener
from mmcached.wire.sockets.zmtp import handshake
from tests.clock import Clock

DEADLINE_S = 20.0
MIB = 1 << 20
LARGE = bytes(range(256)) * (4 * MIB // 256)
BOUNDS = Bounds(
    max_connections=8,
    reserved_descriptors=64,
    max_frames=64,
    max_message_bytes=16 * MIB,
    max_body_bytes=MIB,
    max_queued_bytes=16 * MIB,
    max_held_bytes=64 * MIB,
    stall_s=30.0,
)
T = TypeVar("T")
REFUSAL = Failed(None, error_to_wire(ServiceUnavailable("too many")))


class Ends:
    """A dialer and, once it listens, a listener, in one thread; time passes when a test says so.

    Attributes:
        heard: what has come at the listener; `peer` has said the last of it.
    """

    def __init__(self, run_dir: Path, stack: ExitStack) -> None:
        self.clock = Clock()
        self.path = run_dir / "test.sock"
        self.dialer: Dialer[ToClient] = stack.enter_context(Dialer(f"ipc://{self.path}", ToClient, clock=self.clock))
        self.listener: Listener[FromClient] | None = None
        self.heard: list[tuple[Any, list[Frame]]] = []
        self.peer = b""
        self._stack = stack

    def listen(self) -> Listener[FromClient]:
        made: Listener[FromClient] = Listener(
            f"ipc://{self.path}", FromClient, BOUNDS, refusal=REFUSAL, clock=self.clock
        )
        self.listener = self._stack.enter_context(made)
        return made

    def listen_by_hand(self) -> socket.socket:
        """Listen as no listener would."""
        made = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        made.settimeout(DEADLINE_S)
        made.bind(os.fspath(self.path))
        made.listen()
        return made

    def ask(self, number: int, *payload: Frame) -> None:
        self.dialer.send_frames(encode_frames(GetStats(number), payload))

    def answer(self, number: int, *payload: Frame) -> None:
        assert self.listener is not None
        self.listener.send(self.peer, Flushed(number), payload)

    def hear(self) -> tuple[Any, list[Frame]]:
        """Return what comes at the listener next; the dialer sends meanwhile."""
        return self._until(lambda: self.heard.pop(0) if self.heard else None, self.dialer.try_receive)

    def receive(self) -> tuple[Any, list[Frame]]:
        """Return what comes at the dialer next; when there is nothing, its descriptor tells when to look again."""
        poll = select.poll()
        poll.register(self.dialer.fileno(), select.POLLIN)
        found = self.dialer.try_receive()
        return found or self._until(lambda: self.dialer.try_receive() if poll.poll(10) else None, lambda: None)

    def lose(self) -> None:
        """Have the dialer notice that it is not connected any more."""
        self._until(lambda: self.dialer.try_receive() or not self.dialer.is_connected or None, lambda: None)

    def turn(self) -> None:
        if self.listener is not None:
            for peer, message, payload in self.listener.serve(TurnShare(100, 60.0)):
                self.peer = peer
                self.heard.append((message, payload))

    def _until(self, look: Callable[[], T | None], meanwhile: Callable[[], object]) -> T:
        give_up = time.monotonic() + DEADLINE_S
        while (found := look()) is None:
            meanwhile()
            self.turn()
            assert time.monotonic() < give_up, "never so"
        return found


@pytest.fixture
def ends(run_dir: Path) -> Iterator[Ends]:
    with ExitStack() as stack:
        yield Ends(run_dir, stack)


def test_messages_and_answers_of_any_size_go_through_whole(ends: Ends) -> None:
    ends.listen()
    payload = [b"", b"x", bytes(255), bytes(256), os.urandom(20_000), LARGE]
    ends.ask(1, *payload)
    assert ends.hear() == (GetStats(1), payload)
    ends.answer(2, *payload)
    assert ends.receive() == (Flushed(2), payload)
    ends.ask(3)
    assert ends.hear() == (GetStats(3), [])


def test_news_are_seen_without_being_read(ends: Ends) -> None:
    assert ends.dialer.has_news()  # it is not connected: to receive is to try
    ends.listen()
    ends.clock.now += RETRY_S
    ends.ask(1)
    ends.hear()
    assert ends.dialer.try_receive() is None  # the handshake is read
    assert not ends.dialer.has_news()
    ends.answer(1)
    ends.answer(2)
    for number in (1, 2):  # the second was read together with the first
        assert ends.dialer.has_news()
        assert ends.dialer.try_receive() == (Flushed(number), [])
        assert ends.dialer.has_read == (number == 1)
    assert not ends.dialer.has_news(), "all was read"
    assert ends.dialer.try_receive() is None
    assert not ends.dialer.has_news()
    assert ends.listener is not None
    ends.listener.close()
    assert ends.dialer.has_news()  # the loss


def test_what_waits_of_a_mutable_frame_stays_as_it_was(ends: Ends) -> None:
    ends.listen()
    data = bytearray(LARGE)
    ends.ask(1, data)
    data[:] = bytes(len(data))
    assert ends.hear() == (GetStats(1), [LARGE])


def test_what_was_said_before_somebody_listens_arrives(ends: Ends) -> None:
    ends.ask(1)
    ends.ask(2, LARGE)
    assert ends.dialer.try_receive() is None
    assert not ends.dialer.is_connected
    ends.listen()
    ends.clock.now += RETRY_S
    assert [ends.hear(), ends.hear()] == [(GetStats(1), []), (GetStats(2), [LARGE])]
    assert ends.dialer.num_losses == 0


def test_nobody_is_looked_for_more_often_than_so_often(ends: Ends) -> None:
    ends.ask(1)
    assert ends.dialer.retry_s() == pytest.approx(RETRY_S)
    ends.listen()
    ends.clock.now += 0.9 * RETRY_S
    assert ends.dialer.try_receive() is None
    assert not ends.dialer.is_connected
    ends.clock.now += 0.2 * RETRY_S
    assert ends.dialer.retry_s() == 0.0
    assert ends.hear() == (GetStats(1), [])
    assert ends.dialer.retry_s() == float("inf")


def test_a_loss_is_told_behind_what_was_said_before_and_takes_what_waits_along(ends: Ends) -> None:
    listener = ends.listen()
    ends.ask(1)
    ends.hear()
    ends.answer(1)
    ends.answer(2)
    listener.close()
    ends.ask(3, LARGE)  # nobody takes it
    assert [ends.receive(), ends.receive()] == [(Flushed(1), []), (Flushed(2), [])]
    assert ends.dialer.num_losses == 0
    ends.lose()
    assert ends.dialer.num_losses == 1
    ends.clock.now += RETRY_S
    ends.listen()
    ends.ask(4)
    assert ends.hear() == (GetStats(4), []), "and nothing of what was lost"


def test_a_message_that_cannot_be_read_is_an_error_and_the_next_is_read(ends: Ends) -> None:
    listener = ends.listen()
    ends.ask(1)
    ends.hear()
    listener.send(ends.peer, GetStats(1))
    ends.answer(2)
    with pytest.raises(RemoteProtocolError):
        ends.receive()
    assert ends.receive() == (Flushed(2), [])


@pytest.mark.parametrize("words", [b"HTTP/1.1 400 Bad Request\r\n" * 9, handshake(b"DEALER")], ids=["http", "dealer"])
def test_who_is_no_router_is_left_and_looked_for_again_later(ends: Ends, words: bytes) -> None:
    liar = ends.listen_by_hand()
    ends.ask(1)
    connection, _ = liar.accept()
    with connection:
        connection.sendall(words)
        ends.lose()
    assert ends.dialer.num_losses == 1
    assert ends.dialer.retry_s() == pytest.approx(RETRY_S)


def test_who_is_turned_away_at_once_does_not_come_back_at_once(ends: Ends) -> None:
    full = ends.listen_by_hand()
    ends.ask(1)
    full.accept()[0].close()
    ends.lose()
    assert ends.dialer.num_losses == 1
    ends.ask(2)
    assert not ends.dialer.is_connected


def test_a_full_queue_is_said_and_nothing_of_the_message_is_queued(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialer, "SEND_HIGH_WATER_MARK", 5)
    for number in range(5):
        ends.ask(number)
    with pytest.raises(ChannelFull):
        ends.ask(5)
    ends.listen()
    ends.clock.now += RETRY_S
    assert [ends.hear()[0].request_id for _ in range(5)] == [0, 1, 2, 3, 4]
    ends.ask(6)
    assert ends.hear() == (GetStats(6), [])


def test_flush_sends_what_is_taken_and_gives_up_on_who_reads_nothing(ends: Ends) -> None:
    deaf = ends.listen_by_hand()
    ends.dialer.flush(DEADLINE_S)  # nobody is connected
    ends.clock.now += RETRY_S
    ends.ask(1, LARGE)
    ends.clock.tick_s = 0.01
    ends.dialer.flush(0.2)
    connection, _ = deaf.accept()
    connection.close()
    ends.dialer.flush(DEADLINE_S)  # it takes nothing, and never will


def test_a_forked_child_lets_go_and_the_parent_stays_connected(ends: Ends) -> None:
    ends.listen()
    ends.ask(1)
    ends.hear()
    pid = os.fork()
    if pid == 0:
        before = len(os.listdir("/proc/self/fd"))
        ends.dialer.abandon()
        os._exit(before - len(os.listdir("/proc/self/fd")))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
    ends.answer(1)
    assert ends.receive() == (Flushed(1), [])


def test_broken_off_it_connects_anew_even_while_a_child_holds_the_old_connection(ends: Ends) -> None:
    listener = ends.listen()
    ends.ask(1)
    ends.hear()
    former, (gate, opener) = ends.peer, os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(opener)
        os._exit(len(os.read(gate, 1)))
    try:
        ends.dialer.break_off()
        assert not listener.is_connected(former)
    finally:
        os.close(opener)
        os.close(gate)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert ends.dialer.num_losses == 1
    ends.ask(2)
    assert ends.hear() == (GetStats(2), [])
    assert ends.peer != former


def test_a_closed_one_connects_no_more(ends: Ends) -> None:
    ends.listen()
    ends.ask(1)
    ends.hear()
    ends.ask(2)
    ends.dialer.close()
    ends.dialer.close()
    assert ends.hear() == (GetStats(2), []), "the kernel had it"
    ends.clock.now += RETRY_S
    assert ends.dialer.try_receive() is None
    assert not ends.dialer.is_connected


def test_receive_waits_for_a_listener_that_comes_later(run_dir: Path) -> None:
    address, served = f"ipc://{run_dir}/test.sock", threading.Event()

    def serve() -> None:
        with Listener[FromClient](address, FromClient, BOUNDS, refusal=REFUSAL) as listener:
            while not served.is_set():
                listener.wait(0.1)
                for peer, message, _ in listener.serve(TurnShare()):
                    assert isinstance(message, GetStats)
                    listener.send(peer, Flushed(message.request_id))

    with Dialer[ToClient](address, ToClient) as dialer:
        with pytest.raises(DeadlineExceeded) as caught:
            dialer.receive(0.01)
        assert caught.value.details["timeout_s"] == 0.01
        dialer.send(GetStats(3))
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            assert dialer.receive(DEADLINE_S) == (Flushed(3), [])
        finally:
            served.set()
            thread.join(DEADLINE_S)
