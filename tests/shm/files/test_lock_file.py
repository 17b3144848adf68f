"""LockFile: held means alive, also for a process that is killed; removal never takes a living holder's file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mmcached.shm.files import locks
from mmcached.shm.files.lock_file import LockFile, is_held, remove_if_free

HOLDER = """
import sys
from pathlib import Path
from mmcached.shm.files.lock_file import LockFile
lock = LockFile(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_held_until_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_held(path)
    with LockFile(path) as lock:
        lock.write("who")
        assert is_held(path)
        assert path.read_text() == "who"
        with pytest.raises(BlockingIOError):
            LockFile(path)
        assert not remove_if_free(path)
        assert path.exists()
    assert not is_held(path)
    assert not path.exists()


def test_killed_holder_frees_it_and_the_file_can_be_removed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdin is not None
    try:
        assert child.stdout.readline() == "held\n"
        assert is_held(path)
    finally:
        child.kill()
        child.wait(30)
        child.stdout.close()
        child.stdin.close()
    assert not is_held(path)
    assert path.exists()
    assert remove_if_free(path)
    assert not remove_if_free(path)
    assert not path.exists()


def test_file_removed_between_open_and_lock_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer of a new lock file races with `remove_if_free`: what it ends up holding must have the name."""
    path = tmp_path / "lock"
    original = locks.try_exclusive
    removed: list[bool] = []

    def remove_first(fd: int, byte: int) -> bool:
        if not removed:
            removed.append(True)
            path.unlink()
        return original(fd, byte)

    monkeypatch.setattr("mmcached.shm.files.lock_file.try_exclusive", remove_first)
    with LockFile(path):
        assert is_held(path)


def test_what_is_no_file_is_no_lock(tmp_path: Path) -> None:
    """Nor is it followed, waited for, or removed."""
    target = tmp_path / "target"
    target.touch()
    directory, pipe, link, loop = (tmp_path / name for name in ("directory", "pipe", "link", "loop"))
    directory.mkdir()
    os.mkfifo(pipe)
    link.symlink_to(target)
    loop.symlink_to(loop)
    for path in (directory, pipe, link, loop):
        assert not is_held(path)
        assert not remove_if_free(path)
        with pytest.raises(OSError, match=path.name):
            LockFile(path)
        assert path.lstat()
    assert target.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "theirs"
    path.touch()
    os.chown(path, 65534, 65534)
    assert not is_held(path)
    assert not remove_if_free(path)
    with pytest.raises(PermissionError, match="65534"):
        LockFile(path)
