"""The run directory: short, private, ours."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from mmcached.wire.errors import ConfigError
from mmcached.wire.paths import MAX_SOCKET_PATH_BYTES, RunDir, default_run_dir


def test_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert default_run_dir() == Path("/run/user/7/mmcached")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert default_run_dir() == Path(f"/tmp/mmcached-{os.getuid()}")


def test_length_limit_counts_bytes() -> None:
    room = MAX_SOCKET_PATH_BYTES - len("/workers-999.sock")
    longest = RunDir(Path("/" + "x" * (room - 1)))
    assert len(os.fsencode(longest.worker_address(999).removeprefix("ipc://"))) == MAX_SOCKET_PATH_BYTES
    with pytest.raises(ConfigError, match=f"at most {room} bytes") as caught:
        RunDir(Path("/" + "x" * room))
    assert caught.value.details["field"] == "run_dir"
    with pytest.raises(ConfigError):
        RunDir(Path("/" + "é" * (room // 2)))


def test_a_path_of_the_longest_length_can_be_bound(run_dir: Path) -> None:
    import socket

    room = MAX_SOCKET_PATH_BYTES - len(os.fsencode(run_dir)) - len("/" + "/workers-999.sock")
    longest = RunDir(run_dir / ("x" * room))
    longest.create()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(longest.worker_address(999).removeprefix("ipc://"))


def test_create(run_dir: Path) -> None:
    directory = RunDir(run_dir / "a" / "b")
    directory.create()
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(directory.clients.stat().st_mode) == 0o700
    directory.create()


def test_a_directory_open_to_others_is_refused(run_dir: Path) -> None:
    shared = run_dir / "shared"
    shared.mkdir()
    shared.chmod(0o750)
    with pytest.raises(ConfigError, match="chmod 0700"):
        RunDir(shared).create()


def test_a_directory_of_somebody_else_is_refused(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = RunDir(run_dir)
    monkeypatch.setattr(os, "getuid", lambda: run_dir.stat().st_uid + 1)
    with pytest.raises(ConfigError, match="must belong to uid"):
        directory.create()


def test_names_are_inside_and_distinct(run_dir: Path) -> None:
    directory = RunDir(run_dir)
    addresses = [directory.client_address, directory.engine_address, *map(directory.worker_address, range(3))]
    files = [directory.config, directory.supervisor_lock, directory.client_lock("ab")]
    assert len({*addresses, *map(str, files)}) == 8
    assert all(address.startswith(f"ipc://{run_dir}/") for address in addresses)
    assert all(file.is_relative_to(run_dir) for file in files)


def test_leftovers_go_and_the_rest_stays(run_dir: Path) -> None:
    directory = RunDir(run_dir)
    directory.create()
    leftovers = [run_dir / "client.sock", run_dir / "workers-0.sock"]
    kept = [directory.config, directory.supervisor_lock, directory.client_lock("maybe alive")]
    for path in (*leftovers, *kept):
        path.touch()
    directory.remove_sockets()
    assert [path.exists() for path in leftovers] == [False] * 2
    assert all(path.exists() for path in kept)
