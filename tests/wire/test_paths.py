"""The run directory: short, private, ours."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from mmcached.wire import paths
from mmcached.wire.errors import ConfigError, ServiceUnavailable
from mmcached.wire.paths import MAX_SOCKET_PATH_BYTES, RunDir, default_run_dir
from mmcached.wire.sockets.unix_sockets import ListeningProcess, NamedSocket


def test_default_is_a_place_of_this_user_s_own(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(run_dir))
    assert default_run_dir() == run_dir / "mmcached"
    link = run_dir / "link"
    link.symlink_to(run_dir)
    uid = 4_000_000_000
    for elsewhere in (str(link), str(run_dir / "nothing"), ""):
        monkeypatch.setenv("XDG_RUNTIME_DIR", elsewhere)
        monkeypatch.setattr(os, "geteuid", lambda: uid)
        with pytest.raises(ConfigError, match="--run-dir DIR"):
            default_run_dir()
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    with pytest.raises(ConfigError, match="--run-dir DIR"):
        default_run_dir()


def test_the_environment_s_run_directory_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMC_RUN_DIR", "/srv/cache")
    assert default_run_dir() == Path("/srv/cache")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_default_is_not_in_the_runtime_directory_of_another_user(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As sudo may leave it in the environment."""
    theirs = run_dir / "theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(theirs))
    assert not default_run_dir().is_relative_to(theirs)


def test_length_limit_counts_bytes() -> None:
    room = MAX_SOCKET_PATH_BYTES - len("/workers-999.sock")
    longest = RunDir(Path("/" + "x" * (room - 1)))
    assert len(os.fsencode(longest.worker_address(999).removeprefix("ipc://"))) == MAX_SOCKET_PATH_BYTES
    with pytest.raises(ConfigError, match=f"at most {room} bytes") as caught:
        RunDir(Path("/" + "x" * room))
    assert caught.value.details["field"] == "run_dir"
    with pytest.raises(ConfigError):
        RunDir(Path("/" + "é" * (room // 2)))


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
    monkeypatch.setattr(os, "geteuid", lambda: run_dir.stat().st_uid + 1)
    for opening in (directory.create, directory.check, directory.is_served):
        with pytest.raises(ConfigError, match=f"belongs to uid {run_dir.stat().st_uid}.*run this as that user"):
            opening()


def test_what_is_no_directory_is_refused(run_dir: Path) -> None:
    file, link, below = run_dir / "file", run_dir / "link", Path("/proc/mmcached")
    file.touch()
    link.symlink_to(run_dir)
    for path in (file, link):
        for opening in (RunDir(path).create, RunDir(path).check):
            with pytest.raises(ConfigError, match="must be a directory"):
                opening()
    with pytest.raises(ConfigError, match="cannot be made"):
        RunDir(below).create()
    assert not (run_dir / "clients").exists(), "nothing was made through the link"


def test_no_directory_is_no_service(run_dir: Path) -> None:
    with pytest.raises(ServiceUnavailable, match="mmcached serve --run-dir"):
        RunDir(run_dir / "nobody").check()


def test_a_socket_of_somebody_else_is_refused(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """He made it while the directory was still open to him."""
    directory = RunDir(run_dir)
    assert not directory.is_served()
    listener = NamedSocket(run_dir / "client.sock", 1)
    with listener.socket:
        assert directory.is_served()
        monkeypatch.setattr(paths, "listener_at", lambda path: ListeningProcess(1, os.geteuid() + 1))
        with pytest.raises(ConfigError, match=r"client\.sock must be of uid"):
            directory.is_served()


def test_leftovers_go_and_the_rest_stays(run_dir: Path) -> None:
    directory = RunDir(run_dir)
    directory.create()
    leftovers = [run_dir / "client.sock", run_dir / "workers-0.sock"]
    kept = [directory.config, directory.stats_page, directory.client_lock("maybe alive")]
    for path in (*leftovers, *kept):
        path.touch()
    directory.remove_sockets()
    assert [path.exists() for path in leftovers] == [False] * 2
    assert all(path.exists() for path in kept)
