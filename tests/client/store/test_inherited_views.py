"""Views that a forked child inherits keep their bytes for its life, and for no longer."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from mmcached.client import Client
from mmcached.wire.messages.frontend import RegisterReader
from mmcached.wire.process.death import environment_for_children
from tests.client.services import StoreService
from tests.frontend.integrity import check_store
from tests.integration.processes import DEADLINE_S, eventually
from tests.present import present

NBYTES = 1 << 20
NUM_OTHERS = 40
"""Records that fill the store twice over."""


class Child:
    """A forked child, which does something at a word; dies with the test at the latest."""

    def __init__(self, act: Callable[[], object]) -> None:
        (self._go, go), (said, self._said) = os.pipe()[::-1], os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            signal.alarm(60)
            with contextlib.suppress(BaseException):
                os.write(self._said, b"here\n")
                if os.read(go, 1):
                    os.write(self._said, f"{act()}\n".encode())
                    os.read(go, 1)
            os._exit(0)
        os.close(go)
        os.close(self._said)
        self._answers = os.fdopen(said)
        assert self.listen() == "here"

    def listen(self) -> str:
        return self._answers.readline().strip()

    def send(self) -> None:
        """Have it act."""
        os.write(self._go, b"x")

    def ask(self) -> str:
        """Have it act; return what it says then."""
        self.send()
        return self.listen()

    def kill(self) -> None:
        """End it, if it has not ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def close(self) -> None:
        os.close(self._go)
        self._answers.close()


@contextlib.contextmanager
def child_that(act: Callable[[], object]) -> Iterator[Child]:
    child = Child(act)
    try:
        yield child
    finally:
        child.kill()
        child.close()


def record(value: int) -> dict[str, Any]:
    return {"x": np.full(NBYTES, value, np.uint8)}


def view(client: Any, key: str = "k") -> Any:
    hit = present(client.get(key, view=True, tensors="numpy"))
    return hit.record["x"]


def values(array: Any) -> list[int]:
    return sorted({int(value) for value in array})


def overwrite(run_dir: Path) -> None:
    """Drop the record, and put more than the store holds, as another client."""
    with Client(run_dir, fail_open=False) as other:
        other.drop("k")
        for index in range(NUM_OTHERS):
            other.put(f"other {index}", record(9))


def no_leases(service: StoreService) -> None:
    eventually(lambda: service.leases, lambda count: count == 0, "leases")


@pytest.fixture
def held(service: StoreService, client: Any) -> list[Any]:
    """Return a list of one view, so that a test can drop it."""
    client.put("k", record(7))
    return [view(client)]


def test_it_stays_when_the_parent_drops_its_view(
    service: StoreService, client: Any, run_dir: Path, held: list[Any]
) -> None:
    with child_that(lambda: values(held[0])) as child:
        held.clear()
        overwrite(run_dir)
        assert child.ask() == "[7]"
        assert service.leases == 1
    no_leases(service)
    client.put("l", record(3))
    registered = service.count(RegisterReader)
    array = view(client, "l")
    assert values(array) == [3]
    assert service.leases == 1, "found without a message, by another session"
    assert service.count(RegisterReader) == registered
    del array
    no_leases(service)
    service.call(lambda: check_store(service.desk))


def test_it_stays_when_the_parent_has_closed_its_client(service: StoreService, run_dir: Path, held: list[Any]) -> None:
    with Client(run_dir) as another:
        held[0] = view(another)
    with child_that(lambda: values(held[0])) as child:
        held.clear()
        overwrite(run_dir)
        assert child.ask() == "[7]"
    no_leases(service)


def test_a_child_that_drops_it_takes_nothing_from_the_parent(
    service: StoreService, run_dir: Path, held: list[Any]
) -> None:
    """Also of a client that was closed before: then nobody but the view knows of the lease."""
    with Client(run_dir) as another:
        kept = [view(another)]

    def drop() -> str:
        held.clear()
        kept.clear()
        return "dropped"

    with child_that(drop) as child:
        assert child.ask() == "dropped"
        assert service.leases == 2
        overwrite(run_dir)
        assert (values(held[0]), values(kept[0])) == ([7], [7])
    held.clear()
    kept.clear()
    no_leases(service)


