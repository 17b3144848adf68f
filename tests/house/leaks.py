"""What a test may not leave behind: file descriptors, threads, child processes, shared-memory names.

    before = Snapshot.take()      cheap: four directory listings
    …                             the test
    leaked = find_leaks(before)   empty at once when clean; else polls until GRACE_S, for what is just ending

Knows nothing of pytest; `tests/conftest.py` makes the gate out of it.

What counts, and what does not:

* Descriptors and Python threads of this process. Native threads are not listed: a ZeroMQ context that is still open
  shows as descriptors.
* Child processes, and orphaned grandchildren too: `adopt_orphans` makes them children of this process. A dead child
  that nobody waited for is reaped without a word, because an orphan has no parent left to wait for it (and an unwaited
  `Popen` warns by itself, which is an error here).
* Names `/dev/shm/mmc*` of this user that appeared meanwhile, but for the rings of other sessions and services on this
  machine: their writer lives and does not descend from us, or has another layout version; or it is dead and the run
  directory that their header names is none of a temporary directory that this session has made.
* Not the nurseries of a ring that was there before: a service that outlives the test opens and removes them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

GRACE_S = 3.0
_POLL_S = 0.01
_SHM = Path("/dev/shm")
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What exists at one moment, each kind as a set, so that two moments can be subtracted."""

    fds: frozenset[tuple[int, str]] = frozenset()
    threads: frozenset[threading.Thread] = frozenset()
    children: frozenset[int] = frozenset()
    shm_names: frozenset[str] = frozenset()

    @classmethod
    def take(cls) -> Snapshot:
        """Look at this process and at /dev/shm; change nothing."""
        return cls(_open_fds(), _threads(), _children(), _shm_names())

    def __sub__(self, other: Snapshot) -> Snapshot:
        return Snapshot(
            self.fds - other.fds,
            self.threads - other.threads,
            self.children - other.children,
            self.shm_names - other.shm_names,
        )

    def __or__(self, other: Snapshot) -> Snapshot:
        return Snapshot(
            self.fds | other.fds,
            self.threads | other.threads,
            self.children | other.children,
            self.shm_names | other.shm_names,
        )

    def __bool__(self) -> bool:
        return bool(self.fds or self.threads or self.children or self.shm_names)

    def lines(self) -> list[str]:
        """Describe each thing on a line of its own."""
        return [
            *(f"fd {fd} -> {target}" for fd, target in sorted(self.fds)),
            *(f"thread {thread!r}" for thread in self.threads),
            *(f"child {pid}: {_command(pid)}" for pid in sorted(self.children)),
            *(f"/dev/shm/{name}" for name in sorted(self.shm_names)),
        ]


_outliving = Snapshot()


@contextlib.contextmanager
def outliving_the_test() -> Iterator[None]:
    """Exempt what appears inside this block from the per-test gate; it has until the end of the session.

    Seldom needed: what a module- or session-scoped fixture sets up is there before the gate looks. This is for what
    such a fixture's objects open later, in the middle of a test, say a long-lived connection that is made anew.
    """
    global _outliving  # noqa: PLW0603 - a session has one gate
    before = Snapshot.take()
    try:
        yield
    finally:
        _outliving |= Snapshot.take() - before


