"""Gives tests a master and what speaks to it as the second level does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from mmcached.second_level.backend import BackendError
from mmcached.second_level.mooncake.backend import MooncakeBackend
from mmcached.second_level.mooncake.place import read_place
from mmcached.second_level.mooncake.start import start
from tests.hosts.mooncake.stores import LIVES_S, Lender, Master
from tests.second_level.mooncake.epochs import begin_epoch

LONG_S = 30.0
MakeBackend = Callable[[str], MooncakeBackend]


def within(seconds: float) -> float:
    return time.monotonic() + seconds


@pytest.fixture(scope="session")
def opened_for_good() -> None:
    """Have Mooncake open what it shares between its clients and keeps until the process ends."""
    with Master() as master:
        for _ in range(2):
            start(read_place(master.url)).close()


@pytest.fixture(scope="session", autouse=True)
def session_leak_gate(opened_for_good: None, session_leak_gate: None) -> None:
    """Let the gate look after that."""


@pytest.fixture(scope="package")
def shared_master() -> Iterator[Master]:
    """Return a master with memory, for tests that let it live; each uses names of its own."""
    with Master(client_ttl_s=LIVES_S) as master, Lender(master):
        with MooncakeBackend(lambda: start(read_place(master.url))) as backend:
            await_room(backend)
        yield master


@pytest.fixture
def master() -> Iterator[Master]:
    """Return a master without memory, for a test that does something to it."""
    with Master() as master:
        yield master


@pytest.fixture
def make_backend() -> Iterator[MakeBackend]:
    """Return what makes backends of a URL; they are closed before the master is."""
    made: list[MooncakeBackend] = []

    def make(url: str) -> MooncakeBackend:
        made.append(MooncakeBackend(lambda: start(read_place(url))))
        return made[-1]

    yield make
    for backend in made:
        await_rest(backend)
        backend.close()


def await_rest(backend: MooncakeBackend) -> None:
    """Wait until no call is under way: one that is stuck would keep Mooncake's client open."""
    deadline = within(LONG_S)
    while len(backend.calls):
        assert time.monotonic() < deadline, "a call has not come back"
        time.sleep(0.01)


def await_room(backend: MooncakeBackend) -> None:
    """Wait until something can be put: some process has lent memory."""
    deadline = within(LONG_S)
    while True:
        try:
            begin_epoch(backend)
            return
        except BackendError:
            assert time.monotonic() < deadline, "there is no memory"
            time.sleep(0.02)
