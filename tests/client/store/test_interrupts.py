"""Signal handlers that raise in the middle of calls: every lease that was counted comes back."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mmcached.client import Client, Hit
from mmcached.client.store import native_session
from mmcached.client.store.session import StoreSession
from tests.client.records import is_equal, numbers
from tests.client.services import StoreService
from tests.frontend.integrity import check_store
from tests.present import present

NUM_KEYS = 150
NUM_INTERRUPTS = 300
INTERVAL_S = 370e-6
KEYS = [f"k{index}" for index in range(NUM_KEYS)]
CALLS: dict[str, Callable[[Client], object]] = {
    "get, a view": lambda client: client.get("k0", view=True, tensors="numpy"),
    "get, owned": lambda client: client.get("k1", tensors="numpy"),
    "get_many, views": lambda client: client.get_many(KEYS, view=True, tensors="numpy"),
    "get_many, owned": lambda client: client.get_many(KEYS, tensors="numpy"),
    "get_or_compute": lambda client: client.get_or_compute("k2", lambda: {}, view=True, tensors="numpy"),
    "claim_many": lambda client: client.claim_many(KEYS[:20], view=True, tensors="numpy"),
    "open": lambda client: client.open(token_of(client), view=True, tensors="numpy"),
}


class Interrupt(BaseException):
    """What a signal handler raises, as Ctrl-C does."""


class Storm:
    """Signals at a steady rate, one of which raises each time that `is_on` is set."""

    def __init__(self) -> None:
        self.is_on = False
        self.num_raised = 0

    def __call__(self, *_: object) -> None:
        if self.is_on:
            self.is_on = False
            self.num_raised += 1
            raise Interrupt


@pytest.fixture
def storm() -> Iterator[Storm]:
    storm = Storm()
    former = signal.signal(signal.SIGALRM, storm)
    signal.setitimer(signal.ITIMER_REAL, INTERVAL_S, INTERVAL_S)
    yield storm
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, former)


@pytest.fixture
def filled(service: StoreService, run_dir: Path) -> Iterator[Client]:
    with Client(run_dir, fail_open=False) as client:
        for index, key in enumerate(KEYS):
            client.put(key, numbers(index))
        yield client


def token_of(client: Client) -> str:
    hit = client.get("k3", view=True, tensors="numpy")
    assert isinstance(hit, Hit)
    assert hit.token is not None
    return hit.token


def session_of(client: Client) -> StoreSession:
    return present(client._calls.contact._sessions.present)


def taken_bytes(client: Client) -> int:
    reader = present(session_of(client)._reader)
    return reader.taken_bytes


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt inside a finalizer
@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_interrupted_at_any_moment_no_lease_is_lost(
    service: StoreService, filled: Client, storm: Storm, call: Callable[[Client], object]
) -> None:
    while storm.num_raised < NUM_INTERRUPTS:
        try:
            storm.is_on = True
            for _ in range(5):  # one that is raised in the middle of a finalizer is lost
                call(filled)
            storm.is_on = False
        except Interrupt:
            pass
    gc.collect()  # of an interrupt between an error and its handler a cycle may be left
    hit = present(filled.get("k0", tensors="numpy"))
    assert is_equal(hit.record, numbers(0))
    assert service.leases == 0
    assert taken_bytes(filled) == 0
    service.call(lambda: check_store(service.desk))


@pytest.mark.usefixtures("service")
def test_an_error_that_is_kept_keeps_no_lease(
    service: StoreService, filled: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its traceback has the frames of the call, and what was held there."""

    def interrupted(*_: Any, **__: Any) -> None:
        raise Interrupt

    monkeypatch.setattr("mmcached.shm.store.object_reader.decode", interrupted)
    monkeypatch.setattr(native_session, "read_head", interrupted)  # in C
    for plans in native_session._plans.values():
        plans.clear()
    with pytest.raises(Interrupt) as kept:
        filled.get_many(KEYS, view=True, tensors="numpy")
    assert service.leases == 0
    assert kept.tb is not None
