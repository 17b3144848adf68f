"""One of the threads that wait reads for all; when it leaves it rings the next, which looks at no clock here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mmcached.client.links.thread_link import ThreadLink
from mmcached.client.verb import drive
from mmcached.wire.messages.client import Probed, ToClient
from mmcached.wire.messages.frontend import Probe
from mmcached.wire.paths import RunDir
from tests.client.services import StoreService
from tests.integration.processes import DEADLINE_S, eventually

ME = "0" * 32
LATE = 99


class Shared:
    """A link, and a service that answers what and when a test says.

    Attributes:
        hold, has_late: the one that takes in message `LATE` says so, and waits.
    """

    def __init__(self, service: StoreService, run_dir: Path, pool: ThreadPoolExecutor) -> None:
        self.hold, self.has_late = threading.Event(), threading.Event()
        self._service = service
        self.pool = pool
        self.link = ThreadLink(
            RunDir(run_dir),
            ME,
            on_arrival=self._arrived,
            on_unsolicited=lambda message: None,
            on_loss=lambda: None,
            look_interval_s=10 * DEADLINE_S,
        )
        service.hold = (Probe,)
        drive(self.link.greet(time.monotonic() + DEADLINE_S, is_patient=True))

    def ask(self, number: int) -> Future[Any]:
        """Ask in a thread; return when that waits."""
        waiter = self.link.new_waiter()
        verb = self.link.ask(number, waiter, Probe(number, 1.0), (), time.monotonic() + DEADLINE_S / 2)
        future = self.pool.submit(drive, verb)
        eventually(lambda: waiter.is_waiting or future.done(), bool, "the call")
        return future

    def answer(self, number: int) -> Probed:
        answer = Probed(number, [0], 2, [])
        self._service.call(lambda: self._service.listener.try_send(self._service.peers[ME], answer))
        return answer

    def come_by(self) -> None:
        """Read what is there, until the late message was."""
        while not self.has_late.is_set():
            self.link.catch_up()

    def _arrived(self, message: ToClient) -> ToClient:
        if isinstance(message, Probed) and message.request_id == LATE:
            self.has_late.set()
            assert self.hold.wait(DEADLINE_S)
        return message


@pytest.fixture
def shared(service: StoreService, run_dir: Path) -> Iterator[Shared]:
    with ThreadPoolExecutor(3) as pool:
        opened = Shared(service, run_dir, pool)
        yield opened
        opened.link.close()


def end_of_a_call(shared: Shared) -> Callable[[], None]:
    call = shared.ask(1)
    return lambda: answered(shared, call, 1)


def end_of_a_visit(shared: Shared) -> Callable[[], None]:
    visit = shared.pool.submit(shared.come_by)
    shared.answer(LATE)
    assert shared.has_late.wait(DEADLINE_S)

    def end() -> None:
        shared.hold.set()
        visit.result(DEADLINE_S)

    return end


def answered(shared: Shared, call: Future[Any], number: int) -> None:
    answer = shared.answer(number)
    assert call.result(DEADLINE_S) == (answer, [])


@pytest.mark.parametrize("reader", [end_of_a_call, end_of_a_visit])
def test_who_reads_rings_the_next_when_it_leaves(
    shared: Shared, reader: Callable[[Shared], Callable[[], None]]
) -> None:
    leave = reader(shared)
    call = shared.ask(2)
    leave()
    answered(shared, call, 2)
