"""Threads that share one `Client`: every answer reaches the call that asked, whoever reads the socket just then."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mmcached.client import Client, Generation
from mmcached.wire.errors import (
    ClientClosed,
    DeadlineExceeded,
    LocalProtocolError,
    MmcachedError,
    PeerGone,
)
from mmcached.wire.messages.client import ToClient
from mmcached.wire.messages.frontend import Cancel, DropClaim, FromClient, Generate
from tests.client.records import is_equal, numbers
from tests.client.services import StoreService, fake_service, send_half_of_the_next_message, silent
from tests.frontend.integrity import check_store
from tests.integration.processes import eventually

NUM_THREADS = 12


@pytest.fixture
def client(service: StoreService, run_dir: Path) -> Iterator[Client]:
    with Client(run_dir, fail_open=False) as opened:
        yield opened


def in_threads(what: Callable[[int], object], count: int = NUM_THREADS) -> None:
    """Call `what(number)` in as many threads at once; raise what one of them raises."""
    start = threading.Barrier(count)

    def begin(number: int) -> None:
        start.wait(30)
        what(number)

    with ThreadPoolExecutor(count) as pool:
        for future in [pool.submit(begin, number) for number in range(count)]:
            future.result(120)


def test_every_verb_in_many_threads_gets_its_own_answer(service: StoreService, client: Client) -> None:
    def hammer(number: int) -> None:
        for turn in range(12):
            seed = 100 * number + turn
            tokens = [number, turn, 7]
            assert client.put(f"k{seed}", numbers(seed))
            hit = client.get(f"k{seed}", view=True, tensors="numpy")
            assert hit is not None
            assert is_equal(hit.record, numbers(seed))
            assert client.generate(tokens).tokens == tokens
            *pieces, generation = client.generate_stream(tokens)
            assert isinstance(generation, Generation)
            assert [token for piece in pieces for token in piece] == generation.tokens == tokens  # type: ignore[union-attr]
            assert client.contains_many([f"k{seed}", f"none{seed}"]) == [True, False]
            (embedding,) = client.encode([bytes([number, 0, 0, 0, turn, 0, 0, 0])])
            assert embedding.tolist() == [number, turn]
            shared = client.get_or_compute(f"shared{turn}", partial(numbers, turn), tensors="numpy")
            assert is_equal(shared, numbers(turn))
            found = client.get_many([f"k{seed}", f"none{seed}", f"shared{turn}"], tensors="numpy")
            assert [one and one.record["seed"] for one in found] == [seed, None, turn]
            assert client.probe().engines == [0]
            assert client.drop(f"k{seed}")

    in_threads(hammer)
    counters = client.store_counters()
    assert counters.queries == NUM_THREADS * 12 * 5
    assert counters.failures == 0
    gc.collect()
    eventually(lambda: service.leases, lambda count: count == 0, "leases")
    service.call(lambda: check_store(service.desk))


def test_first_calls_at_once_take_one_row(service: StoreService, client: Client) -> None:
    in_threads(lambda number: client.put(f"k{number}", numbers(number)))
    assert client.contains_many([f"k{number}" for number in range(NUM_THREADS)]) == [True] * NUM_THREADS
    assert len(service.desk.readers) <= 1


def test_equal_keys_are_computed_by_one_thread(service: StoreService, client: Client) -> None:
    calls: list[int] = []

    def compute() -> dict[str, Any]:
        calls.append(1)
        return numbers(1)

    def ask(number: int) -> None:
        assert is_equal(client.get_or_compute("k", compute, tensors="numpy"), numbers(1))

    in_threads(ask)
    assert len(calls) == 1


def test_each_thread_waits_to_its_own_deadline(run_dir: Path) -> None:
    """One reads for all; whoever it is, the others' deadlines hold, and the reading goes on when it leaves."""
    ended: list[int] = []

    def ask(number: int) -> None:
        with pytest.raises(DeadlineExceeded):
            shared.generate([1], timeout_s=0.1 + 0.05 * number)
        ended.append(number)

    with fake_service(run_dir, silent) as received, Client(run_dir) as shared:
        in_threads(ask, 4)
        assert ended == sorted(ended)
        eventually(lambda: sum(isinstance(m, Cancel) for m in received), lambda count: count == 4, "cancels")


def test_frontend_that_dies_ends_the_calls_of_all_threads(run_dir: Path) -> None:
    asked = threading.Semaphore(0)

    def listen(message: FromClient) -> list[ToClient]:
        if isinstance(message, Generate):
            asked.release()
        return []

    def ask() -> None:
        with pytest.raises(PeerGone):
            shared.generate([1])

    with ThreadPoolExecutor(4) as pool:
        with fake_service(run_dir, listen):
            shared = Client(run_dir)
            futures = [pool.submit(ask) for _ in range(4)]
            for _ in futures:
                assert asked.acquire(timeout=30)
        for future in futures:
            future.result(60)
    shared.close()


