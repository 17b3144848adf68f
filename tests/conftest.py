"""Sets what holds for every test: one math thread, no leftovers, the same examples in every run."""

from __future__ import annotations

import os

# Before anything imports numpy or torch: threads that fight for few cores make small products a thousand times slower.
for _library in ("OMP", "MKL", "OPENBLAS"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")
# The reader in Python is the reference, also where the one in C is installed; `make test-c` sets 1.
os.environ.setdefault("MMCACHED_NATIVE", "0")

import contextlib
import gc
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.house.drawing import register_profiles, soak_seeds
from tests.house.isolation import private_shm
from tests.house.leaks import (
    Snapshot,
    adopt_orphans,
    find_dead_rings,
    find_leaks,
    note_directories,
    note_directory,
)

register_profiles()
# What a role's own start does in its process; left alone, structlog would print to stdout, where tests read answers.
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
adopt_orphans()
note_directories()

_call_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Have the garbage collector look at thousands of tests, and all that they import, once, and at the rest seldom: a
    fifteenth of the suite's time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000)
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "call":
        item.stash[_call_failed] = report.failed
    return report


@pytest.fixture(autouse=True)
def leak_gate(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves something behind; see `tests.house.leaks` for what counts.

    Autouse, so it is set up before and torn down after the test's other function-scoped fixtures, but after the module-
    and session-scoped ones: those may hold what they like, as long as nothing of it is left when the session ends. A
    test that failed is not judged again: its kept traceback holds objects alive.
    """
    before = Snapshot.take()
    yield
    if not request.node.stash.get(_call_failed, False):
        _fail_on(find_leaks(before), "the test left behind")


@pytest.fixture(autouse=True, scope="module")
def module_leak_gate(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the last test of a module that leaves the ring of a dead writer behind."""
    before = Snapshot.take()
    yield
    if not request.session.testsfailed:
        _fail_on(find_dead_rings(before), "the module left behind")


@pytest.fixture(autouse=True, scope="session")
def session_leak_gate(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail a session without failures in which a module- or session-scoped fixture leaves something behind."""
    note_directory(tmp_path_factory.getbasetemp())
    before = Snapshot.take()
    yield
    if not request.session.testsfailed:
        _fail_on(find_leaks(before, is_session_over=True), "the session left behind")


def _fail_on(leaked: Snapshot, what: str) -> None:
    if leaked:
        message = "\n  ".join([f"{what}:", *leaked.lines()])
        for pid in leaked.children:  # reported; now it shall disturb no other test
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        pytest.fail(message, pytrace=False)


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A private folder with a short path: a unix socket path may have 107 bytes, and `tmp_path` can be longer."""
    path = Path(tempfile.mkdtemp(prefix="mmc-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mmcached")
    group.addoption("--hostile-seconds", type=float, default=600.0, help="how long the attacks of the soak last")
    group.addoption("--hostile-attacks", default="", help="only attacks whose names have one of these words (a,b,…)")


@pytest.hookimpl(trylast=True)  # when there is a terminal writer
def pytest_configure(config: pytest.Config) -> None:
    """Give each of several test processes a /dev/shm of its own: leak gate and sweep look at all that is there.

    What pytest-timeout writes before it ends such a process goes to stderr: its stdout is nowhere.
    """
    if hasattr(config, "workerinput"):
        private_shm()
        config.get_terminal_writer()._file = sys.__stderr__


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Distribute files, and what shares a service, in the processes of `make test`."""
    from tests.house.distribution import ByFileAndService  # where there is no xdist, this is not called

    return ByFileAndService(config, log)


TAKE_LONG = ("tests/integration/", "tests/world/", "tests/cli/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes long first, so that the test processes end at about the same time."""
    items.sort(key=lambda item: not item.nodeid.startswith(TAKE_LONG))


def pytest_report_header(config: pytest.Config) -> str | None:
    """Show the seed of a soak, so that it can be given again."""
    seed = config.getoption("hypothesis_seed")
    return None if seed is None else f"seed: {seed}"


@pytest.fixture
def draw_seeds(request: pytest.FixtureRequest) -> Callable[[int], range]:
    """Return `draw_seeds(count)`: seeds that the suite does not play, new ones for each seed of a soak."""
    seed = int(request.config.getoption("hypothesis_seed") or 0)
    return lambda count: soak_seeds(seed, count)