def adopt_orphans() -> None:
    """Make orphaned grandchildren children of this process, so that the gate sees what a killed supervisor left."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def find_leaks(before: Snapshot, *, is_session_over: bool = False) -> Snapshot:
    """Return what appeared since `before` and is still there; wait up to GRACE_S for it to go. Reap dead children.

    Args:
        is_session_over: count also what was exempt from the gate of a single test.
    """
    expected = before if is_session_over else before | _outliving
    deadline = time.monotonic() + GRACE_S
    leaked = _appeared_since(expected)
    if leaked:
        gc.collect()  # what only a reference cycle holds is late, not leaked
        leaked = _appeared_since(expected)
    while leaked and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        leaked = _appeared_since(expected)
    return leaked


def find_dead_rings(before: Snapshot) -> Snapshot:
    """Return the rings of this session that appeared since `before` and have no writer any more; wait as `find_leaks`.

    They would disturb the tests of other modules, which the end of the session does not tell.
    """
    deadline = time.monotonic() + GRACE_S
    while (dead := _dead_rings_since(before)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return dead


def _dead_rings_since(before: Snapshot) -> Snapshot:
    appeared = _shm_names() - before.shm_names
    if not appeared:
        return Snapshot()
    from mmcached.cli.admin.shm_list import list_segments

    live = {entry.name.lstrip("/") for entry in list_segments() if entry.is_live}
    return Snapshot(shm_names=_shm_names() & appeared - live - _shm_names_of_others())


def _appeared_since(before: Snapshot) -> Snapshot:
    _reap(_children() - before.children)
    appeared = Snapshot.take() - before
    if appeared.shm_names:
        appeared -= Snapshot(shm_names=_shm_names_of_others())
    return appeared - _nurseries_of_older_rings(appeared, before)


def _nurseries_of_older_rings(appeared: Snapshot, before: Snapshot) -> Snapshot:
    """Return nurseries that a service and its clients have opened, if the service's ring was there before."""
    stems = {name.removesuffix(".ctl") for name in before.shm_names if name.endswith(".ctl")}
    begins = tuple(f"{stem}.nursery" for stem in stems)
    return Snapshot(
        shm_names=frozenset(name for name in appeared.shm_names if name.startswith(begins)),
        fds=frozenset(each for each in appeared.fds if each[1].removeprefix(f"{_SHM}/").startswith(begins)),
    )


def _open_fds() -> frozenset[tuple[int, str]]:
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        # The descriptor that made the listing is in it, and closed by now.
        with contextlib.suppress(FileNotFoundError):
            found.add((int(fd), os.readlink(f"/proc/self/fd/{fd}")))
    return frozenset(found)


def _threads() -> frozenset[threading.Thread]:
    # The watchdog of pytest-timeout is there, one per test, for as long as a test runs.
    return frozenset(thread for thread in threading.enumerate() if not thread.name.startswith("pytest_timeout "))


def _children() -> frozenset[int]:
    return frozenset(_children_of("self"))


def _children_of(pid: int | str) -> Iterator[int]:
    # A process or thread may end between the listing and the reading; its children have moved to a parent by then.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                yield from map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())


def _reap(pids: frozenset[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _shm_names() -> frozenset[str]:
    found = set()
    for name in os.listdir(_SHM):
        if name.startswith("mmc"):
            with contextlib.suppress(FileNotFoundError):
                if (_SHM / name).stat().st_uid == os.getuid():
                    found.add(name)
    return frozenset(found)


def _shm_names_of_others() -> frozenset[str]:
    """Return the names of rings that are not this session's. Only called when a name has appeared."""
    from mmcached.cli.admin.shm_list import list_segments

    ours, to_visit = {os.getpid()}, [os.getpid()]
    while to_visit:
        children = set(_children_of(to_visit.pop())) - ours
        ours |= children
        to_visit += children
    found = set()
    for entry in list_segments():
        if entry.is_live:
            is_another_version = not entry.purpose
            is_of_others = is_another_version or (entry.pid is not None and entry.pid not in ours)
        else:
            is_of_others = entry.run_dir != "" and not _directories.intersection(Path(entry.run_dir, "x").parents)
        if is_of_others:
            found.add(entry.name.lstrip("/"))
    return frozenset(found)


_directories = set[Path]()
"""Temporary directories of this session."""


def note_directory(path: Path) -> None:
    """Count what lies below a directory as this session's."""
    _directories.add(path)


def note_directories() -> None:
    """Count from now on the temporary directories that this process makes as this session's."""

    def hear(event: str, arguments: tuple[object, ...]) -> None:
        if event == "tempfile.mkdtemp":
            note_directory(Path(str(arguments[0])))

    sys.addaudithook(hear)


def _command(pid: int) -> str:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return "(ended)"