def test_close_ends_the_calls_of_other_threads(run_dir: Path) -> None:
    def ask(number: int) -> None:
        if number == 0:
            eventually(lambda: sum(isinstance(m, Generate) for m in received), lambda count: count == 3, "calls")
            shared.close()
            return
        with pytest.raises(ClientClosed):
            shared.generate([1])

    with fake_service(run_dir, silent) as received:
        shared = Client(run_dir)
        in_threads(ask, 4)


# ---- interrupted


class Interrupt(BaseException):
    """What a signal handler raises, as Ctrl-C does."""


@contextlib.contextmanager
def retried() -> Iterator[None]:
    """Let pass what may be tried again."""
    try:
        yield
    except MmcachedError as error:
        if not error.retryable:
            raise


@pytest.fixture
def interrupts() -> Iterator[None]:
    def handler(*_: object) -> None:
        raise Interrupt

    former = signal.signal(signal.SIGALRM, handler)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, former)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt inside a finalizer
@pytest.mark.usefixtures("interrupts")
def test_interrupted_at_any_moment_the_client_goes_on(service: StoreService, client: Client) -> None:
    """A hundred calls, each interrupted a little later than the one before, while other threads go on asking."""
    stop = threading.Event()

    def go_on(number: int) -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            with retried():
                assert client.generate([number, turn]).tokens == [number, turn]

    client.put("k", numbers(1))
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(go_on, number) for number in range(2)]
        try:
            for turn in range(150):
                with contextlib.suppress(Interrupt):
                    signal.setitimer(signal.ITIMER_REAL, 20e-6 * (turn + 1))
                    for _ in range(100):  # an interrupt in the middle of a finalizer is lost
                        with retried():
                            client.put(f"k{turn}", numbers(turn))
                            client.get("k", view=True, tensors="numpy")
                            client.get_or_compute(f"c{turn}", partial(numbers, 0))
                            assert client.generate([turn]).tokens == [turn]
        finally:
            stop.set()
        for future in futures:
            future.result(60)
    assert client.generate([5]).tokens == [5]
    hit = client.get("k", tensors="numpy")
    assert hit is not None
    assert is_equal(hit.record, numbers(1))


def test_half_a_message_ends_the_calls_of_other_threads_and_the_client_goes_on(
    service: StoreService, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.hold = (Generate,)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(client.generate, [1])
        eventually(lambda: service.num_held, lambda count: count == 1, "the other call")
        send_half_of_the_next_message(monkeypatch, Interrupt)
        with pytest.raises(Interrupt):
            client.put("k", numbers(1))
        with pytest.raises(PeerGone):
            other.result(60)
    assert client.put("k", numbers(1)).outcome == "kept"
    assert len(service.peers) == 1, "it has another client id"


@pytest.mark.usefixtures("interrupts")
def test_interrupted_while_it_waits_the_request_is_cancelled(run_dir: Path) -> None:
    with fake_service(run_dir, silent) as received, Client(run_dir) as client:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Interrupt):
            client.generate([1])
        eventually(lambda: received[-1], lambda last: isinstance(last, Cancel), "the cancel")


@pytest.mark.usefixtures("interrupts")
def test_interrupted_while_it_computes_the_claim_goes_to_the_next(service: StoreService, client: Client) -> None:
    def compute() -> dict[str, Any]:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        threading.Event().wait(30)
        raise AssertionError

    with pytest.raises(Interrupt):
        client.get_or_compute("k", compute)
    assert is_equal(client.get_or_compute("k", lambda: numbers(2)), numbers(2))
    assert service.count(DropClaim) == 1


def test_a_process_that_forks_while_it_computes_keeps_its_claim(service: StoreService, client: Client) -> None:
    """The child has the result for itself; only the parent's is stored."""
    parent = os.getpid()

    def compute() -> dict[str, Any]:
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)
            return numbers(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        return numbers(2)

    record = None
    try:
        record = client.get_or_compute("k", compute)
    finally:
        if os.getpid() != parent:
            os._exit(0 if is_equal(record, numbers(1)) else 1)
    hit = client.get("k", tensors="numpy")
    assert hit is not None
    assert is_equal(hit.record, numbers(2))


def test_a_signal_handler_that_calls_in_the_middle_of_a_call_gets_an_error(run_dir: Path) -> None:
    """Its thread can't wait for two answers at once, and shall not wait for ever."""
    seen: list[BaseException] = []

    def handler(*_: object) -> None:
        try:
            shared.generate([2], timeout_s=20)
        except MmcachedError as error:
            seen.append(error)

    with fake_service(run_dir, silent) as received, Client(run_dir) as shared:
        former = signal.signal(signal.SIGALRM, handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(DeadlineExceeded):
                shared.generate([1], timeout_s=0.4)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, former)
        assert [type(error) for error in seen] == [LocalProtocolError]
        assert sum(isinstance(message, Generate) for message in received) <= 2
