"""Tests that leave something behind, for `test_leak_gate.py` to run in a child pytest.

Not named test_*: the suite itself does not collect it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house import leaks
from tests.shm.rings import leave_ring

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
KEPT: list[object] = []  # module state, so that no garbage collector hides a leak


@pytest.fixture(scope="session", autouse=True)
def short_grace() -> None:
    leaks.GRACE_S = 0.2


@pytest.fixture(scope="module")
def shared_service() -> Iterator[subprocess.Popen[bytes]]:
    """A service that outlives a test, as a module-scoped fixture may hold it: a child and two descriptors."""
    with subprocess.Popen(SLEEPER, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_clean() -> None:
    with open(__file__, encoding="utf-8") as file:
        assert file.readable()
    subprocess.run([sys.executable, "-c", ""], check=True)


def test_uses_shared_service(shared_service: subprocess.Popen[bytes]) -> None:
    assert shared_service.poll() is None


def test_exempt() -> None:
    with leaks.outliving_the_test():
        KEPT.append(open(__file__, encoding="utf-8"))  # noqa: SIM115


def test_thread_that_is_just_ending() -> None:
    threading.Timer(0.05, int).start()


def test_leaks_fd() -> None:
    KEPT.append(open(__file__, encoding="utf-8"))  # noqa: SIM115


def test_leaks_thread() -> None:
    threading.Thread(target=threading.Event().wait, daemon=True, name="left-running").start()


def test_leaks_child() -> None:
    KEPT.append(subprocess.Popen(SLEEPER))


def test_leaks_grandchild() -> None:
    """As when a supervisor is killed and its children live on."""
    subprocess.run(
        [sys.executable, "-c", f"import subprocess; subprocess.Popen({SLEEPER})"], check=True, start_new_session=True
    )


def test_leaks_shm() -> None:
    Path(os.environ["LEAKED_SHM"]).touch()


def test_leaks_ring(tmp_path: Path) -> None:
    leave_ring(tmp_path)


def test_ignores_rings_of_another_session() -> None:
    """The process that runs these examples makes some when it is asked to: it is not a descendant of ours."""
    made = Path(os.environ["RINGS_MADE"])
    made.with_name("wanted").touch()
    deadline = time.monotonic() + 30
    while not made.exists():
        assert time.monotonic() < deadline, "nobody made them"
        time.sleep(0.01)
