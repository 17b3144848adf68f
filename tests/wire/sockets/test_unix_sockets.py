"""Who listens at a unix socket, and whose name it is."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from mmcached.wire.sockets.unix_sockets import ListeningProcess, NamedSocket, listener_at


def test_the_kernel_says_who_listens(run_dir: Path) -> None:
    path = run_dir / "s"
    assert listener_at(path) is None
    listener = NamedSocket(path, 8)
    with listener.socket:
        assert listener_at(path) == ListeningProcess(os.getpid(), os.geteuid())
    assert path.exists()
    assert listener_at(path) is None
    listener.remove_name()
    listener.remove_name()
    assert not path.exists()


def test_a_full_queue_is_somebody(run_dir: Path) -> None:
    path = run_dir / "s"
    with NamedSocket(path, 0).socket, socket.socket(socket.AF_UNIX) as waiting:
        waiting.connect(str(path))
        with pytest.raises(BlockingIOError):
            listener_at(path)


def test_the_name_is_left_to_who_has_it_by_now(run_dir: Path) -> None:
    first = NamedSocket(run_dir / "s", 8)
    second = NamedSocket(run_dir / "s", 8)
    with first.socket, second.socket:
        assert not first.is_named()
        first.remove_name()
        assert second.is_named()