def test_a_grandchild_has_it_too(service: StoreService, run_dir: Path, held: list[Any]) -> None:
    said, saying = os.pipe()
    going, go = os.pipe()

    def fork_and_end() -> None:
        if os.fork() == 0:
            signal.alarm(60)
            with contextlib.suppress(BaseException):
                os.read(going, 1)
                os.write(saying, str(values(held[0])).encode())
            os._exit(0)
        os._exit(0)

    with child_that(fork_and_end) as child:
        child.send()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    held.clear()
    overwrite(run_dir)
    os.write(go, b"x")
    assert os.read(said, 100) == b"[7]"
    no_leases(service)
    for fd in (said, saying, going, go):
        os.close(fd)


def test_it_stays_when_the_parent_is_killed(service: StoreService, run_dir: Path, held: list[Any]) -> None:
    held.clear()
    said, saying = os.pipe()
    going, go = os.pipe()

    def fork_and_wait() -> None:
        with Client(run_dir) as another:
            array = view(another)
            if os.fork() == 0:
                signal.alarm(60)
                with contextlib.suppress(BaseException):
                    os.write(saying, b"here")
                    os.read(going, 1)
                    os.write(saying, str(values(array)).encode())
                    os.read(going, 1)
                os._exit(0)
            signal.pause()

    with child_that(fork_and_wait) as parent:
        parent.send()
        assert os.read(said, 100) == b"here"
    overwrite(run_dir)
    os.write(go, b"x")
    assert os.read(said, 100) == b"[7]"
    assert service.leases == 1
    os.write(go, b"x")
    no_leases(service)
    for fd in (said, saying, going, go):
        os.close(fd)


def test_a_child_that_is_killed_or_becomes_another_program_holds_nothing(
    service: StoreService, held: list[Any]
) -> None:
    said, saying = os.pipe()
    os.set_inheritable(saying, True)
    program = [sys.executable, "-c", f"import os, signal; os.write({saying}, b'here'); signal.pause()"]

    with child_that(lambda: os.execv(sys.executable, program)) as child, child_that(lambda: None) as other:
        held.clear()
        child.send()
        assert os.read(said, 100) == b"here"
        assert service.leases == 1, "the other child has it still"
        os.kill(other.pid, signal.SIGKILL)
        no_leases(service)
    for fd in (said, saying):
        os.close(fd)


MANY = """
import os, sys
from mmcached.client import Client
from mmcached.wire.process.death import arm_from_environment
arm_from_environment()
def view():
    return client.get("k", view=True, tensors="numpy").record["x"]
with Client(sys.argv[1]) as client:
    array, num_fds = view(), []
    for turn in range(50):
        pid = os.fork()
        if pid == 0:
            os._exit(0 if array[0] == 7 else 1)
        array = view()  # and the former one dies here, before the child
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        num_fds.append(len(os.listdir("/proc/self/fd")))
    assert num_fds[-1] <= max(num_fds[:20]), num_fds
    assert client.store_counters().inline_hits == 0
    print("held", flush=True)
    sys.stdin.readline()
    del array
    print("dropped", flush=True)
    sys.stdin.readline()
"""


@contextlib.contextmanager
def program(text: str, run_dir: Path) -> Iterator[tuple[IO[str], IO[str]]]:
    """Run a program beside a record of sevens; yield its input and output."""
    with Client(run_dir) as client:
        assert client.put("k", record(7))
    with subprocess.Popen(
        [sys.executable, "-c", text, str(run_dir)],
        env=environment_for_children(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdin, process.stdout
        print(file=process.stdin, flush=True)
        assert process.wait(DEADLINE_S) == 0


def test_many_children_leave_nothing(service: StoreService, run_dir: Path) -> None:
    """Of each the parent drops its view before it has ended, and takes another one."""
    with program(MANY, run_dir) as (send, answers):
        assert answers.readline() == "held\n"
        eventually(lambda: service.leases, lambda count: count == 1, "leases")
        print(file=send, flush=True)
        assert answers.readline() == "dropped\n"
        no_leases(service)
    service.call(lambda: check_store(service.desk))


def test_one_view_that_stays_costs_one_session_however_many_children_there_are(
    service: StoreService, client: Any, held: list[Any]
) -> None:
    before = service.count(RegisterReader)
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        assert client.get("k") is not None
    assert service.count(RegisterReader) == before + 1
    assert values(held[0]) == [7]
    held.clear()
    no_leases(service)
