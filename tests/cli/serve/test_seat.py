"""A run directory has one supervisor, whatever becomes of the files in it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mmcached.cli.serve import seat
from mmcached.cli.serve.seat import Seat, supervisor_pid
from mmcached.wire.errors import ConfigError, ServiceUnavailable
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.unix_sockets import ListeningProcess, NamedSocket

HOLDER = """
import sys
from pathlib import Path
from mmcached.cli.serve.seat import Seat
from mmcached.wire.paths import RunDir
with Seat(RunDir(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def directory(run_dir: Path) -> RunDir:
    found = RunDir(run_dir / "d")
    found.create()
    return found


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seat, "PATIENCE_S", 0.02)


def test_one_at_a_time(directory: RunDir) -> None:
    with Seat(directory), pytest.raises(ServiceUnavailable, match="already"):
        Seat(directory)
    with Seat(directory):
        pass


def test_no_file_in_it_is_needed(directory: RunDir) -> None:
    with Seat(directory):
        directory.clients.rmdir()
        with pytest.raises(ServiceUnavailable):
            Seat(directory)


def test_it_goes_with_its_process(directory: RunDir) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ServiceUnavailable):
            Seat(directory)
        holder.kill()
    Seat(directory).close()


def test_who_only_looks_keeps_nobody_out(directory: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seat, "PATIENCE_S", 60.0)
    fd = directory.open()
    fcntl.flock(fd, fcntl.LOCK_SH)
    has_left: list[bool] = []

    def leave() -> None:
        has_left.append(True)
        os.close(fd)

    threading.Timer(0.05, leave).start()
    with Seat(directory):
        assert has_left, "it sits beside somebody who looks"


def test_the_kernel_says_who_holds_it(directory: RunDir) -> None:
    assert supervisor_pid(directory.path / "nothing") is None
    assert supervisor_pid(directory.path) is None
    with Seat(directory), NamedSocket(directory.http_socket, 8).socket:
        assert supervisor_pid(directory.path) == os.getpid()
        with pytest.raises(ServiceUnavailable, match=f"pid {os.getpid()}"):
            Seat(directory)


@pytest.mark.parametrize("listener", [ListeningProcess(1, os.geteuid() + 1), ListeningProcess(0, os.geteuid())])
def test_no_stranger_is_named(directory: RunDir, listener: ListeningProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is named may be sent a signal."""
    monkeypatch.setattr(seat, "listener_at", lambda path: listener)
    with Seat(directory), pytest.raises((ConfigError, ServiceUnavailable)):
        supervisor_pid(directory.path)


def test_a_directory_that_has_the_name_by_now_is_another(directory: RunDir) -> None:
    with Seat(directory) as first:
        (first.directory.path / "config.json").touch()
        assert first.is_named()
        directory.path.rename(directory.path.with_name("former"))
        assert not first.is_named()
        directory.create()
        assert not first.is_named()
        with Seat(directory) as second:
            second.directory.config.touch()
            first.directory.config.unlink()
            assert directory.config.exists()


def test_touch_makes_everything_look_used(directory: RunDir) -> None:
    lock = directory.client_lock("me")
    link = directory.path / "link"
    link.symlink_to("/nowhere")
    lock.touch()
    for path in (lock, directory.path):
        os.utime(path, (1, 1))
    with Seat(directory) as taken:
        taken.touch()
    assert lock.stat().st_mtime > 1
    assert directory.path.stat().st_mtime > 1
